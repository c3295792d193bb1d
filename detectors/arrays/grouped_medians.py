"""Medians: of many groups of rows at once, and of deviations, as a measure of noise that stray values can't move.

Three definitions are in use. `median`, `row_medians` and `medians` take the mean of the two middle values, as
`numpy.median` does, which needs five times as long for the few values of a window.
`lower_medians` takes the lower of the two: of two peers the slower is the odd one, so the faster is the usual one.
`weighted_medians` takes the lowest value up to which half of the weight lies.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from irregulars.detectors.arrays.row_keys import order_within, sort_within, stable_order
from irregulars.detectors.arrays.runs import starts_of
from irregulars.dtypes import Column, Floats, Ints, Numbers

MAD_TO_SIGMA: Final = 1.4826
"""Median absolute deviation to standard deviation, for normal noise (Rousseeuw and Croux 1993, section 1)."""

MEDIAN_ERROR: Final = 1.25  # standard error of a median over that of a mean, of normal values: (pi / 2) ** 0.5


def robust_sigma(deviations: Numbers) -> float:
    """Return the standard deviation of normal noise, from its deviations (at least one) from the middle.

    >>> round(robust_sigma(np.array([-1.0, 0.0, 1.0, 1.0, 900.0])), 4)
    1.4826
    """
    return MAD_TO_SIGMA * median(np.abs(deviations))


def median(values: Numbers) -> float:
    """Return the median of some values, at least one: the mean of the two middle ones; NaN if one of them is NaN.

    >>> median(np.array([4.0, 1.0, 3.0, 2.0])), median(np.array([4, 1, 3]))
    (2.5, 3.0)
    """
    ordered = np.sort(values)  # NaN comes last
    upper = len(ordered) // 2
    if ordered[-1] != ordered[-1]:
        return math.nan
    return float(ordered[upper]) if len(ordered) % 2 else (float(ordered[upper - 1]) + float(ordered[upper])) / 2


def row_medians(table: Floats) -> Floats:
    """Return the median of each row of a table: the mean of its two middle values.

    `table`: rows of at least one value each, none of them NaN.

    >>> row_medians(np.array([[4.0, 1.0, 3.0, 2.0], [0.0, 0.0, 9.0, 9.0]]))
    array([2.5, 4.5])
    """
    ordered, upper = np.sort(table, axis=-1), table.shape[-1] // 2
    if table.shape[-1] % 2:
        return np.asarray(ordered[..., upper])
    return np.asarray((ordered[..., upper - 1] + ordered[..., upper]) / 2)


def medians(group: Ints, values: Numbers) -> Floats:
    """Return the median of each group: the mean of its two middle values.

    `group`: group of each row; groups are numbered from 0 without holes. `values`: of each row, finite.

    >>> medians(np.array([1, 0, 1, 0, 1]), np.array([30, 4, 10, 7, 20]))
    array([ 5.5, 20. ])
    """
    lower, upper = _middles(group, values)
    return np.asarray(lower / 2 + upper / 2)  # the sum of the two might overflow


def column_medians(group: Ints, table: Floats) -> Floats:
    """Return the median of each group in each column of a table: `medians` of all columns, for the price of one.

    `group`: group of each row; groups are numbered from 0 without holes. `table`: float64, a row for each of `group`.
    NaN counts as larger than all. Returns a row for each group.

    >>> column_medians(np.array([1, 0, 1]), np.array([[30.0, 1.0], [4.0, 2.0], [10.0, 4.0]]))
    array([[ 4. ,  2. ],
           [20. ,  2.5]])
    """
    sizes = np.bincount(group)
    firsts = starts_of(sizes)
    columns = np.ascontiguousarray(table[stable_order(group)].T)
    found = np.empty((len(columns), len(sizes)))
    # All groups of one size are sorted in one call, as an array of (columns, groups, size).
    for size in np.unique(sizes).tolist():  # a few: most groups have a row of each iteration
        own = np.flatnonzero(sizes == size)
        values = np.sort(columns[:, firsts[own][:, None] + np.arange(size)], axis=-1)
        found[:, own] = values[..., (size - 1) // 2] / 2 + values[..., size // 2] / 2
    return found.T


def nan_medians(table: Floats) -> Floats:
    """Return the median of each row, NaN left out; each row must hold some other value.

    >>> nan_medians(np.array([[1.0, np.nan, 4.0], [3.0, 1.0, 2.0]]))
    array([2.5, 2. ])
    """
    # Where all is known the plain median is the same, at a tenth of the price.
    return np.nanmedian(table, axis=1) if np.isnan(table).any() else row_medians(table)


def lower_medians(group: Ints, values: Numbers) -> Numbers:
    """Return the lower median of each group, of the dtype of `values`; parameters as for `medians`.

    >>> lower_medians(np.array([1, 0, 1, 0, 1]), np.array([30, 4, 10, 7, 20]))
    array([ 4, 20])
    """
    return _middles(group, values)[0]


def lower_median(values: Numbers) -> float:
    """Return the lower median of some values, at least one.

    >>> lower_median(np.array([4.0, 1.0, 3.0, 2.0]))
    2.0
    """
    return float(np.sort(values)[(len(values) - 1) // 2])


def weighted_medians(group: Ints, values: Floats, weights: Floats) -> Floats:
    """Return the median of each group by weight: the lowest value up to which half of the group's weight lies.

    `group`: group of each row, from 0. `values`, `weights`: of each row. Rows whose value is NaN, or whose weight is
    not above 0, do not count. Returns one value for each group; 0 for a group without a row that counts.

    >>> weighted_medians(np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 9.0, np.nan]), np.array([1.0, 1.0, 3.0, 1.0]))
    array([9., 0.])
    """
    size = int(group.max(initial=-1)) + 1
    rows = np.flatnonzero(~np.isnan(values) & (weights > 0))
    rows = rows[order_within(group[rows], values[rows])]
    total = np.bincount(group[rows], weights[rows], minlength=size)
    before = np.cumsum(total) - total  # weight of all groups before; exact for whole weights up to 2**53 in all
    running = np.cumsum(weights[rows]) - before[group[rows]]
    is_past = running >= total[group[rows]] / 2
    found = np.zeros(size)
    past = rows[is_past][::-1]  # the first of each group is written last
    found[group[past]] = values[past]
    return found


def _middles(group: Ints, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the lower and the upper of the two middle values of each group."""
    sizes = np.bincount(group)
    firsts = starts_of(sizes)
    ordered = sort_within(group, values, len(sizes))
    return ordered[firsts + (sizes - 1) // 2], ordered[firsts + sizes // 2]


# --------------------------------------------------------------------------------------------------------------------
# Values that differ by little, as sizes of messages do that hold a little more or less of the same.


def alike_codes(values: Column, ratio: float) -> Ints:
    """Number values so that those with one number lie within a ratio of one another; the smallest begins with 0.

    `values`: at least 0; NaN counts as 0, and 0 is like no other. A value below 0 has a number of its own. `ratio`:
    by how much the largest with a number may exceed the smallest, as a share of that.

    >>> alike_codes(np.array([100.0, 0.0, 104.0, 300.0, 110.0, 111.0]), 0.1)
    array([1, 0, 1, 3, 1, 2])
    """
    distinct, place = np.unique(np.nan_to_num(values), return_inverse=True)
    code = np.zeros(len(distinct), dtype=np.int64)
    begin, number = 0, 0
    while begin < len(distinct):
        past = int(np.searchsorted(distinct, float(distinct[begin]) * (1 + ratio), side="right"))
        past = max(past, begin + 1)  # of a value below 0, what exceeds it by the ratio lies before it
        code[begin:past] = number
        begin, number = past, number + 1
    return code[place]


# --------------------------------------------------------------------------------------------------------------------
# Measured values without the digits that are noise: those compress to nothing where many values are stored.


def round_to_bits(values: Numbers, bits: int) -> Floats:
    """Return values rounded to `bits` significant bits, with an error of at most ``2 ** -bits`` of each.

    >>> round_to_bits(np.array([1000.0, 1001.3, -12345678.9, np.nan]), 10).tolist()
    [1000.0, 1001.0, -12353536.0, nan]
    """
    # The mantissa is 0.5 to 1: times 2 ** bits and rounded, it has `bits` significant bits.
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))
