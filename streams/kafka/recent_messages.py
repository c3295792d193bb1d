"""The messages that came last, kept to be read again: an irregular iteration is looked into right after it came."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final


class RecentMessages:
    """Values of one topic's messages by partition and offset, as many as fit; what was added first goes first.

    Threads may share one: a worker's reading adds, and its judge asks.

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
        self._values: Final[OrderedDict[tuple[int, int], bytes]] = OrderedDict()
        self._bytes = 0
        self._lock: Final = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def add(self, partition: int, offset: int, value: bytes) -> None:
        """Keep a message; one that is kept already counts as new again."""
        with self._lock:
            self._bytes += len(value) - len(self._values.pop((partition, offset), b""))
            self._values[partition, offset] = value
            while self._bytes > self._most_bytes:
                _, oldest = self._values.popitem(last=False)
                self._bytes -= len(oldest)

    def get(self, partition: int, offset: int) -> bytes | None:
        """Return a message's value, or None if it is not kept."""
        return self._values.get((partition, offset))
