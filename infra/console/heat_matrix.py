"""All cells of a window of iterations in two bytes each, and the quantities that colours may stand for.

``beyond`` is shown first: how much longer a rank worked than it should have, against two expectations, whichever it
exceeds by more. Against its own usual (less its peers' excess in the same iteration, so that a larger batch
for all is no excess of one) a transient culprit shows; against its peers in the same iteration one that was slow from
the first iteration on, which has no healthy past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Ints
from irregulars.infra.console.heat_levels import (
    LEAST_NS,
    LEAST_SCORE,
    MISSING,
    Bins,
    Levels,
    Scale,
    Values,
    bin_extremes,
    levels_of,
    scale_of,
    values_of,
)

TILE: Final = 512  # bins in a tile's height and width, at most
# Ranks, or iterations, in a bin at most: where the extreme lies in its bin is sent in two bytes
MOST_PER_BIN: Final = 1 << 16

# Cells of a window at most: 32 MiB of levels, read within a second or two. 100,000 ranks: 167 iterations.
MOST_CELLS: Final = 1 << 24

STRANGEST: Final = 10  # ranks that the table beside the heat map lists


@dataclass(frozen=True, slots=True)
class Strange:
    """A rank's strangest cell, and in how many iterations it was beyond usual."""

    row: int  # of `places.Places`
    column: int  # which iteration of the window
    value: float  # of the quantity shown, ns or score
    # times, present: Iterations above the scale's low end, and iterations that are stored
    times: int
    present: int


@dataclass(frozen=True, slots=True)
class Baseline:
    """The reference against which cells are judged."""

    usual: Values  # each rank's usual of the quantity's column
    low: float  # value up to which a cell counts as usual
    # first, last: Iterations between which both were found
    first: int
    last: int

    def fits(self, iterations: Ints) -> bool:
        """Return whether it may still serve: half of these iterations or more are among its own."""
        return int(((iterations >= self.first) & (iterations <= self.last)).sum()) * 2 >= len(iterations)


@dataclass(frozen=True, slots=True)
class HeatMatrix:
    """One quantity of all ranks in a window of iterations."""

    levels: Levels  # ``[iteration, rank]``
    scale: Scale  # from which level to which colours run
    baseline: Baseline  # the reference of its cells

    def tile(self, rows: Ints, per_bin: tuple[int, int], at: tuple[int, int], skipped: int = 0) -> Bins:
        """Return one tile of bins.

        `rows`: Which rank stands at each place from the top (`places.Order.rows`); `per_bin`: Ranks and iterations in
        a bin; `at`: Which tile, counted in tiles from the top and from the left; `skipped`: Columns of bins at its
        left that are left out.
        """
        (top, bottom), (left, right) = (
            (number * TILE * each, (number + 1) * TILE * each) for number, each in zip(at, per_bin, strict=True)
        )
        left += skipped * per_bin[1]
        return bin_extremes(self.levels[left:right, as_slice(rows[top:bottom])], *per_bin)

    def strangeness(self) -> Ints:
        """Return a number for each rank, higher is stranger: its largest level."""
        return self.levels.max(axis=0, initial=MISSING).astype(np.int64)

    def strangest(self) -> list[Strange]:
        """Return the ranks that were furthest or most often beyond usual, at most `STRANGEST`.

        In turns one by its largest cell and one by how often: else a culprit that is a little slow always would not
        be among them where ten others were very slow once.
        """
        most, times = self.strangeness(), (self.levels > self.scale.low).sum(axis=0)
        furthest, oftenest = (np.argsort(-by, kind="stable")[:STRANGEST].tolist() for by in (most, times))
        in_turns = [row for pair in zip(furthest, oftenest, strict=True) for row in pair if times[row]]
        found = []
        for row in list(dict.fromkeys(in_turns))[:STRANGEST]:
            own = self.levels[:, row]
            column = int(own.argmax())
            value = float(values_of(own[column : column + 1], self.scale.least)[0])
            found.append(Strange(row, column, value, int(times[row]), int((own != MISSING).sum())))
        return found


