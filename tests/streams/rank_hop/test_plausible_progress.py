"""One damaged message in mid-stream changes no verdict; honest leaps are believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, Heartbeat, SourceProgress
from irregulars.messages.bounds import LATEST_NS
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import read_trace, trace_batches
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.plausible_progress import SourceArrivals
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from irregulars.streams.rank_hop.thresholds import RANK_HOP
from tests.present import present
from tests.stored_states import stored
from tests.streams.judged_streams import RECORDINGS, MonitoredJob, around_the_fault
from tests.streams.lockstep_job import MS, START_NS, operator_batch

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
YEAR_NS = 365 * DAY_NS

Change = Callable[[Batch], Batch]


def with_watermark(watermark_ns: int) -> Change:
    return lambda batch: replace(batch, header=replace(batch.header, watermark_ns=watermark_ns))


def with_column(name: str, value: int, rows: slice = slice(None)) -> Change:
    def change(batch: Batch) -> Batch:
        column = batch.columns[name].copy()
        column[rows] = value
        return replace(batch, columns={**batch.columns, name: column})

    return change


DAMAGE = {
    "watermark of 2116": with_watermark(LATEST_NS),
    "iteration 10^9": with_column("iteration", 10**9),
    "iteration 10^9 in one row": with_column("iteration", 10**9, slice(3, 4)),
    "times of 2116": with_column("start_ns", LATEST_NS),
    "a time of 2116": with_column("start_ns", LATEST_NS, slice(2, 3)),
    "rows before": lambda batch: replace(batch, header=replace(batch.header, rows_before=1 << 47)),
}


@cache
def judged(damage: Change | None) -> tuple[MonitoredJob, int]:
    """The recording of a slow NIC, in which one batch of rank 2 is damaged; how many messages were refused."""
    trace = around_the_fault(read_trace(RECORDINGS / "gloo-slow-nic"))
    job, refused = MonitoredJob(trace.job), 0
    job.feed(trace.announcements)
    batches = list(trace_batches(trace))
    if damage is not None:
        number = damaged_number(batches)
        batches[number] = damage(batches[number])
    for batch in batches:
        refused_rows = job.refused_rows
        job.take(batch)
        refused += job.refused_rows > refused_rows
    job.feed(Heartbeat(trace.job, trace.attempt, one.rank, {}, "ended", "finished") for one in trace.announcements)
    return job, refused


def damaged_number(batches: Sequence[Batch]) -> int:
    """Number of the batch of operators in the middle of what rank 2 sends."""
    own = [n for n, one in enumerate(batches) if one.header.rank == 2 and one.header.schema == "commops"]
    return own[len(own) // 2]


def late_rows(job: MonitoredJob) -> int:
    return sum(sum(part.rank_iterations["late_rows"].tolist()) for part in job.outcome.parts if part.rank_iterations)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_one_damaged_message_in_mid_stream_is_refused_and_changes_no_verdict(damage: Change) -> None:
    plain, _ = judged(None)
    found, refused = judged(damage)
    assert late_rows(found) == late_rows(plain)
    said = [(v.kind, v.suspects[0].rank, v.state) for v in found.outcome.verdicts.values()]
    assert said == [(v.kind, v.suspects[0].rank, v.state) for v in plain.outcome.verdicts.values()]
    assert len(found.outcome.iterations) == len(plain.outcome.iterations)
    assert refused + sum(map(lost_rows, found.ranks.values())) > 0


def lost_rows(monitor: RankMonitor) -> int:
    attempt = present(monitor._attempt)
    return attempt._arrivals.lost_rows


def test_a_refused_message_is_no_measure_of_the_next_one() -> None:
    """Its times were plausible, and its count of rows was not: the iteration it names was never reached."""
    after = []
    for before in (10, 1 << 47):
        made = monitor()
        made.add(batch(0, 0, before=0), 0)
        refused = batch(RANK_HOP.most_skipped_iterations, 100 * MS, before=before)
        with nullcontext() if before == 10 else pytest.raises(RecordError, match="rows_before must be"):
            made.add(refused, 1)
        attempt = present(made._attempt)
        after.append(attempt._progress._newest_iteration)
    assert after[1] < 10 < after[0]


# --- one rank -------------------------------------------------------------------------------------------------------


def monitor(*, now_s: float | None = None) -> RankMonitor:
    made = RankMonitor("lockstep", 0, JudgeSettings())
    made.announce(Announcement("lockstep", 1, 0, 1, 1, ()))
    if now_s is not None:
        made.tick(now_s, 0.0)
    return made


def batch(first: int, begin_ns: int, *, step: int = 1, step_ns: int = 10 * MS, before: int | None = None) -> Batch:
    rows = [
        {"iteration": first + n * step, "start_ns": begin_ns + n * step_ns, "elapsed_ns": 5.0 * MS, "sequence": n}
        for n in range(10)
    ]
    return operator_batch(0, rows, rows_before=first if before is None else before)


def closed(monitor: RankMonitor) -> list[int]:
    rows = monitor.drain()
    return [n for row in rows if hasattr(row, "columns") for n in row.columns["iteration"].tolist()]


HONEST = {
    "goes on at iteration 500,000": batch(500_000, START_NS + HOUR_NS, before=10),
    "stood still for a month": batch(10, START_NS + 30 * DAY_NS),
    "a clock that was set forward by hours": batch(10, START_NS + 5 * HOUR_NS),
    "a clock that was set back by hours": batch(10, START_NS - 5 * HOUR_NS),
}


@pytest.mark.parametrize("later", HONEST.values(), ids=HONEST)
def test_what_honest_jobs_do_is_believed_at_once(later: Batch) -> None:
    one = monitor()
    one.add(batch(0, START_NS), 0)
    one.add(later, 1)
    assert lost_rows(one) == 0


@pytest.mark.parametrize("offset_ns", [-40 * YEAR_NS, -YEAR_NS, -6 * HOUR_NS, 6 * HOUR_NS, 300 * DAY_NS])
def test_a_wrong_clock_and_an_old_recording_are_believed(offset_ns: int) -> None:
    one = monitor(now_s=START_NS / 1e9)
    one.add(batch(0, START_NS + offset_ns), 0)
    one.add(batch(10, START_NS + offset_ns + 100 * MS), 1)
    assert lost_rows(one) == 0
    assert closed(one)


def test_a_leap_of_days_that_the_clock_did_not_make_is_refused() -> None:
    one = monitor(now_s=START_NS / 1e9)
    one.add(batch(0, START_NS), 0)
    with pytest.raises(RecordError, match="time must be plausible"):
        one.add(batch(10, START_NS + 3 * DAY_NS), 1)
    one.add(batch(10, START_NS + HOUR_NS), 2)


@pytest.mark.parametrize("later", [batch(10**9, START_NS + HOUR_NS, before=10), batch(10, START_NS + 3 * YEAR_NS)])
def test_a_second_message_that_says_the_same_is_believed(later: Batch) -> None:
    one = monitor()
    one.add(batch(0, START_NS), 0)
    with pytest.raises(RecordError, match="must be plausible after what the rank sent before"):
        one.add(later, 1)
    one.add(later, 2)
    assert max(closed(one)) > 5


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_numbers_by_tokens_is_believed(restarts: bool) -> None:
    one = monitor()
    step = 4_000_000
    for number in range(5):
        one.add(batch(number * 10 * step, START_NS + number * 100 * MS, step=step, before=number * 10), number)
        one = RankMonitor.from_state(stored(one.state()), JudgeSettings()) if restarts else one
    assert lost_rows(one) == 0
    assert max(closed(one)) > 40 * step


def test_a_watermark_that_stays_wrong_costs_one_batch_and_closes_nothing_early() -> None:
    one = monitor()
    one.add(batch(0, START_NS), 0)
    wrong = with_watermark(LATEST_NS)
    with pytest.raises(RecordError, match="watermark must be plausible"):
        one.add(wrong(batch(10, START_NS + 100 * MS)), 1)
    for number in range(2, 6):
        one.add(wrong(batch(10 * number, START_NS + number * 100 * MS)), number)
    assert max(closed(one)) < 59
    assert lost_rows(one) == 10


def test_a_heartbeat_of_2116_is_refused_and_never_believed() -> None:
    one = monitor()
    one.add(batch(0, START_NS), 0)
    beat = Heartbeat("lockstep", 1, 0, {"commops": SourceProgress(10, LATEST_NS)})
    with pytest.raises(RecordError, match="watermark of commops must be plausible"):
        one.beat(beat)
    one.beat(beat)
    assert max(closed(one)) < 9


def test_a_restored_monitor_refuses_as_well() -> None:
    one = monitor()
    one.add(batch(0, START_NS), 0)
    closed(one)
    one = RankMonitor.from_state(stored(one.state()), JudgeSettings())
    with pytest.raises(RecordError):
        one.add(batch(10**9, START_NS + HOUR_NS), 1)
    with pytest.raises(RecordError):
        one.add(with_watermark(LATEST_NS)(batch(10, START_NS + 100 * MS)), 2)


def test_the_state_is_that_of_before_a_refused_message() -> None:
    one, other = monitor(), monitor()
    for each in (one, other):
        each.add(batch(0, START_NS), 0)
    with pytest.raises(RecordError):
        one.add(batch(10**9, START_NS + HOUR_NS), 1)
    assert repr(one.state()) == repr(other.state())


def test_communicators_without_end_are_refused() -> None:
    one = monitor()
    one.add(batch(0, START_NS), 0)
    many = batch(10, START_NS + 100 * MS)
    for number in range(7):
        names = ("world", *(f"{number}-{n}" for n in range(10_000)))
        part = replace(many, header=replace(many.header, names=names, rows_before=10 * (number + 1)))
        if number < 6:
            one.add(part, number)
        else:
            with pytest.raises(RecordError, match="communicators of a rank must be at most 65536"):
                one.add(part, number)
    assert np.all(many.columns["communicator"] == 0)


def operators(count: int, **header: Any) -> Batch:
    rows = [{"iteration": 0, "sequence": n, "start_ns": 10 * n, "elapsed_ns": 5.0} for n in range(count)]
    return operator_batch(0, rows, **header)


def count(arrivals: SourceArrivals, batch: Batch) -> None:
    arrivals.count(batch.header.schema, batch.header.rows_before, len(batch), batch.header.watermark_ns)


def test_rows_that_were_published_before_and_never_came_are_lost() -> None:
    arrivals = SourceArrivals(lost_rows=5)
    count(arrivals, operators(2, rows_before=3))
    count(arrivals, operators(1, rows_before=10))
    count(arrivals, operators(1, rows_before=10))  # read again
    assert arrivals.lost_rows == 5 + 3 + 5


def test_a_heartbeat_moves_watermarks_only_when_all_its_rows_have_come() -> None:
    arrivals = SourceArrivals()
    count(arrivals, operators(1))
    said = {"commops": SourceProgress(2, 900)}
    assert not arrivals.apply(said, ("commops",))
    assert arrivals.newest_ns == 5
    count(arrivals, operators(1, rows_before=1))
    assert arrivals.apply(said, ("commops",))
    assert arrivals.newest_ns == 900


def test_rows_that_a_heartbeat_says_are_lost_are_and_none_of_them_twice() -> None:
    arrivals = SourceArrivals(lost_rows=2)
    for lost_rows in (0, 40, 7):  # the third of an agent that began anew
        arrivals.apply({"commops": SourceProgress(0, None, lost_rows)}, ("commops",))
    assert arrivals.lost_rows == 40
    count(arrivals, operators(1, rows_before=30))  # of which the agent dropped these
    arrivals.apply({"commops": SourceProgress(0, None, 70)}, ("commops",))
    assert arrivals.lost_rows == 70


def test_samples_hold_a_heartbeat_up_only_where_they_were_announced() -> None:
    said = {"bandwidth": SourceProgress(100, None), "gpu_health": SourceProgress(7, None)}
    assert SourceArrivals().apply(said, ("commops",))
    assert not SourceArrivals().apply(said, ("commops", "bandwidth"))


def test_iterations_wait_for_samples_that_were_announced() -> None:
    arrivals = SourceArrivals()
    count(arrivals, operators(1))
    assert arrivals.complete_until_ns(("commops",)) == 5
    assert arrivals.complete_until_ns(("commops", "bandwidth")) is None
    arrivals.apply({"bandwidth": SourceProgress(0, 3)}, ("commops", "bandwidth"))
    assert arrivals.complete_until_ns(("commops", "bandwidth")) == 3


def test_a_watermark_never_falls() -> None:
    arrivals = SourceArrivals()
    for watermark_ns in (70, 20, None):
        count(arrivals, operators(1, watermark_ns=watermark_ns))
    assert arrivals.complete_until_ns(("commops",)) == 70
