"""Runs of equal neighbours, against the same counted one row after the other."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.arrays.runs import (
    begins_run,
    is_ascending,
    places_in_runs,
    repeated_rows,
    run_ends,
    run_lengths,
    run_numbers,
    run_starts,
    starts_of,
)

ROWS = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 1)), max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows as two columns."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(ROWS)
def test_runs_are_those_of_groupby(rows: list[tuple[int, int]]) -> None:
    lengths = [len(list(own)) for _, own in groupby(rows)]
    starts = run_starts(*columns(rows))
    assert starts.tolist() == [sum(lengths[:n]) for n in range(len(lengths))]
    assert run_lengths(starts, len(rows)).tolist() == lengths
    assert run_ends(*columns(rows)).tolist() == [sum(lengths[: n + 1]) - 1 for n in range(len(lengths))]
    assert run_numbers(*columns(rows)).tolist() == [n for n, length in enumerate(lengths) for _ in range(length)]
    assert begins_run(*columns(rows)).tolist() == [n in starts.tolist() for n in range(len(rows))]


@given(ROWS)
def test_repeated_rows_equal_one_beside_them(rows: list[tuple[int, int]]) -> None:
    values = [value for value, _ in rows]
    beside = zip(values, [None, *values[:-1]], [*values[1:], None], strict=True) if values else ()
    expected = [n for n, (own, before, after) in enumerate(beside) if own in (before, after)]
    assert repeated_rows(columns(rows)[0]).tolist() == expected


@given(st.lists(st.integers(0, 4), max_size=8))
def test_places_count_up_in_each_run_also_where_some_are_empty(lengths: list[int]) -> None:
    assert places_in_runs(np.array(lengths, dtype=np.int64)).tolist() == [n for own in lengths for n in range(own)]
    assert starts_of(np.array(lengths, dtype=np.int64)).tolist() == [sum(lengths[:n]) for n in range(len(lengths))]


@given(st.lists(st.integers(0, 3), max_size=5))
def test_ascending_is_sorted(values: list[int]) -> None:
    assert is_ascending(np.array(values)) == (values == sorted(values))
