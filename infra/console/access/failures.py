"""Failed logins are counted: whoever guesses has to wait, and the others do not."""

from __future__ import annotations

from collections import deque
from typing import Final

MOST_OF_ONE: Final = 10
"""Failures of one address within `WINDOW_S` before it has to wait."""

MOST_OF_ALL: Final = 200
"""The same of all addresses together: many machines may guess at once."""

WINDOW_S: Final = 60.0
_REMEMBERED: Final = 2_000  # addresses; more than these in a minute are an attack, and `MOST_OF_ALL` has ended it


class Failures:
    """Failed logins of the last minute."""

    def __init__(self) -> None:
        self._by_address: Final[dict[str, deque[float]]] = {}
        self._all: Final[deque[float]] = deque(maxlen=MOST_OF_ALL)

    def wait_s(self, address: str, now_s: float) -> int:
        """Return how many seconds an address has to wait until its next try; 0: none."""
        own = self._by_address.get(address, deque())
        for times, most in ((own, MOST_OF_ONE), (self._all, MOST_OF_ALL)):
            while times and times[0] <= now_s - WINDOW_S:
                times.popleft()
            if len(times) >= most:
                return max(1, int(times[0] + WINDOW_S - now_s) + 1)
        return 0

    def count(self, address: str, now_s: float) -> None:
        """Note a failure."""
        if len(self._by_address) >= _REMEMBERED:
            self._by_address.clear()
        self._by_address.setdefault(address, deque(maxlen=MOST_OF_ONE)).append(now_s)
        self._all.append(now_s)
