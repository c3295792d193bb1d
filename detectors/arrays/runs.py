"""Runs: neighbouring rows that are equal, as the rows of a group are once they are sorted."""

from __future__ import annotations

from typing import Any

import numpy as np

from irregulars.dtypes import Column, Flags, Ints


def begins_run(*columns: Column) -> Flags:
    """Return for each row whether it differs from the row before it in any of some columns; the first row does.

    >>> begins_run(np.array([7, 7, 7, 4]), np.array([0, 0, 1, 1]))
    array([ True, False,  True,  True])
    """
    found = np.ones(len(columns[0]), dtype=np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=found[1:])
    for column in columns[1:]:
        found[1:] |= column[1:] != column[:-1]
    return found


def run_starts(*columns: Column) -> Ints:
    """Return the first row of each run.

    >>> run_starts(np.array([7, 7, 7, 4]), np.array([0, 0, 1, 1]))
    array([0, 2, 3])
    """
    return np.flatnonzero(begins_run(*columns))


def run_ends(*columns: Column) -> Ints:
    """Return the last row of each run.

    >>> run_ends(np.array([7, 7, 7, 4]))
    array([2, 3])
    """
    return np.flatnonzero(np.append(begins_run(*columns)[1:], len(columns[0]) > 0))


def run_numbers(*columns: Column) -> Ints:
    """Return the number, from 0, of the run that each row is in.

    >>> run_numbers(np.array([7, 7, 7, 4]))
    array([0, 0, 0, 1])
    """
    return np.cumsum(begins_run(*columns)) - 1


def run_lengths(starts: Ints, rows: int) -> Ints:
    """Return how many rows each run has, from their `starts` and the number of all rows.

    >>> run_lengths(np.array([0, 2, 3]), 4)
    array([2, 1, 1])
    """
    return np.diff(starts, append=rows)


def starts_of(lengths: Ints) -> Ints:
    """Return the first row of each run, from how many rows each of them has; a run may be empty.

    >>> starts_of(np.array([2, 0, 1]))
    array([0, 2, 2])
    """
    return np.asarray(lengths.cumsum() - lengths)


def places_in_runs(lengths: Ints) -> Ints:
    """Return the place of each row in its run, from 0.

    >>> places_in_runs(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(int(np.sum(lengths))) - np.repeat(starts_of(lengths), lengths)


def repeated_rows(column: Column) -> Ints:
    """Return the rows that equal a neighbour.

    >>> repeated_rows(np.array([5, 5, 8, 9, 9]))
    array([0, 1, 3, 4])
    """
    # Rows that equal the one before them, then also the row before each of these; a copy, since both sides overlap.
    is_same: Any = ~begins_run(column)
    is_same[:-1] |= is_same[1:].copy()
    return np.flatnonzero(is_same)


def is_ascending(column: Column) -> bool:
    """Return whether no value is below the one before it.

    >>> is_ascending(np.array([3, 3, 4])), is_ascending(np.array([3, 2]))
    (True, False)
    """
    return bool((column[1:] >= column[:-1]).all())
