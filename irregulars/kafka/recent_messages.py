"""The messages that came last, kept to be read again: an irregular iteration is looked into right after it came."""

from __future__ import annotations

from collections import deque
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import Lock
from typing import Final, NamedTuple


class _Slot(NamedTuple):
    """Where a value stands in the ring; one that goes beyond its end goes on at its beginning."""

    begin: int
    length: int


class RecentMessages:
    """Values of one topic's messages by partition and offset, as many as fit; what was added first goes first.

    They stand in a ring, which takes memory as it fills: as objects of their own, of some ten KiB each, they would
    leave holes all over the heap when they go. Threads may share one: a worker's reading adds, and its judge asks.

    Parameters
    ----------
    most_bytes
        Of all values together. 0 keeps nothing.

    Examples
    --------
    >>> recent = RecentMessages(most_bytes=10)
    >>> for offset in (7, 8, 9):
    ...     recent.add(0, offset, b"4444")
    >>> recent.get(0, 7), recent.get(0, 9), len(recent)
    (None, b'4444', 2)
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes: Final = most_bytes
        self._ring: Final = mmap(-1, max(most_bytes, 1), flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._slots: Final[dict[tuple[int, int], _Slot]] = {}
        self._order: Final[deque[tuple[tuple[int, int], _Slot]]] = deque()
        self._bytes = 0
        self._next = 0
        self._lock: Final = Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, partition: int, offset: int, value: bytes) -> None:
        """Keep a message; one that is kept already counts as new again."""
        with self._lock:
            while self._order and self._bytes + len(value) > self._most_bytes:
                key, oldest = self._order.popleft()
                self._bytes -= oldest.length
                if self._slots.get(key) == oldest:  # else it was added again since
                    del self._slots[key]
            if len(value) <= self._most_bytes:
                self._write((partition, offset), value)

    def get(self, partition: int, offset: int) -> bytes | None:
        """Return a message's value, or None if it is not kept."""
        with self._lock:
            slot = self._slots.get((partition, offset))
            if slot is None:
                return None
            first = self._ring[slot.begin : min(slot.begin + slot.length, self._most_bytes)]
            return first + self._ring[: slot.length - len(first)]

    def _write(self, key: tuple[int, int], value: bytes) -> None:
        slot = _Slot(self._next, len(value))
        until_end = min(slot.length, self._most_bytes - slot.begin)
        self._ring[slot.begin : slot.begin + until_end] = value[:until_end]
        self._ring[: slot.length - until_end] = value[until_end:]
        self._slots[key] = slot
        self._order.append((key, slot))
        self._bytes += slot.length
        self._next = (slot.begin + slot.length) % self._most_bytes if self._most_bytes else 0
