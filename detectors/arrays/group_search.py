"""Search in many sorted groups at once, as `numpy.searchsorted` does in one."""

from __future__ import annotations

import numpy as np

from irregulars.detectors.arrays.row_keys import lift_times
from irregulars.dtypes import Column, Flags, Ints


def find_sorted(ascending: Column, values: Column) -> tuple[Ints, Flags]:
    """Find values in an ascending array.

    Returns
    -------
    A position for each value, and whether the value really stands there; where it does not, the position is only a
    valid index.

    Examples
    --------
    >>> find_sorted(np.array([2, 5, 9]), np.array([5, 6]))
    (array([1, 2]), array([ True, False]))
    """
    if len(ascending) == 0:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    index = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return index, ascending[index] == values


def first_in_group_from(group: Ints, value: Ints, asked_group: Ints, asked_value: Ints) -> Ints:
    """For each question find the first row of a group whose value is the asked one or larger.

    Parameters
    ----------
    group, value
        int64, rows in ascending order of group, then of value.
    asked_group, asked_value
        int64, one question each.

    Returns
    -------
    int64, the position of the row; -1 where all values of the group are smaller, or the group has no rows.

    Examples
    --------
    Group 0 has the values 10 and 30, group 4 has 20:

    >>> group, value = np.array([0, 0, 4]), np.array([10, 30, 20])
    >>> first_in_group_from(group, value, np.array([0, 0, 4, 3]), np.array([11, 31, 20, 0]))
    array([ 1, -1,  2, -1])
    """
    if not len(group):
        return np.full(len(asked_group), -1)
    rows, asked = lift_times([group, asked_group], [value, asked_value])
    position = np.searchsorted(rows, asked)
    inside = np.minimum(position, len(group) - 1)
    return np.where((position < len(group)) & (group[inside] == asked_group), position, -1)


def last_in_group_until(group: Ints, value: Ints, asked_group: Ints, asked_value: Ints) -> Ints:
    """For each question find the last row of a group whose value is the asked one or smaller; else as above.

    Examples
    --------
    >>> group, value = np.array([0, 0, 4]), np.array([10, 30, 20])
    >>> last_in_group_until(group, value, np.array([0, 0, 4, 3]), np.array([9, 30, 20, 99]))
    array([-1,  1,  2, -1])
    """
    if not len(group):
        return np.full(len(asked_group), -1)
    rows, asked = lift_times([group, asked_group], [value, asked_value])
    position = np.searchsorted(rows, asked, side="right") - 1
    inside = np.maximum(position, 0)
    return np.where((position >= 0) & (group[inside] == asked_group), position, -1)
