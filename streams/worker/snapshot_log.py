"""The compacted topics of snapshots: one record per monitor, and one per partition that says where to go on.

The partition's record is written last, to the same partition: if it is there, so are the monitors' records before it.

**Epochs** keep out a worker that lost its partitions without noticing (it was suspended, say) and writes an old state
over a newer one. Whoever restores a partition takes the highest epoch in it plus one, and writes that down before
anything else; a record counts only if none of a higher epoch has the same key. The number of the consumer group's
generation would not do: it begins anew when a group was empty for a week.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from irregulars.errors import RecordError
from irregulars.streams.kafka.log_reader import LogReader
from irregulars.streams.kafka.outbox import Outbox
from irregulars.streams.worker.partition_state import Offsets
from irregulars.streams.worker.snapshot_codec import pack, unpack

POSITION_KEY: Final = b"\x00position"
"""Key of the partition's own record; no job's name begins with a zero byte."""

Ends = dict[str, dict[int, int]]
"""End offsets by result topic (without prefix) and partition."""


@dataclass(frozen=True, slots=True)
class StoredMonitor:
    """One monitor's record: its state and the newest offsets in it."""

    key: bytes
    seen: Offsets
    state: Any


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """What `SnapshotLog.read` found in one partition.

    Parameters
    ----------
    epoch
        The highest one, 0 if the partition is empty.
    positions
        Where to go on reading, by input topic.
    ends
        Ends of the result topics before anything that the stored states do not hold; `None` if never written.
    """

    epoch: int = 0
    positions: Offsets = field(default_factory=dict)
    ends: Ends | None = None
    monitors: tuple[StoredMonitor, ...] = ()


class SnapshotLog:
    """One snapshot topic.

    Parameters
    ----------
    topic
        Full name.
    reader
        Used by `read` alone, in one thread.
    """

    def __init__(self, topic: str, reader: LogReader, outbox: Outbox) -> None:
        self._topic: Final = topic
        self._reader: Final = reader
        self._outbox: Final = outbox

    def read(self, partition: int) -> StoredPartition:
        """Read a whole partition, and keep what is newest per key. Waits for the broker: call it in a thread.

        Raises
        ------
        RecordError
            If a record can't be read: state would be lost in silence. Newer workers wrote it, or it is damaged.
        ServiceUnavailable
            If the broker does not send the partition within the reader's deadline.
        """
        newest: dict[bytes, dict[str, Any] | None] = {}
        for message in self._reader.read_tail(self._topic, partition):
            record = self._unpack(message)
            known = newest.get(message.key())
            # A tombstone has no epoch; it is written long after the state that it ends (see `Stage`).
            if record is None or known is None or record["epoch"] >= known["epoch"]:
                newest[message.key()] = record
        own = newest.pop(POSITION_KEY, None)
        found = {key: record for key, record in newest.items() if record is not None}
        return _stored(own, found)

    async def write_monitor(self, partition: int, key: bytes, value: bytes) -> None:
        """Send one monitor's record, which `encode_monitor` made."""
        await self._outbox.send(self._topic, key, value, partition=partition)

    async def write_position(self, partition: int, epoch: int, positions: Offsets, ends: Ends | None) -> None:
        """Send the partition's own record."""
        value = pack({"epoch": epoch, "positions": positions, "ends": ends})
        await self._outbox.send(self._topic, POSITION_KEY, value, partition=partition)

    async def delete_monitors(self, partition: int, keys: Iterable[bytes]) -> None:
        """Send tombstones."""
        for key in keys:
            await self._outbox.send(self._topic, key, None, partition=partition)

    def _unpack(self, message: Any) -> dict[str, Any] | None:
        if message.value() is None:
            return None
        where = f"{self._topic}/{message.partition()} offset {message.offset()}, key {message.key()!r}"
        try:
            record = unpack(message.value())
        except RecordError as error:
            raise RecordError(f"{error} ({where})") from error
        if not isinstance(record, dict) or not isinstance(record.get("epoch"), int):
            raise RecordError(f"snapshot must have an epoch; got none ({where})")
        return record


def encode_monitor(epoch: int, seen: Offsets, state: Any) -> bytes:
    """Encode one monitor's record."""
    return pack({"epoch": epoch, "seen": seen, "state": state})


def _stored(own: Mapping[str, Any] | None, found: Mapping[bytes, Mapping[str, Any]]) -> StoredPartition:
    own = own or {"epoch": 0, "positions": {}, "ends": None}
    monitors = tuple(StoredMonitor(key, dict(record["seen"]), record["state"]) for key, record in found.items())
    epoch = max([own["epoch"], *(record["epoch"] for record in found.values())])
    return StoredPartition(epoch, own["positions"], own["ends"], monitors)
