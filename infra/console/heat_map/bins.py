"""Bins of cells by their extremes: the largest level of a bin, and whose it is. Never a mean.

Averaged over the ranks of a bin a straggler disappears; that it be seen is what the heat map is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from irregulars.dtypes import Ints
from irregulars.infra.console.heat_map.levels import Levels


@dataclass(frozen=True, slots=True)
class Bins:
    """Extremes of a rectangle of cells, ``[row bin, column bin]``.

    Parameters
    ----------
    levels
        The largest level in each bin; `levels.MISSING` only where no cell of it is stored.
    row, column
        Where that cell lies in its bin, counted from the bin's first row and column. Of equals the first column's,
        in it the first row's.
    """

    levels: Levels
    row: Ints
    column: Ints


def bin_extremes(cells: Levels, rows_per_bin: int, columns_per_bin: int) -> Bins:
    """Return the extremes of bins.

    Parameters
    ----------
    cells
        Levels, ``[column, row]`` as `matrix.HeatMatrix` keeps them: a column is an iteration, a row is a rank. The
        last bins may be smaller.
    rows_per_bin, columns_per_bin
        How many ranks, and how many iterations, a bin has.

    Examples
    --------
    Two iterations of four ranks, two ranks a bin: rank 3 is the extreme of the second bin, in the second iteration.

    >>> cells = np.array([[5, 5, 5, 0], [5, 6, 5, 9]], dtype=np.uint16)
    >>> bins = bin_extremes(cells, rows_per_bin=2, columns_per_bin=2)
    >>> bins.levels.tolist(), bins.row.tolist(), bins.column.tolist()
    ([[6], [9]], [[1], [1]], [[1], [1]])
    """
    columns, rows = (
        -(-size // each) for size, each in zip(cells.shape, (columns_per_bin, rows_per_bin), strict=True)
    )
    padded = _padded(cells, columns * columns_per_bin, rows * rows_per_bin)
    blocks = padded.reshape(columns, columns_per_bin, rows, rows_per_bin).transpose(2, 0, 1, 3)
    flat = blocks.reshape(rows, columns, columns_per_bin * rows_per_bin)
    at = flat.argmax(axis=2)
    levels = np.take_along_axis(flat, at[:, :, None], axis=2)[:, :, 0]
    return Bins(levels, at % rows_per_bin, at // rows_per_bin)


def _padded(cells: Levels, columns: int, rows: int) -> Levels:
    """Fill up with cells that are missing: they are never an extreme where another is stored."""
    if cells.shape == (columns, rows):
        return cells
    padded = np.zeros((columns, rows), dtype=cells.dtype)
    padded[: cells.shape[0], : cells.shape[1]] = cells
    return padded
