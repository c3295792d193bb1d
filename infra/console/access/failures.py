"""Wrong tokens are counted by address: whoever guesses is told to wait. A right token always lets in."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Final

from irregulars.infra.console.access.addresses import neighbourhood_of

MOST_OF_ONE: Final = 10
"""Wrong tokens of one address within `WINDOW_S` before it is told to wait."""

WINDOW_S: Final = 60.0
_REMEMBERED: Final = 2_000  # addresses; the one that was wrong longest ago is forgotten first


class Failures:
    """Wrong tokens of the last minute.

    No count of all addresses together, and none that holds back a right token: strangers could reach it and lock out
    everybody. It is the token's length that keeps guesses away, not this count.
    """

    def __init__(self) -> None:
        self._by_address: Final[OrderedDict[str, deque[float]]] = OrderedDict()

    def count(self, address: str, now_s: float) -> int:
        """Note a wrong token, and return how many seconds its address has to wait; 0: it may try again at once.

        >>> failures = Failures()
        >>> [failures.count("192.0.2.1", now_s) for now_s in range(12)]
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 51, 51]
        >>> failures.count("192.0.2.2", 12.0)
        0
        """
        key = neighbourhood_of(address)
        times = self._by_address.setdefault(key, deque(maxlen=MOST_OF_ONE + 1))
        self._by_address.move_to_end(key)
        while len(self._by_address) > _REMEMBERED:
            self._by_address.popitem(last=False)
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        times.append(now_s)
        return math.ceil(times[1] + WINDOW_S - now_s) if len(times) > MOST_OF_ONE else 0
