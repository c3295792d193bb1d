"""When iterations close: their ends, and how far the sources must have come past them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from irregulars.streams.rank_hop.message_rows import IterationTimes
from irregulars.streams.rank_hop.thresholds import RANK_HOP

NEVER_NS: Final = int(np.iinfo(np.int64).max)

ClosingTime = tuple[int, int]  # the number of an iteration, and the watermark of ``commops`` that closes it, ns


def closing_time_ns(row: IterationTimes) -> int:
    """Return the watermark of ``commops`` that closes an iteration, ns."""
    return row.end_ns + _margin_ns(row.elapsed_ns)


def closing_times_by_operators(starts_ns: Mapping[int, int]) -> Iterator[ClosingTime]:
    """Yield when each iteration closes, where it ends as the next one begins: with that one's first operator.

    The newest iteration has no end yet, and is left out.

    >>> list(closing_times_by_operators({3: 1_000, 4: 1_200, 5: 1_500}))
    [(3, 1300), (4, 1650)]
    """
    starts = sorted(starts_ns.items())
    return ((number, after + _margin_ns(after - start)) for (number, start), (_, after) in pairwise(starts))


def newest_closed(times: Iterable[ClosingTime], watermark_ns: int) -> int | None:
    """Return the newest iteration that closes with a watermark, None if none does."""
    return max((number for number, close_ns in times if close_ns <= watermark_ns), default=None)


def earliest_ns(times: Iterable[ClosingTime]) -> int:
    """Return the lowest watermark that closes any iteration, ns; `NEVER_NS` if none does."""
    return min((close_ns for _, close_ns in times), default=NEVER_NS)


def _margin_ns(elapsed_ns: int) -> int:
    """Return by how much the watermark must have passed the end of an iteration of this length.

    Operators on a second stream may end after the iteration that they belong to.
    """
    return min(int(RANK_HOP.closing_margin_ratio * elapsed_ns), RANK_HOP.most_closing_margin_ns)


class WaitingTimer:
    """Measures whether a wait has lasted too long without a break.

    >>> timer = WaitingTimer(30.0)
    >>> [timer.is_over(True, now_s, now_s) for now_s in (0.0, 29.0, 30.0)]
    [False, False, True]
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._since_s: float | None = None

    def is_over(self, is_waiting: bool, now_s: float, until_s: float) -> bool:
        """Return whether the wait has lasted too long; once it has, the next wait begins.

        `now_s`, `until_s`: the present, and until when everything that was sent has been read: a wait begins in the
        present, since the last message may have been sent just now, and lasts as long as nothing else was sent.
        """
        if not is_waiting:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif until_s - self._since_s >= self.most_s:
            self._since_s = None
            return True
        return False

    def restart(self) -> None:
        """Begin anew: a message has come."""
        self._since_s = None
