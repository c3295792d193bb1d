"""Bins of cells by their extremes: the largest level of a bin, and whose it is. Never a mean.

Averaged over the ranks of a bin a straggler disappears; that it be seen is what the heat map is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Column, Ints
from irregulars.infra.console.heat_map.levels import Levels

_LAST: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Bins:
    """Extremes of a rectangle of cells, ``[row bin, column bin]``.

    Parameters
    ----------
    levels
        The largest level in each bin; `levels.MISSING` only where no cell of it is stored.
    row, column
        Where that cell lies in its bin, counted from the bin's first row and column. Of equals the first row's, in it
        the first column's.
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
    columns, rows = -(-cells.shape[0] // columns_per_bin), -(-cells.shape[1] // rows_per_bin)
    padded = _padded(cells, columns * columns_per_bin, rows * rows_per_bin)
    in_column = _over_columns(padded.reshape(columns, columns_per_bin, -1))
    in_row = _over_rows(in_column.levels.reshape(columns, rows, rows_per_bin))
    at = in_column.at.reshape(columns, rows, rows_per_bin)
    column = np.take_along_axis(at, in_row.at[:, :, None], axis=2)[:, :, 0]
    return Bins(in_row.levels.T, in_row.at.T, column.T.astype(np.int64))


@dataclass(frozen=True, slots=True)
class _Largest:
    """The largest level along an axis, and where it first stands."""

    levels: Levels
    at: Column


def _over_columns(cells: Levels) -> _Largest:
    """Return the largest of the middle axis: a pass over whole rows of cells for each of its places."""
    levels, at = cells[:, 0].copy(), np.zeros(cells[:, 0].shape, dtype=np.uint16)
    for place in range(1, cells.shape[1]):
        is_larger = cells[:, place] > levels
        np.copyto(levels, cells[:, place], where=is_larger)
        np.copyto(at, place, where=is_larger)
    return _Largest(levels, at)


def _over_rows(cells: Levels) -> _Largest:
    """Return the largest of the last axis, which has at most 65,536 places.

    Level and place in one number, level before place, so that one maximum gives both: numpy's `argmax` over a short
    axis costs ten times as much. Earlier places are the larger numbers.
    """
    if cells.shape[2] == 1:
        return _Largest(cells[:, :, 0], np.zeros(cells.shape[:2], dtype=np.int64))
    keys = cells.astype(np.uint32) << np.uint32(16)
    keys |= (_LAST - np.arange(cells.shape[2])).astype(np.uint32)
    largest = keys.max(axis=2)
    return _Largest(
        (largest >> np.uint32(16)).astype(np.uint16), _LAST - (largest & np.uint32(_LAST)).astype(np.int64)
    )


def _padded(cells: Levels, columns: int, rows: int) -> Levels:
    """Fill up with cells that are missing: they are never an extreme where another is stored."""
    if cells.shape == (columns, rows):
        return cells
    padded = np.zeros((columns, rows), dtype=cells.dtype)
    padded[: cells.shape[0], : cells.shape[1]] = cells
    return padded
