"""The second hop: whose word it waits for, in which order it judges, restarts, silence, and bad input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.messages.announcements import Heartbeat
from irregulars.messages.evidence import Evidence, Membership, decode_evidence, encode_evidence
from irregulars.messages.judgements import JudgedIteration, Judgements
from irregulars.messages.records import UNKNOWN
from irregulars.producers.trace.directory import trace_batches
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop import job_monitor
from irregulars.streams.job_hop.job_monitor import JobMonitor
from tests.conftest import examples
from tests.stored_states import stored
from tests.streams.evidence_rows import came, evidence_of, no_operators, went
from tests.streams.judged_streams import MonitoredJob, found, in_order, judge, judge_trace
from tests.streams.lockstep_job import MS, LockstepJob, meeting, work_and_meet

Rows = Sequence[Evidence | Membership]


def made(*rows: Evidence | Membership, **settings: Any) -> JobMonitor:
    monitor = JobMonitor("j", JudgeSettings(**settings))
    monitor.add(rows)
    return monitor


def advance(monitor: JobMonitor) -> Judgements:
    return monitor.advance(no_operators)


def judged(monitor: JobMonitor) -> list[int]:
    return [one.iteration for one in advance(monitor).iterations]


def times(monitor: JobMonitor) -> dict[int, JudgedIteration]:
    return {one.iteration: one for one in advance(monitor).iterations}


# --- whose word is waited for ---------------------------------------------------------------------------------------


BOTH_CAME = [came(0), came(1)]
Step = tuple[Rows | Sequence[float], list[int]]

# What comes, or seconds at which the clock ticks; and the iterations that are judged then. The last of each case says
# whether the job has ended.
WAITING: dict[str, tuple[list[Step], bool]] = {
    "an iteration is judged when all ranks have delivered it": (
        [([*BOTH_CAME, evidence_of(0, {0: 10, 1: 10})], []), ([evidence_of(1, {0: 12})], [0]),
         ([evidence_of(1, {1: 12})], [1])], False,
    ),
    "nothing is judged before all ranks that log were announced": (
        [([came(0), evidence_of(0, {0: 10})], []), ([came(1), evidence_of(1, {0: 10})], [0])], False,
    ),
    "a rank that will not log is not waited for": (
        [([came(0, logged_ranks=1), came(1, logged_ranks=1, is_logged=False), went(1, "not logged"),
           evidence_of(0, {0: 10})], [0])], False,
    ),
    "a rank that ended is not waited for": (
        [([*BOTH_CAME, evidence_of(0, {0: 10, 1: 10}), evidence_of(1, {0: 10}), went(1)], [0, 1])], False,
    ),
    "a silent rank is given up after the grace": (
        [([*BOTH_CAME, evidence_of(0, {0: 10, 1: 10})], []), ([100.0, 129.0], []), ([130.0], [0, 1])], False,
    ),
    "a rank that was given up is waited for again once it delivers": (
        [([*BOTH_CAME, evidence_of(0, {0: 10})], []), ([0.0, 30.0], [0]),
         ([evidence_of(0, {1: 10, 2: 10}), evidence_of(1, {1: 10})], [1])], False,
    ),
    "evidence of an iteration that was judged without it changes nothing": (
        [([*BOTH_CAME, evidence_of(0, {0: 10})], []), ([0.0, 30.0], [0]), ([evidence_of(1, {0: 99})], [])], False,
    ),
    "ranks that were never announced are given up too": (
        [([came(0), evidence_of(0, {0: 10})], []), ([0.0, 30.0], [0])], False,
    ),
    "a job is judged on after an evaluation of four hours between two steps": (
        [([came(0, 1), evidence_of(0, {0: 10})], [0]), ([0.0, 7_200.0], []), ([14_400.0], []),
         ([evidence_of(0, {1: 10})], [1])], False,
    ),
    "a job of one rank waits for no other": ([([came(0, 1), evidence_of(0, {0: 10})], [0])], False),
    "a job ends when all its ranks have": (
        [([*BOTH_CAME, evidence_of(0, {0: 10}), went(0)], []), ([evidence_of(1, {0: 10}), went(1)], [0])], True,
    ),
    "a job that ends before its first iteration ends": ([([came(0, 1), went(0)], [])], True),
    "evidence before any announcement is not heard": ([([evidence_of(0, {0: 10}), went(0)], [])], False),
    "the end of a rank that was never announced ends nothing": (
        [([came(0), went(7, "stopped"), evidence_of(0, {0: 10}), went(0)], []), ([0.0, 30.0], [0])], True,
    ),
    "evidence of a later attempt that was never announced stops nothing": (
        [([came(0, 1), evidence_of(0, {0: 10}, attempt=9), evidence_of(0, {0: 10}), went(0)], [0]), ([], [])], True,
    ),
    "evidence of a rank that was never announced stops nothing": (
        [([came(0, 1, clock="per_host"), evidence_of(5, dict.fromkeys(range(30), 10)),
           evidence_of(0, {n: 10 + 20 * (n > 20) for n in range(30)}), went(0)], list(range(30)))], True,
    ),
    "an iteration number from nowhere does not end the judging": (
        [([*BOTH_CAME, evidence_of(0, {2**60: 10}), evidence_of(1, {0: 10, 1: 10})], [0, 1]),
         ([went(0), went(1)], [2**60])], True,
    ),
    "empty evidence says nothing": ([([came(0, 1), evidence_of(0, {})], [])], False),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "is_ended"), WAITING.values(), ids=WAITING)
def test_what_is_judged_of_what_came(steps: list[Step], is_ended: bool) -> None:
    monitor = made(grace_s=30.0)
    for what, expected in steps:
        for one in what:
            monitor.tick(one) if isinstance(one, float) else monitor.add([one])
        assert judged(monitor) == expected
    assert monitor.is_ended == is_ended


def test_above_a_bound_the_oldest_iterations_that_wait_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [evidence_of(0, {number: 10}) for number in range(20)]
    monkeypatch.setattr(job_monitor, "_MOST_PENDING_BYTES", 5 * rows[0].size_bytes)
    monitor = made(came(0), came(1), *rows)
    assert (judged(monitor), monitor.given_up) == ([], 15)
    monitor = JobMonitor.from_state(stored(monitor.state()), JudgeSettings())
    monitor.add([evidence_of(1, dict.fromkeys(range(10), 10))])
    assert judged(monitor) == []  # these came too late
    monitor.add([evidence_of(1, dict.fromkeys(range(10, 20), 10)), evidence_of(0, {20: 10})])
    assert (judged(monitor), monitor.given_up) == (list(range(15, 20)), 0)


def test_iterations_that_are_given_up_do_not_begin_the_grace_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [evidence_of(0, {number: 10}) for number in range(40)]
    monkeypatch.setattr(job_monitor, "_MOST_PENDING_BYTES", 5 * rows[0].size_bytes)
    monitor, said = made(came(0), came(1), grace_s=30.0), []
    for at, row in enumerate(rows):
        monitor.add([row])
        monitor.tick(5.0 * at)
        said.append(judged(monitor))
    assert (said[:6], said[6], said[7:]) == ([[]] * 6, [1, 2, 3, 4, 5, 6], [[at] for at in range(7, 40)])
    assert monitor.given_up == 1
    # One whose partition is read at last lags no more than it takes to read that, and is waited for.
    monitor = made(came(0), came(1), grace_s=30.0)
    for at, row in enumerate(rows):
        monitor.add([row])
        monitor.tick(5.0 * at, 0.0)
        assert judged(monitor) == []
    for at in range(35):
        monitor.add([evidence_of(1, {at: 10})])
        monitor.tick(200.0 + at, 5.0 * at)
        assert judged(monitor) == []
    monitor.add([evidence_of(1, dict.fromkeys(range(35, 40), 10))])
    assert {at: one.ranks_reported for at, one in times(monitor).items()} == dict.fromkeys(range(35, 40), 2)


def test_a_rank_that_skips_an_iteration_is_not_waited_for() -> None:
    monitor = made(came(0), came(1), evidence_of(0, {0: 10, 1: 10}), evidence_of(1, {1: 10}))
    assert {n: one.ranks_reported for n, one in times(monitor).items()} == {0: 1, 1: 2}


# --- what is judged -------------------------------------------------------------------------------------------------


def one_rank(elapsed_ms: dict[int, float], **changes: Any) -> JobMonitor:
    return made(came(0, 1), evidence_of(0, elapsed_ms, **changes))


def test_iterations_need_not_be_contiguous() -> None:
    numbers = [3, 7, 8, 90, 91, 95, 1000, 1001, 1002, 5000, 5001]
    said = times(one_rank(dict.fromkeys(numbers, 10) | {9000: 30}))
    assert list(said) == [*numbers, 9000]
    assert said[9000].is_irregular is True


@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_evaluations_and_checkpoints_are_neither_judged_nor_learned(phase: str) -> None:
    monitor = one_rank(dict.fromkeys(range(20), 10))
    monitor.add([evidence_of(0, {20: 5000}, phase=phase), evidence_of(0, {21: 10, 22: 13})])
    said = times(monitor)
    assert (said[20].is_irregular, said[20].phase) == (None, phase)
    assert said[21].reference_ns == 10 * MS
    assert (said[21].is_irregular, said[22].is_irregular) == (False, True)


def test_what_was_lost_and_late_stands_in_the_rows_of_ranks() -> None:
    monitor = made(came(0, 1), evidence_of(0, {0: 10}, late_rows=3))
    assert advance(monitor).rank_iterations["late_rows"].tolist() == [3]


# --- ends and restarts ----------------------------------------------------------------------------------------------


def late_rank_job(
    attempt: int = 1, iterations: int = 60, late_from: int = 40, late_rank: int = 2, late_ms: int = 30
) -> LockstepJob:
    def work_ns(number: int, rank: int) -> int:
        late_ns = late_ms * MS * (number >= late_from and rank == late_rank)
        return 10 * MS + late_ns + (number * 7 + rank * 3) % 5 * 20_000

    places = {rank: {"host": f"h{rank}"} for rank in range(4)}
    return meeting(4, iterations, work_ns, 2 * MS, places=places, attempt=attempt)


def test_while_a_verdict_is_open_the_usual_time_is_that_from_before_it() -> None:
    trace = late_rank_job(iterations=240, late_ms=6).trace()
    said = {one.iteration: one for one in judge(in_order(trace), trace.job).iterations}
    assert not said[239].is_irregular  # the window holds slow iterations alone
    assert said[239].verdict_ids
    assert said[239].reference_ns == pytest.approx(said[40].reference_ns, rel=0.01)


@pytest.mark.parametrize(
    ("reason", "expected"), [("finished", "finished"), ("stopped", "stopped"), ("ended", "finished")]
)
def test_an_open_verdict_closes_with_the_reason_of_the_end(reason: str, expected: str) -> None:
    trace = late_rank_job().trace()
    messages = [m for m in in_order(trace) if not hasattr(m, "state")]
    job = MonitoredJob(trace.job)
    job.feed(messages)
    for rank in range(4):
        job.deliver([])
        job.ranks[rank].beat(Heartbeat("lockstep", 1, rank, {}, "ended", reason))
        job.deliver(job.ranks[rank].drain())
    (verdict,) = job.outcome.verdicts.values()
    assert (verdict.state, verdict.close_reason, verdict.event) == ("closed", expected, "closed")


def test_a_restart_closes_what_was_open_and_begins_a_new_life() -> None:
    first, second = late_rank_job(1).trace(), late_rank_job(2, late_rank=1).trace()
    messages = [m for m in in_order(first) if not hasattr(m, "state")] + list(in_order(second))
    outcome = judge(messages, first.job)
    assert {id_: (v.attempt, v.close_reason, v.suspects[0].ranks) for id_, v in outcome.verdicts.items()} == {
        "lockstep:1:40:0": (1, "restarted", (2,)),
        "lockstep:2:40:0": (2, "finished", (1,)),
    }
    assert [one.attempt for one in outcome.iterations] == [1] * 60 + [2] * 60


def test_a_restart_that_one_worker_sees_before_another_loses_nothing() -> None:
    """Rank 0's monitor has ended attempt 1 and sent rows of attempt 2 while rank 1 still delivers attempt 1."""
    monitor = made(came(0), came(1), evidence_of(0, {0: 10, 1: 10}))
    monitor.add([went(0, "restarted"), came(0, attempt=2), evidence_of(0, {0: 50}, attempt=2)])
    assert judged(monitor) == []
    monitor.add([evidence_of(1, {0: 10, 1: 10}), went(1, "restarted")])
    assert judged(monitor) == [0, 1]
    monitor.add([came(1, attempt=2), evidence_of(1, {0: 51}, attempt=2)])
    assert [(one.attempt, one.elapsed_ns) for one in advance(monitor).iterations] == [(2, 51 * MS)]


