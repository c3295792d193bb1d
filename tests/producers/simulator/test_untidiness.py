"""The untidiness of healthy jobs: what it does, and that it is nobody's fault and the same in every run of a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.settings import SHAPES, SimulatorSettings, with_shape
from irregulars.producers.simulator.topology import Topology
from irregulars.producers.simulator.untidiness import Untidiness
from tests.benchmarks.makers.simulated import field_case
from tests.producers.simulator.conftest import Tidy, faulty, record, times_s


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


def moe(tidy: Tidy, **values: object) -> SimulatorSettings:
    shape = {"dp": 2, "pp": 1, "tp": 1, "ep": 4, "micro_batches": 2, "tp_operators": 0, "iterations": 30}
    return tidy(**(shape | {"expert_spread_ratio": 0.3} | values))


def test_tokens_are_dealt_among_experts_none_is_lost_and_all_ranks_together_work_the_same(tidy: Tidy) -> None:
    untidiness = Untidiness(Topology(moe(tidy)))
    load = untidiness.expert_load(7)
    assert load is not None
    assert load.reshape(2, 4).mean(axis=1) == pytest.approx([1, 1])
    assert load.std() == pytest.approx(0.3, rel=0.6)
    even, uneven = (Engine(moe(tidy, expert_spread_ratio=ratio)).plan for ratio in (0.0, 0.3))
    assert uneven.work_ns().sum() == pytest.approx(even.work_ns().sum())


def test_what_a_router_prefers_lasts_and_differs_a_little_from_replica_to_replica(tidy: Tidy) -> None:
    untidiness = Untidiness(Topology(moe(tidy, ep=16)))
    now, soon = (np.log(untidiness.expert_load(n)) for n in (3, 4))  # type: ignore[arg-type]
    assert np.corrcoef(now, soon)[0, 1] > 0.6
    assert 0.5 < np.corrcoef(now[:16], now[16:])[0, 1] < 0.999


def test_ranks_whose_experts_get_more_work_longer_and_others_wait_for_them(tidy: Tidy) -> None:
    job = moe(tidy, gradient_bytes=1)
    engine, columns = Engine(job), record(job).commops
    run = engine.advance()
    assert run.expert_load is not None
    own = (columns["operator"] == OPERATOR_CODES["all_to_all"]) & (columns["iteration"] == 0)
    back = own & (columns["sequence"] % 2 == 0)  # tokens come back after the experts
    waited = np.array([columns["elapsed_ns"][back & (columns["rank"] == rank)].sum() for rank in range(8)])
    for group in (range(4), range(4, 8)):
        ranks = np.array(group)
        assert np.array_equal(np.argsort(waited[ranks]), np.argsort(-run.expert_load[ranks]))


def test_the_busiest_rank_decides_how_long_an_exchange_takes_and_sizes_show_its_tokens(tidy: Tidy) -> None:
    even, uneven = (Engine(moe(tidy, expert_spread_ratio=ratio, gpus_per_host=1)) for ratio in (0.0, 0.3))
    flows = even.plan.flows
    ep = [n for n, one in enumerate(even.topology.groups.communicators) if one.kind == "ep"]
    usual, run = even.advance(), uneven.advance()
    assert run.expert_load is not None
    for number, path in enumerate(ep):
        own = np.flatnonzero(flows.path == path)
        ratio = run.flow_ns[own] / usual.flow_ns[own]
        assert ratio == pytest.approx(run.expert_load[4 * number : 4 * number + 4].max(), rel=0.05)
    columns = record(moe(tidy, iterations=1)).commops
    is_exchange = columns["operator"] == OPERATOR_CODES["all_to_all"]
    there, back = (columns["size_bytes"][is_exchange & (columns["sequence"] % 2 == n)] for n in (1, 0))
    assert len(set(there.tolist())) == 1
    assert len(set(back.tolist())) == 8
