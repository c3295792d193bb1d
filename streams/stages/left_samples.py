"""Samples of devices that are left to Kafka while the database is away: where they stand, and reading them again."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.bundles import Bundle
from irregulars.messages.records import Batch
from irregulars.streams.stages.rank_records import decode

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
        """Forget and give what was noted, some hundreds of one topic at a time, in order."""
        offsets, self._offsets = self._offsets, {}
        for topic, own in offsets.items():
            ordered = sorted(set(own))
            for first in range(0, len(ordered), _AT_ONCE):
                yield topic, ordered[first : first + _AT_ONCE]


def read_samples(
    reader: LogReader, topics: TopicSettings, topic: str, partition: int, offsets: Sequence[int]
) -> tuple[list[Batch], int]:
    """Read the samples of these messages again; return them, and how many messages are there no more.

    Raises
    ------
    ServiceUnavailable
        If the broker does not give them within the reader's deadline.
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
