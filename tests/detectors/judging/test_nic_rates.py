"""How the NICs moved in an iteration, in the stream: patterns for the sinks, and verdicts from bandwidth alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from tests.streams.judged_streams import found, in_order, interleaved, judge, judge_trace

RECORDING = Path(__file__).resolve().parents[2] / "recordings" / "gloo-slow-nic"


@cache
def recorded(*without: str) -> Trace:
    return read_trace(RECORDING, without=without)


def accused(verdicts: list[Verdict]) -> list[tuple[str, tuple[int, ...], tuple[int, int]]]:
    return [(one.kind, one.suspects[0].ranks, one.iterations) for one in verdicts]


def test_a_stream_without_operators_says_what_the_directory_says() -> None:
    trace = recorded("commops")
    told = judge_trace(trace, is_on_wire=True)
    assert list(told.verdicts.values()) == analyze(trace).verdicts
    assert accused(list(told.verdicts.values())) == [("slow_nic", (1,), (61, 80))]


@pytest.mark.parametrize("seed", range(2))
def test_neither_order_nor_restarts_nor_twice_told_evidence_change_it(seed: int) -> None:
    trace = recorded("commops")
    messages = in_order(trace, max_rows=50)
    expected = found(judge(messages, trace.job))
    mixed = interleaved(messages, Random(seed))
    restarts = Random(seed).sample(range(len(mixed)), 3)
    assert found(judge(mixed, trace.job, restore_at=restarts, repeat_evidence=True)) == expected


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
