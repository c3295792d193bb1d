"""Pair the calls of ranks that are one collective: a trace numbers none, and captures begin at different moments.

The members of a collective leave it together. So where the right calls are paired, their ends are apart by the same
time, the offset of the clocks; where wrong ones are, by times that vary as the lengths of iterations do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Ints

_MOST_APART: Final = 256  # calls by which captures begin apart, where clocks do not tell more
_COMPARED: Final = 512  # calls of a pair of ranks
_PASSING: Final = 0.95  # share of the calls: profilers lose some


class Series(NamedTuple):
    """Calls of one rank on one communicator, in their order."""

    end_ns: Ints
    kind: Ints  # the same for the same operator and size


def find_shifts(series: Mapping[int, Series]) -> dict[int, int]:
    """Return by rank the number of its first call, where the earliest call of all is number 0.

    >>> ends = np.cumsum([0, 9_000_000, 12_000_000, 10_000_000, 8_000_000])
    >>> find_shifts({rank: Series(ends[rank:], np.zeros(5 - rank, int)) for rank in (0, 1)})
    {0: 0, 1: 1}
    """
    longest = series[max(series, key=lambda rank: len(series[rank].end_ns))]
    shifts: dict[int, int] = {}
    for rank, own in series.items():
        by_clock = int(np.searchsorted(longest.end_ns, own.end_ns[0])) if len(own.end_ns) else 0
        tried = {0, *range(-_MOST_APART, _MOST_APART + 1), *range(by_clock - 2, by_clock + 3)}
        # `min` keeps the first of equals, and so the smallest shift.
        apart_ns = {shift: _apart_ns(own, longest, shift) for shift in sorted(tried, key=abs)}
        best = min(apart_ns, key=apart_ns.__getitem__)
        # Of regular iterations many shifts fit about as well: another one than 0 must be clearly better.
        shifts[rank] = best if 2 * apart_ns[best] < apart_ns[0] else 0
    least = min(shifts.values())
    return {rank: shift - least for rank, shift in shifts.items()}


def _apart_ns(own: Series, other: Series, shift: int) -> float:
    """Return by how much the distance of the ends of paired calls varies; infinite where other calls are paired.

    `shift`: place of `own`'s first call among `other`'s, which may be negative.
    """
    first = max(0, -shift)
    count = min(len(own.end_ns) - first, len(other.end_ns) - first - shift)
    # A shift by which less than half of the shorter capture is paired would win by the few calls that it compares.
    if 2 * count < min(len(own.end_ns), len(other.end_ns)) or count < 1:
        return np.inf
    a = slice(first, first + min(count, _COMPARED))
    b = slice(a.start + shift, a.stop + shift)
    if np.mean(own.kind[a] == other.kind[b]) < _PASSING:
        return np.inf
    apart_ns = own.end_ns[a] - other.end_ns[b]
    return float(np.median(np.abs(apart_ns - np.median(apart_ns))))
