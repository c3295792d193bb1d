"""Writes the snapshots of one partition: only the pieces that are new, and so that little has to be read again.

**Where reading begins.** Each position record holds the offset from which on all records lie that count (`begin`).
For that to move on, records that have not changed for long are written again (`overdue`): when the log behind them is
longer than `SPAN_BYTES` and twice all that counts. That bounds the bytes that a restart reads, however long the
worker ran, and whether or not the broker has compacted the topic.

**Former owners.** A worker that lost the partition without noticing may write into it, also a position record. The
next owner reads from that one's `begin`, and must find there all that the rightful owner has written. Hence a worker
that finds more in the partition than it has written itself does not move its `begin` past that (`settle`), unless it
has seen that they are of former owners (`excuse`): only one that was followed by another owner can hide anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from irregulars.kafka.outbox import Outbox
from irregulars.state_codec import encode_state
from irregulars.streams.snapshots.published_verdicts import Told
from irregulars.streams.snapshots.records import (
    PIECE_BYTES,
    POSITION_KEY,
    RECORD_VERSION,
    Draft,
    Keys,
    MonitorRecord,
    PositionRecord,
    cut,
    encode_part,
    encode_record,
)
from irregulars.streams.snapshots.stored_partition import Place, StoredPartition

SPAN_BYTES: Final = 4 << 20
"""Log that may lie behind a record before it is written again, bytes: a restart reads it in far less than a second,
and small partitions never come to it."""

SPAN_RATIO: Final = 2  # the same, in times of all that counts: at most half as much again is written as changes


@dataclass(slots=True)
class _Written:
    """Records of one monitor on the topic: their places by key, and the pieces of the state's parts.

    A part is known by its `id`, which is no other's as long as the part itself is kept here.
    """

    places: dict[bytes, Place] = field(default_factory=dict)
    parts: dict[int, tuple[Any, Keys]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of all its records."""
        return sum(place.size_bytes for place in self.places.values())


