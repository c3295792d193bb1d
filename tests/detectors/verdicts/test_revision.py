"""What one revision of a verdict says."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import ExcessPause, Observation
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device
from irregulars.detectors.path.critical_path import Piece
from irregulars.detectors.path.find_hang import Hang
from irregulars.detectors.verdicts.opening import verdict_on_recurring
from irregulars.detectors.verdicts.revision import (
    evidence_text,
    hang_verdict,
    how_often_text,
    in_turn_text,
    recovery_text,
    revision_of,
    suspect_of,
)
from irregulars.infra.runs.analysis import analyze, judge_whole
from irregulars.messages.judgements import Verdict
from irregulars.messages.reasons import MOST_STEPS, Reasons, encode_reasons
from irregulars.messages.records import OPERATOR_CODES, PAUSES, UNKNOWN, Batch
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.advice import path_texts, plan_of
from irregulars.streams.local_pipeline import LocalPipeline
from irregulars.words import duration
from tests.detectors.observed_iterations import MS, TOPOLOGY, late, observation, work
from tests.detectors.verdicts.test_open_verdict import recurring
from tests.present import present
from tests.sinks.recorded_jobs import RECORDINGS


def hung(*, is_shared: bool = False, since_ns: int | None = None, until_ns: int | None = None) -> Verdict:
    """The verdict on a hang after an iteration of 100 ms."""
    hang = Hang((2,), 3, 0, 0, since_ns, has_arrived=False, is_shared=is_shared)
    return hang_verdict("v", hang, observation(7), until_ns, "silent", "j", 1, TOPOLOGY)


def test_revisions() -> None:
    # Who did not arrive is nearly certain; where all are inside nobody is named
    assert hung().suspects[0].probability == 0.96
    assert hung(is_shared=True).suspects == ()
    # A hang lost the time since the first rank was stuck if that is known
    known, unknown = hung(since_ns=1_000_000_000, until_ns=3_000_000_000), hung(until_ns=3_000_000_000)
    assert (known.lost_s, known.delta) == (2.0, 21.0)
    assert (unknown.lost_s, math.isnan(unknown.delta)) == (0.0, True)
    # A revision says what was lost where and how surely
    verdict = recurring()  # iterations 4, 6 and 7 took 150 instead of 100 ms
    verdict.mark_published("ticket")
    said = revision_of(verdict, "opened", "j", 1, TOPOLOGY)
    assert (said.revision, said.state, said.event, said.severity) == (1, "open", "opened", "ticket")
    assert (said.iterations, said.delta, said.lost_s, said.communicator) == ((4, 8), 1.5, 0.15, None)
    (suspect,) = said.suspects
    assert (suspect.device, suspect.rank, suspect.host, suspect.nic) == ("gpu", 1, "h1", "eth0")
    # A closed revision says why
    said = revision_of(recurring(), "closed", "j", 1, TOPOLOGY, "recovered")
    assert (said.state, said.close_reason) == ("closed", "recovered")
    # No suspect is said to be certain
    assert suspect_of(Device("gpu", (1,)), 0.99998, TOPOLOGY).probability == 0.99
    assert suspect_of(Device("gpu", (1,)), 0.91, TOPOLOGY).probability == 0.91
    # Several ranks are not the GPU of the first of them; of a link it is the sender's
    devices = [Device("gpu", (1,)), Device("gpu", (1, 2)), Device("nic", (1, 2)), Device("link", (1, 2))]
    assert [suspect_of(one, 0.9, TOPOLOGY).gpu for one in devices] == [0, None, None, 0]


def test_of_ranks_that_log_nothing_it_is_said_so_and_of_many_nobody_is_named() -> None:
    few, many = (
        Hang(ranks, 3, 0, 0, None, has_arrived=False, silent=silent) for ranks, silent in (((2,), 1), ((), 9))
    )
    told = [hang_verdict("v", one, observation(7), None, "silent", "j", 1, TOPOLOGY) for one in (few, many)]
    assert told[0].suspects[0].probability == 0.7
    assert "rank 2 belongs to" in told[0].evidence
    assert "nothing was logged there" in told[0].evidence
    assert told[1].suspects == ()
    assert "9 ranks that belong to" in told[1].evidence


def paused(number: int, *ranks: int) -> Observation:
    """Ranks work 50 ms longer in an iteration, of which they collect garbage for 45 ms."""
    one = observation(number, late(ranks[0]))
    works = {rank: 50 * MS * (rank in ranks) for rank in range(4)}
    pauses = tuple(ExcessPause(rank, PAUSES.index("garbage_collection"), 45 * MS) for rank in ranks)
    return replace(one, attribution=replace(present(one.attribution), work_excess_ns=works), pauses=pauses)


def test_pauses_of_ranks_in_turn_are_no_uneven_data_and_those_of_a_stage_no_layers_too_many() -> None:
    uneven = Cause("imbalance", (), frozenset(), None, dict.fromkeys(range(3), 50 * MS))
    in_turn = verdict_on_recurring(str, uneven, [paused(number, number) for number in range(3)])
    lanes = frozenset({work(0), work(1)})
    heavy = replace(uneven, kind="slow_stage", suspects=((Device("stage", (0, 1)), 0.9),), lanes=lanes)
    of_stage = verdict_on_recurring(str, heavy, [paused(number, 0, 1) for number in range(3)])
    for verdict in (in_turn, of_stage):
        said = revision_of(verdict, "opened", "j", 1, TOPOLOGY)
        assert (said.cause, said.cause_share, said.layer) == ("garbage_collection", 0.9, "software")
        assert "90% of what was longer: garbage collection" in said.evidence
        plan = plan_of(replace(said, severity="ticket"))
        assert (plan.actions, "collect on all ranks together" in plan.sentence) == ((), True)


def text(piece: Piece) -> str:
    return evidence_text(piece, 90 * MS, how_often_text(7, 9, 60), TOPOLOGY)


def test_texts_name_the_lane() -> None:
    # Own work names the rank and the operator that others waited in
    piece = Piece(Lane("work", 3), 3, OPERATOR_CODES["all_reduce"], 0, 62e6, 12e6)
    assert text(piece) == (
        "rank 3 took 62 ms of its own before all_reduce on world, and others waited for it (usual 12 ms), "
        "in 7 of the 9 slow iterations since 60; all such places of an iteration: 90 ms longer"
    )
    # A pair names both ends
    piece = Piece(Lane("pair", 1, 3), 3, OPERATOR_CODES["recv"], 1, 24_900_000, 411_000)
    assert text(piece).startswith("rank 1 to rank 3 on pp0 took 24.9 ms after both had arrived (usual 411 µs)")
    # A collective names its communicator
    piece = Piece(Lane("collective", 0), 0, OPERATOR_CODES["reduce_scatter"], 0, 2e9, 1e9)
    assert text(piece).startswith("reduce_scatter on world took 2 s after its last rank had arrived (usual 1 s)")
    # Of ranks that come last in turn none is named
    assert in_turn_text(2.71e9, how_often_text(21, 22, 60)) == (
        "in each iteration another rank works longer than its peers, as with uneven data; it cost 2.71 s, "
        "in 21 of the 22 slow iterations since 60"
    )
    # A communicator without a name has its code
    assert "communicator 17" in text(Piece(Lane("collective", 17), 0, 0, 17, 2e9, 1e9))


@pytest.mark.parametrize(
    ("elapsed_ns", "expected"),
    [(0.0, "0 ms"), (999.0, "999 ns"), (1e3, "1 µs"), (24_900_000.0, "24.9 ms"), (1e9, "1 s"), (125e9, "125 s")],
)
def test_durations_have_the_unit_that_suits_them(elapsed_ns: float, expected: str) -> None:
    assert duration(elapsed_ns) == expected


@pytest.mark.parametrize("elapsed_ns", [999.7, 999_700.0, 999_999_999.0, 3_600e9])
def test_no_duration_is_written_with_an_exponent(elapsed_ns: float) -> None:
    assert "e" not in duration(elapsed_ns)


@pytest.mark.parametrize(("ratio", "without"), [(0.0, "355 ms"), (0.5, "295 ms"), (1.0, "235 ms")])
def test_what_comes_back_is_taken_from_what_it_took_longer(ratio: float, without: str) -> None:
    assert recovery_text(ratio, 355e6, 235e6) == f"without it the iteration would have taken {without}"


MOST_BYTES = 8192
NAMES = ("gloo-slow-rank", "gloo-slow-nic", "gloo-slow-link", "torch-slow-rank", "bench/ddp8-hang-before")


@cache
def first_verdict(name: str) -> Verdict:
    return analyze(read_trace(RECORDINGS / name)).verdicts[0]


def reasons_in(name: str) -> Reasons:
    reasons = present(first_verdict(name).explanation)
    return reasons


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_reasons_lead_to_the_accused_and_are_small(name: str) -> None:
    reasons, verdict = reasons_in(name), first_verdict(name)
    assert verdict.iterations[0] <= reasons.iteration < verdict.iterations[1]
    assert 0 < len(reasons.path) <= MOST_STEPS
    assert reasons.path[-1].is_accused
    assert reasons.delta == 1.1
    assert len((encode_reasons(reasons) or "").encode()) <= MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ruled_out"), [
    ("gloo-slow-rank", {"its_transfers", "everybody"}),
    ("gloo-slow-nic", {"own_work", "one_link", "everybody"}),
    ("gloo-slow-link", {"own_work", "whole_nic", "everybody"}),
    ("torch-slow-rank", {"its_transfers", "everybody"}),
])  # fmt: skip
def test_what_it_is_not_is_ruled_out(name: str, ruled_out: set[str]) -> None:
    assert {one.what for one in reasons_in(name).considered if one.is_ruled_out} == ruled_out


def test_reasons() -> None:
    # A rank that works long is waited for
    cause = reasons_in("gloo-slow-rank").path[-1]
    assert (cause.what, cause.rank, cause.waited_rank is not None) == ("work", 2, True)
    assert (cause.waited_ns or 0) > 20e6
    # Of a hang it is known who is missing and how many wait
    (step,) = reasons_in("bench/ddp8-hang-before").path
    assert (step.what, step.rank, step.waiting, step.elapsed_ns) == ("absence", 5, 7, None)
    # … or who stopped inside, which is no absence
    assert path_texts(reasons_in("bench/pp4dp2-hang-inside")) == [
        "rank 3 does not come out of recv on ranks-1-7-by-2; 7 ranks wait"
    ]


def test_a_cause_that_is_found_later_is_a_change_and_no_more_of_the_same() -> None:
    trace = read_trace(RECORDINGS / "causes" / "garbage-collection")

    def until_known(batch: Batch) -> Batch:
        is_known = (batch.columns["pause_start_ns"] == UNKNOWN) | (batch.columns["iteration"] >= 44)
        return Batch(batch.header, {name: column[is_known] for name, column in batch.columns.items()})

    later = replace(trace, iterations={rank: until_known(own) for rank, own in trace.iterations.items()})
    found = [(one.event, one.cause) for one in judge_whole(LocalPipeline(later.job), later).verdicts]
    assert ("changed", "garbage_collection") in found
    assert [cause for event, cause in found if event in ("opened", "raised")] == [None, None]
