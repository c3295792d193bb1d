"""Untidy reality as a whole, and the parts of it that have no page of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.producers.simulator.presets import SHAPES, with_shape
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.topology import Topology
from irregulars.producers.simulator.untidiness import Untidiness
from tests.benchmarks.incidents import field_case
from tests.producers.simulator.conftest import Tidy, faulty, record, times_s

WARM = 10
"""Iterations after which compiling and warming up are over."""


def variation(times: np.ndarray) -> float:
    return float(times[WARM:].std() / times[WARM:].mean())


@pytest.mark.parametrize(("number", "shape"), list(enumerate(SHAPES)))
def test_healthy_iterations_vary_by_1_to_8_percent(number: int, shape: str) -> None:
    job = field_case(with_shape(SimulatorSettings(iterations=60, seed=40), shape), number % 2)
    assert 0.01 <= variation(times_s(job)) <= 0.08


def test_cases_of_the_field_differ_in_seed_sizes_clocks_and_resolution() -> None:
    jobs = [field_case(SimulatorSettings(seed=5), number) for number in range(6)]
    assert {job.time_resolution_ns for job in jobs} == {1, 1_000, 10_000}
    assert {job.clock for job in jobs} == {"shared", "per_host"}
    assert len({job.seed for job in jobs}) == len({job.gap_noise_ratio for job in jobs}) == 6
    assert all(0.02 <= job.micro_batch_spread_ratio <= 0.12 for job in jobs)
    assert jobs == [field_case(SimulatorSettings(seed=5), number) for number in range(6)]


def test_slow_phases_of_hosts_last_and_are_a_few_percent(tidy: Tidy) -> None:
    topology = Topology(tidy(dp=64, pp=1, tp=8, iterations=400, host_phase_ratio=0.045))
    untidiness = Untidiness(topology)
    factors = np.array([untidiness.work_factor(n) for n in range(400)]).reshape(400, 64, 8)
    assert np.ptp(factors, axis=2).max() == 0
    by_host = factors[:, :, 0]
    assert by_host.min() == 1
    slowest = by_host.max(axis=0) - 1
    assert 0.025 < np.quantile(slowest, 0.1) < slowest.max() <= 0.0601
    later = np.mean([np.corrcoef(one[:-5], one[5:])[0, 1] for one in by_host.T if np.ptp(one) > 0])
    assert later > 0.6
    assert np.abs(np.corrcoef(by_host.T)[np.triu_indices(64, 1)]).mean() < 0.3  # each host by itself


def test_replicas_and_jobs_have_heavier_iterations_and_micro_batches_heavy_tails(tidy: Tidy) -> None:
    base = tidy(dp=32, replica_spread_ratio=0.05, iteration_spread_ratio=0.02)
    loads = np.array([Untidiness(Topology(base)).load(n) for n in range(200)])[:, :, 0]
    assert np.log(loads).mean(axis=1).std() == pytest.approx(0.02, rel=0.25)
    assert np.log(loads).std(axis=1).mean() == pytest.approx(0.05, rel=0.1)
    base = tidy(dp=64, micro_batch_spread_ratio=0.06)
    usual, heavy = (
        np.concatenate([np.ravel(Untidiness(Topology(job)).load(n)) for n in range(20)])
        for job in (base, replace(base, micro_batch_tail=4.0))
    )
    far = [float((np.abs(np.log(loads)) > 3 * 0.06).mean()) for loads in (usual, heavy)]
    assert far[1] > 4 * far[0]
    assert heavy.max() <= np.exp(4 * 0.06)


def test_pauses_are_rare_anywhere_and_heavy_tailed(tidy: Tidy) -> None:
    job = tidy(pause_probability=0.05, pause_ms=2.0, iterations=100)
    untidiness = Untidiness(Topology(job))
    found = [untidiness.pauses(n) for n in range(400)]
    lengths_ms = np.concatenate([one[2] for one in found]) / 1e6
    assert len(lengths_ms) / (400 * 64) == pytest.approx(0.05, rel=0.15)
    assert lengths_ms.min() >= 2
    assert lengths_ms.max() > 10 * np.median(lengths_ms)
    added_s = times_s(job) - times_s(replace(job, pause_probability=0.0))
    assert added_s.min() > -1e-6
    assert 0.001 < added_s.max() < 0.3


@pytest.mark.parametrize(("logged", "count"), [("tp_leaders", 16), ("some_ranks", 48), ("some_hosts", 48)])
def test_some_do_not_log_and_the_others_wait_for_them_all_the_same(tidy: Tidy, logged: str, count: int) -> None:
    base = tidy(iterations=3, bandwidth_period_ms=10.0)
    some, everybody = record(replace(base, logged=logged, unlogged_ratio=0.25)), record(base)
    ranks = np.unique(some.commops["rank"])
    assert logged != "tp_leaders" or (ranks % 4 == 0).all()
    assert logged != "some_hosts" or set(np.bincount(ranks // 8).tolist()) <= {0, 8}  # whole ones
    own = np.isin(everybody.commops["rank"], ranks)
    assert np.array_equal(some.commops["start_ns"], everybody.commops["start_ns"][own])
    assert set(some.bandwidth["rank"]) <= set(ranks)
    assert [one.rank for one in some.announcements if one.is_logged] == ranks.tolist()
    assert {one.logged_ranks for one in some.announcements} == {count}
    assert all(one.sources == () for one in some.announcements if not one.is_logged)


def test_a_power_cap_ramps_up_and_stays_and_a_gpu_that_throttles_recovers_and_throttles_again(tidy: Tidy) -> None:
    base = tidy(iterations=16)
    healthy = times_s(base)
    excess = times_s(faulty(base, "slow_rank:rank=5,from=4,factor=2,shape=ramp,over=5")) / healthy - 1
    assert np.abs(excess[:4]).max() < 1e-6
    assert np.all(np.diff(excess[4:9]) > 0.05)
    assert np.ptp(excess[9:]) < 0.01
    excess = times_s(faulty(base, "slow_rank:rank=5,from=2,factor=2,shape=sawtooth,over=4")) / healthy - 1
    assert excess[2:6] == pytest.approx(excess[6:10], abs=0.01)
    assert np.all(np.diff(excess[2:6]) > 0.05)
    assert excess[6] < excess[5] - 0.2
