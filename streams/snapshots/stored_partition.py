"""Records of one partition of a snapshot topic, and which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Message

from irregulars.errors import RecordError
from irregulars.streams.health.monitor_faults import NOT_GIVEN_UP, GivenUp
from irregulars.streams.snapshots.records import (
    POSITION_KEY,
    EncodedState,
    MonitorRecord,
    Offsets,
    PositionRecord,
    Record,
    assemble,
    decode_record,
    is_piece,
    with_told,
)


class Place(NamedTuple):
    """Position of a record in its partition."""

    offset: int  # its offset in the partition, or a lower one
    after_bytes: int  # how many bytes of records its reader or writer had seen before it
    size_bytes: int  # its own


@dataclass(frozen=True, slots=True)
class StoredMonitor:
    """A monitor's newest state, all pieces of it put together; `places` are those of its records, by key."""

    seen: Offsets
    state: EncodedState
    places: Mapping[bytes, Place] = field(default_factory=dict)
    given_up: GivenUp = NOT_GIVEN_UP


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """One partition, as `SnapshotLog.read` found it."""

    epoch: int = 0  # the highest one, 0 if the partition is empty
    position: PositionRecord = field(default_factory=PositionRecord)  # the newest record of the partition itself
    monitors: Mapping[bytes, StoredMonitor] = field(default_factory=dict)  # the newest state of each monitor, by key
    # Why the record of a monitor, or of the partition, could not be read, by key
    refused: Mapping[bytes, str] = field(default_factory=dict)
    # Keys of pieces that no record needs: a worker ended before it had written the record, or before it had deleted
    # them
    strays: frozenset[bytes] = frozenset()
    # Keys of monitors of which a former owner has written a record that does not count
    late: frozenset[bytes] = frozenset()
    end: int = 0  # offset after the last message
    read_bytes: int = 0  # bytes of all messages that were read


def newest_records(messages: Iterable[Message], where: str, newest: PositionRecord | None = None) -> StoredPartition:
    """Keep the records that count: of each key the last one, but none that follows one of a higher epoch.

    `newest`: the newest position record; its owner may have claimed the partition before the first of `messages`.
    """
    reading = _Reading(where, newest or PositionRecord())
    for message in messages:
        reading.take(message)
    return reading.result()


class _Reading:
    def __init__(self, where: str, position: PositionRecord) -> None:
        self.where = where
        self.position = position
        self.epoch = 0
        self.end = 0
        self.read_bytes = 0
        self.newest: dict[bytes, Record] = {}
        self.refused: dict[bytes, str] = {}
        self.pieces: dict[bytes, bytes] = {}
        self.places: dict[bytes, Place] = {}
        self.deleted: set[bytes] = set()  # pieces
        self.late: set[bytes] = set()

    def take(self, message: Message) -> None:
        key, value, offset = message.key() or b"", message.value(), message.offset() or 0
        if value is None:
            # A tombstone has no epoch; it is written long after the state that it ends (see `Stage`). A piece is not
            # forgotten: a former owner, which did not notice that it is one, may have deleted a piece that a record
            # that counts still names. The bytes of a piece never change.
            if is_piece(key):
                self.deleted.add(key)
            self.newest.pop(key, None)
            self.refused.pop(key, None)
            self.late.discard(key)
        elif is_piece(key):
            self.pieces[key] = value
            self.places[key] = Place(offset, self.read_bytes, len(key) + len(value))
            self.deleted.discard(key)
        else:
            self._take_record(key, value, offset)
        self.end = offset + 1
        self.read_bytes += len(key) + len(value or b"")

    def _take_record(self, key: bytes, value: bytes, offset: int) -> None:
        try:
            record = decode_record(key, value)
        except RecordError as error:
            self.newest.pop(key, None)  # older than the position, which may be that of this one
            self.refused[key] = f"{error} ({self.where} offset {offset}, key {key!r})"
            return
        is_behind_claim = offset >= self.position.claimed and record.epoch < self.position.epoch
        if record.epoch < self.epoch or is_behind_claim:
            # Written by a former owner that did not notice that it is one.
            self.late.add(key)
            return
        self.epoch = record.epoch
        self.newest[key] = record
        self.refused.pop(key, None)
        self.late.discard(key)
        self.places[key] = Place(offset, self.read_bytes, len(key) + len(value))

    def result(self) -> StoredPartition:
        monitors, position = {}, PositionRecord()
        for key, record in self.newest.items():
            try:
                if isinstance(record, MonitorRecord):
                    state = assemble(record, self.pieces)
                    places = {one: self.places[one] for one in (key, *record.pieces)}
                    monitors[key] = StoredMonitor(record.seen, state, places, record.given_up)
                else:
                    position = with_told(record, self.pieces)
            except RecordError as error:
                self.refused[key] = f"{error} ({self.where}, key {key!r})"
        # Without the pieces of the position: its next owner writes its own ones at once.
        used = {place for monitor in monitors.values() for place in monitor.places}
        return StoredPartition(
            epoch=self.epoch,
            position=position,
            monitors=monitors, refused=self.refused, strays=frozenset(self.pieces.keys() - used - self.deleted),
            late=frozenset(self.late - {POSITION_KEY}), end=self.end, read_bytes=self.read_bytes,
        )  # fmt: skip
