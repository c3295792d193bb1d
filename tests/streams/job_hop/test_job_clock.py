"""Each transition of the clock's table on both sides of its time, and what keeps ranks and attempts waiting."""

from __future__ import annotations

import pytest

from irregulars.streams.job_hop.job_clock import FORGOTTEN, JobClock, Presence

SILENCE_S, GRACE_S = 600.0, 30.0


class Clock:
    """A clock that has heard a first message at 0 s."""

    def __init__(self, *, is_moving: bool = True) -> None:
        self.clock = JobClock(SILENCE_S, GRACE_S)
        self.hear(0.0, is_moving=is_moving)

    def hear(self, now_s: float, *, is_moving: bool = True) -> None:
        self.clock.hear(is_moving=is_moving)
        self.tick(now_s)

    def tick(
        self,
        now_s: float,
        until_s: float | None = None,
        *,
        oldest: int | None = None,
        is_stuck: bool = False,
        has_later: bool = False,
        is_hanging: bool = False,
    ) -> Presence:
        until_s = now_s if until_s is None else until_s
        self.clock.tick(
            now_s, until_s, oldest=oldest, is_stuck=lambda: is_stuck, has_later=has_later, is_hanging=is_hanging
        )
        return self.clock.presence


# --- time that was not read yet ------------------------------------------------------------------------------------


def test_a_silence_counts_only_as_far_as_was_read() -> None:
    clock = Clock()
    assert clock.tick(5000.0, until_s=599.0) is Presence.HEARD
    assert clock.tick(5001.0, until_s=600.0) is Presence.SILENT


def test_ranks_are_overdue_only_as_far_as_was_read() -> None:
    clock = Clock()
    clock.tick(100.0, until_s=40.0, oldest=7)  # it came at 100 s at the latest, from anywhere between
    clock.tick(200.0, until_s=129.0, oldest=7)
    assert not clock.clock.is_rank_overdue
    clock.tick(201.0, until_s=130.0, oldest=7)
    assert clock.clock.is_rank_overdue


def test_the_next_attempt_waits_only_as_far_as_was_read() -> None:
    clock = Clock()
    clock.tick(10.0, has_later=True)
    clock.tick(500.0, until_s=39.0, has_later=True)
    assert not clock.clock.is_attempt_overdue
    clock.tick(501.0, until_s=40.0, has_later=True)
    assert clock.clock.is_attempt_overdue


# --- presence -------------------------------------------------------------------------------------------------------


def test_a_job_is_silent_after_the_silence() -> None:
    clock = Clock()
    assert clock.tick(599.0) is Presence.HEARD
    assert clock.tick(600.0) is Presence.SILENT


def test_any_message_ends_the_silence_at_the_next_tick() -> None:
    clock = Clock()
    clock.tick(600.0)
    clock.clock.hear(is_moving=False)
    assert clock.clock.presence is Presence.SILENT
    assert clock.tick(601.0) is Presence.HEARD
    assert clock.tick(1200.0) is Presence.HEARD
    assert clock.tick(1201.0) is Presence.SILENT


def test_a_silence_that_was_told_is_not_silent_again() -> None:
    clock = Clock()
    clock.tick(600.0)
    clock.clock.tell()
    assert [clock.tick(now_s) for now_s in (601.0, 5999.0)] == [Presence.TOLD] * 2


def test_a_second_silence_is_told_too() -> None:
    clock = Clock()
    clock.tick(600.0)
    clock.clock.tell()
    clock.hear(700.0)
    assert clock.clock.presence is Presence.HEARD
    assert clock.tick(1300.0) is Presence.SILENT


@pytest.mark.parametrize("is_told", [False, True])
def test_a_job_is_forgotten_after_ten_silences(is_told: bool) -> None:
    clock = Clock()
    clock.tick(600.0)
    if is_told:
        clock.clock.tell()
    assert clock.tick(10 * SILENCE_S - 1) is not Presence.FORGOTTEN
    assert clock.tick(10 * SILENCE_S) is Presence.FORGOTTEN
    assert FORGOTTEN == 10


def test_a_job_that_hangs_is_kept_for_a_day_after_that_was_told() -> None:
    clock = Clock()
    clock.tick(SILENCE_S)
    clock.clock.tell()
    assert clock.tick(SILENCE_S + 86_399.0, is_hanging=True) is Presence.TOLD
    assert clock.tick(SILENCE_S + 86_400.0, is_hanging=True) is Presence.FORGOTTEN


def test_telling_does_not_bring_a_forgotten_job_back() -> None:
    clock = Clock()
    clock.tick(10 * SILENCE_S)
    clock.clock.tell()
    assert clock.clock.presence is Presence.FORGOTTEN


