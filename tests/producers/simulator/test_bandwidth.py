from __future__ import annotations

import numpy as np
import pytest

from irregulars.producers.simulator.settings import SimulatorSettings
from tests.producers.simulator.conftest import Recorded, Tidy, faulty, record


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
