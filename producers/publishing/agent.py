"""The publishing agent: polls a source, publishes its records, and sends heartbeats.

It runs in the agent of a GPU node (`infra.runs.node_agent`), in `irregulars replay`, and in a training process that
publishes for itself. It keeps no data of its own: messages that the broker does not take yet wait in a bounded queue,
and the source waits with it.
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
from irregulars.producers.publishing.batches import Bundler, encode_in_parts, encode_together
from irregulars.producers.publishing.publisher import AgentSettings, Publisher
from irregulars.producers.publishing.sources import GONE, RankKey, Record, Source, key_of
from irregulars.producers.publishing.spool import Message

__all__ = ["Agent", "AgentSettings", "Progress", "announcing_message"]
_LOG: Final = logging.getLogger("irregulars.agent")
_TOPICS: Final = ("jobs", *SCHEMAS, "heartbeats")
# Seconds for which acknowledgements are awaited after a poll that brought nothing.
_IDLE_S: Final = 0.02
# A heartbeat without news is left out, but for each tenth: headers of batches carry the progress themselves, and
# thousands of small messages a second keep a worker from the large ones.
_NOTHING_NEW: Final = 10
# Seconds without a message, as Kafka or this host was away, after which ranks are announced again: a worker forgets
# one of which nothing came for a day (`forget_s`), and would take its rows for those of an unknown rank. Rows of so
# long come before the first of these messages, and are held until then.
_ANNOUNCE_AGAIN_S: Final = 900.0
FINISHED: Final = "finished"
STOPPED: Final = "stopped"


@dataclass(slots=True)
class Progress:
    """Counts of an agent since its start."""

    # announcements, batches, rows, value_bytes: Published so far: announcements, messages with rows, rows of all
    # schemas, bytes of all messages before compression
    announcements: int = 0
    batches: int = 0
    rows: int = 0
    value_bytes: int = 0
    delivered_messages: int = 0  # acknowledged by the broker: announcements, batches and heartbeats
    watermark_ns: int | None = None  # newest event time published; `None` before there is one
    # Of the source. In the `Progress` that `Agent.run` returns everything before it is acknowledged: resume there.
    position: str = ""
    reason: str | None = None  # ``finished`` or ``stopped`` once it has ended


_NO_PROGRESS: Final = SourceProgress(0)


@dataclass(slots=True)
class _Rank:
    """The values of a rank's next heartbeat, and those that were published before."""

    own: Announcement | Heartbeat | Header  # the record that made it known
    sources: dict[str, SourceProgress] = field(default_factory=dict)
    lost_rows: dict[str, int] = field(default_factory=dict)  # by the source's own heartbeats
    published: dict[str, SourceProgress] = field(default_factory=dict)  # by heartbeats and headers of batches
    left_out: int = _NOTHING_NEW  # heartbeats, one after the other: the first one is sent

    @property
    def key(self) -> bytes:
        """Key of its messages, other than the announcement."""
        own = self.own
        return rank_key(own.job, own.rank) if own.group is None else group_key(own.job, own.group)

    def heartbeat(self, reason: str | None, publisher: Publisher) -> Heartbeat:
        own, sources = self.own, {}
        for schema, progress in self.sources.items():
            lost_rows = publisher.lost_rows(schema, rank_key(own.job, own.rank), own.attempt)
            sources[schema] = replace(progress, lost_rows=self.lost_rows.get(schema, 0) + lost_rows)
        state = "running" if reason is None else "ended"
        place = (own.group, own.start, own.since_ns)
        return Heartbeat(own.job, own.attempt, own.rank, sources, state, reason, *place)


def announcing_message(own: Announcement) -> Message:
    """Make the message that announces a rank; raises InputError if it, or a key of the rank, would be too large."""
    value = encode_announcement(own)
    if len(value) >= MAX_MESSAGE_BYTES:
        rule = f"below {MAX_MESSAGE_BYTES} bytes"
        raise InputError(f"announcement of rank {own.rank} must be {rule}; got {len(value)}")
    key = rank_key(own.job, own.rank)
    if len(key) > MAX_KEY_BYTES:
        raise InputError(f"name of the job must be below {MAX_KEY_BYTES} bytes; got {len(key)}")
    # The partition of everything else that the rank sends.
    where = b"" if own.group is None else group_key(own.job, own.group)
    if len(where) > MAX_KEY_BYTES:
        raise InputError(f"names of job and host must be below {MAX_KEY_BYTES} bytes; got {len(where)}")
    return Message("jobs", key, value, attempt=own.attempt, partition_key=where)


