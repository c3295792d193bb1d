"""A job's monitor judges by what people changed: what follows, and nothing before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.threshold_changes import LIVE, ThresholdChange
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop.job_monitor import JobMonitor, changed_settings
from tests.stored_states import stored
from tests.streams.eight_ranks import faulty, late
from tests.streams.evidence_rows import MS, T0, came, evidence_of, no_operators, went
from tests.streams.judged_streams import MonitoredJob, Outcome, in_order

pytestmark = pytest.mark.slow

ITERATIONS = 80
LONG = frozenset(range(25, ITERATIONS, 6))
"""Every sixth iteration takes 1.3 times as long."""


def change(values: dict[str, Any], iteration: int = 0, **others: Any) -> ThresholdChange:
    """A change that holds from an iteration of `irregular` on."""
    from_ns = None if "silence_s" in values else T0 + iteration * 100 * MS
    return ThresholdChange("t-1", values, "ann", "noise", 0, **{"from_ns": from_ns, **others})


def irregular(
    changes: Sequence[ThresholdChange], known_from: int, restore: bool = False, at_once: int = 1
) -> set[int]:
    """Judge iterations, some in one message, with changes that are known from one on; return the irregular ones."""
    settings, found = JudgeSettings(), set()
    monitor = JobMonitor("j", settings)
    monitor.add([came(0), came(1)])
    for first in range(0, ITERATIONS, at_once):
        if restore:
            monitor = JobMonitor.from_state(stored(monitor.state()), settings)
        monitor.follow(tuple(changes) if first >= known_from else ())
        elapsed_ms = {n: 130.0 if n in LONG else 100.0 + n % 3 for n in range(first, first + at_once)}
        monitor.add([evidence_of(rank, elapsed_ms) for rank in (0, 1)])
        found |= {one.iteration for one in monitor.advance(no_operators).iterations if one.is_irregular}
    return found


ONE = [change({"delta": 1.5}, 50)]
THERE_AND_BACK = [change({"delta": 1.5}, 40), change({"delta": None}, 60)]
OF_ONE_JOB = [change({"delta": 1.5}, 40), change({"delta": 1.1}, 40, job="j")]


@pytest.mark.parametrize(("changes", "is_judged_alike", "known_from", "restore", "at_once"), [
    ([], lambda n: True, 0, False, ITERATIONS),
    (ONE, lambda n: n < 50, 0, False, 1),
    (OF_ONE_JOB, lambda n: True, 0, True, 1),  # what is said of one job beats what is said of all
    (THERE_AND_BACK, lambda n: not 40 <= n < 60, 0, True, 1),
    (THERE_AND_BACK, lambda n: not 40 <= n < 60, 38, True, 1),
    (THERE_AND_BACK, lambda n: not 40 <= n < 60, 0, False, ITERATIONS),
])  # fmt: skip
def test_a_change_holds_from_its_event_time_on_whenever_it_is_heard_of(
    changes: list[ThresholdChange], is_judged_alike: Callable[[int], bool], known_from: int, restore: bool,
    at_once: int,
) -> None:  # fmt: skip
    assert irregular(changes, known_from, restore, at_once) == set(filter(is_judged_alike, LONG))


class FollowingJob(MonitoredJob):
    """Both hops of a job whose changes are known from its start on."""

    changes: tuple[ThresholdChange, ...] = ()

    def advance(self, rows: Sequence[Evidence | Membership] = ()) -> None:
        self.monitor.follow(self.changes)
        super().advance(rows)


def judged(changes: Sequence[ThresholdChange], **options: Any) -> Outcome:
    job = FollowingJob("j", **options)
    job.changes = tuple(changes)
    return job.feed(in_order(faulty(), max_span_s=0.1))


def begin_of(number: int) -> int:
    columns = faulty().batches("iterations")[0].columns
    return int(columns["start_ns"][columns["iteration"] == number][0])


def test_verdicts_say_by_what_they_were_judged_and_those_before_are_as_without() -> None:
    plain, changed = judged([]), judged([change({"alert_least_seen": 1000, "delta": 1.2}, from_ns=begin_of(48))])
    before = [one for one in changed.revisions if one.thresholds is None]
    assert before
    assert before == plain.revisions[: len(before)]
    after = changed.revisions[len(before) :]
    assert {one.event for one in after} >= {"opened", "closed"}
    for one in after:
        assert one.thresholds == {"alert_least_seen": 1000, "delta": 1.2}
        assert one.evidence.endswith("; judged with alert_least_seen = 1000, delta = 1.2, as changed live")
    assert {one.severity for one in after if one.event == "opened"} == {"note"}
    assert all(one.thresholds is None for one in plain.revisions)


def test_restoring_the_monitors_at_any_moment_changes_nothing() -> None:
    changes = [change({"alert_least_seen": 1000, "delta": 1.2}, from_ns=begin_of(48))]
    wanted, found = judged(changes), judged(changes, restore_at=range(0, 5000, 11))
    assert (found.revisions, found.iterations) == (wanted.revisions, wanted.iterations)


def test_a_silence_that_was_shortened_closes_verdicts_sooner() -> None:
    job = MonitoredJob("j", JudgeSettings(silence_s=600.0))
    job.feed(in_order(late(2, during=range(30, 50)).trace(50))[:-8])  # without last words
    [opened] = [one for one in job.outcome.verdicts.values() if one.state == "open"]
    assert job.monitor.open_kinds == [(opened.severity, opened.kind)]
    job.tick(1000.0)
    job.tick(1100.0)
    assert any(one.state == "open" for one in job.outcome.verdicts.values())
    job.monitor.follow((change({"silence_s": 60.0}),))
    job.tick(1101.0)
    assert {(one.state, one.close_reason) for one in job.outcome.verdicts.values()} == {("closed", "silent")}
    assert job.monitor.open_kinds == []


def test_a_job_that_restarts_goes_on_by_what_was_changed() -> None:
    monitor = JobMonitor("j", JudgeSettings())
    monitor.follow((change({"delta": 1.5}),))
    for attempt in (1, 2):
        monitor.add([came(rank, attempt=attempt) for rank in (0, 1)])
        for number in range(40):
            elapsed_ms = 130 if number == 35 else 100 + number % 3
            monitor.add([evidence_of(rank, {number: elapsed_ms}, attempt=attempt) for rank in (0, 1)])
        found = monitor.advance(no_operators)
        assert [one.attempt for one in found.iterations] == [attempt] * 40
        assert not any(one.is_irregular for one in found.iterations)
        monitor.add([went(rank, attempt=attempt) for rank in (0, 1)])
        monitor.advance(no_operators)


def test_every_live_threshold_is_a_setting_of_monitors() -> None:
    changed = changed_settings(JudgeSettings(), {name: 2 for name in LIVE if name != "alert_page_share"})
    assert changed.delta == changed.silence_s == changed.severity.page_gpu_hours == 2
