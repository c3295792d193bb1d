"""The costs that several workers' runs are split into."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_scale_out import Costs, Run, fit_costs

COSTS = Costs(8e-4, 2e-6, 0.01, 0.05, 1e-4, 1e-6, 0.02, 0.003)


def run_of(workers: int, quota: float) -> Run:
    """Return what a run shows whose parts cost as in `COSTS`."""
    messages, took_s = 4000, 4000 / (1000 * workers * quota)
    each_s = COSTS.worker_idle_ratio * workers + COSTS.ranks_ratio
    beside = COSTS.broker_idle_ratio + COSTS.broker_worker_ratio * workers
    return Run(
        workers, quota, True, messages, 2000, 1 / workers, took_s,
        worker_s=(COSTS.worker_message_s + COSTS.worker_more_s * (workers - 1)) * messages + each_s * took_s,
        broker_s=(COSTS.broker_message_s + COSTS.broker_more_s * (workers - 1)) * messages + beside * took_s,
        idle_s=5.0, idle_worker_s=5 * COSTS.worker_idle_ratio * workers, idle_broker_s=5 * beside,
    )  # fmt: skip


def test_costs_are_found_again() -> None:
    found = fit_costs([run_of(workers, quota) for workers in (1, 2, 4, 8) for quota in (0.1, 1.0)])
    assert vars(found) == pytest.approx(vars(COSTS))
