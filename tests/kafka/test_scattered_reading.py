"""Which offsets a reading still waits for."""

from __future__ import annotations

from irregulars.kafka.scattered_reading import Cursor


def test_runs_follow_one_another() -> None:
    cursor = Cursor([1, 2, 9, 100, 101])
    assert (cursor.begin, cursor.wants(9), cursor.wants(5), cursor.wants(100)) == (1, True, False, False)
    assert not cursor.pass_to(9)
    assert cursor.pass_to(10)
    assert cursor.begin == 100
    assert not cursor.pass_to(50), "what was on its way before the seek"
    assert cursor.pass_to(102)
    assert cursor.is_done


def test_what_was_deleted_is_given_up() -> None:
    cursor = Cursor([1, 2, 9, 100])
    assert cursor.keep_within(5, 1 << 40)
    assert cursor.begin == 9
    assert not cursor.keep_within(5, 1 << 40)
    assert cursor.keep_within(200, 1 << 40)
    assert cursor.is_done


def test_what_lies_far_behind_the_end_is_given_up() -> None:
    cursor = Cursor([1, 1 << 62])
    assert cursor.keep_within(0, 1 << 40)
    assert cursor.pass_to(2)
    assert cursor.is_done
