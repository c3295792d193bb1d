"""The whole judgement, on real recordings: what is true of them, and what must not matter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest

from irregulars.infra.runs.analysis import Analysis, analyze, join_ranges, order
from irregulars.messages.judgements import JudgedIteration, with_first_names
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from tests.producers.importers.inspector_lines import collective, context, lines
from tests.streams.judged_streams import (
    RECORDINGS,
    MonitoredJob,
    Outcome,
    around_the_fault,
    found,
    in_order,
    judge_trace,
)
from tests.streams.lockstep_job import MS, TWO_BY_TWO, LockstepJob

FAULTS = {"gloo-slow-rank": ("gpu", (2,)), "gloo-slow-nic": ("nic", (1,)), "gloo-slow-link": ("link", (1, 3))}
ALL = [*FAULTS, "gloo-clean", "gloo-slow-compute"]


@cache
def recorded(name: str) -> Trace:
    return read_trace(RECORDINGS / name)


@cache
def analysed(name: str) -> Analysis:
    return analyze(recorded(name))


@cache
def judged(name: str) -> Outcome:
    return judge_trace(recorded(name))


def label(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((RECORDINGS / name / "label.json").read_text())
    return values


def overlap(one: Sequence[int], two: Sequence[int]) -> float:
    """Intersection over union of two half-open ranges."""
    shared = max(min(one[1], two[1]) - max(one[0], two[0]), 0)
    return shared / (one[1] - one[0] + two[1] - two[0] - shared)


# --- the truth ------------------------------------------------------------------------------------------------------


def ring_alone(name: str, tmp_path: Path, *tables: str) -> Trace:
    """A recording of which the all_reduce over all ranks alone was logged: each waits for each, nobody stands out."""
    job = json.loads((RECORDINGS / name / "job.json").read_text())
    job["communicators"] = {"world": job["communicators"]["world"]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    operators = pyarrow.parquet.read_table(RECORDINGS / name / "commops.parquet")
    own = operators.filter(pyarrow.compute.field("communicator") == "world")
    pyarrow.parquet.write_table(own, tmp_path / "commops.parquet")
    for table in ("iterations", *tables):
        copyfile(RECORDINGS / name / f"{table}.parquet", tmp_path / f"{table}.parquet")
    return read_trace(tmp_path)


@pytest.mark.parametrize(("tables", "kind", "accused"), [((), "slow_communicator", []),
                                                        (("bandwidth",), "slow_nic", [("nic", (1,))])])  # fmt: skip
@pytest.mark.slow
def test_bandwidth_names_the_nic_where_operators_see_the_group_alone(
    tables: tuple[str, ...], kind: str, accused: list[tuple[str, tuple[int, ...]]], tmp_path: Path
) -> None:
    verdicts = judge_trace(ring_alone("gloo-slow-nic", tmp_path, *tables)).verdicts.values()
    verdict = max(verdicts, key=lambda one: one.lost_s)
    assert verdict.kind == kind
    assert [(s.device, s.ranks) for s in verdict.suspects[:1]] == accused


def untimed(name: str, tmp_path: Path) -> Trace:
    """A recording whose operators do not say when they began."""
    for path in RECORDINGS.joinpath(name).glob("*.*"):
        copyfile(path, tmp_path / path.name)
    operators = pyarrow.parquet.read_table(RECORDINGS / name / "commops.parquet")
    at = operators.schema.get_field_index("start_ns")
    nothing = pyarrow.nulls(len(operators), operators.schema.field(at).type)
    pyarrow.parquet.write_table(operators.set_column(at, "start_ns", nothing), tmp_path / "commops.parquet")
    return read_trace(tmp_path)


@pytest.mark.parametrize(("name", "kind", "ranks", "has_bandwidth"),
                         [("gloo-slow-rank", "slow_rank", (2,), False), ("gloo-slow-nic", "slow_nic", (1,), True),
                          ("gloo-slow-nic", "slow_communicator", None, False)])  # fmt: skip
@pytest.mark.slow
def test_operators_without_starts_tell_a_slow_rank_and_with_bandwidth_a_nic(
    name: str, kind: str, ranks: tuple[int, ...] | None, has_bandwidth: bool, tmp_path: Path
) -> None:
    trace = untimed(name, tmp_path)
    if not has_bandwidth:
        (tmp_path / "bandwidth.parquet").unlink()
        trace = read_trace(tmp_path)
    verdict = max(analyze(trace).verdicts, key=lambda one: one.lost_s)
    assert (verdict.kind, next((s.ranks for s in verdict.suspects), None)) == (kind, ranks)
    assert overlap(verdict.iterations, label(name)["iterations"]) >= 0.8


def test_noise_accuses_nobody_without_starts(tmp_path: Path) -> None:
    assert analyze(untimed("gloo-clean", tmp_path)).verdicts == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_recorded_fault_is_the_one_verdict(name: str) -> None:
    truth = label(name)
    (verdict,) = analysed(name).verdicts
    assert verdict.kind == truth["kind"]
    assert (verdict.suspects[0].device, verdict.suspects[0].ranks) == FAULTS[name]
    assert (verdict.suspects[0].rank, verdict.suspects[0].peer) == (truth["rank"], truth["peer"])
    assert overlap(verdict.iterations, truth["iterations"]) >= 0.8
    assert verdict.suspects[0].probability >= 0.5
    assert (verdict.state, verdict.close_reason) == ("closed", "recovered")
    assert max(overlap(span, truth["iterations"]) for span in analysed(name).irregular_ranges) >= 0.8


@pytest.mark.slow
def test_noise_accuses_nobody_and_that_is_a_judgement_and_a_fault_as_small_accuses_its_rank_or_nobody() -> None:
    assert (analysed("gloo-clean").verdicts, analysed("gloo-clean").unjudged_reason) == ([], None)
    verdicts = analysed("gloo-slow-compute").verdicts
    assert all(suspect.ranks == (3,) for verdict in verdicts for suspect in verdict.suspects)


@pytest.mark.parametrize("name", ALL)
def test_what_is_printed_is_the_contracts(name: str) -> None:
    printed = json.loads(json.dumps(analysed(name).to_json(), allow_nan=False))
    assert printed.keys() == {
        "job", "iterations", "rejected_rows", "irregular_iterations", "verdicts", "irregular_parts",
    }  # fmt: skip
    assert (printed["iterations"], printed["rejected_rows"]) == (160, 0)
    needed = {
        "verdict_id", "revision", "state", "job", "kind", "iterations", "delta", "lost_s", "communicator", "suspects",
        "evidence",
    }  # fmt: skip
    for verdict in printed["verdicts"]:
        assert needed <= verdict.keys()
        assert sum(suspect["probability"] for suspect in verdict["suspects"]) <= 1
        assert verdict["lost_s"] <= sum(one.elapsed_ns for one in analysed(name).iterations) / 1e9


def test_who_was_last_is_told_of_a_rank_that_was_so_nearly_always() -> None:
    def last(*ranks: int | None) -> tuple[int, int, int, float] | None:
        known = [
            JudgedIteration("j", 0, number, number, 10, 9.0, "train", None, 4, last_rank=rank, last_ns=number * MS)
            for number, rank in enumerate(ranks)
        ]
        return Analysis("j", 0, known).last

    assert last(4, 4, 4, None, 4, 2) == (4, 4, 5, 1.5 * MS)
    assert last(4, 2, 4, 4) is None
    assert last(None, None) is None


@pytest.mark.slow
def test_each_revision_tells_more_of_the_same_verdict() -> None:
    for name in FAULTS:
        revisions = judged(name).revisions
        assert [v.revision for v in revisions] == list(range(1, len(revisions) + 1))
        assert [v.event for v in revisions][:: len(revisions) - 1] == ["opened", "closed"]
        assert [v.lost_s for v in revisions] == sorted(v.lost_s for v in revisions)
        assert {v.verdict_id for v in revisions} == {revisions[0].verdict_id}


def test_the_file_and_the_stream_judge_alike() -> None:
    for name in FAULTS:
        analysis, outcome = analysed(name), judged(name)
        assert {v.verdict_id: v for v in analysis.verdicts} == outcome.verdicts
        assert analysis.iterations == with_first_names(outcome.iterations, outcome.revisions)


# --- what analyze says of the whole job -----------------------------------------------------------------------------


def judged_iterations(irregular: dict[int, bool | None]) -> list[JudgedIteration]:
    return [JudgedIteration("j", 1, n, 0, 1, 1.0, "train", is_so, 1) for n, is_so in irregular.items()]


@pytest.mark.parametrize(("irregular", "ranges"), [
    ({}, []),
    ({n: n in (3, 6, 10) for n in range(12)}, [(3, 7), (10, 11)]),  # over two regular ones, not over three
    # Neither those that were not logged nor those that are not judged split or extend a range.
    ({1: False, 2: True, 90: False, 91: True, 500: False, 501: False, 502: False, 600: True}, [(2, 92), (600, 601)]),
    ({0: False, 1: True, 2: None, 3: None, 4: None, 5: True, 6: None}, [(1, 6)]),
])  # fmt: skip
def test_ranges_join_over_few_regular_ones(irregular: dict[int, bool | None], ranges: list[tuple[int, int]]) -> None:
    assert join_ranges(judged_iterations(irregular)) == ranges


def lockstep(late: dict[int, dict[int, int]], iterations: int = 60) -> Trace:
    """Ranks of a 2 x 2 job that are late by so much in some iterations."""
    job = LockstepJob(TWO_BY_TWO, {rank: {"host": f"h{rank}", "nic": "n"} for rank in range(4)})

    def body(job: LockstepJob, number: int) -> None:
        for rank in range(4):
            job.work(rank, 10 * MS + late.get(number, {}).get(rank, 0) + (number * 7 + rank * 3) % 5 * 20_000)
        job.collective("tp0", MS)
        job.collective("tp1", MS)
        job.message("pp0", 0, 2, MS)
        job.message("pp1", 1, 3, MS)
        job.collective("world", 2 * MS)

    job.iterate(range(iterations), body)
    return job.trace()


def test_most_training_time_lost_comes_first_and_the_end_of_the_trace_closes_a_verdict_as_finished() -> None:
    late = {n: {3: 5 * MS} for n in range(20, 28)} | {n: {1: 40 * MS} for n in range(40, 48)}
    verdicts = analyze(lockstep(late)).verdicts
    assert [verdict.suspects[0].ranks for verdict in verdicts] == [(1,), (3,)]
    assert [verdict.iterations for verdict in verdicts] == [(40, 48), (20, 28)]
    (verdict,) = analyze(lockstep({n: {2: 20 * MS} for n in range(50, 60)})).verdicts
    assert (verdict.iterations, verdict.state, verdict.close_reason) == ((50, 60), "closed", "finished")
    assert verdict.lost_s == pytest.approx(0.2, rel=0.02)
    assert verdict.delta == pytest.approx(34 / 14, rel=0.05)


def test_no_iteration_from_which_a_verdict_opened_is_said_to_be_without_one() -> None:
    trace = lockstep({n: {2: 20 * MS} for n in range(50, 60)})
    analysis = analyze(trace)
    (verdict,) = analysis.verdicts
    unnamed = {one.iteration for one in judge_trace(trace).iterations if one.is_irregular and not one.verdict_ids}
    assert unnamed
    assert unnamed <= set(range(*verdict.iterations))  # they were judged before it opened
    assert analysis.parts == []


def test_a_trace_without_operators_of_iterations_is_judged_by_its_iterations_alone() -> None:
    trace = lockstep({40: {0: 30 * MS}})
    silent = replace(
        trace, commops={}, announcements=tuple(replace(a, sources=("iterations",)) for a in trace.announcements)
    )
    analysis = analyze(silent)
    assert analysis.irregular_ranges == [(40, 41)]
    assert analysis.verdicts == []


def hanging() -> Trace:
    """Rank 3 never comes to iteration 59; only rows of iterations say which operators belong to which."""
    trace = lockstep({})
    entered = {0: 2, 1: 2, 2: 1, 3: 0}  # operators of iteration 59, the last of which does not end
    commops = {}
    for rank, batch in trace.commops.items():
        number = batch.columns["iteration"]
        is_before = number < 59
        kept = np.concatenate([np.flatnonzero(is_before), np.flatnonzero(~is_before)[: entered[rank]]])
        columns = {name: column[kept] for name, column in batch.columns.items()}
        columns["iteration"] = np.full(len(kept), UNKNOWN)
        columns["elapsed_ns"][len(kept) - (entered[rank] > 0) :] = np.nan
        commops[rank] = replace(batch, columns=columns)
    return replace(trace, commops=commops, iterations=cut(trace.iterations, 59))


def test_a_hang_in_an_iteration_that_no_row_tells_of_is_found() -> None:
    (verdict,) = analyze(hanging()).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.iterations) == ("hang", (3,), (59, 60))


def test_an_empty_trace_has_nothing_to_say_and_delta_is_a_setting() -> None:
    trace = replace(lockstep({}, 1), commops={}, iterations={})
    reason = "there are neither operators nor iterations in it"
    assert analyze(trace) == Analysis(trace.job, 0, unjudged_reason=reason)
    trace = lockstep({n: {2: 3 * MS} for n in range(30, 40)})
    assert analyze(trace, JudgeSettings(delta=1.1)).verdicts
    assert not analyze(trace, JudgeSettings(delta=1.5)).verdicts


def test_a_job_of_one_rank_is_judged() -> None:
    job = LockstepJob({"self": ("unknown", (0,))})

    def body(job: LockstepJob, number: int) -> None:
        job.work(0, 10 * MS + (20 * MS if 30 <= number < 40 else 0) + number % 3 * 10_000)
        job.collective("self", 100_000)

    job.iterate(range(60), body)
    analysis = analyze(job.trace())
    assert analysis.irregular_ranges == [(30, 40)]
    assert all(suspect.ranks == (0,) for verdict in analysis.verdicts for suspect in verdict.suspects)


def test_a_trace_is_not_changed_by_being_judged() -> None:
    trace = recorded("gloo-slow-rank")
    before = {rank: {n: c.copy() for n, c in batch.columns.items()} for rank, batch in trace.commops.items()}
    analyze(trace)
    for rank, columns in before.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(trace.commops[rank].columns[name], column)


@pytest.mark.slow
def test_two_jobs_fed_in_turn_do_not_mix() -> None:
    trace = around_the_fault(recorded("gloo-slow-rank"))
    one, two = MonitoredJob(trace.job), MonitoredJob(trace.job)
    for message in in_order(trace):
        one.take(message)
        two.take(message)
    assert one.outcome.revisions
    assert found(one.outcome) == found(two.outcome) == found(judge_trace(trace))


def test_verdicts_that_accuse_nobody_stand_behind_those_that_accuse() -> None:
    (accused,) = analysed("gloo-slow-nic").verdicts
    verdicts = [
        replace(accused, verdict_id=name, lost_s=lost_s, suspects=accused.suspects if is_accusing else ())
        for name, lost_s, is_accusing in (("a", 9.0, False), ("b", 1.0, True), ("c", 2.0, True), ("d", 9.5, False))
    ]
    assert [verdict.verdict_id for verdict in sorted(verdicts, key=order)] == ["c", "b", "d", "a"]


def test_the_recordings_are_as_urgent_as_their_cost() -> None:
    """Seconds of 4 GPUs: nobody is woken; 63 ms in all (gloo-slow-compute) nobody hears of."""
    found = {name: [one.severity for one in analysed(name).verdicts] for name in ALL}
    assert found == {
        "gloo-slow-rank": ["ticket"], "gloo-slow-nic": ["ticket"], "gloo-slow-link": ["ticket"], "gloo-clean": [],
        "gloo-slow-compute": ["note"],
    }  # fmt: skip


def clean() -> Trace:
    return recorded("gloo-clean")


def cut(batches: Mapping[int, Batch], past: int) -> dict[int, Batch]:
    """Keep the iterations before one."""
    kept = {rank: batch.columns["iteration"] < past for rank, batch in batches.items()}
    return {
        rank: replace(batch, columns={name: column[kept[rank]] for name, column in batch.columns.items()})
        for rank, batch in batches.items()
    }


def operators_with(name: str, value: float) -> dict[int, Batch]:
    """The operators of a clean recording, of which a column holds one value."""
    return {
        rank: replace(batch, columns={**batch.columns, name: np.full(len(batch), value)})
        for rank, batch in clean().commops.items()
    }


def reason_of(trace: Trace) -> str:
    analysis = analyze(trace)
    assert analysis.verdicts == []
    return analysis.unjudged_reason or ""


def test_a_job_with_a_verdict_was_judged() -> None:
    analysis = analysed("gloo-slow-nic")
    assert analysis.unjudged_reason is None
    assert "unjudged_reason" not in analysis.to_json()
    assert Analysis("j", 0, unjudged_reason="so").to_json()["unjudged_reason"] == "so"


@pytest.mark.parametrize(("count", "said"), [(1, "1 training iteration is"), (5, "5 training iterations are")])
def test_too_few_iterations_can_not_be_judged(count: int, said: str) -> None:
    trace = replace(clean(), commops=cut(clean().commops, count), iterations=cut(clean().iterations, count))
    assert reason_of(trace).startswith(f"{said} too few: what is usual is known after 10")


@pytest.mark.parametrize(("column", "value", "lacking", "said"), [
    ("iteration", UNKNOWN, ("iterations", "bandwidth"), "no iterations are marked"),
    ("start_ns", UNKNOWN, ("iterations",),
     "its operators have no start times, and no times of iterations are logged"),
    ("elapsed_ns", 0.0, (), "nothing tells how long its operators took"),
])  # fmt: skip
def test_what_nothing_tells_can_not_be_judged(column: str, value: float, lacking: tuple[str, ...], said: str) -> None:
    without: dict[str, Any] = {table: {} for table in lacking}
    assert said in reason_of(replace(clean(), commops=operators_with(column, value), **without))


def test_one_rank_of_many_has_no_peers() -> None:
    announcements = tuple(replace(one, logged_ranks=1, is_logged=one.rank == 0) for one in clean().announcements)
    one = {name: {0: getattr(clean(), name)[0]} for name in ("commops", "iterations", "bandwidth")}
    reason = reason_of(replace(clean(), announcements=announcements, **one))
    assert "of 4 ranks only rank 0 is logged" in reason


@pytest.mark.parametrize("has_starts", [True, False])
def test_nccl_inspectors_logs_are_judged_if_they_hold_start_times(tmp_path: Path, has_starts: bool) -> None:
    """Two processes, 40 collectives, of which one is long."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for process in (0, 1):
        took = [(n, 5400 if n == 30 else 400 + n % 3, n * 10_000 if has_starts else None) for n in range(1, 41)]
        rows = [{**context(process), **collective(*one)} for one in took]
        (folder / f"host-{process}.log").write_bytes(lines(*rows))
    import_trace("nccl-inspector", tmp_path / "logs", tmp_path / "out")
    analysis = analyze(number_iterations(read_trace(tmp_path / "out")).trace)
    assert len(analysis.iterations) == 40
    assert (analysis.unjudged_reason is None) == has_starts


