"""A job's monitor judges by what people changed: what follows, and nothing before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from irregulars.messages.judgements import Verdict
from irregulars.messages.threshold_changes import LIVE, ThresholdChange
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from tests.stored_states import stored
from tests.streams.eight_ranks import EightRanks, faulty
from tests.streams.evidence_rows import MS, T0, came, evidence_of, no_operators, went
from tests.streams.judged_streams import MonitoredJob, in_order

ITERATIONS = 80
LONG = frozenset(range(25, ITERATIONS, 6))
"""Every sixth iteration takes 1.3 times as long."""


def change(values: dict[str, Any], **others: Any) -> ThresholdChange:
    return ThresholdChange("t-1", values, "ann", "noise", 0, **others)


def irregular(
    told: dict[int, Sequence[ThresholdChange]], numbers: Iterable[int] = range(ITERATIONS), restore: bool = False
) -> set[int]:
    """Judge iterations, telling changes before some of them; return those that were irregular."""
    settings, changes, found = MonitorSettings(), (), set()
    monitor = JobMonitor("j", settings)
    monitor.add([came(0), came(1)])
    for number in numbers:
        if restore:
            monitor = JobMonitor.from_state(stored(monitor.state()), settings)
        changes = tuple(told.get(number, changes))
        monitor.follow(changes)
        elapsed_ms = 130 if number in LONG else 100 + number % 3
        monitor.add([evidence_of(rank, {number: elapsed_ms}) for rank in (0, 1)])
        found |= {one.iteration for one in monitor.advance(no_operators).iterations if one.is_irregular}
    return found


@pytest.mark.parametrize("restore", [False, True])
def test_another_delta_changes_what_follows_and_nothing_before(restore: bool) -> None:
    assert irregular({}, restore=restore) == LONG
    assert irregular({50: [change({"delta": 1.5})]}, restore=restore) == {n for n in LONG if n < 50}
    there_and_back = {40: [change({"delta": 1.5})], 60: [change({"delta": 1.5}), change({"delta": None})]}
    assert irregular(there_and_back, restore=restore) == {n for n in LONG if not 40 <= n < 60}


def test_one_job_beats_all() -> None:
    assert irregular({40: [change({"delta": 1.5}), change({"delta": 1.1}, job="j")]}) == LONG


@pytest.mark.parametrize("restore", [False, True])
def test_a_planned_change_holds_from_its_event_time_on(restore: bool) -> None:
    planned = change({"delta": 1.5}, from_ns=T0 + 60 * 100 * MS)
    assert irregular({20: [planned]}, restore=restore) == {n for n in LONG if n < 60}


def test_a_planned_change_holds_within_one_message_of_several_iterations() -> None:
    monitor = JobMonitor("j", MonitorSettings())
    monitor.follow((change({"delta": 1.5}, from_ns=T0 + 60 * 100 * MS),))
    elapsed_ms = {number: 130.0 if number in LONG else 100.0 + number % 3 for number in range(ITERATIONS)}
    monitor.add([came(0), came(1), *(evidence_of(rank, elapsed_ms) for rank in (0, 1))])
    found = monitor.advance(no_operators).iterations
    assert [one.iteration for one in found] == [*range(ITERATIONS)]
    assert {one.iteration for one in found if one.is_irregular} == {n for n in LONG if n < 60}


class FollowingJob(MonitoredJob):
    """Both hops of a job that is judged by changes from its iteration `since` on."""

    def __init__(self, changes: Sequence[ThresholdChange], since: int, **options: Any) -> None:
        super().__init__("j", **options)
        self.changes, self.since = tuple(changes), since
        self.told_before: list[Verdict] | None = None

    def advance(self) -> None:
        if any(one.iteration >= self.since - 1 for one in self.outcome.iterations):
            self.told_before = self.told_before or self.outcome.revisions
            self.monitor.follow(self.changes)
        super().advance()


def judged(changes: Sequence[ThresholdChange], since: int, **options: Any) -> FollowingJob:
    job = FollowingJob(changes, since, **options)
    job.feed(in_order(faulty(), max_span_s=0.02))
    return job


def test_verdicts_say_by_what_they_were_judged_and_those_before_are_as_without() -> None:
    plain, changed = judged([], 48), judged([change({"alert_least_seen": 1000, "delta": 1.2})], 48)
    assert plain.told_before
    assert changed.told_before == plain.told_before
    after = changed.outcome.revisions[len(plain.told_before) :]
    assert {one.event for one in after} >= {"opened", "closed"}
    for one in after:
        assert one.thresholds == {"alert_least_seen": 1000, "delta": 1.2}
        assert one.evidence.endswith("; judged with alert_least_seen = 1000, delta = 1.2, as changed live")
    assert {one.severity for one in after if one.event == "opened"} == {"note"}
    assert all(one.thresholds is None for one in plain.outcome.revisions)


def test_restoring_the_monitors_at_any_moment_changes_nothing() -> None:
    changes = [change({"alert_least_seen": 1000, "delta": 1.2})]
    wanted, found = judged(changes, 48).outcome, judged(changes, 48, restore_at=range(0, 5000, 37)).outcome
    assert (found.revisions, found.iterations) == (wanted.revisions, wanted.iterations)


def test_a_silence_that_was_shortened_closes_verdicts_sooner() -> None:
    job = MonitoredJob("j", MonitorSettings(silence_s=600.0))
    made = EightRanks()
    made.late_ns = lambda number, rank: 20 * MS * (rank == 2 and number >= 30)
    job.feed(in_order(made.trace(50))[:-8])  # without last words
    assert any(one.state == "open" for one in job.outcome.verdicts.values())
    job.tick(1000.0)
    job.tick(1100.0)
    assert any(one.state == "open" for one in job.outcome.verdicts.values())
    job.monitor.follow((change({"silence_s": 60.0}),))
    job.tick(1101.0)
    assert {(one.state, one.close_reason) for one in job.outcome.verdicts.values()} == {("closed", "silent")}


def test_a_job_that_restarts_goes_on_by_what_was_changed() -> None:
    monitor = JobMonitor("j", MonitorSettings())
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
    monitor = JobMonitor("j", MonitorSettings())
    monitor.follow((change({name: 2 for name in LIVE if name != "alert_page_share"}),))
    assert monitor._current.delta == monitor._current.silence_s == monitor._current.severity.page_gpu_hours == 2
