"""Whole judgements of small jobs: each fault alone, two at once, what is shared, what hides, and what is odd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.judging.iteration_judge import IterationJudge
from irregulars.detectors.judging.iteration_rows import Span
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import UNKNOWN, Batch, Header
from irregulars.producers.trace.directory import Trace
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import OperatorLog
from tests.detectors.judging.read_job import ReadJob
from tests.room_thresholds import moved
from tests.streams.eight_ranks import EIGHT, SHARED, EightRanks, faulty, late
from tests.streams.judged_streams import MonitoredJob, Outcome, in_order, judge, judge_trace, shifted
from tests.streams.lockstep_job import MS, US, WORLD_OF_4, LockstepJob, meeting, uneven_ns, work_and_meet


def verdicts(trace: Trace, **options: Any) -> list[Verdict]:
    return list(judge_trace(trace, **options).verdicts.values())


def blame(trace: Trace) -> list[tuple[str, str, tuple[int, ...], tuple[int, int]]]:
    return [(v.kind, v.suspects[0].device, v.suspects[0].ranks, v.iterations) for v in verdicts(trace)]


def test_a_healthy_job_has_no_verdict() -> None:
    assert verdicts(EightRanks().trace(100)) == []


@pytest.mark.parametrize("rank", [0, 3, 6])
def test_a_late_rank_is_blamed_and_its_victims_are_not(rank: int) -> None:
    assert blame(late(rank).trace()) == [("slow_rank", "gpu", (rank,), (30, 45))]


def test_warm_up_is_not_usual() -> None:
    """The first iterations open connections: held to be usual, they would hide all that takes less long."""
    eight = EightRanks()
    eight.late_ns = lambda number, rank: 400 * MS * (number < 3)
    trace = eight.trace(13)
    job = MonitoredJob(trace.job)
    job.feed(message for message in in_order(trace) if not isinstance(message, Heartbeat))
    state = job.monitor.state().judge
    assert state is not None
    assert [part.value.number for part in state.regular] == list(range(3, 12))


@pytest.mark.slow
def test_hosts_and_nics_that_are_blamed() -> None:
    # A host whose ranks are all late is blamed as a host
    (verdict,) = verdicts(late(2, 3).trace())
    suspect = verdict.suspects[0]
    assert (verdict.kind, suspect.device, suspect.ranks, suspect.host) == ("slow_rank", "host", (2, 3), "node-1")
    assert (suspect.gpu, suspect.nic) == (None, None)
    # Everybody later at once blames nobody
    assert verdicts(late(*range(8)).trace()) == []
    # A slow nic is blamed for all that crosses it
    job = EightRanks()
    job.slow = lambda number, ranks: 20 if 1 in ranks and 30 <= number < 45 else 1
    assert blame(job.trace()) == [("slow_nic", "nic", (1,), (30, 45))]
    # A shared nic carries all ranks that use it
    job = EightRanks(SHARED)
    job.slow = lambda number, ranks: 20 if {2, 3} & set(ranks) and 30 <= number < 45 else 1
    (verdict,) = verdicts(job.trace())
    suspect = verdict.suspects[0]
    assert (verdict.kind, suspect.device, suspect.ranks, suspect.nic) == ("slow_nic", "nic", (2, 3), "mlx5_0")


@pytest.mark.slow
def test_links_and_two_causes() -> None:
    # A slow link is blamed from the sender to the receiver
    job = EightRanks()
    job.slow = lambda number, ranks: 40 if ranks == (1, 5) and 30 <= number < 45 else 1
    (verdict,) = verdicts(job.trace())
    suspect = verdict.suspects[0]
    assert (verdict.kind, suspect.ranks, suspect.rank, suspect.peer) == ("slow_link", (1, 5), 1, 5)
    assert verdict.communicator == "pp1"
    # Two causes at once are two verdicts
    job = late(0)
    job.slow = lambda number, ranks: 60 if ranks == (4, 6) and 30 <= number < 45 else 1
    one, two = verdicts(job.trace())
    assert (one.kind, one.suspects[0].ranks, one.iterations) == ("slow_rank", (0,), (30, 45))
    assert (two.communicator, two.iterations) == ("dp4", (30, 45))
    assert all(set(suspect.ranks) <= {4, 6} for suspect in two.suspects)
    assert {one.verdict_id, two.verdict_id} == {"lockstep:1:30:0", "lockstep:1:30:1"}
    # Two causes one after the other are two verdicts with their own ids
    job = EightRanks()
    who = {**dict.fromkeys(range(20, 28), 1), **dict.fromkeys(range(45, 53), 7)}
    job.late_ns = lambda number, rank: 20 * MS * (who.get(number) == rank)
    said = verdicts(job.trace(70))
    assert [(v.verdict_id, v.suspects[0].ranks) for v in said] == [
        ("lockstep:1:20:0", (1,)),
        ("lockstep:1:45:0", (7,)),
    ]
    assert [v.close_reason for v in said] == ["recovered", "recovered"]


def test_of_two_ranks_that_turn_slow_together_the_slower_one_is_told_although_little_comes_back_without_it() -> None:
    late_ns = {1: 50 * MS, 6: 35 * MS}

    def work_ns(number: int, rank: int) -> int:
        return 100 * MS + late_ns.get(rank, 0) * (60 <= number < 90) + uneven_ns(number, rank, 200_000)

    assert blame(meeting(8, 110, work_ns, 10 * MS).trace()) == [("slow_rank", "gpu", (1,), (60, 90))]


@pytest.mark.slow
def test_single_spikes() -> None:
    # Two late iterations are one clear spike
    (verdict,) = verdicts(late(2, during=range(30, 32)).trace())
    assert (verdict.kind, verdict.suspects[0].rank, verdict.iterations) == ("slow_rank", 2, (30, 32))
    # A spike is said when it is known that it was one
    opened, closed = judge_trace(late(2, during=range(30, 31)).trace(60)).revisions
    assert (opened.event, opened.iterations, closed.event) == ("opened", (30, 31), "closed")
    # Spikes of a job that has many accuse nobody
    job = EightRanks()
    job.late_ns = lambda number, rank: 20 * MS * (number % 8 == 0 and number // 8 == rank + 2)
    assert verdicts(job.trace(100)) == []
    # A single transfer that hangs accuses nobody
    job = EightRanks()
    job.slow = lambda number, ranks: 40 if number == 30 and ranks == (1, 5) else 1
    assert verdicts(job.trace()) == []


def test_a_verdict_says_when_it_opens_goes_on_and_closes() -> None:
    said = judge_trace(late(2, during=range(30, 60)).trace(90)).revisions
    events = [v.event for v in said]
    assert (events[0], events[-1], set(events[1:-1])) == ("opened", "closed", {"continued", "raised"})
    assert (events.count("raised"), said[0].severity, said[-1].severity) == (1, "note", "ticket")
    assert said[0].iterations == (30, 32)  # stands alone, twice
    assert said[-1].iterations == (30, 60)
    assert [v.revision for v in said] == list(range(1, len(said) + 1))
    for before, after in pairwise(said[:-1]):
        assert after.event == "raised" or after.lost_s >= 2 * before.lost_s * (1 - 1e-6)
    assert said[-1].lost_s == pytest.approx(30 * 0.02, rel=0.05)


def test_a_second_fault_is_held_against_the_time_from_before_the_first() -> None:
    """For as long as the window still holds slow iterations of the first, their mean is no usual time."""
    job = EightRanks()
    who = {**dict.fromkeys(range(30, 100), 2), **dict.fromkeys(range(120, 140), 7)}
    job.late_ns = lambda number, rank: 20 * MS * (who.get(number) == rank)
    outcome = judge_trace(job.trace(200))
    assert [v.lost_s for v in outcome.verdicts.values()] == pytest.approx([70 * 0.02, 20 * 0.02], rel=0.05)
    usual_ns = {one.iteration: one.reference_ns for one in outcome.iterations}
    for number in (99, 119, 139, 199):
        assert usual_ns[number] == pytest.approx(usual_ns[30], rel=0.02)


@pytest.mark.slow
def test_the_iterations_of_a_verdict_name_it() -> None:
    outcome = judge_trace(late(2).trace())
    named = [one.iteration for one in outcome.iterations if one.verdict_ids]
    assert named == list(range(31, 45))


@pytest.mark.parametrize(("is_repaired", "past", "reason"), [(True, 25, "recovered"), (False, 40, "finished")])
def test_an_accused_rank_s_lateness_is_known_if_not_the_latest(*, is_repaired: bool, past: int, reason: str) -> None:
    """Rank 0 of 40 is slow from the start. Since iteration 25 as many others are later as the latest ranks hold."""

    def work_ns(number: int, rank: int) -> int:
        late_ns = 50 * MS * (rank == 0 and (number < 25 or not is_repaired))
        late_ns += 60 * MS * (number >= 25 and rank in range(8, 24))
        return 100 * MS + late_ns + uneven_ns(number, rank, 50_000)

    (verdict,) = (one for one in verdicts(meeting(40, 40, work_ns).trace()) if one.suspects)
    assert (verdict.suspects[0].ranks, verdict.iterations) == ((0,), (0, past))
    assert verdict.close_reason == reason


def test_an_accused_rank_whose_source_died_is_not_said_to_have_recovered() -> None:
    job = meeting(8, 50, lambda number, rank: 100 * MS + 50 * MS * (rank == 2) + uneven_ns(number, rank, 50_000))
    read = ReadJob(job.trace())
    judge = IterationJudge("lockstep", 1, JudgeSettings())
    for rows in read.rows:
        left = rows.take(rows.columns["rank"] != 2) if rows.number >= 20 else rows
        judge.judge(left, read.reader.announcements, read.read_back)
    judge.close("finished", read.reader.announcements, read.read_back)
    *_, verdict = (one for one in judge.drain([]).verdicts if one.suspects)
    assert (verdict.suspects[0].ranks, verdict.iterations, verdict.close_reason) == ((2,), (0, 20), "stopped")


def test_a_changed_delta_holds_for_iterations_of_an_open_verdict_at_once() -> None:
    """They take twice as long as usual, and are held against the level from before their verdict, also restored."""
    job = EightRanks()
    job.late_ns = lambda number, rank: 20 * MS * (rank == 2 and number >= 30)
    read = ReadJob(job.trace(60))
    is_long: dict[int, bool] = {}

    def watch(observation: Observation, *_: Any) -> None:
        is_long[observation.iteration] = observation.is_long

    settings = JudgeSettings(watch=watch)
    judge = IterationJudge("lockstep", 1, settings)
    for rows in read.rows:
        if rows.number == 44:
            assert judge.open_kinds
            judge.drain([])
            judge = IterationJudge.from_state(judge.state(), settings)
        if rows.number in (45, 50):
            judge.follow(replace(settings, delta=4.0 if rows.number == 45 else settings.delta))
        judge.judge(rows, read.reader.announcements, read.read_back)
    assert {number for number, is_so in is_long.items() if is_so} == {*range(30, 45), *range(50, 60)}


@pytest.mark.parametrize(("begin", "first_factor"), [(80, 3), (80, 7), (52, 3)])
def test_a_fault_that_reviews_alone_find_begins_where_iterations_grew_longer(begin: int, first_factor: int) -> None:
    """The link costs 5 %: at 50 a review finds nothing, at 100 it waits, at 110 it is told, no spike besides."""
    job = EightRanks()
    factors = {begin: first_factor}
    job.slow = lambda number, ranks: factors.get(number, 3) if ranks == (1, 5) and number >= begin else 1
    # A few iterations since the review that found nothing are no evidence of a begin
    assert blame(job.trace(115)) == [("slow_link", "link", (1, 5), (begin if begin > 54 else 50, 115))]


def test_operators_of_irregular_iterations_are_kept() -> None:
    job = late(2, during=range(30, 31))
    columns = judge_trace(job.trace()).columns("operators")
    assert set(columns["iteration"]) == {30}
    assert len(columns["rank"]) == sum(row["iteration"] == 30 for rows in job.job.rows.values() for row in rows)
    places = list(zip(columns["rank"], columns["communicator"], strict=True))
    waits = dict(zip(places, columns["wait_ns"], strict=True))
    assert waits[3, "tp1"] == pytest.approx(20 * MS, rel=0.02)
    assert waits[2, "tp1"] == 0
    ratios = dict(zip(places, columns["abnormal_ratio"], strict=True))
    assert ratios[3, "tp1"] > 5  # it would hardly have waited
    assert ratios[2, "tp1"] < 1.1  # who is late does not wait, with the fault and without


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_a_late_rank_in_what_is_not_training_is_not_judged(phase: str) -> None:
    job = late(2)
    job.job.iterate(range(30), job.body)
    job.job.iterate(range(30, 45), job.body, phase)
    job.job.iterate(range(45, 60), job.body)
    outcome = judge_trace(job.job.trace())
    assert [one.is_irregular for one in outcome.iterations[30:45]] == [None] * 15
    assert not any(one.is_irregular for one in outcome.iterations)
    assert outcome.revisions == []


def test_without_iteration_rows_the_operators_tell_the_time() -> None:
    job = late(3, has_iteration_rows=False)
    assert [(kind, ranks) for kind, _, ranks, _ in blame(job.trace())] == [("slow_rank", (3,))]


def test_missing_shares_accuse_nobody_wrongly() -> None:
    """Only one rank of each tp group logs: its waits look like transfers, and the late one does not log."""
    trace = late(3).trace()
    logged = (0, 2, 4, 6)
    announcements = tuple(
        replace(a, logged_ranks=4, is_logged=a.rank in logged, sources=a.sources if a.rank in logged else ())
        for a in trace.announcements
    )
    part = replace(
        trace,
        announcements=announcements,
        commops={rank: trace.commops[rank] for rank in logged},
        iterations={rank: trace.iterations[rank] for rank in logged},
    )
    for verdict in verdicts(part):
        assert all(3 in suspect.ranks or suspect.device == "host" for suspect in verdict.suspects[:1])


# --- clocks, names, delivery ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty_trace() -> Trace:
    return faulty()


@pytest.fixture(scope="module")
def judged(faulty_trace: Trace) -> Outcome:
    return judge_trace(faulty_trace)


def with_clocks_apart(trace: Trace, ahead_ns: Mapping[int, int]) -> Trace:
    """Each host's clock is off by its own amount, and the job says that clocks differ."""

    def shift(batch: Batch) -> Batch:
        own = replace(trace, commops={0: batch}, iterations={}, bandwidth={})
        return shifted(own, ahead_ns[batch.header.rank // 2]).commops[batch.header.rank]

    def shift_all(batches: Mapping[int, Batch]) -> dict[int, Batch]:
        return {rank: shift(batch) for rank, batch in batches.items()}

    announcements = tuple(replace(a, clock="per_host") for a in trace.announcements)
    return replace(
        trace, announcements=announcements, clock="per_host", commops=shift_all(trace.commops),
        iterations=shift_all(trace.iterations),
    )  # fmt: skip


def essence(outcome: Outcome) -> list[Any]:
    newest = outcome.verdicts.values()
    return [(v.verdict_id, v.kind, v.suspects[0].device, v.suspects[0].ranks, v.iterations) for v in newest]


def test_both_faults_are_found(judged: Outcome) -> None:
    assert [(kind, ranks) for _, kind, _, ranks, _ in essence(judged)] == [("slow_rank", (2,)), ("slow_link", (1, 5))]


@pytest.mark.slow
@pytest.mark.parametrize("ahead_ns", [
    {0: 0, 1: 7 * MS, 2: -3 * MS, 3: 40 * MS},
    {0: 0, 1: -1_799_999_000 * 1000 * MS, 2: 5, 3: 0},  # one host lives in 1970
])  # fmt: skip
def test_other_clocks_change_no_blame(faulty_trace: Trace, judged: Outcome, ahead_ns: Mapping[int, int]) -> None:
    assert essence(judge_trace(with_clocks_apart(faulty_trace, ahead_ns))) == essence(judged)


@pytest.mark.slow
def test_operators_on_a_second_stream_that_outlast_their_iteration_change_nothing_by_their_batches() -> None:
    """A checkpoint's all_gather runs on beside two more iterations: it is late, whatever batch it comes with."""
    job = late(2)

    def body(one: LockstepJob, number: int) -> None:
        began_ns = dict(one.now_ns)
        job.body(one, number)
        for rank in range(8):
            end_ns = began_ns[rank] + 65 * MS
            one._log(rank, "async", "all_gather", number, UNKNOWN, began_ns[rank] + MS, end_ns, 1e6)

    job.job.groups = {**EIGHT, "async": ("dp", tuple(range(8)))}
    job.job.iterate(range(60), body)
    trace = job.job.trace()
    base = judge_trace(trace)
    for rows in (1, 40, 100_000):
        outcome = judge(in_order(trace, max_rows=rows, max_span_s=1e6 if rows > 1000 else 0.02), trace.job)
        assert outcome.iterations == base.iterations
        assert outcome.revisions == base.revisions


# --- odd jobs -------------------------------------------------------------------------------------------------------


def test_a_pipeline_of_one_rank_per_stage_is_reviewed() -> None:
    """Nobody has a peer; the second stage does more."""
    job = LockstepJob({"pp": ("pp", (0, 1)), "world": ("world", (0, 1))})

    def body(job: LockstepJob, number: int) -> None:
        job.work(0, 5 * MS + number % 3 * 1000)
        job.message("pp", 0, 1, MS)
        job.work(1, 30 * MS + number % 4 * 1000)
        job.message("pp", 1, 0, MS)
        job.collective("world", MS)

    job.iterate(range(120), body)
    assert len(judge_trace(job.trace()).iterations) == 120


@pytest.mark.parametrize("kind", ["", "data_parallel"])
def test_a_kind_of_communicator_that_we_do_not_know_is_unknown(kind: str) -> None:
    job = LockstepJob({"world": (kind, (0, 1, 2))})

    def work_ns(number: int, rank: int) -> int:
        return 10 * MS + 20 * MS * (rank == 1 and number >= 40) + (number + rank) % 3 * 5000

    job.iterate(range(60), work_and_meet(work_ns))
    assert [(kind, ranks) for kind, _, ranks, _ in blame(job.trace())] == [("slow_rank", (1,))]


@pytest.mark.slow
def test_stages_that_nobody_announced_are_no_uneven_data() -> None:
    trace = EightRanks().trace()
    bare = replace(trace, announcements=tuple(replace(a, communicators=()) for a in trace.announcements))
    assert verdicts(bare) == []


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("pp", "tp", "world"), ("unknown",) * 3])
def test_a_heavy_stage_is_found_whether_or_not_the_pipelines_were_announced(kinds: tuple[str, str, str]) -> None:
    stages = {f"tp{stage}": (kinds[1], (2 * stage, 2 * stage + 1)) for stage in range(3)}
    pipelines = {f"pp{way}": (kinds[0], (way, 2 + way, 4 + way)) for way in range(2)}
    job = LockstepJob({"world": (kinds[2], tuple(range(6))), **stages, **pipelines})

    def step(job: LockstepJob, stage: int, number: int) -> None:
        for way in range(2):
            job.work(2 * stage + way, (30 if stage == 1 else 10) * MS + (number + way) % 3 * 10_000)
        job.collective(f"tp{stage}", MS)

    def body(job: LockstepJob, number: int) -> None:
        for _ in range(3):
            for stage, after in ((0, 1), (1, 2), (2, 1), (1, 0)):
                step(job, stage, number)
                for way in range(2):
                    job.message(f"pp{way}", 2 * stage + way, 2 * after + way, MS)
        job.collective("world", MS)

    job.iterate(range(60), body)
    assert {(kind, ranks) for kind, _, ranks, _ in blame(job.trace())} == {("slow_stage", (2, 3))}