@cache
def bench(name: str) -> Trace:
    return number_iterations(read_trace(RECORDINGS / "bench" / name)).trace


def logged_by(trace: Trace, *ranks: int) -> Trace:
    """Keep what these ranks logged, as where the files of the others are lacking."""
    return replace(
        trace,
        announcements=tuple(
            replace(one, logged_ranks=len(ranks), sources=("commops", "iterations"), host=None, nic=None, switch=None)
            for one in trace.announcements if one.rank in ranks
        ),
        commops={rank: trace.commops[rank] for rank in ranks},
        iterations={rank: trace.iterations[rank] for rank in ranks if rank in trace.iterations},
        bandwidth={},
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["ddp8-compute", "ddp8-nic-send", "tp2pp2dp2-cpu-quota", "pp4dp2-compute", "hsdp8-loader-short"]
)
def test_one_rank_of_several_can_not_tell_a_slow_transfer_from_a_late_rank(name: str) -> None:
    assert "of 8 ranks only rank 0 is logged" in reason_of(logged_by(bench(name), 0))


@pytest.mark.parametrize(("name", "lacking"), [("ddp8-compute", 2), ("pp4dp2-compute", 4)])
def test_neither_a_communicator_nor_a_nic_is_accused_for_a_rank_without_a_log(name: str, lacking: int) -> None:
    reason = reason_of(logged_by(bench(name), *(rank for rank in range(8) if rank != lacking)))
    assert reason.endswith(f"and rank {lacking} is not logged: it may have been late, and its log is needed")


def test_sizes_that_differ_where_nothing_hangs_are_the_program_s_fault(tmp_path: Path) -> None:
    """Rank 1 reduces half as much in iteration 3, and no library says a word."""
    lines = ["rank,communicator,operator,sequence,peer,start_ns,elapsed_ns,size_bytes,iteration"]
    for number in range(12):
        for rank in range(3):
            size = 512 if (rank, number) == (1, 3) else 1024
            lines.append(f"{rank},dp,all_reduce,{number},,{10**9 + number * 10**7},1000000,{size},{number}")
    (tmp_path / "commops.csv").write_text("\n".join(lines) + "\n")
    job = {"job": "j", "world_size": 3, "clock": "shared",
           "communicators": {"dp": {"kind": "dp", "ranks": [0, 1, 2]}}}  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    (verdict,) = analyze(read_trace(tmp_path)).verdicts
    assert (verdict.kind, verdict.suspects[0].device, verdict.suspects[0].ranks) == ("mismatch", "program", (1,))
    assert (verdict.iterations, verdict.state, verdict.severity) == ((3, 4), "closed", "page")
    assert (
        "rank 1 called all_reduce of 512 B where ranks 0, 2 called all_reduce of 1.02 kB: call 3" in verdict.evidence
    )
