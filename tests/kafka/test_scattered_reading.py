"""Which offsets a reading still waits for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.kafka.scattered_reading import Cursor, RecentMessages


def test_runs_follow_one_another() -> None:
    cursor = Cursor([1, 2, 9, 100, 101])
    assert (cursor.begin, cursor.wants(9), cursor.wants(5), cursor.wants(100)) == (1, True, False, False)
    assert not cursor.pass_to(9)
    assert cursor.pass_to(10)
    assert cursor.begin == 100
    assert not cursor.pass_to(50), "what was on its way before the seek"
    assert cursor.pass_to(102)
    assert cursor.is_done


def test_what_was_deleted_or_lies_far_behind_the_end_is_given_up() -> None:
    cursor = Cursor([1, 2, 9, 100])
    assert cursor.keep_within(5, 1 << 40)
    assert cursor.begin == 9
    assert not cursor.keep_within(5, 1 << 40)
    assert cursor.keep_within(200, 1 << 40)
    assert cursor.is_done
    cursor = Cursor([1, 1 << 62])
    assert cursor.keep_within(0, 1 << 40)
    assert cursor.pass_to(2)
    assert cursor.is_done


@pytest.mark.parametrize(("most_bytes", "kept"), [(0, []), (9, [3]), (10, [2, 3]), (14, [2, 3]), (15, [1, 2, 3])])
def test_the_newest_that_fit_are_kept(most_bytes: int, kept: list[int]) -> None:
    recent = RecentMessages(most_bytes)
    for offset in (1, 2, 3):
        recent.add(0, offset, b"55555")
    assert [offset for offset in (1, 2, 3) if recent.get(0, offset) is not None] == kept
    assert len(recent) == len(kept)


def test_one_that_is_added_again_counts_once_and_is_new_again() -> None:
    recent = RecentMessages(10)
    for offset in (1, 2, 1, 3):
        recent.add(0, offset, b"55555")
    assert (recent.get(0, 1), recent.get(0, 2), recent.get(0, 3)) == (b"55555", None, b"55555")


def test_partitions_have_offsets_of_their_own() -> None:
    recent = RecentMessages(10)
    recent.add(0, 7, b"a")
    recent.add(1, 7, b"b")
    assert (recent.get(0, 7), recent.get(1, 7), recent.get(2, 7)) == (b"a", b"b", None)


def test_a_value_that_goes_beyond_the_end_of_the_ring_comes_back_whole() -> None:
    recent = RecentMessages(10)
    for offset in range(20):
        value = bytes([65 + offset]) * (3 + offset % 5)
        recent.add(0, offset, value)
        assert recent.get(0, offset) == value


@given(st.lists(st.tuples(st.integers(0, 6), st.binary(max_size=12)), max_size=60), st.integers(0, 30))
def test_what_is_kept_is_what_was_added_last_under_its_offset(added: list[tuple[int, bytes]], most: int) -> None:
    recent, newest = RecentMessages(most), dict[int, bytes]()
    for offset, value in added:
        recent.add(0, offset, value)
        newest[offset] = value
        kept = {one: recent.get(0, one) for one in newest}
        assert all(own in (None, newest[one]) for one, own in kept.items())
        assert sum(len(own or b"") for own in kept.values()) <= most
        assert kept[offset] == (value if len(value) <= most else None)
