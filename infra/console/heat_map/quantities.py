"""What the heat map's colours may stand for, and how it is computed from the stored columns.

``beyond`` is shown first: how much longer a rank worked than it should have, against two expectations, whichever it
exceeds by more. Against its own usual (less what its peers took longer in the same iteration, so that a larger batch
for all is nobody's excess) a transient culprit shows; against its peers in the same iteration one that was slow from
the first iteration on, which has no healthy past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Ints
from irregulars.infra.console.heat_map.levels import LEAST_NS, LEAST_SCORE, Values

FEWEST_PEERS: Final = 3
"""A group with fewer ranks has no median that a culprit would not move: all ranks are its peers instead."""

_MAD: Final = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
_FLOOR: Final = 4.0  # robust standard deviations that count as usual: ranks differ in their noise
_LOWEST_SHARE: Final = 0.01  # of the cells, below which a scale of absolute values begins


@dataclass(frozen=True, slots=True)
class Quantity:
    """One choice of what is shown."""

    name: str  # in addresses
    # title, explanation: For people
    title: str
    explanation: str
    column: str  # of ``rank_iterations``
    is_excess: bool  # whether it is what a value is beyond something; else it is the value itself
    least: float = LEAST_NS  # smallest value told apart
    unit: str = "ns"  # ``ns`` or ``score``


QUANTITIES: Final = {
    one.name: one
    for one in (
        Quantity(
            "beyond", "work beyond usual",
            "own work longer than this rank's usual or than its peers' in the same iteration, whichever is more",
            "work_ns", True,
        ),
        Quantity(
            "peers", "work beyond its peers",
            "own work longer than the median of its peers in the same iteration", "work_ns", True,
        ),
        Quantity("own", "work beyond its own usual", "own work longer than this rank's median", "work_ns", True),
        Quantity("work", "own work", "time between communication operators", "work_ns", False),
        Quantity("elapsed", "time of the iteration", "whole iteration as this rank saw it", "elapsed_ns", False),
        Quantity("score", "score", "largest score of the detectors; 1 is where strange begins", "score", False,
                 LEAST_SCORE, "score"),
    )
}  # fmt: skip
"""All choices; the first is the one that is shown unless somebody asks for another."""


def usual_of(work: Values) -> Values:
    """Return each rank's median over iterations; NaN for a rank without any.

    Parameters
    ----------
    work
        ``[iteration, rank]``.
    """
    return _medians(work.T)


def beyond_peers(values: Values, group: Ints) -> Values:
    """Return how much each cell is above the median of the rank's peers in that iteration, itself among them.

    Parameters
    ----------
    values
        ``[iteration, rank]``.
    group
        Whose peer each rank is: a number for each, from 0 on. See `FEWEST_PEERS`.
    """
    sizes = np.bincount(group)
    beyond = np.empty_like(values)
    few = np.flatnonzero(sizes[group] < FEWEST_PEERS)
    if few.size:
        beyond[:, few] = values[:, few] - _medians(values)[:, None]
    for number in np.flatnonzero(sizes >= FEWEST_PEERS).tolist():
        members = as_slice(np.flatnonzero(group == number))
        own = values[:, members]
        beyond[:, members] = own - _medians(own)[:, None]
    return beyond


def as_slice(numbers: Ints) -> Ints | slice:
    """Return numbers that follow one another as a slice: it copies nothing."""
    if not len(numbers) or not (np.diff(numbers) == 1).all():
        return numbers
    return slice(int(numbers[0]), int(numbers[-1]) + 1)


def shown_of(quantity: Quantity, values: Values, usual: Values, group: Ints) -> Values:
    """Return what is shown of each cell, in the quantity's unit; NaN where nothing is stored.

    Parameters
    ----------
    values
        The quantity's column, ``[iteration, rank]``.
    usual
        Each rank's usual of it (`usual_of`).
    group
        As for `beyond_peers`.
    """
    if quantity.name == "own":
        return values - usual
    if quantity.name == "peers":
        return beyond_peers(values, group)
    if quantity.name == "beyond":
        return np.fmax(beyond_peers(values - usual, group), beyond_peers(values, group))
    return values


def low_of(quantity: Quantity, shown: Values) -> float:
    """Return the value up to which a cell counts as usual, from a sample of what is shown.

    Of an excess it is `_FLOOR` robust standard deviations of the noise; of other quantities, nearly the least.
    """
    known = shown[~np.isnan(shown)]
    if not known.size:
        return quantity.least
    if quantity.is_excess:
        # Beyond usual, most cells lie a little above 0: the spread counts from the median.
        middle = float(np.median(known))
        low = max(0.0, middle) + _FLOOR * _MAD * float(np.median(np.abs(known - middle)))
    else:
        low = float(np.quantile(known, _LOWEST_SHARE))
    return max(quantity.least, low)


def _medians(values: Values) -> Values:
    """Return the lower median of each row, NaN aside; `numpy.nanmedian` goes row by row in Python."""
    ordered = np.sort(values, axis=1)  # NaN come last
    counts = (~np.isnan(values)).sum(axis=1)
    at = np.maximum(counts - 1, 0) // 2
    medians: Values = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]
    return medians
