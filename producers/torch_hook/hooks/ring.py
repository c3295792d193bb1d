"""The ring that hooks write into: preallocated, bounded, the oldest rows give way and are counted.

One row per operator. A row is written when the operator is issued and finished when it ends, by whichever thread
learns of it; one thread takes what has ended.
"""

from __future__ import annotations

import itertools
import struct
import threading
from typing import Final, Protocol

import numpy as np

OPEN: Final = 0
"""Of ``ended``: the operator has not ended."""

UNSEEN: Final = -1
"""Of ``ended``: the operator failed, or nobody will ever tell when it ended."""

CAPACITY: Final = 1 << 16
"""Rows: 4 MiB, and a minute at 1,000 operators a second."""

NO_PEER: Final = -1

ROW: Final = np.dtype(
    [
        ("id", "=u8"),  # ordinal + 1
        ("issued", "=i8"),  # ns of CLOCK_MONOTONIC, as the two below
        ("started", "=i8"),  # 0: no later than `issued`, as far as is known
        ("ended", "=i8"),
        ("size", "=i8"),  # bytes
        ("iteration", "=i8"),
        ("sequence", "=u4"),
        ("peer", "=i4"),  # rank within the group
        ("group", "=u2"),
        ("op", "u1"),  # index into OPERATORS
        ("reserved", "u1", (5,)),
    ]
)
"""As ``struct Row`` of hook.cpp."""

_PACKED: Final = struct.Struct("=QqqqqqIiHB5x")
_WORDS: Final = 8
_STARTED_AT: Final = 2
_ENDED_AT: Final = 3
assert _PACKED.size == ROW.itemsize == 64


class Ring(Protocol):
    """What the exporter asks of a ring, in Python or native."""

    def take(self) -> np.ndarray:
        """Take the rows that ended (or went unseen) since the last call; dtype `ROW`, in the order of issue."""
        ...

    def still_open(self) -> np.ndarray:
        """Copy the rows that have not ended."""
        ...

    @property
    def dropped_rows(self) -> int:
        """Rows overwritten before they were taken."""
        ...


class Add(Protocol):
    """Writes a row that is open, and returns its ordinal: how many were written before."""

    def __call__(
        self, issued_ns: int, size: int, iteration: int, sequence: int, peer: int, group: int, op: int, /
    ) -> int:
        """Write."""
        ...


class Finish(Protocol):
    """Notes when a row's operator ended, and began; nothing happens if the row was overwritten since."""

    def __call__(self, ordinal: int, ended_ns: int, started_ns: int = 0, /) -> None:
        """Note."""
        ...


# Training pays for both with each operator: what they need are names of their own, not attributes of an object.


def _make_add(buffer: bytearray, capacity: int) -> Add:
    ordinals, pack, size_of_row = itertools.count(), _PACKED.pack_into, _PACKED.size

    def add(issued_ns: int, size: int, iteration: int, sequence: int, peer: int, group: int, op: int, /) -> int:
        ordinal = next(ordinals)
        offset = ordinal % capacity * size_of_row
        pack(buffer, offset, ordinal + 1, issued_ns, 0, OPEN, size, iteration, sequence, peer, group, op)
        return ordinal

    return add


def _make_finish(buffer: bytearray, capacity: int) -> Finish:
    words = memoryview(buffer).cast("q")

    def finish(ordinal: int, ended_ns: int, started_ns: int = 0, /) -> None:
        first = ordinal % capacity * _WORDS
        if words[first] != ordinal + 1:
            return
        if started_ns:
            words[first + _STARTED_AT] = started_ns
        words[first + _ENDED_AT] = ended_ns

    return finish


class PythonRing:
    """A ring that Python code writes into; each write is one call into C, so that nobody sees half of it.

    Parameters
    ----------
    capacity
        Rows.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._buffer = bytearray(capacity * ROW.itemsize)
        self._rows = np.frombuffer(self._buffer, dtype=ROW)
        self.add: Final = _make_add(self._buffer, capacity)
        self.finish: Final = _make_finish(self._buffer, capacity)
        self._is_taken = np.zeros(capacity, dtype=bool)
        self._tail = 0
        self._dropped = 0
        self._lock = threading.Lock()  # of those who take

    def take(self) -> np.ndarray:
        """Take the rows that ended since the last call."""
        with self._lock:
            rows = self._copy(is_open=False)
            self._is_taken[(rows["id"] - 1).astype(np.int64) % self._capacity] = True
            self._move_tail()
        return rows

    def still_open(self) -> np.ndarray:
        """Copy the rows that have not ended."""
        with self._lock:
            return self._copy(is_open=True)

    @property
    def dropped_rows(self) -> int:
        """Rows overwritten before they were taken."""
        return self._dropped

    def _copy(self, is_open: bool) -> np.ndarray:
        ordinals = self._waiting()
        rows = self._rows[ordinals % self._capacity].copy()
        # Training goes on meanwhile: what was overwritten since carries another id, and is counted next time.
        return rows[(rows["id"] == ordinals + 1) & ((rows["ended"] == OPEN) == is_open)]

    def _waiting(self) -> np.ndarray:
        """Ordinals from the tail to the newest row that were not taken."""
        newest = int(self._rows["id"].max())
        overwritten = np.arange(self._tail, max(self._tail, newest - self._capacity)) % self._capacity
        if overwritten.size:
            # More than one lap: the slots of the first stand for all of them.
            self._dropped += overwritten.size - int(np.count_nonzero(self._is_taken[np.unique(overwritten)]))
            self._is_taken[overwritten] = False
            self._tail = newest - self._capacity
        ordinals = np.arange(self._tail, newest)
        return ordinals[~self._is_taken[ordinals % self._capacity]]

    def _move_tail(self) -> None:
        ordinals = np.arange(self._tail, int(self._rows["id"].max()))[: self._capacity]
        is_left = ~self._is_taken[ordinals % self._capacity]
        tail = self._tail + (int(np.argmax(is_left)) if is_left.any() else ordinals.size)
        self._is_taken[np.arange(self._tail, tail) % self._capacity] = False
        self._tail = tail
