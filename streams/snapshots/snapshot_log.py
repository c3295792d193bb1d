"""One compacted topic of snapshots, read from the offset that its newest position record names.

A partition's position record is written last: if it is there, so are the records before it.

**Epochs** keep out a worker that lost its partitions without noticing (it was suspended, say) and writes an old state
over a newer one. A worker that restores a partition takes the highest epoch in it plus one, and writes that down
before anything else; records behind it with a lower epoch do not count, tombstones apart, which have none. The number
of the consumer group's generation would not do: it begins anew when a group was empty for a week.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from confluent_kafka import Message

from irregulars.errors import RecordError, TopicMismatch
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.outbox import Outbox
from irregulars.streams.snapshots.records import POSITION_KEY, PositionRecord, decode_record, is_piece
from irregulars.streams.snapshots.snapshot_writer import SnapshotWriter
from irregulars.streams.snapshots.stored_partition import StoredPartition, newest_records

LOG: Final = logging.getLogger("irregulars.worker")

_FIRST_LOOK: Final = 4
"""Messages at the end among which the newest position record is looked for first: it is the last one, unless a worker
ended while it wrote."""

_NEXT_LOOK: Final = 32  # and then among this many times as many
_PROGRESS_S: Final = 5.0  # seconds between two lines of the log on how far reading has come


class SnapshotLog:
    """One snapshot topic. `reader`: used by `read` alone, in one thread."""

    def __init__(self, topic: str, reader: LogReader, outbox: Outbox) -> None:
        self._topic: Final = topic
        self._reader: Final = reader
        self._outbox: Final = outbox

    def writer(self, partition: int, stored: StoredPartition) -> SnapshotWriter:
        """Return the writer of a partition in which `stored` was found."""
        return SnapshotWriter(self._topic, partition, stored.epoch + 1, self._outbox, stored)

    def read(self, partition: int) -> StoredPartition:
        """Read the records of a partition that count. Waits for the broker: call it in a thread.

        Raises `ServiceUnavailable` if the broker sends nothing for the reader's deadline; `TopicMismatch` if the
        topic was made anew while a worker wrote to it.
        """
        low, high = self._reader.bounds(self._topic, partition)
        newest = self._newest_position(partition, low, high)
        if max(newest.begin, newest.claimed) > high:  # written by a worker that knew a longer log
            raise TopicMismatch(
                f"snapshot topic must be the one of its records; got {self._topic}/{partition}, which ends "
                f"at {high}: it was cut, or made anew. Delete it, run irregulars topics create, and start the workers"
            )
        where = f"{self._topic}/{partition}"
        while True:
            begin = max(low, min(newest.begin, high))
            messages = self._reader.messages(self._topic, partition, begin, high)
            stored = newest_records(_told(messages, where, begin, high), where, newest)
            if stored.position.epoch <= newest.epoch:
                return replace(stored, end=max(stored.end, high))  # the last messages may have been compacted away
            newest = stored.position  # the one before was that of a former owner, or could not be read

    def highest_epoch(self, partition: int, offsets: range) -> int:
        """Return the highest epoch among some messages. Waits for the broker: call it in a thread."""
        messages = self._reader.messages(self._topic, partition, offsets.start, offsets.stop)
        return max(map(_epoch_of, messages), default=0)

    def _newest_position(self, partition: int, low: int, high: int) -> PositionRecord:
        look = _FIRST_LOOK
        while True:
            first = max(low, high - look)
            found = _position_in(self._reader.messages(self._topic, partition, first, high))
            if found is not None or first == low:
                return found or PositionRecord()
            look *= _NEXT_LOOK


def _epoch_of(message: Message) -> int:
    key, value = message.key() or b"", message.value()
    if value is None or is_piece(key):
        return 0
    try:
        return decode_record(key, value).epoch
    except RecordError:
        return 0


def _position_in(messages: Iterable[Message]) -> PositionRecord | None:
    found: PositionRecord | None = None
    for message in messages:
        value = message.value()
        if message.key() != POSITION_KEY or value is None:
            continue
        try:
            record = decode_record(POSITION_KEY, value)
        except RecordError:  # its content is not known: all is read
            return PositionRecord()
        # A former owner may write behind the rightful one: the highest epoch counts, not the last record.
        if isinstance(record, PositionRecord) and (found is None or record.epoch >= found.epoch):
            found = record
    return found


def _told(messages: Iterable[Message], where: str, begin: int, high: int) -> Iterator[Message]:
    """Pass messages on, and log now and then how far reading has come."""
    began_s = told_s = time.monotonic()
    read_bytes = 0
    for message in messages:
        yield message
        read_bytes += len(message.value() or b"")
        now_s = time.monotonic()
        if now_s - told_s > _PROGRESS_S:
            told_s = now_s
            LOG.info(
                "event=restoring from=%s read=%d of=%d mib=%.0f for_s=%.0f",
                where, (message.offset() or 0) - begin, high - begin, read_bytes / (1 << 20), now_s - began_s,
            )  # fmt: skip
