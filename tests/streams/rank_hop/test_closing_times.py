"""When iterations close."""

from __future__ import annotations

import pytest

from irregulars.streams.rank_hop.closing_times import (
    WaitingTimer,
    closing_time_ns,
    closing_times_by_operators,
    newest_closed,
)
from irregulars.streams.rank_hop.message_rows import IterationTimes

S = 1_000_000_000


@pytest.mark.parametrize(("elapsed_ns", "margin_ns"), [(0, 0), (100, 50), (2 * S, S), (60 * S, S)])
def test_an_iteration_closes_half_its_length_after_its_end_but_a_second_at_most(
    elapsed_ns: int, margin_ns: int
) -> None:
    closes_ns = closing_time_ns(IterationTimes(1000, elapsed_ns, 0, 1.0))
    assert closes_ns == 1000 + elapsed_ns + margin_ns


def test_by_its_operators_an_iteration_ends_where_the_next_begins() -> None:
    assert list(closing_times_by_operators({3: 500, 2: 400, 9: 520})) == [(2, 550), (3, 530)]
    assert list(closing_times_by_operators({3: 500})) == []


def test_the_newest_iteration_that_a_watermark_has_passed() -> None:
    times = [(1, 10), (2, 20), (3, 15)]
    assert [newest_closed(times, watermark_ns) for watermark_ns in (9, 10, 15, 20)] == [None, 1, 3, 3]


def test_a_wait_is_over_when_it_lasted_for_the_grace_from_the_first_time_that_it_was_seen() -> None:
    timer = WaitingTimer(30.0)
    assert [timer.is_over(True, now_s, now_s) for now_s in (100.0, 129.9, 130.0)] == [False, False, True]


def test_what_came_in_between_begins_the_wait_anew() -> None:
    timer = WaitingTimer(30.0)
    timer.is_over(True, 0.0, 0.0)
    timer.is_over(False, 20.0, 20.0)
    assert not timer.is_over(True, 40.0, 40.0)
    assert timer.is_over(True, 70.0, 70.0)


def test_after_it_was_over_or_renewed_the_next_wait_begins() -> None:
    timer = WaitingTimer(30.0)
    assert [timer.is_over(True, now_s, now_s) for now_s in (0.0, 30.0, 31.0, 60.9, 61.0)] == [
        False, True, False, False, True,
    ]  # fmt: skip
    timer.is_over(True, 62.0, 62.0)
    timer.restart()
    assert not timer.is_over(True, 100.0, 100.0)


def test_a_wait_lasts_only_as_far_as_everything_was_read() -> None:
    timer = WaitingTimer(30.0)
    assert not timer.is_over(True, 100.0, 20.0)  # it began at 100 s at the latest, whatever was read by then
    assert not timer.is_over(True, 500.0, 129.9)
    assert timer.is_over(True, 501.0, 130.0)