class SnapshotWriter:
    """The snapshots of one partition, as its owner writes them. `epoch`: ours, above that of all owners before."""

    def __init__(self, topic: str, partition: int, epoch: int, outbox: Outbox, stored: StoredPartition) -> None:
        self.epoch: Final = epoch
        self._topic: Final = topic
        self._partition: Final = partition
        self._outbox: Final = outbox
        self._written = {key: _Written(dict(one.places)) for key, one in stored.monitors.items()}
        self._told = _Written()  # the pieces of the partition's own record
        self._strays = stored.strays | (stored.late - self._written.keys())
        self._late = set(stored.late & self._written.keys())  # to be written again, or their late ones come to count
        self.live_bytes = sum(one.size_bytes for one in self._written.values())  # of all records that count
        self._total_bytes = stored.read_bytes
        self._claimed: Final = stored.end
        self._expected = stored.end  # offset of our first message, if no other owner writes; else more
        self._sent = 0
        self._mark = stored.end  # all that was sent since the last `settle` stands there or behind it
        self._foreign: int | None = None  # offset before the first message of another writer, as far as we know

    def overdue(self) -> frozenset[bytes]:
        """Return the keys of the monitors with a record that must be written again, since it holds up `begin`."""
        oldest = self._oldest_bytes()
        return frozenset(
            key
            for key, one in self._written.items()
            if key in self._late or any(place.after_bytes < oldest for place in one.places.values())
        )

    async def write_monitor(self, key: bytes, draft: Draft) -> None:
        """Send the new pieces of a monitor's state, its record, and tombstones of pieces that it needs no more."""
        before, now = self._written.get(key, _Written()), _Written()
        oldest = self._oldest_bytes()
        parts = []
        for part in draft.parts:
            _, keys = before.parts.get(id(part), (None, None))
            if keys is not None and all(before.places[one].after_bytes >= oldest for one in keys):
                now.places |= {one: before.places[one] for one in keys}  # they need not be written again
            else:
                keys = await self._write_pieces(key, encode_part(part), now)
                await asyncio.sleep(0)  # a large state must not hold up the event loop
            now.parts[id(part)] = part, keys
            parts.append(keys)
        is_long = len(draft.root) > PIECE_BYTES
        root = await self._write_pieces(key, draft.root, now) if is_long else ()
        state = b"" if is_long else draft.root
        record = MonitorRecord(self.epoch, draft.seen, state, root, tuple(parts), draft.given_up)
        now.places[key] = await self._send(key, encode_record(record))
        self._written[key] = now
        self.live_bytes += now.size_bytes - before.size_bytes
        self._late.discard(key)
        self._strays -= now.places.keys()  # a former owner wrote under these keys too; now they are ours, and stay
        # Behind the record: a worker that ends in between leaves strays, and no record that lacks a piece.
        await self._delete(before.places.keys() - now.places.keys())

    async def delete_monitors(self, keys: Iterable[bytes]) -> None:
        """Send tombstones of some monitors and their pieces."""
        for key in keys:
            written = self._written.pop(key, _Written())
            self.live_bytes -= written.size_bytes
            await self._delete({key, *written.places})

    async def write_position(self, record: PositionRecord) -> None:
        """Send the partition's own record, after all others; its fields on the snapshot topic are filled in here."""
        if self._strays and self._sent and self._foreign is None:  # else a former owner may still need them
            strays, self._strays = self._strays, frozenset()
            await self._delete(strays)
        told, before, oldest = encode_state(record.told, RECORD_VERSION), self._told, self._oldest_bytes()
        now = _Written({key: place for key, place in before.places.items() if place.after_bytes >= oldest})
        pieces = await self._write_pieces(POSITION_KEY, told, now) if len(told) > PIECE_BYTES else ()
        now.places = {key: now.places[key] for key in pieces}
        self._told = now
        self.live_bytes += now.size_bytes - before.size_bytes
        # Deleted before the next record: until this one is there, the one before needs them.
        self._strays = self._strays.union(before.places).difference(now.places)
        written = chain(self._written.values(), (now,))
        offsets = (place.offset for one in written for place in one.places.values())
        begin = min(*offsets, self._mark, self._mark if self._foreign is None else self._foreign)
        own = replace(
            record, epoch=self.epoch, begin=begin, claimed=self._claimed, told=Told() if pieces else record.told,
            told_pieces=pieces,
        )  # fmt: skip
        await self._send(POSITION_KEY, encode_record(own))

    def settle(self) -> range | None:
        """Learn where our messages lie, after a barrier. Return the offsets among which others are found first."""
        end = self._outbox.end_offset(self._topic, self._partition) or 0
        found = None
        # More records than ours: another owner writes, or wrote since the partition was read.
        if self._foreign is None and end > self._expected + self._sent:
            self._foreign = self._mark
            self._expected = end - self._sent
            found = range(self._mark, end)
        self._mark = max(self._mark, end)
        return found

    def excuse(self, epoch: int) -> None:
        """Take in that the highest epoch among the offsets that `settle` returned is `epoch`."""
        if epoch <= self.epoch:
            self._foreign = None

    def _oldest_bytes(self) -> int:
        return self._total_bytes - max(SPAN_BYTES, SPAN_RATIO * self.live_bytes)

    async def _write_pieces(self, monitor: bytes, value: bytes, now: _Written) -> Keys:
        keys = []
        for key, content in cut(value, monitor, self.epoch):
            if key not in now.places:
                now.places[key] = await self._send(key, content)
            keys.append(key)
        return tuple(keys)

    async def _delete(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            await self._send(key, None)

    async def _send(self, key: bytes, value: bytes | None) -> Place:
        size = len(key) + len(value or b"")
        # A lower bound: the offset is known once the broker has acknowledged the record.
        place = Place(self._mark, self._total_bytes, size)
        self._total_bytes += size
        self._sent += 1
        await self._outbox.send(self._topic, key, value, partition=self._partition)
        return place