@pytest.mark.parametrize(("first", "is_found"), [(9, True), (10, False)])
def test_unannounced_pipelines_are_looked_for_in_the_first_ten_iterations(first: int, is_found: bool) -> None:
    """Here nothing is sent before iteration `first`."""
    pipelines = {f"pp{way}": ("unknown", (way, 2 + way, 4 + way)) for way in range(2)}
    job = LockstepJob({"world": ("world", tuple(range(6))), **pipelines})

    def body(job: LockstepJob, number: int) -> None:
        for _ in range(3 * (number >= first)):
            for stage, after in ((0, 1), (1, 2), (2, 1), (1, 0)):
                for way in range(2):
                    job.work(2 * stage + way, 10 * MS)
                    job.message(f"pp{way}", 2 * stage + way, 2 * after + way, MS)
        job.collective("world", MS)

    job.iterate(range(14), body)
    read = ReadJob(job.trace())
    judge = IterationJudge("lockstep", 1, JudgeSettings())
    for rows in read.rows:
        judge.judge(rows, read.reader.announcements, read.read_back)
    assert (judge._reader.stages == {rank: rank // 2 for rank in range(6)}) == is_found


def test_two_ranks_that_were_slow_from_the_start_are_both_blamed_though_one_comes_last_at_a_time() -> None:
    job = meeting(8, 60, lambda number, rank: (10 + 10 * (rank in (2, 5))) * MS + uneven_ns(number, rank, 50_000))
    assert sorted((kind, ranks) for kind, _, ranks, _ in blame(job.trace())) == [
        ("slow_rank", (2,)), ("slow_rank", (5,)),
    ]  # fmt: skip


def test_a_rank_in_a_communicator_that_it_did_not_announce_is_no_error() -> None:
    trace = late(2).trace()
    partly = tuple(replace(a, communicators=a.communicators[: a.rank % 3]) for a in trace.announcements)
    said = verdicts(replace(trace, announcements=partly))
    assert [v.suspects[0].ranks for v in said if v.suspects] == [(2,)]


def test_operators_of_no_length_are_no_error() -> None:
    job = LockstepJob({"world": ("world", (0, 1))})

    def body(job: LockstepJob, number: int) -> None:
        for rank in range(2):
            job.work(rank, 10 * MS + (20 * MS if rank == 1 and number >= 40 else 0) + number % 3 * 5000)
        job.collective("world", 0)
        job.collective("world", 0)

    job.iterate(range(60), body)
    assert [(kind, ranks) for kind, _, ranks, _ in blame(job.trace())] == [("slow_rank", (1,))]


def hurt(trace: Trace, name: str, share: float, value: Any) -> Trace:
    """In so many operators one column is not known."""
    random = np.random.default_rng(0)
    commops = {}
    for rank, batch in trace.commops.items():
        column = batch.columns[name].copy()
        column[random.random(len(column)) < share] = value
        commops[rank] = replace(batch, columns={**batch.columns, name: column})
    return replace(trace, commops=commops)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [("start_ns", UNKNOWN), ("elapsed_ns", np.nan), ("size_bytes", np.nan)])
@pytest.mark.parametrize("share", [0.02, 1.0])
def test_unknown_values_of_operators_accuse_nobody(faulty_trace: Trace, name: str, value: Any, share: float) -> None:
    for verdict in verdicts(hurt(faulty_trace, name, share, value)):
        if verdict.kind == "hang":
            continue
        assert verdict.suspects[0].ranks in [(2,), (1,), (5,), (1, 5)]


def test_lost_rows_accuse_no_innocent(faulty_trace: Trace) -> None:
    random = np.random.default_rng(5)
    commops = {}
    for rank, batch in faulty_trace.commops.items():
        is_kept = random.random(len(batch)) > 0.03
        commops[rank] = replace(batch, columns={name: column[is_kept] for name, column in batch.columns.items()})
    for verdict in verdicts(replace(faulty_trace, commops=commops)):
        assert verdict.suspects[0].ranks in [(2,), (1,), (5,), (1, 5)]


def test_a_judge_does_not_read_back_more_than_it_needs(faulty_trace: Trace, judged: Outcome) -> None:
    reads: list[int] = []

    class Counting(OperatorLog):
        def read_back(self, spans: Sequence[Span]) -> list[Batch]:
            reads.append(len(spans))
            return super().read_back(spans)

    job = MonitoredJob(faulty_trace.job)
    job.log = Counting()
    job.feed(in_order(faulty_trace))
    irregular = sum(bool(one.is_irregular) for one in judged.iterations)
    assert len(reads) <= irregular + 8


def test_rows_that_make_no_sense_are_not_read_back_either() -> None:
    """They lie in the batches that are read back; only the RankMonitor has left them out."""
    trace = late(2).trace()
    batch = trace.commops[6]
    is_bad = (batch.columns["iteration"] >= 28) & (np.arange(len(batch)) % 3 == 0)
    peer = np.where(is_bad, -7, batch.columns["peer"])
    elapsed_ns = np.where(is_bad, -5e9, batch.columns["elapsed_ns"])
    spoilt = replace(batch, columns={**batch.columns, "peer": peer, "elapsed_ns": elapsed_ns})
    said = judge_trace(replace(trace, commops={**trace.commops, 6: spoilt}))
    assert [v.suspects[0].ranks for v in said.verdicts.values()] == [(2,)]
    columns = said.columns("operators")
    assert not any(rank == 6 and peer == -7 for rank, peer in zip(columns["rank"], columns["peer"], strict=True))


def test_a_review_that_finds_nothing_odd_in_a_large_job_forgets_whom_the_one_before_would_have_accused() -> None:
    def work_ns(number: int, rank: int) -> int:
        return 10 * MS + 5 * MS * (rank == 5 and number < 12) + uneven_ns(number, rank, 5_000)

    made = meeting(8, 40, work_ns)
    planned = []
    with moved(JUDGING, "whole_ranks", 4):
        monitored = MonitoredJob("lockstep")
        for message in in_order(made.trace(), max_rows=5):
            monitored.feed([message])
            planned.append(monitored.monitor.state().judge.planned)
    assert (("slow_rank", (5,)),) in planned
    assert planned[-1] == ()


def test_what_a_device_reported_at_the_onset_counts_for_as_long_as_a_verdict_lasts() -> None:
    """Also where the job does something else for longer than reports count: a checkpoint, or a wait for data."""

    def work_ns(number: int, rank: int) -> int:
        return 10 * MS + 30 * MS * (rank == 2 and number >= 30) + (number * 7 + rank * 3) % 5 * 20 * US

    body = work_and_meet(work_ns, 2 * MS)

    job = LockstepJob(WORLD_OF_4, {rank: {"host": f"h{rank}", "gpu": 0} for rank in range(4)})
    job.iterate(range(30), body)
    xid = DeviceEvent(job.now_ns[2] - MS, 2, "xid", host="h2", device="gpu0", code=79)
    job.iterate(range(30, 40), body)
    for rank in job.ranks:
        job.work(rank, 700 * 1000 * MS)
    job.iterate(range(40, 60), body)
    trace = replace(job.trace(), events={2: batch_of([xid], Header("events", job.job, job.attempt, 2))})
    for restore_at in ((), range(0, 1000, 7)):
        (found,) = verdicts(trace, restore_at=restore_at)
        assert (found.suspects[0].rank, found.iterations[1], found.layer) == (2, 60, "hardware")
        assert "gpu0 of rank 2 reported XID 79" in found.evidence
