"""Group rows by several integer columns: one sort of one packed key, where numpy would sort rows of structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

Array = np.ndarray

_MAX_SPAN: Final = 1 << 62


def pack_columns(columns: Sequence[Array]) -> Array:
    """Pack columns into one int64 key that sorts as the rows do, column by column, and is equal where they are.

    Parameters
    ----------
    columns
        Integer columns of equal lengths, the most significant first.

    Examples
    --------
    >>> pack_columns([np.array([1, 1, 7]), np.array([5, 6, 5])])
    array([ 0,  1, 12])
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    if len(key) == 0:
        return key
    span = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        values, width = column - low, high - low + 1
        if span * width > _MAX_SPAN:  # close the holes between the values, of what is packed and of the column
            key, values = _dense(key), _dense(column)
            span, width = int(key.max()) + 1, int(values.max()) + 1
        key = key * width + values
        span *= width
    return key


def group_rows(columns: Sequence[Array]) -> tuple[Array, Array]:
    """Number the groups of equal rows in ascending order.

    Returns
    -------
    The group of each row, and for each group its first row.
    """
    _, first, group = np.unique(pack_columns(columns), return_index=True, return_inverse=True)
    return group, first


def sort_rows(columns: Sequence[Array]) -> Array:
    """Return the stable order of the rows, by the first column, then the second, and so on."""
    key = pack_columns(columns)
    if np.all(key[1:] >= key[:-1]):
        return np.arange(len(key))
    return np.argsort(key, kind="stable")


def _dense(values: Array) -> Array:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
