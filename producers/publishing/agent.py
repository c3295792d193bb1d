"""The publishing agent: polls a source, publishes what comes, and sends heartbeats.

It keeps no data of its own: what the broker does not take yet waits in a bounded queue, and the source waits with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from irregulars.errors import InputError
from irregulars.kafka.topics import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, group_key, rank_key
from irregulars.messages.announcements import (
    Announcement,
    Heartbeat,
    SourceProgress,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.records import SCHEMAS, Batch, Header
from irregulars.producers.publishing.batches import encode_in_parts
from irregulars.producers.publishing.bundling import Bundler, encode_together
from irregulars.producers.publishing.publisher import AgentSettings, Publisher
from irregulars.producers.publishing.sources import Record, Source

__all__ = ["Agent", "AgentSettings", "Progress"]

_LOG: Final = logging.getLogger("irregulars.agent")
_TOPICS: Final = ("jobs", *SCHEMAS, "heartbeats")
_IDLE_S: Final = 0.02
_NOTHING_NEW: Final = 10
"""A heartbeat that says nothing new is left out, but for each tenth: batches say how far they are themselves, and
thousands of small messages a second keep a worker from the large ones."""

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


_NO_PROGRESS: Final = SourceProgress(0)

_Key = tuple[str, int, int, str | None, int | None]  # job, attempt, rank, start, since when it has its place


@dataclass(slots=True)
class _Rank:
    """What a rank's next heartbeat says, and what was said of it before."""

    job: str
    attempt: int
    rank: int
    group: str | None = None
    start: str | None = None
    since_ns: int | None = None
    sources: dict[str, SourceProgress] = field(default_factory=dict)
    lost_rows: dict[str, int] = field(default_factory=dict)  # that the source said
    told: dict[str, SourceProgress] = field(default_factory=dict)  # by heartbeats and headers of batches
    left_out: int = _NOTHING_NEW  # heartbeats, one after the other: the first one is sent

    @property
    def key(self) -> bytes:
        """Key of its messages, other than the announcement."""
        return rank_key(self.job, self.rank) if self.group is None else group_key(self.job, self.group)

    def published(self, schema: str, progress: SourceProgress) -> None:
        """Note a batch, whose header says how far its source is; what was lost only heartbeats say."""
        self.sources[schema] = progress
        self.told[schema] = replace(progress, lost_rows=self.told.get(schema, _NO_PROGRESS).lost_rows)

    def has_news(self, beat: Heartbeat) -> bool:
        """Whether a heartbeat says more than was said before."""
        return any(progress != self.told.get(schema, _NO_PROGRESS) for schema, progress in beat.sources.items())

    def move_watermark(self, schema: str, watermark_ns: int | None) -> None:
        known = self.sources.get(schema, SourceProgress(0, None))
        if watermark_ns is not None and (known.watermark_ns is None or known.watermark_ns < watermark_ns):
            self.sources[schema] = replace(known, watermark_ns=watermark_ns)

    def heartbeat(self, reason: str | None, publisher: Publisher) -> Heartbeat:
        state = "running" if reason is None else "ended"
        key = rank_key(self.job, self.rank)
        sources = {
            schema: replace(
                progress,
                lost_rows=self.lost_rows.get(schema, 0) + publisher.lost_rows(schema, key, self.attempt),
            )
            for schema, progress in self.sources.items()
        }
        return Heartbeat(
            self.job, self.attempt, self.rank, sources, state, reason, self.group, self.start, self.since_ns
        )


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
    topics
        Those that must exist.
    make_publisher
        Makes what carries messages to Kafka.
    idle_s
        How long a source that has nothing is left alone, seconds.
    ends_ranks
        Whether the agent speaks for its ranks from their first record to its own end. Where it does not, it sends
        heartbeats of a rank from its announcement until the source says that it has ended: others may speak for ranks
        that were not announced here, and another agent may follow this one.
    """

    def __init__(
        self,
        source: Source,
        settings: AgentSettings,
        on_progress: Callable[[Progress], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        topics: Sequence[str] = _TOPICS,
        make_publisher: Callable[[AgentSettings], Publisher] = Publisher,
        idle_s: float = _IDLE_S,
        ends_ranks: bool = True,
    ) -> None:
        self._source, self._settings, self._clock_s = source, settings, clock_s
        self._on_progress = on_progress
        self._topics, self._make_publisher, self._idle_s = topics, make_publisher, idle_s
        self._ends_ranks = ends_ranks
        self._ranks: dict[_Key, _Rank] = {}
        self._bundler = Bundler(settings.bundle_s)
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
            publisher = self._make_publisher(self._settings)
            publisher.connect(self._topics)
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
            self._publish_together(publisher, self._bundler.take_due(self._clock_s()))
            self._beat_if_due(publisher)
            publisher.serve(0.0 if records else self._idle_s)
        return self._end(publisher, FINISHED if self._source.is_exhausted else STOPPED)

    def _end(self, publisher: Publisher, reason: str) -> Progress:
        self._publish_together(publisher, self._bundler.take_all())
        self._beat(publisher, reason if self._ends_ranks else None)
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
        elif isinstance(record, Heartbeat):
            self._take_heartbeat(publisher, record)
        elif record.header.group is not None:
            self._publish_together(publisher, self._bundler.add(record, self._clock_s()))
        else:
            for part, value in encode_in_parts(record, MAX_MESSAGE_BYTES):
                self._publish_batches(publisher, [part], value)

    def _publish_together(self, publisher: Publisher, bundles: Iterable[Sequence[Batch]]) -> None:
        for batches in bundles:
            for some, value in encode_together(batches, MAX_MESSAGE_BYTES):
                self._publish_batches(publisher, some, value)

    def _publish_announcement(self, publisher: Publisher, announcement: Announcement) -> None:
        value = encode_announcement(announcement)
        if len(value) >= MAX_MESSAGE_BYTES:
            rule = f"below {MAX_MESSAGE_BYTES} bytes"
            raise InputError(f"announcement of rank {announcement.rank} must be {rule}; got {len(value)}")
        key = rank_key(announcement.job, announcement.rank)
        if len(key) > MAX_KEY_BYTES:
            raise InputError(f"name of the job must be below {MAX_KEY_BYTES} bytes; got {len(key)}")
        group = announcement.group  # its partition is that of all else which the rank sends
        where = None if group is None else group_key(announcement.job, group)
        if where is not None and len(where) > MAX_KEY_BYTES:
            raise InputError(f"names of job and host must be below {MAX_KEY_BYTES} bytes; got {len(where)}")
        publisher.send("jobs", key, value, attempt=announcement.attempt, partition_key=where)
        self._bundler.announce(announcement)
        if announcement.is_logged:
            self._forget_earlier(announcement)
            rank = self._ranks.setdefault(_key_of(announcement), _rank_of(announcement))
            for schema in announcement.sources:
                rank.sources.setdefault(schema, SourceProgress(0, None))
        self._count(len(value), announcements=1)

    def _forget_earlier(self, own: Announcement) -> None:
        """Stop sending heartbeats for earlier starts and places of a rank, which may have been killed."""
        same = [key for key in self._ranks if (key[0], key[2]) == (own.job, own.rank)]
        for key in [key for key in same if key[1] < own.attempt or key[3:] != (own.start, own.since_ns)]:
            del self._ranks[key]

    def _take_heartbeat(self, publisher: Publisher, told: Heartbeat) -> None:
        """Take over a source's own heartbeat: lost rows, watermarks, and the end of the rank."""
        rank = self._rank(told)
        if rank.group is not None:  # a watermark must not overtake the rows that are before it
            self._publish_together(publisher, self._bundler.take_all())
        for schema, progress in told.sources.items():
            rank.lost_rows[schema] = max(progress.lost_rows, rank.lost_rows.get(schema, 0))
            rank.move_watermark(schema, progress.watermark_ns)
        if told.state == "ended":
            if rank.group is not None:
                self._bundler.forget(told, rank.group)
            self._beat_for(publisher, rank, told.reason or FINISHED)
            self._ranks.pop(_key_of(told), None)

    def _publish_batches(self, publisher: Publisher, batches: Sequence[Batch], value: bytes) -> None:
        """Send one message with a batch, or with the batches of a bundle."""
        first, rows = batches[0].header, sum(map(len, batches))
        ranks = [self._rank(batch.header) for batch in batches]
        publisher.send(first.schema, ranks[0].key, value, rows, first.attempt)
        newest_ns = self._progress.watermark_ns
        for rank, batch in zip(ranks, batches, strict=True):
            until_ns = batch.header.watermark_ns  # which never falls
            rank.published(first.schema, SourceProgress(batch.header.rows_before + len(batch), until_ns))
            if until_ns is not None:
                newest_ns = max(newest_ns or 0, until_ns)
        self._progress = replace(self._progress, watermark_ns=newest_ns)
        self._count(len(value), batches=1, rows=rows)

    def _rank(self, own: Heartbeat | Header) -> _Rank:
        """Find a rank. A resumed source does not announce again: then its first batch makes it known."""
        found = self._ranks.get(_key_of(own))
        if found is None:
            found = _rank_of(own)
            if self._ends_ranks:
                self._ranks[_key_of(own)] = found
        return found

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
        if not publisher.is_behind:
            self._beat_of_news(publisher)
        self._report(publisher)

    def _beat(self, publisher: Publisher, reason: str | None) -> None:
        for rank in self._ranks.values():
            self._beat_for(publisher, rank, reason)

    def _beat_for(self, publisher: Publisher, rank: _Rank, reason: str | None) -> None:
        self._send_beat(publisher, rank, rank.heartbeat(reason, publisher))

    def _beat_of_news(self, publisher: Publisher) -> None:
        """Send the heartbeats that say something new, and now and then the others."""
        for rank in self._ranks.values():
            beat = rank.heartbeat(None, publisher)
            if rank.has_news(beat) or rank.left_out >= _NOTHING_NEW - 1:
                self._send_beat(publisher, rank, beat)
            else:
                rank.left_out += 1

    def _send_beat(self, publisher: Publisher, rank: _Rank, beat: Heartbeat) -> None:
        rank.told, rank.left_out = dict(beat.sources), 0
        publisher.send("heartbeats", rank.key, encode_heartbeat(beat))

    def _report(self, publisher: Publisher) -> None:
        delivered = publisher.delivered.messages
        self._progress = replace(self._progress, delivered_messages=delivered, position=self._source.position())
        if self._on_progress is not None:
            self._on_progress(self._progress)


def _key_of(own: Announcement | Heartbeat | Header) -> _Key:
    return own.job, own.attempt, own.rank, own.start, own.since_ns


def _rank_of(own: Announcement | Heartbeat | Header) -> _Rank:
    return _Rank(own.job, own.attempt, own.rank, own.group, own.start, own.since_ns)
