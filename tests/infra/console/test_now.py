"""The first page's values, put together from answers: arrays in, lines out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from irregulars.infra.console.jobs import Now, now_of, pace_of
from irregulars.infra.showing.found import Iteration
from irregulars.sinks.investigations import Answer

NOW_S = 1_800_000_000.0
COLUMNS = ("job", "attempt", "last_seen_at", "open_verdicts", "severity", "end_reason")


def now(*jobs: tuple[str, float, int, str | None], each_s: float = 1.0) -> Now:
    """Jobs by name, age of the newest iteration in s, open verdicts, and why they ended.

    `each_s`: time of an iteration.
    """
    rows: list[tuple[Any, ...]] = [
        (job, 1, datetime.fromtimestamp(NOW_S - age_s, UTC), count, "page" if count else None, reason)
        for job, age_s, count, reason in jobs
    ]
    iterations = [Iteration(number, 0, round(each_s * 1e9), each_s * 1e9, False, False) for number in range(5)]
    newest = {(job, 1): iterations for job, *_ in jobs}
    return now_of(Answer(COLUMNS, tuple(rows)), Answer(("job", "severity"), ()), newest, NOW_S, silence_s=600.0)


@pytest.mark.parametrize(("age_s", "reason", "state"), [
    (5, None, "running"), (90, None, "late"), (900, None, "silent"), (5, "finished", "ended"),
    (900, "stopped", "ended"),
])  # fmt: skip
def test_a_job_that_ended_is_told_from_one_that_is_cut_off(age_s: float, reason: str | None, state: str) -> None:
    [line] = now(("a", age_s, 0, reason)).jobs
    assert line.state == state


@pytest.mark.parametrize(("age_s", "state"), [(70, "running"), (104, "running"), (106, "late")])
def test_a_job_of_long_iterations_is_late_after_three_of_them(age_s: float, state: str) -> None:
    [line] = now(("a", age_s, 0, None), each_s=35).jobs
    assert line.state == state


def test_only_jobs_that_run_are_heard_and_without_one_nothing_is_a_good_sign() -> None:
    page = now(("a", 5, 0, None), ("b", 90, 0, None), ("c", 900, 0, None), ("d", 5, 0, "finished"))
    assert page.in_short == "0 open incidents, 2 jobs heard, 1 late"
    assert [one.row["job"] for one in page.heard] == ["a", "b"]
    assert [[one.row["job"] for one in page.over(state)] for state in ("silent", "ended")] == [["c"], ["d"]]
    assert page.is_any_heard
    assert not now(("c", 900, 0, None), ("d", 5, 0, "finished")).is_any_heard
    assert not now().is_any_heard


def test_what_is_open_stays_in_sight_though_its_job_is_over() -> None:
    page = now(("hung", 900, 1, None))
    assert [one.row["job"] for one in page.heard] == ["hung"]
    assert page.over("silent") == []


def test_a_job_that_hangs_stands_still_and_its_last_bar_is_as_tall_as_any() -> None:
    times = [Iteration(at, 0, 200 + at, 200.0, False, False) for at in range(9)]
    pace = pace_of([*times, Iteration(9, 0, 1, None, None, True)], stands=True)
    assert pace is not None
    assert (pace.stands, pace.now_ns, pace.text.partition(",")[0]) == (True, 206, "stands still")
    assert "v-28.0" in pace.line.partition("bar-cause")[2]
