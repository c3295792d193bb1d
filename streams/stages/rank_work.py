"""Work of a partition of the first hop: monitors to drain, samples to store, messages of unannounced ranks."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from irregulars.errors import RecordError
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import TopicSettings, group_key, rank_key
from irregulars.messages.announcements import Announcement, Heartbeat, decode_announcement, decode_heartbeat
from irregulars.messages.bundles import Bundle, BundleHeader, bundle_of, decode_rows, encode_bundle
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.records import Batch, encode_batch
from irregulars.streams.faust_driver.block_fetcher import Record as Message
from irregulars.streams.rank_hop.group_monitor import GroupMonitor
from irregulars.streams.stages.partition_state import PartitionState, Tracked

Record = Announcement | Batch | Bundle | Heartbeat  # decoded: `block_fetcher.Record` is the message that held it


def decode(topic: str, key: bytes | None, value: bytes | None) -> Record:
    """Decode a message of an input topic of the first hop; raises `RecordError`."""
    record: Record
    if topic == "jobs":
        record = decode_announcement(value)
        wanted = rank_key(record.job, record.rank)  # compacted: each rank's own, though its partition is its group's
    else:
        record = decode_heartbeat(value) if topic == "heartbeats" else decode_rows(value, topic)
        wanted = monitor_key(record)
    if key != wanted:
        is_group = isinstance(record, Bundle) or (isinstance(record, Heartbeat) and record.group is not None)
        raise RecordError(f"key must be {wanted!r}, the {'group' if is_group else 'rank'} inside; got {key!r}")
    return record


def monitor_key(record: Record) -> bytes:
    """Return the key of the monitor that a record goes to: that of its group, or of its rank where it has none."""
    own = record.header if isinstance(record, Batch | Bundle) else record
    if own.group is not None:
        return group_key(own.job, own.group)
    assert not isinstance(own, BundleHeader)
    return rank_key(own.job, own.rank)


def require_job(record: Record, job: str) -> None:
    """Raise `RecordError` for records of another job: rank 3 of ``a/@b`` has the key of group ``b/3`` of ``a``."""
    own = record.header if isinstance(record, Batch | Bundle) else record
    if own.job != job:
        raise RecordError(f"job must be {job!r}, whose key this was first; got {own.job!r}")


def encode_rows(batch: Batch) -> bytes:
    """Encode a batch as it came: by itself, or as a bundle."""
    return encode_batch(batch) if batch.header.group is None else encode_bundle(bundle_of([batch]))


_AT_ONCE: Final = 256
"""Messages that are read again in one go: some MiB, so that restoring, in the same thread, need not wait for long."""


class LeftSamples:
    """Offsets of messages of one partition, by topic, as runs: all that follow one another take 16 bytes.

    >>> left = LeftSamples()
    >>> for offset in (7, 8, 9, 12):
    ...     left.add("bandwidth", offset)
    >>> len(left), [(topic, list(offsets)) for topic, offsets in left.take()], len(left)
    (4, [('bandwidth', [7, 8, 9, 12])], 0)
    """

    def __init__(self) -> None:
        self._firsts: dict[str, array[int]] = {}
        self._pasts: dict[str, array[int]] = {}  # offset past each run: that of 7, 8, 9 is 7 to 10

    def __len__(self) -> int:
        return sum(map(sum, self._pasts.values())) - sum(map(sum, self._firsts.values()))

    def add(self, topic: str, offset: int) -> None:
        """Note a message whose samples are to be stored later."""
        firsts, pasts = self._firsts.setdefault(topic, array("q")), self._pasts.setdefault(topic, array("q"))
        if pasts and pasts[-1] == offset:
            pasts[-1] += 1
        else:
            firsts.append(offset)
            pasts.append(offset + 1)

    def take(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield all that were noted, some hundreds of one topic at a time, in order, and forget them."""
        firsts, pasts = self._firsts, self._pasts
        self._firsts, self._pasts = {}, {}
        for topic, own in firsts.items():
            offsets = _of_runs(sorted(zip(own, pasts[topic], strict=True)))
            while some := list(islice(offsets, _AT_ONCE)):
                yield topic, some


def _of_runs(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield each offset of ascending runs once: a topic that was read twice has its messages noted twice.

    >>> list(_of_runs([(3, 7), (4, 6), (6, 9)]))
    [3, 4, 5, 6, 7, 8]
    """
    until = 0
    for first, past in runs:
        yield from range(max(first, until), past)
        until = max(until, past)


def read_samples(
    reader: LogReader, topics: TopicSettings, topic: str, partition: int, offsets: Sequence[int]
) -> tuple[list[Batch], int]:
    """Read the samples of these messages again; return them, and how many messages are there no more.

    Raises `ServiceUnavailable` if the broker does not give them within the reader's deadline.
    """
    wanted, found = set(offsets), dict[int, Sequence[Batch]]()
    for message in reader.messages(topics.name(topic), partition, offsets[0], offsets[-1] + 1):
        if (offset := message.offset()) is not None and offset in wanted:
            record = decode(topic, message.key(), message.value())  # it was decoded before
            if isinstance(record, Bundle):
                found[offset] = list(record.batches())
            else:
                found[offset] = [record] if isinstance(record, Batch) else []
    return [batch for offset in sorted(found) for batch in found[offset]], len(wanted) - len(found)


class ParkedMessage(NamedTuple):
    """One message as it was read, its topic without the prefix, and when it was parked."""

    message: Message
    topic: str
    parked_at_s: float


class ParkingLot:
    """Keeps messages by key, oldest first."""

    def __init__(self, limit_bytes: int, limit_s: float) -> None:
        self._limit_bytes: Final = limit_bytes
        self._limit_s: Final = limit_s
        self._by_key: dict[bytes, deque[ParkedMessage]] = {}
        self.size_bytes = 0

    def add(self, key: bytes, parked: ParkedMessage) -> None:
        """Keep a message."""
        self._by_key.setdefault(key, deque()).append(parked)
        self.size_bytes += parked.message.size_bytes

    def take(self, key: bytes) -> list[ParkedMessage]:
        """Give back the messages of `key`: it was announced."""
        parked = list(self._by_key.pop(key, ()))
        self.size_bytes -= sum(one.message.size_bytes for one in parked)
        return parked

    def take_overdue(self, now_s: float) -> list[ParkedMessage]:
        """Give up messages that have stayed too long, and, where memory is short, the keys that came first."""
        overdue: list[ParkedMessage] = []
        for key in list(self._by_key):
            first = self._by_key[key][0]
            # Keys are in the order of their first messages: the oldest go until the rest fits.
            if now_s - first.parked_at_s >= self._limit_s or self.size_bytes > self._limit_bytes:
                overdue += self.take(key)
        return overdue


State = PartitionState[GroupMonitor]
TrackedRanks = Tracked[GroupMonitor]


@dataclass(frozen=True, slots=True)
class Sample:
    """Samples of devices, and the message that they came in."""

    topic: str
    offset: int
    batches: Sequence[Batch]


@dataclass(slots=True)
class PartitionWork:
    """Work that a partition has to hand over."""

    parked: ParkingLot
    touched: dict[bytes, TrackedRanks] = field(default_factory=dict)  # monitors with something new
    messages: int = 0  # that went into them
    rows: int = 0  # that were in these
    samples: list[Sample] = field(default_factory=list)
    left: LeftSamples = field(default_factory=LeftSamples)  # to Kafka, since the database is away
    is_unstored: bool = False  # samples were handed over, and not flushed yet
    given_up: list[ParkedMessage] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sink_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # for rows to the database and dead letters


Rows = Sequence[Evidence | Membership]
