"""The publishing agent: polls a source, publishes what comes, and sends heartbeats.

It keeps no data of its own: what the broker does not take yet waits in a bounded queue, and the source waits with it.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Final

from producers.batches import encode_in_parts
from producers.publisher import AgentSettings, Publisher
from producers.sources import Record, Source
from streams.announcements import Announcement, Heartbeat, SourceProgress, encode_announcement, encode_heartbeat
from streams.errors import InputError
from streams.records import SCHEMAS, Batch
from streams.topics import MAX_MESSAGE_BYTES, rank_key

__all__ = ["Agent", "AgentSettings", "Progress", "stop_on_signals"]

_LOG: Final = logging.getLogger("irregulars.agent")
_TOPICS: Final = ("jobs", *SCHEMAS, "heartbeats")
_IDLE_S: Final = 0.02

FINISHED: Final = "finished"
STOPPED: Final = "stopped"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an agent has come.

    Parameters
    ----------
    announcements, batches, rows, value_bytes
        Published so far: announcements, messages with rows, rows of all schemas, bytes of all messages before
        compression.
    delivered_messages
        Acknowledged by the broker: announcements, batches and heartbeats.
    watermark_ns
        Newest event time published; `None` before there is one.
    position
        Of the source. In the `Progress` that `Agent.run` returns everything before it is acknowledged: resume there.
    reason
        ``finished`` or ``stopped`` once it has ended.
    """

    announcements: int = 0
    batches: int = 0
    rows: int = 0
    value_bytes: int = 0
    delivered_messages: int = 0
    watermark_ns: int | None = None
    position: str = ""
    reason: str | None = None


@dataclass(slots=True)
class _Rank:
    """What a rank's next heartbeat says."""

    job: str
    attempt: int
    rank: int
    sources: dict[str, SourceProgress] = field(default_factory=dict)

    def heartbeat(self, reason: str | None) -> Heartbeat:
        state = "running" if reason is None else "ended"
        return Heartbeat(self.job, self.attempt, self.rank, dict(self.sources), state, reason)


class Agent:
    """Publishes all that a source gives; one agent may carry many ranks.

    Parameters
    ----------
    source
        Is polled from the thread that calls `run`, and closed at its end.
    settings
        Where to and how.
    on_progress
        Called at each heartbeat, and at the end.
    clock_s
        Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        source: Source,
        settings: AgentSettings,
        on_progress: Callable[[Progress], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._settings, self._clock_s = source, settings, clock_s
        self._on_progress = on_progress
        self._ranks: dict[tuple[str, int, int], _Rank] = {}
        self._progress = Progress()
        self._is_stopping = False
        self._next_beat_s = 0.0

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopping

    def stop(self) -> None:
        """End soon: what was polled is still delivered. May be called from a signal handler or another thread."""
        self._is_stopping = True

    def run(self) -> Progress:
        """Publish until the source ends or `stop` is called; returns when the broker has acknowledged everything.

        Raises
        ------
        ServiceUnavailable
            If no broker answers within ``broker_wait_s``, at the start or later.
        ServiceRefused
            If a broker refuses our credentials or rights.
        TopicMismatch
            If topics are missing, or differ in their numbers of partitions.
        ServiceError
            If messages could not be delivered for another reason.
        """
        publisher: Publisher | None = None
        try:
            publisher = Publisher(self._settings)
            publisher.connect(_TOPICS)
            return self._publish_all(publisher)
        finally:
            self._source.close()
            if publisher is not None:
                publisher.close()

    def _publish_all(self, publisher: Publisher) -> Progress:
        self._next_beat_s = self._clock_s() + self._settings.heartbeat_s
        while not (self._is_stopping or self._source.is_exhausted):
            records = self._source.poll(self._settings.poll_records)
            for record in records:
                self._publish(publisher, record)
                self._beat_if_due(publisher)
            self._beat_if_due(publisher)
            publisher.serve(0.0 if records else _IDLE_S)
        return self._end(publisher, FINISHED if self._source.is_exhausted else STOPPED)

    def _end(self, publisher: Publisher, reason: str) -> Progress:
        self._beat(publisher, reason)
        publisher.flush()
        self._progress = replace(self._progress, reason=reason)
        self._report(publisher)
        _LOG.info(
            "event=agent_ended reason=%s ranks=%d rows=%d messages=%d",
            reason,
            len(self._ranks),
            self._progress.rows,
            self._progress.delivered_messages,
        )
        return self._progress

    def _publish(self, publisher: Publisher, record: Record) -> None:
        if isinstance(record, Announcement):
            self._publish_announcement(publisher, record)
        else:
            for part, value in encode_in_parts(record, MAX_MESSAGE_BYTES):
                self._publish_batch(publisher, part, value)

    def _publish_announcement(self, publisher: Publisher, announcement: Announcement) -> None:
        value = encode_announcement(announcement)
        if len(value) >= MAX_MESSAGE_BYTES:
            rule = f"below {MAX_MESSAGE_BYTES} bytes"
            raise InputError(f"announcement of rank {announcement.rank} must be {rule}; got {len(value)}")
        publisher.send("jobs", rank_key(announcement.job, announcement.rank), value)
        if announcement.is_logged:
            rank = self._rank(announcement.job, announcement.attempt, announcement.rank)
            for schema in announcement.sources:
                rank.sources.setdefault(schema, SourceProgress(0, None))
        self._count(len(value), announcements=1)

    def _publish_batch(self, publisher: Publisher, batch: Batch, value: bytes) -> None:
        header = batch.header
        publisher.send(header.schema, rank_key(header.job, header.rank), value)
        rows = header.rows_before + len(batch)
        sources = self._rank(header.job, header.attempt, header.rank).sources
        sources[header.schema] = SourceProgress(rows, header.watermark_ns)  # a header's watermark never falls
        self._count(len(value), batches=1, rows=len(batch))
        if header.watermark_ns is not None:
            newest_ns = max(self._progress.watermark_ns or 0, header.watermark_ns)
            self._progress = replace(self._progress, watermark_ns=newest_ns)

    def _rank(self, job: str, attempt: int, rank: int) -> _Rank:
        # A resumed source does not announce again: then the first batch makes a rank known.
        return self._ranks.setdefault((job, attempt, rank), _Rank(job, attempt, rank))

    def _count(self, value_bytes: int, announcements: int = 0, batches: int = 0, rows: int = 0) -> None:
        before = self._progress
        self._progress = replace(
            before,
            announcements=before.announcements + announcements,
            batches=before.batches + batches,
            rows=before.rows + rows,
            value_bytes=before.value_bytes + value_bytes,
        )

    def _beat_if_due(self, publisher: Publisher) -> None:
        now_s = self._clock_s()
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + self._settings.heartbeat_s
        self._beat(publisher, None)
        self._report(publisher)

    def _beat(self, publisher: Publisher, reason: str | None) -> None:
        for rank in self._ranks.values():
            publisher.send("heartbeats", rank_key(rank.job, rank.rank), encode_heartbeat(rank.heartbeat(reason)))

    def _report(self, publisher: Publisher) -> None:
        delivered = publisher.delivered.messages
        self._progress = replace(self._progress, delivered_messages=delivered, position=self._source.position())
        if self._on_progress is not None:
            self._on_progress(self._progress)


@contextmanager
def stop_on_signals(agent: Agent) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop `agent` while the block runs; only in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        agent.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
