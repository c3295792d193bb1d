"""Who kept others waiting, counted where nothing can be judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from irregulars.detectors.path.rank_metrics import Profile, measure_windows, text_of_difference
from irregulars.infra.runs.trace_reports import LateRank, measure_trace
from irregulars.messages.device_events import batch_of
from irregulars.messages.records import Header
from irregulars.producers.importers.kineto_trace import TraceParser
from irregulars.producers.trace.directory import Trace, read_trace
from tests.producers.importers.test_kineto_trace import kernel, launch


def late(last_in: int, waited_s: float, waited_for_all_s: float) -> LateRank:
    return LateRank("dp0", "all_reduce", None, 60, 2, last_in, waited_s, waited_for_all_s, took_s=0.15)


def test_a_rank_tells_that_nearly_all_waiting_was_for_in_most_collectives() -> None:
    assert late(60, 0.7, 0.7).is_telling
    assert late(37, 0.36, 0.37).is_telling  # slow in the second half: by chance it is last in some of the first
    assert not late(9, 0.36, 0.37).is_telling  # one pause
    assert not late(40, 0.2, 0.37).is_telling  # another one is late as well
    assert not late(60, 0.01, 0.01).is_telling  # as much as ends of one collective lie apart


def capture_of(begin_us: int, ahead_us: int, noise_us: int) -> Profile:
    parser = TraceParser()
    for at in range(40):
        start_us = begin_us + 100 * at
        parser.add(launch(start_us - ahead_us - noise_us * at, at))
        parser.add(kernel(start_us, 90, at))
    profile = parser.capture({}).profile
    assert profile is not None
    return profile


def test_a_capture_of_a_rank_is_held_against_its_others(recordings: Path) -> None:
    """Of four captures the third one has a CPU that waits for its GPU; one rank of the job is profiled."""
    trace = read_trace(recordings / "gloo-clean")

    def with_captures(captures: list[Profile]) -> Trace:
        iteration = np.array([7])
        events = [event for one in captures for event in measure_windows(1, one, iteration, iteration)]
        header = Header(schema="events", job=trace.job, attempt=trace.attempt, rank=1)
        return replace(trace, events={1: batch_of(events, header)})

    captures = [capture_of(100_000 * (1 + n), 50_000 + 200 * n, 20 + n) for n in range(4)]
    assert measure_trace(with_captures(captures)).differences == []
    captures[2] = capture_of(300_000, 13, 0)
    (one,) = measure_trace(with_captures(captures)).differences
    text = "issue latency of rank 1 in its 3rd window is 13 µs, in its others 50.5 ms"
    assert text_of_difference(one) == f"{text}: its CPU does not run ahead of its GPU"
