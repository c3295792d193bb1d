"""A simulated job that publishes itself from a thread, and says how it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Self

from irregulars.messages.records import Batch
from irregulars.producers.publishing.agent import Agent, AgentSettings, Progress
from irregulars.producers.publishing.delegating_source import PassingSource
from irregulars.producers.publishing.sources import Record, Source
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource

_STOP_S: Final = 20.0


class WatchedSource(PassingSource):
    """A source that lets its records through and keeps each iteration's time: the largest of its ranks'."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._elapsed_ns: dict[int, float] = {}

    def poll(self, max_records: int) -> Sequence[Record]:
        """Poll the source, and look at what comes."""
        records = super().poll(max_records)
        for record in records:
            if isinstance(record, Batch) and record.header.schema == "iterations":
                self._note(record)
        return records

    def iteration_times_s(self) -> list[float]:
        """Times of the iterations so far, in their order, seconds."""
        # A copy first: the agent's thread adds to it.
        return [elapsed_ns / 1e9 for _, elapsed_ns in sorted(dict(self._elapsed_ns).items())]

    def _note(self, batch: Batch) -> None:
        pairs = zip(batch.columns["iteration"].tolist(), batch.columns["elapsed_ns"].tolist(), strict=True)
        for iteration, elapsed_ns in pairs:
            self._elapsed_ns[iteration] = max(elapsed_ns, self._elapsed_ns.get(iteration, 0.0))


class PublishedRun:
    """A source that is published from a thread. Use it as a context: leaving it stops the publishing cleanly.

    Parameters
    ----------
    source
        What to publish.
    agent
        Where to.
    """

    def __init__(self, source: Source, agent: AgentSettings) -> None:
        self.source = WatchedSource(source)
        self._agent = Agent(self.source, agent)
        self._thread = threading.Thread(target=self._run, name="published-job", daemon=True)
        self._failure: BaseException | None = None
        self.done: Progress | None = None

    @property
    def is_running(self) -> bool:
        """Whether the source has not ended; raises what the agent raised if it failed."""
        if self._failure is not None:
            raise self._failure
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.done = self._agent.run()
        except BaseException as error:  # shown by the thread that watches
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.stop()
        self._thread.join(_STOP_S)


class SimulatedRun(PublishedRun):
    """A simulated job at real pace, beginning now.

    Parameters
    ----------
    job
        What to simulate.
    agent
        Where to publish.
    """

    def __init__(self, job: SimulatorSettings, agent: AgentSettings) -> None:
        super().__init__(SimulatorSource(job, start_ns=time.time_ns(), now_ns=time.time_ns), agent)
