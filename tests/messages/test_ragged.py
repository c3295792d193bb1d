"""Rows that own any number of entries, against lists of lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.ragged import Ragged, concatenate_ragged

LISTS = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6)


def ragged(lists: list[list[int]]) -> Ragged:
    flat = np.array([one for own in lists for one in own], dtype=np.int64)
    return Ragged(np.array([len(own) for own in lists], dtype=np.int64), {"own": flat, "twice": 2.0 * flat})


@given(LISTS)
def test_lists_come_back_and_a_value_of_a_row_is_repeated_for_each_entry(lists: list[list[int]]) -> None:
    rows = ragged(lists)
    assert len(rows) == len(lists)
    assert rows.has_entries == any(lists)
    assert list(rows.lists("own")) == lists
    assert list(rows.lists("twice")) == [[2 * one for one in own] for own in lists]
    assert rows.of_entries(np.arange(len(lists))).tolist() == [row for row, own in enumerate(lists) for _ in own]


@given(LISTS, st.data())
def test_rows_are_taken_in_any_order_and_more_than_once(lists: list[list[int]], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(range(len(lists))), max_size=8)) if lists else []
    taken = ragged(lists).take(np.array(wanted, dtype=np.int64))
    assert list(taken.lists("own")) == [lists[row] for row in wanted]
    assert list(taken.lists("twice")) == [[2 * one for one in lists[row]] for row in wanted]


@given(st.lists(LISTS, min_size=1, max_size=4))
def test_tables_are_joined_in_order(parts: list[list[list[int]]]) -> None:
    joined = concatenate_ragged([ragged(part) for part in parts])
    assert list(joined.lists("own")) == [own for part in parts for own in part]


def test_one_column_is_replaced() -> None:
    rows = ragged([[1], [2, 3]]).replaced("own", np.array([7, 8, 9]))
    assert list(rows.lists("own")) == [[7], [8, 9]]
    assert list(rows.lists("twice")) == [[2.0], [4.0, 6.0]]


@pytest.mark.parametrize("entries", [2, 4])
def test_columns_must_be_as_long_as_the_counts_say(entries: int) -> None:
    with pytest.raises(ValueError, match=f"column 'peer' must have 3 entries, as the counts say; got {entries}"):
        Ragged(np.array([1, 2]), {"peer": np.arange(entries)})
