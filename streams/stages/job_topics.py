"""Topics that a partition of the second hop reads again: published verdicts, evidence and announcements of its jobs.

These functions wait for the broker: call them in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

from confluent_kafka import Message

from irregulars.errors import RecordError
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import DAY_MS, TopicSettings, partition_of
from irregulars.messages.announcements import Announcement, code_of_start, decode_announcement
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.streams.snapshots.published_verdicts import VERDICT_TOPICS, PublishedVerdicts, begun_anew
from irregulars.streams.snapshots.records import Ends, PositionRecord

EVIDENCE: Final = "evidence"
Rows = Sequence[Evidence | Membership]

_TOLD_BEFORE_MS: Final = 30 * DAY_MS
"""How far before the oldest evidence verdicts are read when jobs begin anew. One that is open is published again when
its loss has grown by a factor, so at ever longer intervals: this finds verdicts that have been open for a month or
more."""


class JobTopics:
    """Reads for the partitions of ``evidence``."""

    def __init__(self, reader: LogReader, topics: TopicSettings) -> None:
        self._reader: Final = reader
        self._name: Final = topics.name

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def read_results(self, own: int, ends: Ends | None, published: PublishedVerdicts) -> Ends:
        """Note the verdicts published behind `ends` on jobs of the partition `own`; return the present ends.

        They are stored with these, and not read again at the next start. Without `ends` nothing was ever judged in
        this partition: there are none.
        """
        newest = self._result_ends()  # before anything is read: what comes meanwhile lies behind them
        if ends is None:
            return newest
        partitions = self._partitions()
        for topic, partition, end in _places(newest):
            begin = ends.get(topic, {}).get(partition, 0)
            for verdict in _verdicts(topic, self._reader.messages(self._name(topic), partition, begin, end)):
                if place(verdict.job, partitions) == own:
                    published.note(topic, verdict)
        return newest

    def begin_anew(self, own: int, keys: Set[bytes], stored: PositionRecord) -> PositionRecord:
        """Return the record of a partition whose jobs of these keys begin anew; without one before, all jobs do."""
        ends = self._result_ends() if stored.ends is None else stored.ends
        history = list(self._history(own, None if stored.ends is None else keys, ends))
        if stored.ends is None:
            keys = keys | {verdict.job.encode() for _, verdict in history}
        told = begun_anew(stored.told, keys, stored.positions.get(EVIDENCE, 0), history)
        return replace(stored, positions={}, ends=ends, told=told)

    def told_of(self, own: int, key: bytes) -> list[tuple[str, Verdict]]:
        """Return the published verdicts on the job of a key, each with its topic."""
        return list(self._history(own, {key}, self._result_ends()))

    def _history(self, own: int, keys: Set[bytes] | None, ends: Ends) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts published up to `ends` on these jobs (None: all of the partition), with their topics."""
        partitions = self._partitions()
        evidence = self._reader.messages(self._name(EVIDENCE), own)
        oldest = next(evidence, None)
        evidence.close()
        oldest_ms = int(time.time() * 1000) if oldest is None else oldest.timestamp()[1]
        since_ms = oldest_ms - _TOLD_BEFORE_MS
        prefixes = (b"",) if keys is None else tuple(keys)  # an id begins with the name of its job
        for topic, partition, end in _places(ends):
            name = self._name(topic)
            found = self._reader.messages(name, partition, self._reader.offset_at(name, partition, since_ms), end)
            for verdict in _verdicts(topic, (one for one in found if (one.key() or b"").startswith(prefixes))):
                if place(verdict.job, partitions) == own if keys is None else verdict.job.encode() in keys:
                    yield topic, verdict

    def _result_ends(self) -> Ends:
        names = {topic: self._name(topic) for topic in VERDICT_TOPICS}
        return {
            topic: {
                partition: self._reader.end_offset(name, partition) for partition in self._reader.partitions(name)
            }
            for topic, name in names.items()
        }

    # --- evidence, and who takes part -------------------------------------------------------------------------------

    def evidence_at(self, partition: int, offsets: Sequence[int]) -> list[Message]:
        """Return the messages at some offsets, ascending, as far as they still exist."""
        found = self._reader.messages(self._name(EVIDENCE), partition, offsets[0], offsets[-1] + 1)
        wanted = frozenset(offsets)
        return [one for one in found if one.offset() in wanted]

    def evidence_end(self, partition: int) -> int:
        """Return where a partition of ``evidence`` ends now."""
        return self._reader.end_offset(self._name(EVIDENCE), partition)

    def announced(self, job: str, rows: Rows) -> Rows:
        """Return the announced ranks of a job that begins anew, in the start of these rows; without any, the newest.

        Announcements stay on their topic for ever; the evidence of them, a week.
        """
        name, newest = self._name("jobs"), {}
        for partition in self._reader.partitions(name):
            for message in self._reader.messages(name, partition):
                if (message.key() or b"").startswith(f"{job}/".encode()):
                    # A rank that is on another host now has a message in the partition of each.
                    newest[partition, message.key()] = message
        places: dict[tuple[object, ...], Announcement] = {}
        # The newest first: an older one of the same place would contradict it.
        for message in sorted(newest.values(), key=lambda message: -message.timestamp()[1]):
            with suppress(Exception):  # deleted, or among the dead letters
                one = decode_announcement(message.value())
                places.setdefault((one.job, one.rank, one.attempt, one.start, one.since_ns), one)
        # A job's name may hold a slash: keys of ``a/b`` begin with ``a/`` as well.
        own = [one for one in places.values() if one.job == job]
        members = [Membership(one.job, one.attempt, one.rank, one, start=one.start) for one in own]
        # Where no rows name a start, that of the newest counts.
        start = start_of(rows or members)
        # The oldest first, as ranks came to their places.
        return [one for one in reversed(members) if code_of_start(one.attempt, one.start) == start]

    def _partitions(self) -> int:
        return len(self._reader.partitions(self._name(EVIDENCE)))


def place(job: str, partitions: int) -> int:
    """Return the partition of ``evidence`` of a job's rows, as every producer's partitioner computes it."""
    return partition_of(job.encode(), partitions)


def _places(ends: Ends) -> Iterator[tuple[str, int, int]]:
    for topic, by_partition in ends.items():
        for partition, offset in by_partition.items():
            yield topic, partition, offset


def _verdicts(topic: str, messages: Iterable[Message]) -> Iterator[Verdict]:
    for message in messages:
        try:
            yield decode_verdict(message.value(), topic)
        except RecordError:  # not ours
            continue


def start_of(rows: Rows) -> int | None:
    """Return the start of the first row, as `code_of_start` does."""
    for row in rows:
        if isinstance(row, Membership):
            return code_of_start(row.attempt, row.start)
        if len(row):
            return int(row.columns["attempt"][0])
    return None