def test_a_job_that_is_heard_is_not_silenced_by_telling_something_else() -> None:
    clock = Clock()
    clock.clock.tell()
    assert clock.clock.presence is Presence.HEARD


def test_the_next_attempt_begins_as_heard() -> None:
    clock = Clock()
    clock.tick(600.0)
    clock.clock.begin()
    assert clock.clock.presence is Presence.HEARD


# --- standstill -----------------------------------------------------------------------------------------------------


def standing(said_at_s: float) -> Clock:
    """The job moved at 0 s for the last time; at `said_at_s` ranks said that they stand in operators."""
    clock = Clock()
    clock.hear(said_at_s, is_moving=False)
    return clock


def test_of_a_job_that_stands_still_a_grace_is_silence_enough() -> None:
    clock = standing(600.0)
    assert clock.tick(629.0, is_stuck=True) is Presence.HEARD
    assert clock.tick(630.0, is_stuck=True) is Presence.SILENT


def test_without_operators_that_never_ended_nothing_stands_still() -> None:
    assert standing(600.0).tick(630.0, is_stuck=False) is Presence.HEARD


def test_an_open_operator_is_no_standstill_while_the_job_moves() -> None:
    clock = Clock()
    for now_s in (500.0, 1000.0):
        clock.hear(now_s, is_moving=True)
    assert clock.tick(1030.0, is_stuck=True) is Presence.HEARD


@pytest.mark.parametrize(("said_at_s", "still_s"), [(299.0, 0.0), (301.0, 301.0)])
def test_what_comes_within_half_a_silence_of_a_movement_counts_as_one(said_at_s: float, still_s: float) -> None:
    assert standing(said_at_s).clock.still_s == still_s


@pytest.mark.parametrize("clock_is_ahead_s", [0.0, 3600.0, -3600.0])
def test_how_long_a_job_has_stood_still_survives_a_restart_on_a_host_with_another_clock(
    clock_is_ahead_s: float,
) -> None:
    restored = JobClock(SILENCE_S, GRACE_S)
    restored.still_s = standing(600.0).clock.still_s
    assert restored.still_s == 600.0  # a snapshot before the first tick keeps it
    for now_s in (605.0, 634.0, 635.0):
        assert restored.presence is Presence.HEARD  # the silence itself begins anew
        at_s = now_s + clock_is_ahead_s
        restored.tick(at_s, at_s, oldest=None, is_stuck=lambda: True, has_later=False)
    assert restored.presence is Presence.SILENT


@pytest.mark.parametrize("clock_is_ahead_s", [3600.0, -3600.0])
def test_a_job_that_moved_does_not_stand_still_for_another_host(clock_is_ahead_s: float) -> None:
    restored = JobClock(SILENCE_S, GRACE_S)
    restored.still_s = Clock().clock.still_s
    for now_s in (5.0, 40.0):
        at_s = now_s + clock_is_ahead_s
        restored.tick(at_s, at_s, oldest=None, is_stuck=lambda: True, has_later=False)
    assert restored.presence is Presence.HEARD


# --- what keeps others waiting --------------------------------------------------------------------------------------


def test_ranks_are_overdue_when_the_oldest_iteration_has_waited_for_a_grace() -> None:
    clock = Clock()
    overdue = []
    for now_s, oldest in ((10.0, 5), (39.0, 5), (40.0, 5), (41.0, 6), (71.0, 6), (72.0, None), (500.0, None)):
        clock.tick(now_s, oldest=oldest)
        overdue.append(clock.clock.is_rank_overdue)
    assert overdue == [False, False, True, False, True, False, False]


def test_an_attempt_is_overdue_when_the_next_one_has_waited_for_a_grace() -> None:
    clock = Clock()
    for now_s in (10.0, 39.0):
        clock.tick(now_s, has_later=True)
        assert not clock.clock.is_attempt_overdue
    clock.tick(40.0, has_later=True)
    assert clock.clock.is_attempt_overdue
    clock.clock.begin()
    assert not clock.clock.is_attempt_overdue


def test_a_next_attempt_that_is_gone_again_waits_anew() -> None:
    clock = Clock()
    clock.tick(10.0, has_later=True)
    clock.tick(30.0, has_later=False)
    clock.tick(45.0, has_later=True)
    clock.tick(74.0, has_later=True)
    assert not clock.clock.is_attempt_overdue


def test_the_next_attempt_waits_anew_at_the_same_iteration() -> None:
    clock = Clock()
    clock.tick(0.0, oldest=1000)
    clock.tick(25.0, oldest=1000)
    clock.clock.begin()
    clock.tick(40.0, oldest=1000)
    clock.tick(69.0, oldest=1000)
    assert not clock.clock.is_rank_overdue
    clock.tick(70.0, oldest=1000)
    assert clock.clock.is_rank_overdue
