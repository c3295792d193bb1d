from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement
from irregulars.producers.publishing.sources import check_source
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource
from tests.producers.simulator.conftest import Tidy, record

BASE = SimulatorSettings(iterations=20)
KEYS = ("rank", "communicator", "operator", "sequence", "peer")


def keys(job_columns: dict[str, np.ndarray]) -> list[tuple[object, ...]]:
    return list(zip(*(job_columns[name].tolist() for name in KEYS), strict=True))


def test_rows_are_lost_in_bursts_of_one_rank() -> None:
    whole, lossy = (record(job).commops for job in (BASE, replace(BASE, loss_ratio=0.05, loss_burst_rows=10.0)))
    left = set(keys(lossy))
    assert left < set(keys(whole))
    is_lost = np.array([key not in left for key in keys(whole)])
    assert is_lost.mean() == pytest.approx(0.05, rel=0.3)
    begins = np.count_nonzero(is_lost[1:] & ~is_lost[:-1])
    assert 6 < is_lost.sum() / begins < 14


def test_what_comes_is_what_was_sent() -> None:
    whole, lossy = (record(job).commops for job in (BASE, replace(BASE, loss_ratio=0.05, repeat_ratio=0.02)))
    elapsed = dict(zip(keys(whole), whole["elapsed_ns"], strict=True))
    assert all(elapsed[key] == value for key, value in zip(keys(lossy), lossy["elapsed_ns"], strict=True))


def test_some_rows_come_twice() -> None:
    found = keys(record(replace(BASE, repeat_ratio=0.02)).commops)
    assert len(found) - len(set(found)) == pytest.approx(0.02 * len(set(found)), rel=0.2)


def test_who_loses_rows_does_not_say_that_it_lost_none() -> None:
    assert {a.lost_rows for a in record(replace(BASE, loss_ratio=0.01, iterations=1)).announcements} == {None}
    assert {a.lost_rows for a in record(replace(BASE, iterations=1)).announcements} == {0}


def test_a_lossy_source_keeps_the_protocol() -> None:
    settings = replace(BASE, dp=2, pp=2, tp=2, iterations=8, loss_ratio=0.1, repeat_ratio=0.1, evaluate_every=3)
    check_source(lambda position: SimulatorSource(settings, position=position))


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
