"""The time that all reading together may take."""

from __future__ import annotations

import time
from typing import Final

_LEAST_S: Final = 0.2


class Deadline:
    """Says how long a step may still take.

    Parameters
    ----------
    within_s
        Seconds from now.
    """

    def __init__(self, within_s: float) -> None:
        self._end_s: Final = time.monotonic() + within_s

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._end_s

    def left_s(self, most_s: float = float("inf")) -> float:
        """Return the seconds that are left, at most `most_s`; never 0, which clients take for no limit."""
        return max(min(self._end_s - time.monotonic(), most_s), _LEAST_S)
