"""Results wait until they are drained, and are drained once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from irregulars.detectors.judging.iteration_rows import split_by_iteration
from irregulars.detectors.judging.result_log import (
    JudgementLog,
    concatenate_columns,
    hung_columns,
    operator_columns,
    rank_columns,
)
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import JudgedIteration, Verdict
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import OPERATORS, UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from tests.detectors.operator_graphs import graph_of, row
from tests.streams.evidence_rows import evidence_of
from tests.streams.judged_streams import found, in_order, interleaved, judge, judge_trace


def filled(*, fills_columns: bool) -> JudgementLog:
    log = JudgementLog("j", 3, fills_columns=fills_columns)
    evidence = evidence_of(0, {7: 10.0}, attempt=3)
    (rows,) = split_by_iteration(evidence, np.ones(1, dtype=bool))
    log.iterations.append(JudgedIteration("j", 3, 7, 0, 10, 10.0, "train", False, 1))
    log.add_ranks(rows, np.array([0.5]))
    log.add_operators(graph_of(row(0, 10, 60), row(1, 50, 60)), 0, ("world",), {}, None)
    log.add_patterns(rows, [], {})
    return log


def test_all_there_is_is_drained_once() -> None:
    log = filled(fills_columns=True)
    found = log.drain([])
    assert [one.iteration for one in found.iterations] == [7]
    assert found.rank_iterations["score"].tolist() == [0.5]
    assert found.operators["attempt"].tolist() == [3, 3]
    assert found.patterns == {}  # it had none
    again = log.drain([])
    assert (again.iterations, again.rank_iterations, again.operators) == ([], {}, {})


def test_numerics_and_audits_are_kept_and_what_no_rank_sent_is_not_known() -> None:
    log = JudgementLog("j", 1, fills_columns=False)
    silent, known = evidence_of(0, {7: 10.0}), evidence_of(0, {8: 10.0})
    audits = Ragged(np.array([2]), {"of_rank": np.array([0, 5]), "checksum": np.array([-4, 2**62])})
    columns = {**known.columns, "grad_norm": np.array([np.inf]), "parameters_checksum": np.array([-9])}
    for evidence in (silent, replace(known, columns=columns, audits=audits)):
        (rows,) = split_by_iteration(evidence, np.ones(1, dtype=bool))
        log.add_ranks(rows, np.array([0.5]))
    found = log.drain([])
    assert np.array_equal(found.rank_iterations["grad_norm"], [np.nan, np.inf], equal_nan=True)
    assert found.rank_iterations["parameters_checksum"].tolist() == [UNKNOWN, -9]
    assert np.isnan(found.rank_iterations["not_finite"]).all()
    assert {name: column.tolist() for name, column in found.audits.items()} == {
        "attempt": [1, 1], "iteration": [8, 8], "rank": [0, 0], "start_ns": [known.columns["start_ns"][0]] * 2,
        "of_rank": [0, 5], "checksum": [-4, 2**62],
    }  # fmt: skip
    assert log.drain([]).audits == {}


@pytest.mark.parametrize("fills_columns", [True, False])
def test_operators_are_kept_for_the_sinks_alone(fills_columns: bool) -> None:
    assert bool(filled(fills_columns=fills_columns).drain([]).operators) == fills_columns


def test_operators_of_one_iteration_with_waits_and_transfers() -> None:
    graph = graph_of(
        row(0, 10, 60, size=64.0), row(1, 50, 60), row(0, 70, 80, "send", group=1, peer=1, sequence=5),
        row(0, 99, 100, iteration=1, sequence=9),
    )  # fmt: skip
    columns = operator_columns(graph, 0, 3, ("world", "pp0"), {})
    assert columns["rank"].tolist() == [0, 0, 1]
    assert columns["attempt"].tolist() == [3, 3, 3]
    assert columns["communicator"].tolist() == ["world", "pp0", "world"]
    assert columns["operator"].tolist() == ["all_reduce", "send", "all_reduce"]
    assert columns["peer"].tolist() == [UNKNOWN, 1, UNKNOWN]
    assert columns["wait_ns"].tolist() == [40, 0, 0]
    assert columns["transfer_ns"].tolist() == [10, 10, 10]
    assert columns["gap_ns"].tolist() == [0, 10, 0]
    assert columns["elapsed_ns"].tolist() == [50, 10, 10]


def test_columns_of_operators() -> None:
    # Times are given back on the clock of their rank
    columns = operator_columns(graph_of(row(0, 10, 60), row(1, 50, 60)), 0, 1, ("world",), {1: 1000})
    assert columns["start_ns"].tolist() == [10, 1050]
    # An iteration that is not there gives empty columns
    columns = operator_columns(graph_of(), 0, 1, (), {})
    assert all(len(column) == 0 for column in columns.values())
    # Rows of ranks take the score that is given
    (rows,) = split_by_iteration(evidence_of(4, {7: 10}, work_ns=3.0), np.array([True]))
    columns = rank_columns(rows, np.array([0.5]))
    assert (columns["rank"].tolist(), columns["iteration"].tolist(), columns["score"].tolist()) == ([4], [7], [0.5])
    assert columns["elapsed_ns"].dtype == np.float64
    # Columns are joined in order and none gives none
    assert concatenate_columns([]) == {}
    joined = concatenate_columns([{"a": np.array([1])}, {"a": np.array([], dtype=np.int64)}, {"a": np.array([2, 3])}])
    assert joined["a"].tolist() == [1, 2, 3]


def test_of_a_hang_each_rank_has_what_never_ended_and_the_last_that_did() -> None:
    nan = np.nan
    columns = {
        "iteration": np.array([7, 8, 8, 8, 7, 8]),
        "rank": np.array([0, 0, 0, 0, 1, 1]),
        "communicator": np.array([0, 0, 1, 1, 0, 1]),
        "operator": np.array([OPERATORS.index(one) for one in ("send", "send", "recv", "recv", "send", "send")]),
        "sequence": np.array([1, 2, 3, 4, 1, 2]),
        "peer": np.array([1, 1, 1, 1, 0, 0]),
        "start_ns": np.array([10, 20, 30, 40, 10, 5]),
        "elapsed_ns": np.array([5, 5, nan, nan, 5, 5]),
        "size_bytes": np.array([1, 1, 1, 1, 1, 1]),
    }
    found = hung_columns(columns, 3, ["a", "b"])
    rows = sorted(zip(found["rank"], found["sequence"], found["communicator"], found["operator"], strict=True))
    assert rows == [(0, 2, "a", "send"), (0, 3, "b", "recv"), (0, 4, "b", "recv"), (1, 2, "b", "send")]
    assert set(found["attempt"]) == {3}
    assert np.isnan(found["wait_ns"]).all()


def test_of_a_hang_in_which_nothing_ended_there_is_what_never_did() -> None:
    one = {name: np.array([2]) for name in ("iteration", "rank", "communicator", "operator", "sequence", "peer")}
    columns = {**one, "start_ns": np.array([9]), "elapsed_ns": np.array([np.nan]), "size_bytes": np.array([1])}
    assert hung_columns(columns, 0, ["a", "b", "c"])["rank"].tolist() == [2]


RECORDING = Path(__file__).resolve().parents[2] / "recordings" / "gloo-slow-nic"


@cache
def recorded(*without: str) -> Trace:
    return read_trace(RECORDING, without=without)


def accused(verdicts: list[Verdict]) -> list[tuple[str, tuple[int, ...], tuple[int, int]]]:
    return [(one.kind, one.suspects[0].ranks, one.iterations) for one in verdicts]


@pytest.mark.slow
def test_a_stream_without_operators_says_what_the_directory_says() -> None:
    trace = recorded("commops")
    told = judge_trace(trace, is_on_wire=True)
    assert list(told.verdicts.values()) == analyze(trace).verdicts
    assert accused(list(told.verdicts.values())) == [("slow_nic", (1,), (61, 80))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_neither_order_nor_restarts_nor_twice_told_evidence_change_it(seed: int) -> None:
    trace = recorded("commops")
    messages = in_order(trace, max_rows=50)
    expected = found(judge(messages, trace.job))
    mixed = interleaved(messages, Random(seed))
    restarts = Random(seed).sample(range(len(mixed)), 3)
    assert found(judge(mixed, trace.job, restore_at=restarts, repeat_evidence=True)) == expected


@pytest.mark.slow
def test_clocks_of_hosts_that_differ_by_hours_change_nothing() -> None:
    trace = recorded("commops")
    apart = replace(
        trace,
        clock="per_host",
        announcements=tuple(replace(one, clock="per_host") for one in trace.announcements),
        bandwidth={rank: _later(batch, rank) for rank, batch in trace.bandwidth.items()},
        iterations={rank: _later(batch, rank) for rank, batch in trace.iterations.items()},
    )
    assert accused(analyze(apart).verdicts) == accused(analyze(trace).verdicts)


def _later(batch: Batch, rank: int) -> Batch:
    shift_ns = rank * 7_200_000_000_000
    times = {name: batch.columns[name] + shift_ns for name in ("time_ns", "start_ns") if name in batch.columns}
    watermark_ns = None if batch.header.watermark_ns is None else batch.header.watermark_ns + shift_ns
    return Batch(replace(batch.header, watermark_ns=watermark_ns), {**batch.columns, **times})


@pytest.mark.slow
def test_operators_without_start_times_name_the_nic_with_bandwidth_and_nobody_without() -> None:
    trace = recorded()
    untimed = {
        rank: Batch(batch.header, {**batch.columns, "start_ns": np.full(len(batch), UNKNOWN)})
        for rank, batch in trace.commops.items()
    }
    (verdict,) = analyze(replace(trace, commops=untimed)).verdicts
    assert accused([verdict]) == [("slow_nic", (1,), (60, 81))]
    assert verdict.suspects[0].probability > 0.9
    assert "rank 1 sent 77.6 Mbit/s meanwhile" in verdict.evidence
    (verdict,) = analyze(replace(recorded("bandwidth"), commops=untimed)).verdicts
    assert (verdict.kind, verdict.suspects) == ("slow_communicator", ())


@pytest.mark.slow
def test_patterns_of_iterations_that_were_looked_into_are_stored_with_what_is_abnormal_in_them() -> None:
    patterns = judge_trace(recorded()).columns("patterns")
    assert set(range(61, 80)) <= set(patterns["iteration"])
    assert len(set(patterns["iteration"])) < 80
    rows = list(
        zip(
            *(patterns[name] for name in ("rank", "communicator", "operator", "tx_mean", "tx_deviation")), strict=True
        )
    )
    steady = [deviation / mean for rank, name, _, mean, deviation in rows if rank == 1 and name == "world" and mean]
    others = [deviation / mean for rank, name, _, mean, deviation in rows if rank != 1 and name == "world" and mean]
    assert np.median(steady) < 0.02 < 0.2 < np.median(others)
    assert {operator for _, name, operator, _, _ in rows if name == ""} == {""}
    assert all(known is None or 0 <= known <= 1 for known in patterns["differential"])
