"""Until when all that was sent has been read: the only clock by which a silence may be told.

A worker that lags, or the death of another worker, looks like ranks that say nothing. What tells the two apart is
how far the topics have been read. A look at a moment notes where the topics end; once everything before these ends
has been read, everything that was sent before the moment has been read. So a silence is the sender's, and not ours,
if it lasts by this clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

Place = TypeVar("Place")

MOST_LOOKS: Final = 128
"""Looks that are kept while reading lags; where more would be needed, every second one goes."""


class ReadThrough(Generic[Place]):
    """Follows how far some places (topics, partitions) have been read.

    Examples
    --------
    >>> clock = ReadThrough()
    >>> clock.look(10.0, {"commops": 5})      # at 10 s the topic had 5 messages
    >>> clock.advance({"commops": 4}) is None
    True
    >>> clock.look(11.0, {"commops": 9})
    >>> clock.advance({"commops": 7})         # those 5 have been read, and not yet all 9
    10.0
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[Place, int]]] = deque()
        self._apart_s = 0.0  # least time between two looks; grows while reading lags
        self._until_s: float | None = None

    @property
    def until_s(self) -> float | None:
        """Everything that was sent until then has been read; `None` while nothing is known."""
        return self._until_s

    def look(self, at_s: float, ends: Mapping[Place, int]) -> None:
        """Note that at a moment the places ended at these offsets (of the next message)."""
        if self._looks and (ends == self._looks[-1][1] or self._is_too_close(at_s)):
            self._looks.pop()  # the newer one says as much, or more
        self._looks.append((at_s, ends))
        if len(self._looks) > MOST_LOOKS:
            self._looks = deque(look for number, look in enumerate(self._looks) if number % 2 == 0)
            self._apart_s = 2 * (self._looks[-1][0] - self._looks[0][0]) / MOST_LOOKS

    def advance(self, positions: Mapping[Place, int]) -> float | None:
        """Return `until_s` after reading has come to these offsets (of the next message to read)."""
        while self._looks and _is_read(self._looks[0][1], positions):
            self._until_s = self._looks.popleft()[0]
        if not self._looks:
            self._apart_s = 0.0
        return self._until_s

    def _is_too_close(self, at_s: float) -> bool:
        return len(self._looks) > 1 and at_s - self._looks[-2][0] < self._apart_s


def _is_read(ends: Mapping[Place, int], positions: Mapping[Place, int]) -> bool:
    return all(positions.get(place, 0) >= end for place, end in ends.items())
