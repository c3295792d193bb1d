"""Order and groups of rows by integers, against what numpy says of the same rows."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.arrays.row_keys import (
    find_sorted,
    first_in_group_from,
    first_rows,
    group_rows,
    last_in_group_until,
    lift_times,
    order_within,
    sort_nearly,
    sort_rows,
    sort_within,
    stable_order,
)
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

ANY = np.iinfo(np.int64)
SMALL = st.integers(-3, 3)
WIDE = st.integers(ANY.min, ANY.max)
COLUMN = st.one_of(st.lists(SMALL, max_size=40), st.lists(st.one_of(SMALL, WIDE), max_size=40))


def array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(values=COLUMN)
def test_an_order_is_stable_however_wide_the_values_are(values: list[int]) -> None:
    assert stable_order(array(values)).tolist() == np.argsort(array(values), kind="stable").tolist()


@pytest.mark.parametrize("span", [2**20, 2**45, 2**61, 2**63])
def test_an_order_of_many_values_is_stable(span: int) -> None:
    values = np.random.default_rng(7).integers(-(span // 2), span // 2 - 1, 5_000)
    values[::3] = values[0]
    assert np.array_equal(stable_order(values), np.argsort(values, kind="stable"))


@given(rows=st.lists(st.tuples(SMALL, SMALL, SMALL), max_size=40))
def test_rows_are_grouped_and_ordered_as_tuples_are(rows: list[tuple[int, int, int]]) -> None:
    columns = [array([row[at] for row in rows]) for at in range(3)]
    in_order = sorted(range(len(rows)), key=lambda at: rows[at])
    groups = sorted(set(rows))
    group, first = group_rows(columns)
    assert [groups[at] for at in group.tolist()] == rows
    assert first.tolist() == [rows.index(one) for one in groups] == first_rows(group, len(groups)).tolist()
    assert sort_rows(columns).tolist() == sort_nearly(columns[:1], columns[1:]).tolist() == in_order


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.one_of(SMALL, st.integers(-(2**62), 2**62 - 1))), max_size=40))
def test_values_are_ordered_within_their_groups(rows: list[tuple[int, int]]) -> None:
    group, values = array([row[0] for row in rows]), array([row[1] for row in rows])
    assert sort_within(group, values, 4).tolist() == [value for _, value in sorted(rows)]


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.one_of(SMALL, WIDE)), max_size=40), cut=st.integers(0, 40))
def test_lifted_times_of_several_arrays_compare_by_group_and_time(rows: list[tuple[int, int]], cut: int) -> None:
    parts = [rows[:cut], rows[cut:]]
    groups, times = ([array([row[at] for row in part]) for part in parts] for at in (0, 1))
    keys = np.concatenate(lift_times(groups, times)).tolist()
    assert [rows[at] for at in sorted(range(len(rows)), key=lambda at: keys[at])] == sorted(rows)


ANY_FLOAT = st.floats(allow_nan=False)


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.one_of(SMALL.map(float), ANY_FLOAT)), max_size=40))
def test_floats_are_ordered_within_their_groups(rows: list[tuple[int, float]]) -> None:
    group, values = array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.float64)
    expected = [value for _, value in sorted(rows)]
    assert sort_within(group, values, 4).tolist() == values[order_within(group, values)].tolist() == expected


def test_what_is_not_known_comes_last_in_its_group() -> None:
    group, values = array([1, 0, 1, 0]), np.array([np.nan, 2.0, -np.inf, np.nan])
    np.testing.assert_array_equal(sort_within(group, values, 2), [2.0, np.nan, -np.inf, np.nan])


def test_few_rows_are_grouped_and_sorted_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    columns = [draw.integers(-3, 3, 200) for _ in range(3)]
    group, values = draw.integers(0, 4, 200), draw.integers(-9, 9, 200) / 2
    values[:5] = np.nan

    def found() -> list[list[float]]:
        arrays = *group_rows(columns), stable_order(group), sort_within(group, values, 4)
        return [np.nan_to_num(one, nan=99.0).tolist() for one in arrays]

    few = found()
    monkeypatch.setattr("irregulars.detectors.arrays.row_keys._FEW", 0)
    assert found() == few


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=12)


@given(rows=ROWS, questions=ROWS)
def test_both_searches_find_as_by_hand_does(rows: list[tuple[int, int]], questions: list[tuple[int, int]]) -> None:
    rows = sorted(rows)
    group, value = (np.array([row[column] for row in rows], dtype=np.int64) for column in (0, 1))
    asked_group, asked = (np.array([one[column] for one in questions], dtype=np.int64) for column in (0, 1))
    first = first_in_group_from(group, value, asked_group, asked).tolist()
    last = last_in_group_until(group, value, asked_group, asked).tolist()
    for at, (own, limit) in enumerate(questions):
        later = [place for place, row in enumerate(rows) if row[0] == own and row[1] >= limit]
        before = [place for place, row in enumerate(rows) if row[0] == own and row[1] <= limit]
        assert (first[at], last[at]) == (min(later, default=-1), max(before, default=-1))


def test_one_time_from_another_age_spoils_no_search() -> None:
    group, value = np.array([0, 0, 1, 1]), np.array([10, 30, 20, 2**62])
    assert first_in_group_from(group, value, np.array([0, 1]), np.array([11, 21])).tolist() == [1, 3]
    assert last_in_group_until(group, value, np.array([0, 1]), np.array([29, -(2**61)])).tolist() == [0, -1]


@pytest.mark.parametrize("values", [[], [3], [1, 5, 9]])
def test_values_are_found_where_they_are(values: list[int]) -> None:
    ascending = np.array(values, dtype=np.int64)
    asked = np.arange(-1, 12)
    position, is_found = find_sorted(ascending, asked)
    assert is_found.tolist() == [one in values for one in asked.tolist()]
    assert [values[at] for at in position[is_found].tolist()] == asked[is_found].tolist()


FEW_ROWS = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 1)), max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(FEW_ROWS)
def test_runs_are_those_of_groupby(rows: list[tuple[int, int]]) -> None:
    lengths = [len(list(own)) for _, own in groupby(rows)]
    starts = run_starts(*columns(rows))
    assert starts.tolist() == [sum(lengths[:n]) for n in range(len(lengths))]
    assert run_lengths(starts, len(rows)).tolist() == lengths
    assert run_ends(*columns(rows)).tolist() == [sum(lengths[: n + 1]) - 1 for n in range(len(lengths))]
    assert run_numbers(*columns(rows)).tolist() == [n for n, length in enumerate(lengths) for _ in range(length)]
    assert begins_run(*columns(rows)).tolist() == [n in starts.tolist() for n in range(len(rows))]


@given(FEW_ROWS)
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
