"""Searches in many sorted groups at once find what a search in each of them finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.arrays.group_search import find_sorted, first_in_group_from, last_in_group_until

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=12)


@given(rows=ROWS, questions=ROWS)
def test_both_searches_find_what_is_found_by_hand(
    rows: list[tuple[int, int]], questions: list[tuple[int, int]]
) -> None:
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