def test_one_message_may_hold_the_end_of_one_attempt_and_the_begin_of_the_next() -> None:
    """A worker joins what all its monitors drained: rank 0 is in attempt 2 already, rank 1 has its last rows of 1."""
    first = [came(0), came(1), evidence_of(0, {0: 10})]
    rest = [
        evidence_of(0, {1: 10}), went(0, "restarted"), came(0, attempt=2), evidence_of(0, {0: 50}, attempt=2),
        evidence_of(1, {0: 10, 1: 10}), went(1, "restarted"), came(1, attempt=2), evidence_of(1, {0: 51}, attempt=2),
    ]  # fmt: skip
    monitor = made(*first)
    for value in encode_evidence(rest, "j"):
        monitor.add(decode_evidence(value))
    said = advance(monitor).iterations
    assert [(one.attempt, one.iteration, one.ranks_reported) for one in said] == [(1, 0, 2), (1, 1, 2), (2, 0, 2)]


def test_a_restart_is_not_held_up_by_a_rank_that_died_with_the_attempt_before() -> None:
    monitor = made(came(0), came(1), evidence_of(0, {0: 10}), went(0, "restarted"), came(0, attempt=2), grace_s=30.0)
    for now_s in (0.0, 30.0):
        monitor.tick(now_s)
    advance(monitor)
    monitor.add([came(1, attempt=2), evidence_of(0, {0: 50}, attempt=2), evidence_of(1, {0: 50}, attempt=2)])
    assert [one.attempt for one in advance(monitor).iterations] == [2]


