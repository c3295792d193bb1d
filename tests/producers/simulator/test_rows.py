from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.producers.simulator.settings import SimulatorSettings
from tests.producers.simulator.conftest import Recorded, Tidy, faulty, record

BASE = SimulatorSettings(iterations=20)
KEYS = ("rank", "communicator", "operator", "sequence", "peer")


def keys(job_columns: dict[str, np.ndarray]) -> list[tuple[object, ...]]:
    return list(zip(*(job_columns[name].tolist() for name in KEYS), strict=True))


def test_rows_are_lost_in_bursts_of_one_rank_and_those_that_come_are_as_they_were_sent_some_twice() -> None:
    losing = replace(BASE, loss_ratio=0.05, loss_burst_rows=10.0, repeat_ratio=0.02)
    jobs = [record(job) for job in (BASE, losing)]
    whole, lossy = (job.commops for job in jobs)
    sent = dict(zip(keys(whole), whole["elapsed_ns"], strict=True))
    assert all(sent[key] == value for key, value in zip(keys(lossy), lossy["elapsed_ns"], strict=True))
    left = set(keys(lossy))
    is_lost = np.array([key not in left for key in sent])
    assert is_lost.mean() == pytest.approx(0.05, rel=0.3)
    begins = np.count_nonzero(is_lost[1:] & ~is_lost[:-1])
    assert 6 < is_lost.sum() / begins < 14
    assert len(keys(lossy)) - len(left) == pytest.approx(0.02 * len(left), rel=0.2)
    # An exporter that counted its losses would have none.
    assert [{one.lost_rows for one in job.announcements} for job in jobs] == [{0}, {None}]


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


@pytest.mark.parametrize(
    ("values", "least_us", "most_us"),
    [({"clock": "per_host"}, 1_000, 5_000), ({"shared_clock_error_us": 20.0}, 5, 20)],
)
def test_clocks_of_hosts_differ_and_durations_do_not(
    tidy: Tidy, values: dict[str, Any], least_us: float, most_us: float
) -> None:
    base = tidy(iterations=2)
    exact, off = record(base), record(replace(base, **values))
    apart_us = (off.commops["start_ns"] - exact.commops["start_ns"]) / 1e3
    assert least_us < np.abs(apart_us).max() <= most_us
    hosts = off.commops["rank"] // 8
    assert len(set(apart_us.tolist())) == len(set(zip(hosts.tolist(), apart_us.tolist(), strict=True))) == 8
    assert np.array_equal(off.commops["elapsed_ns"], exact.commops["elapsed_ns"])
    assert {one.clock for one in off.announcements} == {values.get("clock", "shared")}


def sent_bytes(job: Recorded, period_s: float, direction: str = "tx_bytes_per_s") -> np.ndarray:
    return np.bincount(job.bandwidth["rank"], job.bandwidth[direction]) * period_s


@pytest.mark.parametrize("period_ms", [10.0, 100.0])
def test_samples_hold_all_bytes_that_cross_a_nic(tidy: Tidy, period_ms: float) -> None:
    settings = tidy(iterations=5, bandwidth_period_ms=period_ms)
    job = record(settings)
    # of two members per host, each NIC carries half of what a ring sends: twice 3/4 of the gradients an iteration
    gradients = 2 * 0.75 * settings.gradient_bytes / 2
    pairs = np.repeat([1, 2, 2, 1], 16) * settings.micro_batches * settings.activation_bytes
    for direction in ("tx_bytes_per_s", "rx_bytes_per_s"):
        found = sent_bytes(job, period_ms / 1e3, direction)
        assert found == pytest.approx(5 * (gradients + pairs), rel=1e-3)


def test_no_sample_exceeds_what_the_device_can_do_and_the_peak_of_a_slow_nic_is_capped() -> None:
    base = SimulatorSettings(iterations=10, bandwidth_period_ms=1.0)
    rates, slow = (record(job).bandwidth for job in (base, faulty(base, "slow_nic:rank=17,factor=8")))
    limit = base.nic_bytes_per_s / 0.8
    assert 0.5 * limit < rates["tx_bytes_per_s"].max() < limit
    assert rates["tx_bytes_per_s"].min() >= 0
    peaks = np.array([slow["tx_bytes_per_s"][slow["rank"] == rank].max() for rank in range(64)])
    assert peaks[17] <= limit / 8
    assert np.argmin(peaks) == 17
    assert np.median(peaks) > 4 * peaks[17]


def test_samples_of_a_nic_come_each_period_and_to_the_end_of_the_job() -> None:
    job = record(SimulatorSettings(iterations=10, bandwidth_period_ms=10.0))
    last_ns = (job.iterations["start_ns"] + job.iterations["elapsed_ns"].astype(np.int64)).max()
    for rank in (0, 17, 63):
        time_ns = job.bandwidth["time_ns"][job.bandwidth["rank"] == rank]
        assert np.abs(np.diff(time_ns) - 10_000_000).max() <= 1
        assert time_ns[-1] >= last_ns
