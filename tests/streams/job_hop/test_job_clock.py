"""Each transition of the clock's table on both sides of its time, and what keeps ranks and attempts waiting."""

from __future__ import annotations

from typing import Any

import pytest

from irregulars.streams.job_hop.job_clock import FORGET_S, JobClock, Presence

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
        self, now_s: float, until_s: float | None = None, *, oldest: int | None = None, is_stuck: bool = False,
        has_later: bool = False,
    ) -> Presence:  # fmt: skip
        until_s = now_s if until_s is None else until_s
        self.clock.tick(now_s, until_s, oldest=oldest, is_stuck=lambda: is_stuck, has_later=has_later)
        return self.clock.presence


# --- presence -------------------------------------------------------------------------------------------------------

HEARD, SILENT, TOLD, FORGOTTEN = Presence
FORGOTTEN_S = SILENCE_S + FORGET_S
# Ticks (at a time; or at one, when all that came up to another was read) and what a monitor calls, each with the
# presence after it.
PRESENCE: dict[str, list[tuple[Any, Presence]]] = {
    "a job is silent after the silence": [(599.0, HEARD), (600.0, SILENT)],
    "a silence counts only as far as was read": [((5000.0, 599.0), HEARD), ((5001.0, 600.0), SILENT)],
    "any message ends the silence at the next tick": [
        (600.0, SILENT), ("hear", SILENT), (601.0, HEARD), (1200.0, HEARD), (1201.0, SILENT),
    ],
    "a silence that was told is not silent again": [(600.0, SILENT), ("tell", TOLD), (601.0, TOLD), (5999.0, TOLD)],
    "a second silence is told too": [
        (600.0, SILENT), ("tell", TOLD), ("hear", TOLD), (700.0, HEARD), (1300.0, SILENT),
    ],
    "a job is forgotten after the silence and a day": [
        (600.0, SILENT), (FORGOTTEN_S - 1, SILENT), (FORGOTTEN_S, FORGOTTEN),
    ],
    "a job whose silence was told too, and telling does not bring it back": [
        (600.0, SILENT), ("tell", TOLD), (FORGOTTEN_S - 1, TOLD), (FORGOTTEN_S, FORGOTTEN), ("tell", FORGOTTEN),
    ],
    "a job that is heard is not silenced by telling something else": [("tell", HEARD)],
    "the next attempt begins as heard": [(600.0, SILENT), ("begin", HEARD)],
}  # fmt: skip


@pytest.mark.parametrize("steps", PRESENCE.values(), ids=PRESENCE)
def test_presence_changes_with_time_and_messages(steps: list[tuple[Any, Presence]]) -> None:
    clock = Clock()
    calls = {"hear": lambda: clock.clock.hear(is_moving=False), "tell": clock.clock.tell, "begin": clock.clock.begin}
    for step, presence in steps:
        if isinstance(step, str):
            calls[step]()
        else:
            clock.tick(*(step if isinstance(step, tuple) else (step,)))
        assert clock.clock.presence is presence


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
def test_how_long_a_job_has_stood_survives_a_restart_on_a_host_with_another_clock(
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


def at(now_s: float, until_s: float | None = None, **what: Any) -> tuple[float, float | None, dict[str, Any]]:
    """A tick at a time, when all that came up to another was read."""
    return now_s, until_s, what


NEXT, OLDEST = {"has_later": True}, {"oldest": 1000}
# Which of two is asked; ticks, or "begin" with the next attempt, each with whether it is overdue after it.
OVERDUE: dict[str, tuple[str, list[tuple[Any, bool]]]] = {
    "ranks, when the oldest iteration has waited for a grace": ("is_rank_overdue", [
        (at(10.0, oldest=5), False), (at(39.0, oldest=5), False), (at(40.0, oldest=5), True),
        (at(41.0, oldest=6), False), (at(71.0, oldest=6), True), (at(72.0), False), (at(500.0), False),
    ]),
    # It came at 100 s at the latest, from anywhere between.
    "ranks only as far as was read": ("is_rank_overdue", [
        (at(100.0, 40.0, oldest=7), False), (at(200.0, 129.0, oldest=7), False), (at(201.0, 130.0, oldest=7), True),
    ]),
    "ranks of the next attempt anew at the same iteration": ("is_rank_overdue", [
        (at(0.0, **OLDEST), False), (at(25.0, **OLDEST), False), ("begin", False), (at(40.0, **OLDEST), False),
        (at(69.0, **OLDEST), False), (at(70.0, **OLDEST), True),
    ]),
    "an attempt, when the next one has waited for a grace": ("is_attempt_overdue", [
        (at(10.0, **NEXT), False), (at(39.0, **NEXT), False), (at(40.0, **NEXT), True), ("begin", False),
    ]),
    "an attempt only as far as was read": ("is_attempt_overdue", [
        (at(10.0, **NEXT), False), (at(500.0, 39.0, **NEXT), False), (at(501.0, 40.0, **NEXT), True),
    ]),
    "an attempt whose next one is gone again waits anew": ("is_attempt_overdue", [
        (at(10.0, **NEXT), False), (at(30.0), False), (at(45.0, **NEXT), False), (at(74.0, **NEXT), False),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "steps"), OVERDUE.values(), ids=OVERDUE)
def test_who_is_overdue(asked: str, steps: list[tuple[Any, bool]]) -> None:
    clock = Clock()
    for step, is_overdue in steps:
        if step == "begin":
            clock.clock.begin()
        else:
            now_s, until_s, what = step
            clock.tick(now_s, until_s, **what)
        assert getattr(clock.clock, asked) is is_overdue
