"""How long to wait, as far as was read."""

from __future__ import annotations

from irregulars.streams.rank_hop.waiting_timer import WaitingTimer


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
