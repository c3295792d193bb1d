"""The models of many workers find again what runs were made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.scale_out_model import (
    Costs,
    Run,
    Scalability,
    estimate,
    fit_costs,
    fit_scalability,
    fits,
    least_squares,
)

COSTS = Costs(8e-4, 2e-6, 0.01, 0.05, 1e-4, 1e-6, 0.02, 0.003)
LAW = Scalability(1000.0, 0.02, 0.001)


def run_of(workers: int, noise: float = 0.0, seed: int = 0, quota: float = 0.1) -> Run:
    """Return what a run shows whose parts cost as in `COSTS`, and which takes as long as `LAW` says."""
    rng = np.random.default_rng([seed, workers])
    factors = 1 + noise * rng.standard_normal(3)
    messages = 4000
    took_s = messages / (LAW.messages_per_s(workers) * quota) * factors[0]
    each_s = COSTS.worker_idle_ratio * workers + COSTS.ranks_ratio
    broker_s = COSTS.broker_message_s + COSTS.broker_more_s * (workers - 1)
    beside = COSTS.broker_idle_ratio + COSTS.broker_worker_ratio * workers
    return Run(
        workers, quota, True, messages, 2000, 1 / workers, took_s,
        worker_s=(COSTS.worker_s(workers) * messages + each_s * took_s) * factors[1],
        broker_s=(broker_s * messages + beside * took_s) * factors[2],
        idle_s=5.0, idle_worker_s=5 * COSTS.worker_idle_ratio * workers, idle_broker_s=5 * beside,
    )  # fmt: skip


def test_costs_are_found_again() -> None:
    found = fit_costs([run_of(workers, quota=quota) for workers in (1, 2, 4, 8) for quota in (0.1, 1.0)])
    assert vars(found) == pytest.approx(vars(COSTS))


def test_the_law_is_found_again() -> None:
    found = fit_scalability([run_of(workers) for workers in (1, 2, 4, 8)])
    assert vars(found) == pytest.approx(vars(LAW))


def test_uneven_partitions_are_no_contention() -> None:
    even = [run_of(workers) for workers in (1, 2, 4)]
    uneven = even[:1] + [
        replace(run, largest_share=1.5 / run.workers, took_s=run.took_s * 1.5) for run in even if run.workers > 1
    ]
    assert vars(fit_scalability(uneven)) == pytest.approx(vars(fit_scalability(even)))


def test_no_coefficient_falls_below_zero() -> None:
    x = np.array([0.0, 1.0, 2.0])
    assert least_squares([np.ones(3), x], np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_the_interval_holds_the_value_and_grows_with_the_noise() -> None:
    def width(noise: float) -> float:
        runs = [run_of(workers, noise, seed) for workers in (1, 2, 4, 8) for seed in range(3)]
        found = estimate(fits(runs, 1), lambda fit: fit.costs.messages_per_s(16))
        assert found.low <= found.value <= found.high
        return found.high - found.low

    assert width(0.001) < width(0.05)


@pytest.mark.parametrize("cores", [4, 16, 64])
def test_workers_and_brokers_fill_the_cores(cores: int) -> None:
    workers = COSTS.workers_on(cores)
    assert 0 < workers < cores
    assert workers + COSTS.broker_cores(workers) == pytest.approx(cores)
