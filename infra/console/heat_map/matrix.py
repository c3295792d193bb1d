"""All cells of a window of iterations in two bytes each, and what the browser asks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Ints
from irregulars.infra.console.heat_map.levels import (
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
from irregulars.infra.console.heat_map.quantities import Quantity, as_slice, low_of, shown_of, usual_of

TILE: Final = 512  # bins in a tile's height and width, at most
MOST_PER_BIN: Final = 1 << 16
"""Ranks, or iterations, in a bin at most: where the extreme lies in its bin is sent in two bytes."""

MOST_CELLS: Final = 1 << 24
"""Cells of a window at most: 32 MiB of levels, read within a second or two. 100,000 ranks: 167 iterations."""

STRANGEST: Final = 10  # ranks that the table beside the heat map lists


@dataclass(frozen=True, slots=True)
class Strange:
    """A rank's strangest cell, and in how many iterations it was beyond usual."""

    row: int  # of `places.Places`
    column: int  # which iteration of the window
    value: float  # what is shown of it, ns or score
    # times, present: Iterations above the scale's low end, and iterations that are stored
    times: int
    present: int


@dataclass(frozen=True, slots=True)
class Baseline:
    """What cells are held against."""

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

    version: str  # of the rows that it was made from: other rows, another version
    levels: Levels  # ``[iteration, rank]``
    scale: Scale  # from which level to which colours run
    baseline: Baseline  # what its cells were held against

    def tile(self, rows: Ints, per_bin: tuple[int, int], at: tuple[int, int], skipped: int = 0) -> Bins:
        """Return one tile of bins.

        Parameters
        ----------
        rows
            Which rank stands at each place from the top (`places.Order.rows`).
        per_bin
            Ranks and iterations in a bin.
        at
            Which tile, counted in tiles from the top and from the left.
        skipped
            Columns of bins at its left that are left out.
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
        return [self._strange(row) for row in list(dict.fromkeys(in_turns))[:STRANGEST]]

    def _strange(self, row: int) -> Strange:
        own = self.levels[:, row]
        column = int(own.argmax())
        value = float(values_of(own[column : column + 1], self.scale.least)[0])
        return Strange(row, column, value, int((own > self.scale.low).sum()), int((own != MISSING).sum()))


def sampled(columns: int, most: int) -> Ints:
    """Return up to `most` columns, evenly spread, of which a rank's usual is computed.

    >>> sampled(7, 3).tolist()
    [0, 3, 6]
    """
    return np.unique(np.linspace(0, columns - 1, min(most, columns)).round().astype(np.int64))


def matrix_of(
    quantity: Quantity, chunks: Callable[[], Iterator[tuple[int, Values]]], sample: Values, group: Ints,
    iterations: Ints, version: str,
) -> HeatMatrix:  # fmt: skip
    """Make a matrix, a chunk of iterations at a time: cells take four bytes only while their chunk is looked at.

    Parameters
    ----------
    chunks
        The quantity's column: the first iteration of each chunk, and its cells ``[iteration, rank]``.
    sample
        Cells of some regular iterations, to know each rank's usual and the noise by.
    group
        Whose peer each rank is.
    iterations
        Those of the window.
    """
    usual = usual_of(sample)
    levels = np.zeros((len(iterations), sample.shape[1]), dtype=np.uint16)
    for first, values in chunks():
        levels[first : first + len(values)] = levels_of(shown_of(quantity, values, usual, group), quantity.least)
    low = low_of(quantity, shown_of(quantity, sample, usual, group))
    baseline = Baseline(usual, low, int(iterations[0]), int(iterations[-1]))
    return HeatMatrix(version, levels, scale_of(levels, low, quantity.least), baseline)


def extended(
    base: HeatMatrix, quantity: Quantity, columns: Ints, values: Values, group: Ints, version: str
) -> HeatMatrix:  # fmt: skip
    """Return a matrix that shares columns with another one, and its baseline.

    Parameters
    ----------
    columns
        Of each iteration, its column in `base`; -1: it is new.
    values
        The quantity's column of the new ones, ``[iteration, rank]``.
    """
    is_new = columns < 0
    levels = np.empty((len(columns), base.levels.shape[1]), dtype=np.uint16)
    levels[~is_new] = base.levels[columns[~is_new]]
    levels[is_new] = levels_of(shown_of(quantity, values, base.baseline.usual, group), quantity.least)
    return HeatMatrix(version, levels, scale_of(levels, base.baseline.low, quantity.least), base.baseline)