def sampled(columns: int, most: int) -> Ints:
    """Return up to `most` columns, evenly spread, of which a rank's usual is computed.

    >>> sampled(7, 3).tolist()
    [0, 3, 6]
    """
    return np.unique(np.linspace(0, columns - 1, min(most, columns)).round().astype(np.int64))


def matrix_of(
    quantity: Quantity, chunks: Callable[[], Iterator[tuple[int, Values]]], sample: Values, group: Ints,
    iterations: Ints,
) -> HeatMatrix:  # fmt: skip
    """Make a matrix, a chunk of iterations at a time: cells take four bytes only while their chunk is worked on.

    `chunks`: the first iteration of each chunk, and its cells ``[iteration, rank]``. `sample`: cells of some regular
    iterations, for each rank's usual and the noise. `group`: whose peer each rank is.
    """
    usual = usual_of(sample)
    levels = np.zeros((len(iterations), sample.shape[1]), dtype=np.uint16)
    for first, values in chunks():
        levels[first : first + len(values)] = levels_of(shown_of(quantity, values, usual, group), quantity.least)
    low = low_of(quantity, shown_of(quantity, sample, usual, group))
    baseline = Baseline(usual, low, int(iterations[0]), int(iterations[-1]))
    return HeatMatrix(levels, scale_of(levels, low, quantity.least), baseline)


def extended(base: HeatMatrix, quantity: Quantity, columns: Ints, values: Values, group: Ints) -> HeatMatrix:
    """Return a matrix that shares columns with another one, and its baseline.

    `columns`: of each iteration, its column in `base`; -1: it is new. `values`: the quantity's column of the new
    ones, ``[iteration, rank]``.
    """
    is_new = columns < 0
    levels = np.empty((len(columns), base.levels.shape[1]), dtype=np.uint16)
    levels[~is_new] = base.levels[columns[~is_new]]
    levels[is_new] = levels_of(shown_of(quantity, values, base.baseline.usual, group), quantity.least)
    return HeatMatrix(levels, scale_of(levels, base.baseline.low, quantity.least), base.baseline)


# A group with fewer ranks has no median that a culprit would not move: all ranks are its peers instead
FEWEST_PEERS: Final = 3

_MAD: Final = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
_FLOOR: Final = 4.0  # robust standard deviations that count as usual: ranks differ in their noise
_LOWEST_SHARE: Final = 0.01  # of the cells, below which a scale of absolute values begins


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity that the heat map can show."""

    name: str  # in addresses
    # title, explanation: For people
    title: str
    explanation: str
    column: str  # of ``rank_iterations``
    is_excess: bool  # a difference to a reference, not the value itself
    least: float = LEAST_NS  # smallest value told apart
    unit: str = "ns"  # ``ns`` or ``score``


# All choices; the first is the default
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


def usual_of(work: Values) -> Values:
    """Return each rank's median over iterations; NaN for a rank without any. `work`: ``[iteration, rank]``."""
    return _medians(work.T)


def beyond_peers(values: Values, group: Ints) -> Values:
    """Return how much each cell is above the median of the rank's peers in that iteration, itself among them.

    `values`: ``[iteration, rank]``. `group`: whose peer each rank is, a number from 0 on; see `FEWEST_PEERS`.
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
    """Return the quantity of each cell, in its unit; NaN where nothing is stored.

    `values`: the quantity's column, ``[iteration, rank]``; `usual`: Each rank's usual of it (`usual_of`); `group`: as
    for `beyond_peers`.
    """
    if quantity.name == "own":
        return values - usual
    if quantity.name == "peers":
        return beyond_peers(values, group)
    if quantity.name == "beyond":
        return np.fmax(beyond_peers(values - usual, group), beyond_peers(values, group))
    return values


def low_of(quantity: Quantity, shown: Values) -> float:
    """Return the value up to which a cell counts as usual, from a sample of cells.

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
    # A row without a value gets its first entry, which is NaN.
    at = np.maximum(counts - 1, 0) // 2
    medians: Values = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]
    return medians
