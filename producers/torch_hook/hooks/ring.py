"""The ring that hooks write into: preallocated and bounded; the oldest rows are overwritten and counted.

One row per operator. A row is written when the operator is issued and finished when it ends, by whichever thread
learns of it; one thread takes the rows that have ended.
"""

from __future__ import annotations

import itertools
import struct
import threading
from typing import Final

import numpy as np

OPEN: Final = 0  # of ``ended``: the operator has not ended
UNSEEN: Final = -1  # of ``ended``: the operator failed, or its end will never be known
CAPACITY: Final = 1 << 16  # rows: 4 MiB, and a minute at 1,000 operators a second
NO_PEER: Final = -1
# As ``struct Row`` of hook.cpp.
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
_PACKED: Final = struct.Struct("=QqqqqqIiHB5x")
_LARGEST_SEQUENCE: Final = 2**32 - 1
_WORDS: Final = 8
_STARTED_AT: Final = 2
_ENDED_AT: Final = 3
assert _PACKED.size == ROW.itemsize == 64


class PythonRing:
    """A ring that Python code writes into; each write is one call into C, so that no reader sees half of it.

    Read as the native one (`native_library.NativeHook`): ``take``, ``still_open``, ``dropped_rows``.

    ``add`` writes an open row and returns its ordinal, the number of rows written before it. ``finish`` sets the end,
    and the start if it is known, of a row; it does nothing if the row was overwritten since.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        buffer = bytearray(capacity * ROW.itemsize)
        self._rows = np.frombuffer(buffer, dtype=ROW)
        self._is_taken = np.zeros(capacity, dtype=bool)
        self._tail = 0
        self._dropped = 0
        self._lock = threading.Lock()  # between the threads that take
        ordinals, pack, size_of_row = itertools.count(), _PACKED.pack_into, _PACKED.size
        words = memoryview(buffer).cast("q")

        # Training pays for both with each operator: they read local names of this scope, not attributes of an object.

        def add(issued_ns: int, size: int, iteration: int, sequence: int, peer: int, group: int, op: int, /) -> int:
            ordinal = next(ordinals)
            offset = ordinal % capacity * size_of_row
            # A group comes to 2^32 operators in fifty days at 1,000 a second; as unsigned numbers do in C++.
            sequence &= _LARGEST_SEQUENCE
            pack(buffer, offset, ordinal + 1, issued_ns, 0, OPEN, size, iteration, sequence, peer, group, op)
            return ordinal

        def finish(ordinal: int, ended_ns: int, started_ns: int = 0, /) -> None:
            first = ordinal % capacity * _WORDS
            if words[first] != ordinal + 1:
                return
            if started_ns:
                words[first + _STARTED_AT] = started_ns
            words[first + _ENDED_AT] = ended_ns

        self.add: Final = add
        self.finish: Final = finish

    def take(self) -> np.ndarray:
        """Take the rows that ended (or went unseen) since the last call; dtype `ROW`, in the order of issue."""
        with self._lock:
            rows = self._copy(is_open=False)
            self._is_taken[(rows["id"] - 1).astype(np.int64) % self._capacity] = True
            # The tail moves past rows that were taken: if 5 and 6 were, and 7 is still open, it becomes 7.
            newest = int(self._rows["id"].max())
            ordinals = np.arange(self._tail, min(newest, self._tail + self._capacity))
            is_left = ~self._is_taken[ordinals % self._capacity]
            tail = self._tail + (int(np.argmax(is_left)) if is_left.any() else ordinals.size)
            self._is_taken[np.arange(self._tail, tail) % self._capacity] = False
            self._tail = tail
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
        newest = int(self._rows["id"].max())
        past = newest - self._capacity - self._tail
        if past > 0:
            # More than one lap: the slots of the first are those of all, and only rows of the first were taken.
            slots = np.arange(self._tail, self._tail + min(past, self._capacity)) % self._capacity
            self._dropped += past - int(np.count_nonzero(self._is_taken[slots]))
            self._is_taken[slots] = False
            self._tail += past
        ordinals = np.arange(self._tail, newest)
        ordinals = ordinals[~self._is_taken[ordinals % self._capacity]]
        rows = self._rows[ordinals % self._capacity].copy()
        # Training goes on meanwhile: a row overwritten since carries another id, and is counted by the next call.
        return rows[(rows["id"] == ordinals + 1) & ((rows["ended"] == OPEN) == is_open)]
