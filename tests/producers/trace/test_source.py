from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource, moved, span_ns
from tests.producers.trace_directories import START_NS, commop, write_directory


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """One operator each ten seconds."""
    rows = [commop(sequence=i, start_ns=START_NS + i * 10**10, elapsed_ns=0) for i in range(4)]
    return read_trace(write_directory(tmp_path / "t", rows))


def polled_rows(source: TraceSource) -> list[int]:
    batches = [record for record in source.poll(100) if isinstance(record, Batch)]
    return [int(value) for batch in batches for value in batch.columns["sequence"]]


@pytest.mark.parametrize(("speed", "pause_s"), [(1.0, 10.0), (4.0, 2.5), (0.5, 20.0)])
def test_batches_come_when_their_time_has_come(trace: Trace, speed: float, pause_s: float) -> None:
    clock = Clock()
    source = TraceSource(trace, speed, clock_s=clock)
    clock.now_s += 1_000  # which starts with the first poll
    assert polled_rows(source) == [0]
    clock.now_s += 0.99 * pause_s
    assert polled_rows(source) == []
    clock.now_s += 0.02 * pause_s
    assert polled_rows(source) == [1]
    clock.now_s += 2 * pause_s
    assert polled_rows(source) == [2, 3]
    assert source.is_exhausted


def test_what_never_ended_comes_when_recording_stopped(tmp_path: Path) -> None:
    rows = [commop(elapsed_ns=0), commop(sequence=2, rank=1, elapsed_ns=None)]
    job = {"job": "hung", "world_size": 2, "clock": "shared", "recorded_until_ns": START_NS + 60 * 10**9,
           "communicators": {"world": {"kind": "world", "ranks": [0, 1]}}}  # fmt: skip
    clock = Clock()
    source = TraceSource(read_trace(write_directory(tmp_path / "t", rows, job)), 1.0, clock_s=clock)
    assert polled_rows(source) == [1]
    clock.now_s += 59
    assert polled_rows(source) == []
    clock.now_s += 2
    assert polled_rows(source) == [2]


def test_the_pace_starts_anew_where_it_resumes(trace: Trace) -> None:
    clock = Clock()
    source = TraceSource(trace, 1.0, position="records=3", clock_s=clock)
    assert polled_rows(source) == [2]
    clock.now_s += 10
    assert polled_rows(source) == [3]


@pytest.mark.parametrize(("speed", "position", "message"), [
    *((0, text, "position must") for text in ("", "rows=1", "records=-1", "records=x", "records=9")),
    (0, "records=6", "must lie in the job it was made with; got 'records=6', and it has 5 records"),
    *((speed, None, "speed must be a number of at least 0; got") for speed in (-1.0, math.nan, math.inf)),
])  # fmt: skip
def test_an_odd_speed_or_position_is_refused(trace: Trace, speed: float, position: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TraceSource(trace, speed, position=position)


RECORDING = Path(__file__).resolve().parents[2] / "recordings" / "gloo-slow-nic"
BY_NS = -123_456_789_012_345


def test_a_moved_trace_begins_and_ends_as_much_later_and_what_is_not_known_stays_so() -> None:
    trace = read_trace(RECORDING)
    begin_ns, end_ns = span_ns(trace) or (0, 0)
    assert 0 < begin_ns < end_ns
    assert span_ns(moved(trace, BY_NS)) == (begin_ns + BY_NS, end_ns + BY_NS)


@pytest.mark.parametrize("name", ["gloo-slow-nic", "causes/garbage-collection"])
def test_it_has_the_same_verdicts_with_the_same_names(name: str) -> None:
    trace = read_trace(RECORDING.parent / name)
    before, after = (analyze(one).verdicts for one in (trace, moved(trace, BY_NS)))
    assert [one.verdict_id for one in before] == [one.verdict_id for one in after] != []
    said = [[(v.kind, v.cause, v.iterations, v.suspects, v.lost_s) for v in found] for found in (before, after)]
    assert said[0] == said[1]


def test_what_is_not_known_stays_so() -> None:
    trace = read_trace(RECORDING)
    batch = trace.commops[0]
    starts_ns = batch.columns["start_ns"].copy()
    starts_ns[0] = UNKNOWN
    unknown = replace(batch, columns={**batch.columns, "start_ns": starts_ns})
    found = moved(replace(trace, commops={0: unknown}, bandwidth={}, iterations={}), BY_NS).commops[0]
    assert found.columns["start_ns"][0] == UNKNOWN
    assert np.array_equal(found.columns["start_ns"][1:], starts_ns[1:] + BY_NS)
    assert found.columns["elapsed_ns"] is batch.columns["elapsed_ns"]
