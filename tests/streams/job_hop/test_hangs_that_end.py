"""A hang of a silent job is open until the job moves on, ends, restarts or is forgotten: on a recorded job."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.evidence import Membership
from irregulars.messages.judgements import Verdict
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.settings import JudgeSettings
from irregulars.sinks.alerts import alert_of
from tests.sinks.recorded_jobs import RECORDINGS
from tests.streams.evidence_rows import evidence_of
from tests.streams.judged_streams import MonitoredJob, in_order, last_words

SILENCE_S, GRACE_S = 600.0, 30.0
TOLD_S = SILENCE_S + 5 * GRACE_S
HUNG_AT = 40


@pytest.fixture(scope="module")
def trace() -> Trace:
    read = read_trace(RECORDINGS / "bench" / "ddp8-hang-before")
    live = tuple(replace(one, recorded_until_ns=None) for one in read.announcements)
    return replace(read, announcements=live)


@pytest.fixture(scope="module")
def fed(trace: Trace) -> MonitoredJob:
    """The job after its silence was told; each test has a copy of it."""
    job = MonitoredJob(trace.job, JudgeSettings(silence_s=SILENCE_S, grace_s=GRACE_S))
    messages = in_order(trace)
    job.feed(messages[: len(messages) - len(trace.announcements)])  # without last words
    for now_s in (0.0, *(SILENCE_S + step * GRACE_S for step in range(5))):
        job.tick(now_s)
    return job


@pytest.fixture(params=[False, True], ids=["", "restored"])
def silent(fed: MonitoredJob, request: pytest.FixtureRequest) -> MonitoredJob:
    """The job then; and once more, as another worker takes it over."""
    job = deepcopy(fed)
    if request.param:
        job.restore()
    return job


def hangs(job: MonitoredJob) -> list[Verdict]:
    return [one for one in job.outcome.revisions if one.kind == "hang"]


def go_on(job: MonitoredJob, trace: Trace, number: int, **changes: int) -> None:
    """Let all ranks deliver another iteration, which begins 900 s after the recording."""
    begin_ns = max(one.start_ns for one in job.outcome.iterations) + 900 * 10**9
    for one in trace.announcements:
        rows = evidence_of(one.rank, {number: 100}, attempt=trace.attempt, start_ns=begin_ns, **changes)
        rows.columns["start_ns"][:] = begin_ns
        job.deliver([replace(rows, job=trace.job)])


def test_a_hang_is_told_once_while_its_job_is_silent(silent: MonitoredJob) -> None:
    (told,) = hangs(silent)
    assert (told.state, told.event, told.close_reason, told.revision) == ("open", "opened", None, 1)
    assert told.iterations == (HUNG_AT, HUNG_AT + 1)
    assert silent.monitor.open_kinds == [("page", "hang")]
    silent.tick(TOLD_S)
    assert hangs(silent) == [told]


def test_a_hang_is_told_although_a_device_of_the_job_reports_errors_all_the_while(trace: Trace) -> None:
    job = MonitoredJob(trace.job, JudgeSettings(silence_s=SILENCE_S, grace_s=GRACE_S))
    messages = in_order(trace)
    job.feed(messages[: len(messages) - len(trace.announcements)])
    newest_ns = max(one.start_ns for one in job.outcome.iterations)
    for step in range(20):
        now_s = 100.0 * step
        event = DeviceEvent(newest_ns + round(now_s * 1e9), 0, "link_errors", "h", "mlx5_0", step)
        job.deliver([Membership(trace.job, trace.attempt, 0, events=(event,))])
        job.tick(now_s)
    assert [one.state for one in hangs(job)] == ["open"]


def test_a_job_that_goes_on_hangs_no_more(silent: MonitoredJob, trace: Trace) -> None:
    (told,) = hangs(silent)
    go_on(silent, trace, HUNG_AT + 1)
    first, second = hangs(silent)
    assert first == told
    assert second == replace(
        told, revision=2, state="closed", event="closed", close_reason="recovered", lost_s=second.lost_s
    )
    assert second.lost_s == pytest.approx(900, rel=0.01)  # when it was told nobody knew how long it would last
    assert told.lost_s == SILENCE_S
    assert alert_of(second) is not None
    go_on(silent, trace, HUNG_AT + 2)
    assert hangs(silent) == [first, second]


def test_ranks_that_only_say_where_they_stand_do_not_go_on(silent: MonitoredJob, trace: Trace) -> None:
    go_on(silent, trace, HUNG_AT + 1, unended=1)
    assert [one.state for one in hangs(silent)] == ["open"]


def test_a_job_that_is_started_again_hangs_no_more(silent: MonitoredJob, trace: Trace) -> None:
    silent.feed([replace(one, attempt=trace.attempt + 1) for one in trace.announcements])
    for now_s in (TOLD_S, TOLD_S + 2 * GRACE_S):
        silent.tick(now_s)
    assert [(one.revision, one.close_reason) for one in hangs(silent)] == [(1, None), (2, "restarted")]


DAY_S = 86_400.0


@pytest.mark.parametrize("night_s", [12 * 3600.0, DAY_S + 2 * SILENCE_S], ids=["night", "forgotten"])
@pytest.mark.parametrize("silent", [False], indirect=True)
def test_a_job_that_hung_at_night_and_is_started_again_in_the_morning_hangs_no_more(
    silent: MonitoredJob, trace: Trace, night_s: float
) -> None:
    silent.tick(TOLD_S + night_s / 2)
    silent.restore()
    for now_s in (0.0, SILENCE_S, night_s):  # the next worker's clock is another
        silent.tick(now_s)
    assert silent.monitor.is_ended is (night_s > DAY_S)
    silent.feed([replace(one, attempt=trace.attempt + 1) for one in trace.announcements])
    for later_s in (1.0, 1.0 + GRACE_S, 1.0 + 2 * GRACE_S):
        silent.tick(night_s + later_s)
    reason = "silent" if night_s > DAY_S else "restarted"
    assert [(one.revision, one.close_reason) for one in hangs(silent)] == [(1, None), (2, reason)]
    # All that the open verdict cost stays in the closed one: no start and no last word takes it back.
    assert hangs(silent)[-1].lost_s == pytest.approx(TOLD_S + night_s / 2 + min(night_s, DAY_S), rel=0.05)
    assert not silent.monitor.is_ended


def test_a_hang_that_is_found_when_a_worker_catches_up_after_hours_is_kept(trace: Trace) -> None:
    job = MonitoredJob(trace.job, JudgeSettings(silence_s=SILENCE_S, grace_s=GRACE_S))
    messages = in_order(trace)
    job.feed(messages[: len(messages) - len(trace.announcements)])
    job.tick(0.0)
    job.tick(11 * SILENCE_S)  # the first hop falls silent, and its evidence is news
    for now_s in (23 * SILENCE_S, 24 * SILENCE_S, 25 * SILENCE_S):
        job.tick(now_s)
    assert [(one.revision, one.close_reason) for one in hangs(job)] == [(1, None)]
    assert not job.monitor.is_ended
    go_on(job, trace, HUNG_AT + 1)
    assert [(one.revision, one.close_reason) for one in hangs(job)] == [(1, None), (2, "recovered")]


def test_a_job_that_is_ended_hangs_no_more(silent: MonitoredJob, trace: Trace) -> None:
    silent.feed(last_words(trace))
    assert [(one.revision, one.close_reason) for one in hangs(silent)] == [(1, None), (2, "finished")]
    assert hangs(silent)[-1].lost_s == SILENCE_S + 4 * GRACE_S  # as far as ticks saw it stand