def test_a_start_that_can_not_end_holds_later_ones_back_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one partition is unread no clock goes on by which a start could be found to be over."""
    rows = [evidence_of(0, {number: 10}, attempt=2) for number in range(20)]
    monkeypatch.setattr(job_monitor, "_MOST_PENDING_BYTES", 10 * rows[0].size_bytes)
    monitor, said = made(came(0), came(1), evidence_of(0, {0: 10}), came(0, 1, attempt=2)), []
    for row in rows:
        monitor.add([row])
        monitor = JobMonitor.from_state(stored(monitor.state()), JudgeSettings())
        said.append([(one.attempt, one.iteration) for one in advance(monitor).iterations])
    assert said[:5] == [[]] * 5
    assert [one for some in said for one in some] == [(1, 0), *((2, number) for number in range(20))]


def test_two_restarts_in_one_breath() -> None:
    monitor = made()
    for attempt in (1, 2, 3):
        monitor.add([came(0, 1, attempt=attempt), evidence_of(0, {5: 10}, attempt=attempt), went(0, attempt=attempt)])
    assert [one.attempt for one in advance(monitor).iterations] == [1, 2, 3]
    assert monitor.is_ended


def test_rows_of_an_attempt_that_is_over_are_not_heard() -> None:
    monitor = made(came(0, 1, attempt=2), came(0, 1, attempt=1), evidence_of(0, {0: 10}, attempt=1))
    monitor.add([evidence_of(0, {0: 20}, attempt=2)])
    assert [(one.attempt, one.elapsed_ns) for one in advance(monitor).iterations] == [(2, 20 * MS)]


def test_after_the_silence_what_waits_is_judged_and_a_job_that_speaks_again_is_heard() -> None:
    monitor = made(came(0), came(1), evidence_of(0, {0: 10}), silence_s=600.0, grace_s=1000.0)
    for now_s in (0.0, 600.0):
        monitor.tick(now_s)
    assert judged(monitor) == [0]
    monitor.add([evidence_of(0, {1: 10}), evidence_of(1, {0: 10, 1: 10})])
    monitor.tick(601.0)
    assert judged(monitor) == [1]


def hung() -> tuple[MonitoredJob, LockstepJob]:
    """A live job: after 30 iterations rank 2 does not come to an all_reduce, and nobody says that anything ended."""
    lockstep = meeting(4, 30, lambda number, rank: 10 * MS + (number + rank) % 3 * 5000)
    for rank in (0, 1, 3):
        stuck = {"communicator": "world", "sequence": 30, "start_ns": lockstep.now_ns[rank] + 10 * MS}
        lockstep.rows[rank].append({**stuck, "iteration": UNKNOWN})
    trace = lockstep.trace()
    trace = replace(trace, announcements=tuple(replace(one, lost_rows=0) for one in trace.announcements))
    job = MonitoredJob(trace.job, JudgeSettings(grace_s=30.0, silence_s=600.0))
    job.feed(message for message in in_order(trace) if not isinstance(message, Heartbeat))
    return job, lockstep


@pytest.mark.parametrize("restores", [False, True])
def test_a_job_that_hangs_is_told_after_the_silence_and_a_grace_once(restores: bool) -> None:
    job, _ = hung()
    for now_s in (0.0, 599.0, 600.0, 629.0):
        job.tick(now_s)
    assert job.outcome.verdicts == {}
    job.tick(631.0)
    if restores:
        job.restore()
    for now_s in (632.0, 700.0, 2000.0, 1e6):
        job.tick(now_s)
    (verdict,) = job.outcome.verdicts.values()
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (2,))
    # It cost what it stood, until the job was forgotten; a worker that restores it counts on from its next look.
    assert (verdict.close_reason, verdict.lost_s) == ("silent", pytest.approx(1e6, abs=1.5))


def test_a_long_pause_is_no_hang() -> None:
    """What was told as open has ended after all; the job goes on, and is judged on."""
    job, lockstep = hung()
    for now_s in (0.0, 599.0):
        job.tick(now_s)
    for rank in range(4):
        lockstep.now_ns[rank] = max(lockstep.now_ns.values()) + 600_000 * MS

    for rows in lockstep.rows.values():
        rows.clear()
    for rows in lockstep.iteration_rows.values():
        rows.clear()
    lockstep.iterate(range(30, 40), work_and_meet(lambda *_: 10 * MS))
    job.feed(in_order(lockstep.trace()))
    assert [one.kind for one in job.outcome.verdicts.values() if one.kind == "hang"] == []
    assert [one.iteration for one in job.outcome.iterations] == list(range(40))


class SlowJob:
    """A live job of iterations that take longer than the grace, second by second on the wall clock."""

    def __init__(self) -> None:
        self.lockstep = LockstepJob({"world": ("world", (0, 1, 2, 3))})
        self.job = MonitoredJob(self.lockstep.job, JudgeSettings(grace_s=30.0, silence_s=600.0))
        self.job.feed(replace(one, lost_rows=0) for one in self.lockstep.trace().announcements)
        self.now_s = 0.0

    def wait(self, seconds: int) -> None:
        for _ in range(0, seconds, 5):
            self.now_s += 5
            self.job.tick(self.now_s)

    def send(self) -> None:
        self.job.feed(trace_batches(self.lockstep.trace(), 1500, 1.0))
        for rows in (*self.lockstep.rows.values(), *self.lockstep.iteration_rows.values()):
            rows.clear()

    def stand(self, ranks: Sequence[int], iteration: int) -> None:
        """An operator of `ranks` that has not ended yet."""
        for rank in ranks:
            row = {"communicator": "world", "sequence": 10**6 + iteration, "iteration": iteration}
            self.lockstep.rows[rank].append({**row, "start_ns": self.lockstep.now_ns[rank] - 1000 * MS})

    def run(self, numbers: Sequence[int], standing: Sequence[int] = ()) -> None:
        for number in numbers:
            self.lockstep.iterate([number], _of_45_s)
            self.stand(standing, number)
            self.wait(45)
            self.send()

    @property
    def hang_revisions(self) -> list[tuple[int, int, str | None]]:
        told = [one for one in self.job.outcome.revisions if one.kind == "hang"]
        return [(one.iterations[0], one.revision, one.close_reason) for one in told]

    @property
    def hangs(self) -> list[int]:
        return [one.iterations[0] for one in self.job.outcome.verdicts.values() if one.kind == "hang"]


_of_45_s = work_and_meet(lambda number, rank: 45_000 * MS + (number + rank) % 3 * 5000)


@pytest.mark.parametrize("numbers", [[5], range(5, 30)])
def test_an_operator_that_stays_open_while_the_job_goes_on_is_no_hang(numbers: Sequence[int]) -> None:
    slow = SlowJob()
    slow.run(range(5))
    slow.run(numbers, standing=[1])
    slow.run(range(numbers[-1] + 1, numbers[-1] + 8))
    assert slow.hangs == []


@pytest.mark.parametrize("restores", [False, True])
def test_a_hang_of_slow_iterations_is_told_as_soon(restores: bool) -> None:
    slow = SlowJob()
    slow.run(range(5))
    slow.stand([0, 1, 3], 5)
    slow.send()
    slow.wait(610)
    if restores:
        slow.job.monitor = JobMonitor.from_state(stored(slow.job.monitor.state()), slow.job.settings)
    slow.wait(35)
    assert slow.hangs == [5]


@pytest.mark.parametrize("restores", [False, True])
def test_a_rank_that_stood_later_than_others_is_not_left_accused(restores: bool) -> None:
    """What it has comes after the hang was told: it waits as well, and another one is to blame."""
    slow = SlowJob()
    slow.run(range(5))
    for ranks, seconds in (((0, 3), 60), ((1,), 610)):
        slow.stand(ranks, 5)
        slow.send()
        slow.wait(seconds)
    if restores:
        slow.job.restore()
    slow.wait(700)
    told = [one.suspects[0].ranks for one in slow.job.outcome.verdicts.values()]
    assert told == [(1, 2), (2,)]
    assert slow.hang_revisions == [(5, 1, None), (5, 1, None), (5, 2, "recovered")]


def test_two_hangs_of_one_rank_are_both_told() -> None:
    slow = SlowJob()
    for first in (0, 10):
        slow.run(range(first, first + 5))
        slow.stand([0, 1, 3], first + 5)
        slow.send()
        slow.wait(700)
    assert slow.hangs == [5, 15]


def test_a_job_that_moves_on_into_its_next_hang_hangs_once() -> None:
    """No iteration of it has ended in between, and yet it does not hang where it hung."""
    slow = SlowJob()
    slow.run(range(5))
    for iteration in (5, 6):
        slow.stand([0, 1, 3], iteration)
        slow.send()
        slow.wait(700)
    assert slow.hang_revisions == [(5, 1, None), (6, 1, None), (5, 2, "recovered")]
    for rank in range(4):
        slow.job.take(Heartbeat("lockstep", 1, rank, {}, "ended", "stopped"))
    assert slow.hang_revisions[3:] == [(6, 2, "stopped")]


def test_a_job_that_speaks_again_after_its_silence_is_alive_or_not_heard() -> None:
    """Else verdicts open that nothing will ever close, in a monitor whose state may go."""
    monitor = made(came(0, 1), evidence_of(0, {0: 10}), silence_s=10.0)
    for now_s in (0.0, 10.0):
        monitor.tick(now_s)
    advance(monitor)
    monitor.add([evidence_of(0, {1: 10})])
    assert not (judged(monitor) and monitor.is_ended)


# --- any way of delivery --------------------------------------------------------------------------------------------


def said(monitor: JobMonitor, rows: Rows, restore: bool = False) -> list[Any]:
    parts = []
    for row in rows:
        monitor.add([row])
        if restore:
            monitor = JobMonitor.from_state(stored(monitor.state()), monitor.settings)
        parts.append(advance(monitor))
    return [
        [one for part in parts for one in getattr(part, name)] for name in ("iterations", "verdicts", "announcements")
    ]


def life(ranks: int, iterations: int) -> list[Any]:
    random = Random(ranks)
    rows: list[Any] = []
    for rank in range(ranks):
        times = {n: 10 + random.random() + 20 * (n % 13 == 12) for n in range(iterations)}
        rows += [came(rank, ranks), evidence_of(rank, times), went(rank)]
    return rows


@settings(max_examples=examples(30))
@given(random=st.randoms(use_true_random=False))
def test_ranks_may_interleave_in_any_way(random: Random) -> None:
    def split(row: Any) -> list[Any]:
        if not isinstance(row, Evidence):
            return [row]
        rank, numbers = int(row.columns["rank"][0]), row.columns["iteration"].tolist()
        elapsed = dict(zip(numbers, (row.columns["elapsed_ns"] / MS).tolist(), strict=True))
        cuts = sorted(random.sample(range(len(numbers) + 1), 3))
        borders = zip([0, *cuts], [*cuts, len(numbers)], strict=True)
        return [evidence_of(rank, {n: elapsed[n] for n in numbers[a:b]}) for a, b in borders]

    rows = life(3, 20)
    queues = [[one for row in rows[3 * rank : 3 * rank + 3] for one in split(row)] for rank in range(3)]
    turns = [rank for rank, queue in enumerate(queues) for _ in queue]
    random.shuffle(turns)
    mixed = [queues[rank].pop(0) for rank in turns]
    iterations, verdicts, announced = said(JobMonitor("j", JudgeSettings()), mixed)
    expected = said(JobMonitor("j", JudgeSettings()), rows)
    assert [repr(one) for one in iterations] == [repr(one) for one in expected[0]]
    assert (verdicts, len(announced)) == (expected[1], 3)


def test_a_snapshot_before_each_judgement_loses_nothing() -> None:
    plain = said(JobMonitor("j", JudgeSettings()), life(3, 20))
    restored = said(JobMonitor("j", JudgeSettings()), life(3, 20), restore=True)
    assert [[repr(one) for one in part] for part in restored] == [[repr(one) for one in part] for part in plain]


def test_a_snapshot_holds_the_next_attempt() -> None:
    monitor = made(came(0, 1), evidence_of(0, {0: 10}), came(0, 1, attempt=2), evidence_of(0, {0: 50}, attempt=2))
    monitor = JobMonitor.from_state(stored(monitor.state()), JudgeSettings())
    monitor.add([went(0)])
    assert [one.attempt for one in advance(monitor).iterations] == [1, 2]


def test_evidence_that_comes_twice_counts_once() -> None:
    monitor = made(came(0), came(1), came(1), evidence_of(0, {0: 10}), evidence_of(0, {0: 10, 1: 10}))
    monitor.add([evidence_of(1, {0: 10}), evidence_of(1, {0: 10})])
    judgements = advance(monitor)
    assert [(one.iteration, one.ranks_reported) for one in judgements.iterations] == [(0, 2)]
    assert len(judgements.announcements) == 2


def test_operators_that_are_no_longer_there_accuse_nobody() -> None:
    job = MonitoredJob("lockstep")
    job.log.read_back = lambda spans: []  # type: ignore[method-assign]
    outcome = job.feed(in_order(late_rank_job().trace()))
    assert sum(bool(one.is_irregular) for one in outcome.iterations) == 20
    assert outcome.revisions == []


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_rank_announced_twice_with_other_content_keeps_what_it_said_first() -> None:
    monitor = made(came(0), came(1), came(1, host="elsewhere", logged_ranks=50))
    monitor.add([evidence_of(0, {0: 10}), evidence_of(1, {0: 10})])
    judgements = advance(monitor)
    assert [one.host for one in judgements.announcements] == [None, None]
    assert [one.iteration for one in judgements.iterations] == [0]


@pytest.mark.parametrize("elapsed_ms", [0.0, -5.0, 1e9])
def test_iterations_of_strange_lengths_are_judged_without_an_error(elapsed_ms: float) -> None:
    monitor = one_rank(dict.fromkeys(range(20), elapsed_ms) | dict.fromkeys(range(20, 40), 10.0))
    monitor.add([went(0)])
    assert judged(monitor) == list(range(40))


def test_iterations_without_length_before_a_late_rank_do_not_divide_by_zero() -> None:
    job = late_rank_job(late_from=20)
    for rows in job.iteration_rows.values():
        for row in rows[:20]:
            row["elapsed_ns"] = 0
    outcome = judge_trace(job.trace())
    assert len(outcome.iterations) == 60


@settings(max_examples=examples(100))
@given(data=st.data())
def test_no_order_of_lives_and_rows_stops_a_monitor(data: st.DataObject) -> None:
    monitor = JobMonitor("j", JudgeSettings(grace_s=1.0, silence_s=5.0))
    small, numbers = st.integers(0, 3), st.sampled_from([-(2**62), -1, 0, 1, 2, 3, 2**62])
    for step in range(data.draw(st.integers(0, 15))):
        rank, attempt = data.draw(small), data.draw(st.integers(1, 3))
        what = data.draw(st.sampled_from(["came", "went", "rows", "tick", "restore"]))
        if what == "came":
            monitor.add(
                [came(rank, data.draw(st.integers(1, 4)), attempt=attempt, is_logged=data.draw(st.booleans()))]
            )
        elif what == "went":
            monitor.add([went(rank, attempt=attempt)])
        elif what == "rows":
            rows = dict.fromkeys(sorted(data.draw(st.sets(numbers))), data.draw(st.sampled_from([0.0, 10.0, 1e6])))
            monitor.add([evidence_of(rank, rows, attempt=attempt)])
        elif what == "tick":
            monitor.tick(2.0 * step)
        else:
            monitor = JobMonitor.from_state(stored(monitor.state()), monitor.settings)
        advance(monitor)


def test_found_compares_what_streams_say() -> None:
    """The comparison that other tests trust is not blind."""
    one, other = judge_trace(late_rank_job().trace()), judge_trace(late_rank_job(late_rank=1).trace())
    assert found(one) == found(judge_trace(late_rank_job().trace()))
    assert all(a != b for a, b in zip(found(one), found(other), strict=True) if a)
