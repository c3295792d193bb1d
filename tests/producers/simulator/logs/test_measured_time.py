from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement
from irregulars.producers.simulator.job.settings import SimulatorSettings
from tests.producers.simulator.conftest import record

Tidy = Callable[..., SimulatorSettings]


@pytest.mark.parametrize("step_ns", [1_000, 10_000])
def test_starts_and_durations_are_rounded_each_by_itself(tidy: Tidy, step_ns: int) -> None:
    base = tidy(iterations=3)
    exact, rounded = record(base), record(replace(base, time_resolution_ns=step_ns))
    for columns in (exact.commops, exact.iterations):
        other = rounded.commops if columns is exact.commops else rounded.iterations
        for name in ("start_ns", "elapsed_ns"):
            assert np.all(other[name] % step_ns == 0)
            assert np.abs(other[name] - columns[name]).max() <= step_ns / 2
    ends = [job.commops["start_ns"] + job.commops["elapsed_ns"].astype(np.int64) for job in (exact, rounded)]
    assert np.abs(ends[1] - ends[0]).max() > step_ns / 2  # an end is off by more than its resolution


def test_an_operator_may_end_after_the_next_of_its_stream_began(tidy: Tidy) -> None:
    shape = {"dp": 16, "pp": 1, "tp": 1, "micro_batches": 1, "gradient_sync": "all_reduce", "gradient_buckets": 8}
    base = tidy(**shape, is_gradient_overlapped=True, is_launched_ahead=True, gradient_bytes=8 << 30, iterations=4)

    def overlaps(settings: SimulatorSettings) -> np.ndarray:
        columns = record(settings).commops
        found = []
        for rank in range(16):
            own = (columns["rank"] == rank) & (columns["communicator"] != "world")
            start = columns["start_ns"][own]
            found.append((start + columns["elapsed_ns"][own].astype(np.int64))[:-1] - start[1:])
        return np.concatenate(found)

    assert overlaps(base).max() == 0
    assert 0 < overlaps(replace(base, time_resolution_ns=1_000)).max() <= 1_000


def test_durations_are_taken_on_a_clock_of_their_own(tidy: Tidy) -> None:
    base = tidy(iterations=4)
    exact, off = record(base), record(replace(base, elapsed_clock_ppm=5.0))
    assert np.array_equal(exact.commops["start_ns"], off.commops["start_ns"])
    lasting = exact.iterations["elapsed_ns"]
    ppm = (off.iterations["elapsed_ns"] / lasting - 1) * 1e6
    assert 4 < np.abs(ppm).max() <= 5.01
    by_rank = ppm.reshape(64, -1)
    assert np.ptp(by_rank, axis=1).max() < 0.02
    assert np.ptp(by_rank[:, 0]) > 5


def test_shared_clocks_differ_by_a_little_all_the_same(tidy: Tidy) -> None:
    base = tidy(iterations=2)
    exact, off = record(base), record(replace(base, shared_clock_error_us=20.0))
    apart_us = (off.commops["start_ns"] - exact.commops["start_ns"]) / 1e3
    assert 5 < np.abs(apart_us).max() <= 20
    assert len(set(apart_us.tolist())) == 8  # one for each host
    assert all(isinstance(one, Announcement) and one.clock == "shared" for one in off.announcements)