class Agent:
    """Publishes all that a source gives; one agent may carry many ranks.

    `source`: is polled from the thread that calls `run`, and closed at its end. `topics`: those that must exist.
    `make_publisher`: makes the publisher. `ends_ranks`: whether the agent sends heartbeats of its
    ranks from their first record to its own end. Where not, it sends those of a rank from its announcement until the
    source ends it: other processes may send for ranks that were not announced here, and another agent may follow this
    one. `now_s`: the clock of the day.
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
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._settings, self._clock_s, self._now_s = source, settings, clock_s, now_s
        self._on_progress = on_progress
        self._topics, self._make_publisher, self._idle_s = topics, make_publisher, idle_s
        self._ends_ranks = ends_ranks
        self._ranks: dict[RankKey, _Rank] = {}
        self._bundler = Bundler(settings.bundle_s)
        self._progress = Progress()
        self._is_stopping = False
        self._next_beat_s = 0.0
        # When Kafka had taken more, or ranks were announced again, by the clock of the day; and how much it had taken
        self._current_s, self._delivered = 0.0, 0

    def stop(self) -> None:
        """End soon; polled records are still delivered. May be called from a signal handler or another thread."""
        self._is_stopping = True

    def run(self) -> Progress:
        """Publish until the source ends or `stop` is called; returns when the broker has acknowledged everything.

        Raises ServiceUnavailable if no broker answers within ``broker_wait_s``, at the start or later; ServiceRefused
        if a broker refuses our credentials or rights; TopicMismatch if topics are missing, or differ in their numbers
        of partitions; ServiceError if messages could not be delivered for another reason.
        """
        publisher: Publisher | None = None
        try:
            publisher = self._make_publisher(self._settings)
            publisher.connect(self._topics)
            self._next_beat_s = self._clock_s() + self._settings.heartbeat_s
            self._current_s = self._now_s()
            while not (self._is_stopping or self._source.is_exhausted):
                records = self._source.poll(self._settings.poll_records)
                for record in records:
                    self._publish(publisher, record)
                    # After each record: to publish those of one poll may take longer than a heartbeat's period.
                    self._beat_if_due(publisher)
                self._publish_together(publisher, self._bundler.take_due(self._clock_s()))
                self._beat_if_due(publisher)
                publisher.serve(0.0 if records else self._idle_s)
            # Bundles that wait go out first: the last heartbeats count their rows too.
            reason = FINISHED if self._source.is_exhausted else STOPPED
            self._publish_together(publisher, self._bundler.take_all())
            for rank in self._ranks.values():
                self._beat(publisher, rank, rank.heartbeat(reason if self._ends_ranks else None, publisher))
            publisher.flush()
            self._progress.reason = reason
            self._report(publisher)
            counts = (len(self._ranks), self._progress.rows, self._progress.delivered_messages)
            _LOG.info("event=agent_ended reason=%s ranks=%d rows=%d messages=%d", reason, *counts)
            return self._progress
        finally:
            self._source.close()
            if publisher is not None:
                publisher.close()

    def _publish(self, publisher: Publisher, record: Record) -> None:
        if isinstance(record, Announcement):
            self._publish_announcement(publisher, record)
        elif isinstance(record, Heartbeat) and record.state == GONE:
            gone = self._ranks.pop(key_of(record), None)
            if gone is not None and gone.own.group is not None:
                self._bundler.forget(record, gone.own.group)
        elif isinstance(record, Heartbeat):
            # Apply a source's own heartbeat: lost rows, watermarks, and the end of the rank.
            rank = self._rank(record)
            if rank.own.group is not None:  # a watermark must not overtake the rows that are before it
                self._publish_together(publisher, self._bundler.take_all())
            for schema, progress in record.sources.items():
                # The count only grows: a heartbeat that comes late must not lower it.
                rank.lost_rows[schema] = max(progress.lost_rows, rank.lost_rows.get(schema, 0))
                known = rank.sources.get(schema, SourceProgress(0, None))
                until_ns = progress.watermark_ns
                if until_ns is not None and (known.watermark_ns is None or known.watermark_ns < until_ns):
                    rank.sources[schema] = replace(known, watermark_ns=until_ns)
            if record.state == "ended":
                if rank.own.group is not None:
                    self._bundler.forget(record, rank.own.group)
                self._beat(publisher, rank, rank.heartbeat(record.reason or FINISHED, publisher))
                self._ranks.pop(key_of(record), None)
        elif record.header.group is not None:
            self._publish_together(publisher, self._bundler.add(record, self._clock_s()))
        else:
            for part, value in encode_in_parts(record, MAX_MESSAGE_BYTES):
                self._publish_batches(publisher, [part], value)

    def _publish_together(self, publisher: Publisher, bundles: Iterable[Sequence[Batch]]) -> None:
        for batches in bundles:
            for some, value in encode_together(batches, MAX_MESSAGE_BYTES):
                self._publish_batches(publisher, some, value)

    def _publish_announcement(self, publisher: Publisher, own: Announcement) -> None:
        message = announcing_message(own)
        publisher.send(message)
        self._bundler.announce(own)
        # A rank that writes no rows is announced, and needs no heartbeats.
        if own.is_logged:
            # Earlier starts and places of the rank may have been killed: no more heartbeats are sent for them.
            for at in [at for at in self._ranks if (at[0], at[2]) == (own.job, own.rank)]:
                if at[1] < own.attempt or at[3:] != (own.start, own.since_ns):
                    del self._ranks[at]
            known = self._ranks.setdefault(key_of(own), _Rank(own))
            known.own = own  # the newest: groups may have been made since the first
            for schema in own.sources:
                known.sources.setdefault(schema, SourceProgress(0, None))
        self._progress.announcements += 1
        self._progress.value_bytes += len(message.value)

    def _publish_batches(self, publisher: Publisher, batches: Sequence[Batch], value: bytes) -> None:
        """Send one message with a batch, or with the batches of a bundle."""
        first, rows = batches[0].header, sum(map(len, batches))
        ranks = [self._rank(batch.header) for batch in batches]
        publisher.send(Message(first.schema, ranks[0].key, value, rows, first.attempt))
        done = self._progress
        for rank, batch in zip(ranks, batches, strict=True):
            until_ns = batch.header.watermark_ns  # which never falls
            progress = SourceProgress(batch.header.rows_before + len(batch), until_ns)
            rank.sources[first.schema] = progress
            # The header has the progress; only heartbeats have the number of lost rows.
            lost_rows = rank.published.get(first.schema, _NO_PROGRESS).lost_rows
            rank.published[first.schema] = replace(progress, lost_rows=lost_rows)
            if until_ns is not None:
                done.watermark_ns = max(done.watermark_ns or 0, until_ns)
        done.batches += 1
        done.rows += rows
        done.value_bytes += len(value)

    def _rank(self, own: Heartbeat | Header) -> _Rank:
        """Return a rank. A resumed source does not announce again: then its first batch makes it known."""
        found = self._ranks.get(key_of(own))
        if found is None:
            found = _Rank(own)
            if self._ends_ranks:
                self._ranks[key_of(own)] = found
        return found

    def _beat_if_due(self, publisher: Publisher) -> None:
        """Send the heartbeats that carry anything new, and each tenth of the others."""
        now_s = self._clock_s()
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + self._settings.heartbeat_s
        self._announce_again_if_due(publisher)
        for rank in [] if publisher.is_behind else list(self._ranks.values()):
            beat, known = rank.heartbeat(None, publisher), rank.published
            is_new = any(progress != known.get(schema, _NO_PROGRESS) for schema, progress in beat.sources.items())
            if is_new or rank.left_out >= _NOTHING_NEW - 1:
                self._beat(publisher, rank, beat)
            else:
                rank.left_out += 1
        self._report(publisher)

    def _announce_again_if_due(self, publisher: Publisher) -> None:
        """Announce the ranks again if nothing has come from here for long; while Kafka is away, now and then.

        Told by what Kafka has taken: what waits in memory is behind nothing, and may be all that a quiet node sends.
        """
        now_s, delivered = self._now_s(), publisher.delivered.messages
        is_due = now_s - self._current_s >= _ANNOUNCE_AGAIN_S
        for own in [rank.own for rank in self._ranks.values()] if is_due else []:
            if isinstance(own, Announcement):
                publisher.send(announcing_message(own))
        if is_due or delivered > self._delivered:
            self._current_s = now_s
        self._delivered = delivered

    def _beat(self, publisher: Publisher, rank: _Rank, beat: Heartbeat) -> None:
        rank.published, rank.left_out = dict(beat.sources), 0
        publisher.send(Message("heartbeats", rank.key, encode_heartbeat(beat)))

    def _report(self, publisher: Publisher) -> None:
        self._progress.delivered_messages = publisher.delivered.messages
        self._progress.position = self._source.position()
        if self._on_progress is not None:
            self._on_progress(replace(self._progress))
