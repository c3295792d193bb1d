"""How long to wait by the wall clock."""

from __future__ import annotations

from irregulars.streams.rank_hop.waiting_timer import Patience


def test_a_wait_is_over_when_it_lasted_for_the_grace_from_the_first_time_that_it_was_seen() -> None:
    patience = Patience(30.0)
    assert [patience.is_over(True, now_s) for now_s in (100.0, 129.9, 130.0)] == [False, False, True]


def test_what_came_in_between_begins_the_wait_anew() -> None:
    patience = Patience(30.0)
    patience.is_over(True, 0.0)
    patience.is_over(False, 20.0)
    assert not patience.is_over(True, 40.0)
    assert patience.is_over(True, 70.0)


def test_after_it_was_over_or_renewed_the_next_wait_begins() -> None:
    patience = Patience(30.0)
    assert [patience.is_over(True, now_s) for now_s in (0.0, 30.0, 31.0, 60.9, 61.0)] == [
        False, True, False, False, True,
    ]  # fmt: skip
    patience.is_over(True, 62.0)
    patience.renew()
    assert not patience.is_over(True, 100.0)
