"""A recording with its times moved: another day, and the same verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.records import UNKNOWN
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import moved, span_ns

RECORDING = Path(__file__).resolve().parents[2] / "recordings" / "gloo-slow-nic"
BY_NS = -123_456_789_012_345


def test_it_begins_and_ends_as_much_later() -> None:
    trace = read_trace(RECORDING)
    begin_ns, end_ns = span_ns(trace) or (0, 0)
    assert 0 < begin_ns < end_ns
    assert span_ns(moved(trace, BY_NS)) == (begin_ns + BY_NS, end_ns + BY_NS)


def test_it_has_the_same_verdicts_with_the_same_names() -> None:
    trace = read_trace(RECORDING)
    before, after = (analyze(one).verdicts for one in (trace, moved(trace, BY_NS)))
    assert [one.verdict_id for one in before] == [one.verdict_id for one in after] != []
    said = [[(one.kind, one.iterations, one.suspects, one.lost_s) for one in found] for found in (before, after)]
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
