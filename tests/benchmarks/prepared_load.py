"""What agents publish, prepared before it is sent: a load whose making takes none of the time that is measured.

Agents run on the hosts of a job, and encode there. A benchmark on one machine would share its cores between them and
the worker. So the agent runs beforehand, on a clock that stands still while it works, and its messages are sent
later, each when the agent had sent it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from irregulars.producers.publishing.agent import Agent
from irregulars.producers.publishing.publisher import AgentSettings, Publisher
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.source import TraceSource

_LONGEST_WAIT_S: Final = 0.02


class Prepared(NamedTuple):
    """A message, as `Publisher.send` takes it, and when it is sent, seconds since the first."""

    at_s: float
    topic: str
    key: bytes
    value: bytes
    rows: int
    attempt: int
    partition_key: bytes | None


class _Clock:
    """A clock that goes on while its agent waits, and at no other time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Recorder(Publisher):
    """Keeps messages instead of sending them."""

    def __init__(self, settings: AgentSettings, clock: _Clock) -> None:
        self.messages: list[Prepared] = []
        self._clock = clock
        super().__init__(settings)

    def _prepare(self) -> None:
        pass

    def connect(self, topics: Iterable[str]) -> None:
        """There is nobody to connect to."""

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        rows: int = 0,
        attempt: int = 0,
        partition_key: bytes | None = None,
    ) -> None:
        """Keep it."""
        self.messages.append(Prepared(self._clock.now_s, topic, key, value, rows, attempt, partition_key))

    def serve(self, wait_s: float = 0.0) -> None:
        """Let the time pass."""
        self._clock.now_s += wait_s

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


def prepare(trace: Trace, settings: AgentSettings) -> list[Prepared]:
    """Return what an agent sends that replays a trace at its own pace."""
    clock = _Clock()
    recorder = _Recorder(settings, clock)

    def recording(own: AgentSettings) -> Publisher:
        return recorder

    Agent(TraceSource(trace, 1.0, clock_s=clock), settings, clock_s=clock, make_publisher=recording).run()
    return recorder.messages


def send(messages: Sequence[Prepared], settings: AgentSettings, topics: Sequence[str]) -> tuple[float, float]:
    """Send them at their times; return when it began and ended, seconds since the epoch."""
    publisher = Publisher(settings)
    publisher.connect(topics)
    began_s = time.time()
    for message in messages:
        while (wait_s := began_s + message.at_s - time.time()) > 0:
            publisher.serve(min(wait_s, _LONGEST_WAIT_S))
        publisher.send(*message[1:])
    publisher.flush()
    publisher.close()
    return began_s, time.time()
