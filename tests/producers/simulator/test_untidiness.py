"""The untidiness of healthy jobs: what it does, and that it is nobody's fault and the same in every run of a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.producers.simulator.conftest import Tidy, record, times_s


def times_ms(settings: SimulatorSettings) -> np.ndarray:
    return times_s(settings) * 1e3


def test_a_job_compiles_connects_and_warms_up_in_its_first_iterations(tidy: Tidy) -> None:
    base = {"dp": 4, "pp": 1, "tp": 2, "iterations": 5}
    added = times_ms(tidy(**base, compile_ms=1000.0)) - times_ms(tidy(**base))
    assert 1000 < added[0] < 1600  # of eight ranks the slowest
    assert added[1] == pytest.approx(added[0] / 5, rel=0.4)
    assert np.abs(added[2:]).max() < 0.1
    base |= {"iterations": 3, "gradient_sync": "all_reduce"}
    added = times_ms(tidy(**base, connect_ms=10.0)) - times_ms(tidy(**base))
    assert added == pytest.approx([30, 0, 0], abs=0.5)  # tp, dp and world
    base = {"dp": 1, "pp": 1, "tp": 2, "iterations": 7, "tp_operators": 0, "gradient_bytes": 1}
    ratio = times_ms(tidy(**base, warmup_iterations=4, warmup_ratio=0.4)) / times_ms(tidy(**base))
    assert ratio == pytest.approx([1.4, 1.3, 1.2, 1.1, 1.0, 1.0, 1.0], abs=0.01)


def test_ranks_of_a_slow_host_are_slow_together_for_some_iterations(tidy: Tidy) -> None:
    base = tidy(iterations=40, host_slow_probability=0.02, host_slow_ratio=0.05, data_loading_ms=0.0)
    engine = Engine(base)
    factors = np.array([engine._untidiness.work_factor(n) for n in range(40)])
    by_host = factors.reshape(40, 8, 8)
    assert np.ptp(by_host, axis=2).max() == 0
    assert 1.01 < by_host.max() <= 1.05
    slow = by_host[:, :, 0] > 1
    assert 0.02 < slow.mean() < 0.3
    lasting = (slow[1:] & slow[:-1]).sum() / slow[:-1].sum()
    assert lasting > 0.5


def test_ranks_have_their_own_speed_that_lasts(tidy: Tidy) -> None:
    base = tidy(iterations=4, rank_spread_ratio=0.02, pp=1, dp=8, tp=8)
    gaps = record(base).gaps_ns(1)
    assert 0.01 < gaps.std() / gaps.mean() < 0.03


def test_micro_batches_weigh_the_same_on_all_ranks_that_share_them(tidy: Tidy) -> None:
    base = tidy(iterations=2, micro_batch_spread_ratio=0.1, pp=1, dp=4, tp=2, cp=2)
    engine = Engine(base)
    load = engine._untidiness.load(1)
    assert isinstance(load, np.ndarray)
    assert load.shape == (4, 8)
    assert load.std() == pytest.approx(0.1, rel=0.5)
    gaps_s = record(base).gaps_ns(1).reshape(4, 4) / 1e9
    assert np.ptp(gaps_s, axis=1).max() < 1e-6
    assert np.ptp(gaps_s[:, 0]) > 1e-3


def test_a_stall_hits_one_transfer_between_hosts_and_passes(tidy: Tidy) -> None:
    quiet = tidy(iterations=60, bandwidth_period_ms=0.0)
    restless = replace(quiet, stalls_per_iteration=0.1)
    before, after = Engine(quiet), Engine(restless)
    usual_ns = before.advance().elapsed_ns
    before = Engine(quiet)
    hit = 0
    for _ in range(60):
        calm, run = before.advance(), after.advance()
        longer = np.flatnonzero(run.flow_ns > calm.flow_ns + 1)
        hit += len(longer)
        for flow in longer:
            added = (run.flow_ns - calm.flow_ns)[flow] / usual_ns
            assert 0.45 < added < 2.1
            assert after.network.is_between_hosts[after.plan.flows.path[flow]]
    assert 1 <= hit <= 15


def test_longer_sequences_lengthen_compute_and_activations_and_leave_gradients_alone(tidy: Tidy) -> None:
    base = tidy(iterations=9, workload_changes=((3, 2.0), (6, 1.0)))
    job = record(base)
    sizes = job.commops["size_bytes"]
    is_late = np.isin(job.commops["iteration"], (3, 4, 5))
    is_gradient = np.char.startswith(job.commops["communicator"], "dp")
    is_activation = np.char.startswith(job.commops["communicator"], "tp")
    assert set(sizes[is_activation & ~is_late]) == {float(base.activation_bytes)}
    assert set(sizes[is_activation & is_late]) == {2.0 * base.activation_bytes}
    assert set(sizes[is_gradient]) == {float(base.gradient_bytes)}
    took_s = job.iteration_s()
    assert took_s[4] / took_s[1] == pytest.approx(1.95, abs=0.1)
    assert np.flatnonzero(took_s > 1.5 * took_s[0]).tolist() == [3, 4, 5]
    tokens = job.iterations["tokens"]
    assert set(tokens[job.iterations["iteration"] == 4]) == {2.0 * tokens[0]}


@pytest.mark.parametrize(("is_marked", "phase"), [(True, 1), (False, 0)])
def test_evaluations_run_forwards_alone(tidy: Tidy, is_marked: bool, phase: int) -> None:
    base = tidy(iterations=9, evaluate_every=3, evaluation_passes=2, is_evaluation_marked=is_marked)
    job = record(base)
    evaluations = np.isin(job.commops["iteration"], (2, 5, 8))
    assert not np.char.startswith(job.commops["communicator"][evaluations], "dp").any()
    assert np.char.startswith(job.commops["communicator"][~evaluations], "dp").any()
    assert set(job.iterations["phase"][np.isin(job.iterations["iteration"], (2, 5, 8))]) == {phase}


def test_clocks_drift_apart_by_some_parts_in_a_million(tidy: Tidy) -> None:
    base = tidy(iterations=40, clock="per_host")
    fixed, drifting = record(base), record(replace(base, clock_drift_ppm=5.0))
    extra_ns = drifting.commops["start_ns"] - fixed.commops["start_ns"]
    since_ns = fixed.commops["start_ns"] - fixed.commops["start_ns"].min()
    ppm = extra_ns[since_ns > 5e9] / since_ns[since_ns > 5e9] * 1e6
    assert 2 < np.abs(ppm).max() < 5.1
    assert np.array_equal(fixed.commops["elapsed_ns"], drifting.commops["elapsed_ns"])
