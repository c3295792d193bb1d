"""Messages of the first hop's topics: decoded, checked against their key, and samples of devices read again later."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from irregulars.errors import RecordError
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import TopicSettings, group_key, rank_key
from irregulars.messages.announcements import Announcement, Heartbeat, decode_announcement, decode_heartbeat
from irregulars.messages.bundles import Bundle, BundleHeader, bundle_of, decode_rows, encode_bundle
from irregulars.messages.records import Batch, encode_batch

Record = Announcement | Batch | Bundle | Heartbeat


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
        raise RecordError(f"key must be {wanted!r}, the {_owner(record)} inside; got {key!r}")
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


def _owner(record: Record) -> str:
    is_bundle = isinstance(record, Bundle) or (isinstance(record, Heartbeat) and record.group is not None)
    return "group" if is_bundle else "rank"


def encode_rows(batch: Batch) -> bytes:
    """Encode a batch as it came: by itself, or as a bundle."""
    return encode_batch(batch) if batch.header.group is None else encode_bundle(bundle_of([batch]))


_AT_ONCE: Final = 256
"""Messages that are read again in one go: some MiB, so that restoring, in the same thread, need not wait for long."""


class LeftSamples:
    """Offsets of messages of one partition, by topic: 8 bytes each, where their rows take kilobytes.

    >>> left = LeftSamples()
    >>> for offset in (7, 8, 9, 12):
    ...     left.add("bandwidth", offset)
    >>> len(left), [(topic, list(offsets)) for topic, offsets in left.take()], len(left)
    (4, [('bandwidth', [7, 8, 9, 12])], 0)
    """

    def __init__(self) -> None:
        self._offsets: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._offsets.values()))

    def add(self, topic: str, offset: int) -> None:
        """Note a message whose samples are to be stored later."""
        self._offsets.setdefault(topic, array("q")).append(offset)

    def take(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield all that were noted, some hundreds of one topic at a time, in order, and forget them."""
        offsets, self._offsets = self._offsets, {}
        for topic, own in offsets.items():
            ordered = sorted(set(own))
            for first in range(0, len(ordered), _AT_ONCE):
                yield topic, ordered[first : first + _AT_ONCE]


def read_samples(
    reader: LogReader, topics: TopicSettings, topic: str, partition: int, offsets: Sequence[int]
) -> tuple[list[Batch], int]:
    """Read the samples of these messages again; return them, and how many messages are there no more.

    Raises `ServiceUnavailable` if the broker does not give them within the reader's deadline.
    """
    wanted = set(offsets)
    found: Mapping[int, Sequence[Batch]] = {
        offset: _batches(topic, message.key(), message.value())
        for message in reader.messages(topics.name(topic), partition, offsets[0], offsets[-1] + 1)
        if (offset := message.offset()) is not None and offset in wanted
    }
    return [batch for offset in sorted(found) for batch in found[offset]], len(wanted) - len(found)


def _batches(topic: str, key: bytes | None, value: bytes | None) -> Sequence[Batch]:
    record = decode(topic, key, value)  # it was decoded before
    if isinstance(record, Bundle):
        return list(record.batches())
    return [record] if isinstance(record, Batch) else []
