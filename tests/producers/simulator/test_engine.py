"""The physics: who waits for whom, by how much, and that a fault touches nothing but its device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.messages.records import PHASES, RECV, SEND
from irregulars.producers.simulator.engine import Engine, others_in_the_way_ns
from irregulars.producers.simulator.noise import LEAST_TRANSFER_RATIO
from irregulars.producers.simulator.settings import SimulatorSettings, with_preset
from tests.conftest import examples
from tests.producers.simulator.conftest import Key, Recorded, Tidy, faulty, record, times_s


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(1, 300), st.floats(0.1, 1.0)),
        min_size=1,
        max_size=12,
    )
)
def test_it_equals_the_sum_over_all_pairs(rows: list[tuple[int, int, int, float]]) -> None:
    nic = np.array([row[0] for row in rows])
    begin, length = np.array([row[1] for row in rows], float), np.array([row[2] for row in rows], float)
    alone = length * np.array([row[3] for row in rows])
    wanted = np.zeros(len(rows))
    for one in range(len(rows)):
        for other in range(len(rows)):
            if one != other and nic[one] == nic[other]:
                ends = min(begin[one] + length[one], begin[other] + length[other])
                both = max(ends - max(begin[one], begin[other]), 0.0)
                wanted[one] += both * alone[other] / length[other]
    assert others_in_the_way_ns(nic, begin, length, alone) == pytest.approx(wanted, abs=1e-6)


def gradients_ns(settings: SimulatorSettings) -> np.ndarray:
    """How long the transfers of gradients take, in order of their communicators."""
    engine = Engine(settings)
    run = engine.advance()
    own = [n for n, one in enumerate(engine.topology.groups.communicators) if one.kind == "dp"]
    is_own = np.isin(run.plan.flows.path, own)
    return run.flow_ns[is_own]


def shared(tidy: Tidy, **values: object) -> SimulatorSettings:
    shape = {"dp": 2, "pp": 1, "tp": 4, "gpus_per_host": 4, "gpus_per_nic": 4, "gradient_bytes": 1 << 30}
    return tidy(**(shape | {"iterations": 1, "gradient_sync": "all_reduce"} | values))


def test_four_groups_that_share_a_nic_at_the_same_time_take_four_times_as_long_as_one(tidy: Tidy) -> None:
    alone = gradients_ns(shared(tidy, gpus_per_nic=1))
    together = gradients_ns(shared(tidy, is_nic_contended=True))
    assert together == pytest.approx(4 * alone, rel=0.02)
    assert gradients_ns(shared(tidy)) == pytest.approx(together, rel=0.02)  # as the fixed parts have it
    lone = shared(tidy, tp=1, gpus_per_host=1, is_nic_contended=True)
    assert gradients_ns(lone) == pytest.approx(alone[:1], rel=0.02)


def test_a_late_group_finds_the_nic_free_and_without_overlap_nothing_changes(tidy: Tidy) -> None:
    """Replicas whose pipelines end apart do not meet on the NIC, and are quicker for it."""
    engine = Engine(shared(tidy, dp=2, pp=2, tp=2, gpus_per_nic=4, is_nic_contended=True, micro_batches=2))
    contended = engine.advance()
    fixed = Engine(shared(tidy, dp=2, pp=2, tp=2, gpus_per_nic=4, micro_batches=2)).advance()
    assert contended.elapsed_ns < fixed.elapsed_ns
    quiet = {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 1, "gpus_per_host": 1}
    plain, contended = (Engine(tidy(**quiet, is_nic_contended=on)).advance() for on in (False, True))
    assert np.array_equal(plain.departure_ns, contended.departure_ns)


JOBS = st.builds(
    SimulatorSettings, dp=st.integers(1, 3), pp=st.integers(1, 4), tp=st.integers(2, 3), cp=st.integers(1, 2),
    ep=st.integers(1, 2), shards=st.integers(1, 2), rank_order=st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]),
    micro_batches=st.integers(1, 6), gpus_per_host=st.integers(1, 8), gpus_per_nic=st.integers(1, 2),
    gradient_buckets=st.integers(1, 2), gradient_sync=st.sampled_from(["sharded", "all_reduce"]),
    is_send_buffered=st.booleans(), iterations=st.just(3), seed=st.integers(0, 1000),
)  # fmt: skip
INTERLEAVED_JOBS = st.builds(
    SimulatorSettings, dp=st.integers(1, 2), pp=st.just(3), tp=st.just(2), model_chunks=st.integers(2, 3),
    micro_batches=st.sampled_from([3, 6, 9]), gpus_per_host=st.integers(1, 4), is_send_buffered=st.booleans(),
    iterations=st.just(2), seed=st.integers(0, 1000),
)  # fmt: skip
ALL_JOBS = st.one_of(JOBS, INTERLEAVED_JOBS)
FIELD_JOBS = st.builds(
    SimulatorSettings, dp=st.integers(1, 3), pp=st.integers(1, 3), tp=st.integers(2, 3), cp=st.integers(1, 4),
    ep=st.integers(1, 2), shards=st.integers(1, 2), micro_batches=st.integers(1, 3), gpus_per_host=st.integers(1, 6),
    gpus_per_nic=st.integers(1, 3), gradient_sync=st.sampled_from(["sharded", "all_reduce", "fsdp"]),
    gradient_buckets=st.integers(1, 3), is_gradient_overlapped=st.booleans(), fsdp_units=st.integers(1, 3),
    cp_exchange=st.sampled_from(["collective", "ring"]), is_launched_ahead=st.booleans(),
    is_nic_contended=st.booleans(), expert_spread_ratio=st.sampled_from([0.0, 0.2]),
    evaluate_every=st.sampled_from([0, 2]), evaluation_passes=st.integers(1, 2),
    pause_probability=st.sampled_from([0.0, 0.2]),
    connect_ms=st.sampled_from([0.0, 5.0]), iterations=st.just(3), seed=st.integers(0, 1000),
)  # fmt: skip
"""What operators beside the work may be: they overlap, so only what holds of any transfer is asked of them."""


def lengths_ns(job: Recorded, iteration: int) -> dict[Key, int]:
    """Per transfer of an iteration: from the last arrival to the first departure (of p2p: the receiver's)."""
    return {
        key: int((left[1:] if key[2] >= 0 else left).min() - came.max())
        for key, (number, _, came, left) in job.transfers().items()
        if number == iteration
    }


@settings(max_examples=examples(20))
@given(job=st.one_of(ALL_JOBS, FIELD_JOBS))
def test_no_transfer_ends_before_its_last_arrival_and_its_shortest_time(job: SimulatorSettings) -> None:
    recorded = record(job)
    engine = Engine(job)
    latency_ns, _ = engine.network.path_times()
    for (_, _, source, _), (_, ranks, came, left) in recorded.transfers().items():
        waiting = left if source < 0 else left[1:]  # a buffered send may leave early
        assert waiting.min() - came.max() >= LEAST_TRANSFER_RATIO * latency_ns.min() - 2
        assert len(ranks) == len(set(ranks.tolist())) > 1


@settings(max_examples=examples(12))
@given(job=ALL_JOBS)
def test_operators_of_a_rank_follow_each_other_and_lie_in_their_iteration(job: SimulatorSettings) -> None:
    recorded = record(job)
    columns, rows = recorded.commops, recorded.iterations
    ends = columns["start_ns"] + columns["elapsed_ns"].astype(np.int64)
    for rank in range(job.world_size):
        own = columns["rank"] == rank
        start, end, iteration = columns["start_ns"][own], ends[own], columns["iteration"][own]
        is_batched = start[1:] == start[:-1]
        assert np.all((start[1:] > end[:-1]) | is_batched)
        mine = rows["rank"] == rank
        begins, lasts = rows["start_ns"][mine], (rows["start_ns"] + rows["elapsed_ns"].astype(np.int64))[mine]
        assert np.all(begins[iteration] <= start)
        assert np.all(end <= lasts[iteration])
        assert np.all(begins[1:] > lasts[:-1])


@settings(max_examples=examples(15))
@given(job=st.one_of(ALL_JOBS, FIELD_JOBS))
def test_sequences_count_from_one_without_gaps_and_are_shared_by_all_members(job: SimulatorSettings) -> None:
    recorded = record(job)
    members = {c.id: set(c.ranks) for a in recorded.announcements for c in a.communicators}
    series: dict[tuple[str, int, int], list[int]] = {}
    for (name, sequence, source, target), (_, ranks, _, _) in recorded.transfers().items():
        assert set(ranks.tolist()) == (members[name] if source == -1 else {source, target})
        series.setdefault((name, source, target), []).append(sequence)
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in series.values())


def test_members_of_a_collective_leave_together_and_the_last_to_come_waits_least(tidy: Tidy) -> None:
    job = record(faulty(tidy(), "slow_rank:rank=5,add_ms=30"))
    for (_, _, source, _), (_, ranks, came, left) in job.transfers().items():
        if source < 0:
            assert np.ptp(left) < 100_000
            assert ranks[np.argmin(left - came)] in ranks[came >= came.max() - 100_000]


def test_peers_and_the_whole_pipeline_wait_by_what_a_slow_rank_is_late(tidy: Tidy) -> None:
    base = tidy(iterations=4)
    healthy, slow = record(base), record(faulty(base, "slow_rank:rank=5,from=2,add_ms=50"))
    first = next(key for key, (number, ranks, *_) in slow.transfers().items() if number == 2 and key[0] == "tp_p0_d1")
    before, after = healthy.transfers()[first], slow.transfers()[first]
    assert before[1].tolist() == after[1].tolist() == [4, 5, 6, 7]
    added_ms = ((after[3] - after[2]) - (before[3] - before[2])) / 1e6
    assert added_ms == pytest.approx([50, 0, 50, 50], abs=0.01)
    added_s = slow.iteration_s() - healthy.iteration_s()
    assert added_s == pytest.approx([0, 0, 0.05, 0.05], abs=1e-4)
    columns = healthy.commops
    for rank, late_ms in ((20, 50), (36, 50), (52, 50), (16, 0)):  # the same replica down the pipeline, and another
        own = (columns["rank"] == rank) & (columns["iteration"] == 2) & (columns["operator"] == RECV)
        waited_ns = (slow.commops["elapsed_ns"] - columns["elapsed_ns"])[own]
        assert waited_ns[0] / 1e6 == pytest.approx(late_ms, abs=0.1)


def lengths_without_and_with(base: SimulatorSettings, fault: str) -> list[dict[Key, int]]:
    return [lengths_ns(record(job), 2) for job in (base, faulty(base, fault))]


def test_a_slow_nic_slows_what_crosses_it_and_nothing_else(tidy: Tidy) -> None:
    healthy, slow = lengths_without_and_with(tidy(iterations=3), "slow_nic:rank=17,from=1,factor=8")
    for key, before_ns in healthy.items():
        name, _, source, target = key
        on_nic = 17 in (source, target) or name == "dp_p1_t1"
        # a batched send and recv take as long as the slower of both
        is_batched_with_it = {source, target} in ({1, 17}, {17, 33})
        if on_nic or is_batched_with_it:
            assert slow[key] > 4 * before_ns, key
        elif name != "world":
            assert slow[key] == pytest.approx(before_ns, rel=0.01, abs=6_000), key


def test_a_slow_link_or_switch_slows_what_crosses_it_alone(tidy: Tidy) -> None:
    stretched = []
    for fault in ("slow_link:src=1,dst=17,from=1,factor=8", "slow_switch:switch=leaf-1,from=1,factor=8"):
        healthy, slow = lengths_without_and_with(tidy(iterations=3), fault)
        stretched.append({key for key, before_ns in healthy.items() if slow[key] > 2 * before_ns})
    link, switch = stretched
    assert {(key[0], frozenset(key[2:])) for key in link} == {("pp_d0_t1", frozenset({1, 17}))}
    groups = {key[0] for key in switch}
    assert {one for one in groups if one.startswith("dp")} == {f"dp_p{p}_t{t}" for p in (2, 3) for t in range(4)}
    assert not any(name.startswith("tp") for name in groups)


@pytest.mark.parametrize(("text", "ranks"), [
    ("slow_rank:rank=9,factor=1.5,from=1", [9]),
    ("slow_host:host=node-1,factor=1.5,from=1", list(range(8, 16))),
    ("slow_stage:stage=2,factor=1.5,from=1", list(range(32, 48))),
])  # fmt: skip
def test_a_factor_on_work_lengthens_the_gaps_of_its_ranks_alone(tidy: Tidy, text: str, ranks: list[int]) -> None:
    base = tidy(iterations=2, data_loading_ms=0.0)
    gaps_ns = [record(job).gaps_ns(1) for job in (base, faulty(base, text))]
    assert np.flatnonzero(gaps_ns[1] > 1.2 * gaps_ns[0]).tolist() == ranks
    others = np.setdiff1d(np.arange(base.world_size), ranks)
    assert gaps_ns[1][others] == pytest.approx(gaps_ns[0][others], rel=1e-6)


def test_uneven_data_makes_another_replica_the_last_one_from_iteration_to_iteration(tidy: Tidy) -> None:
    job = record(faulty(tidy(iterations=30), "uneven_data:spread=0.3"))
    last = [
        int(ranks[np.argmax(came)]) // 4 % 4
        for (name, _, _, _), (_, ranks, came, _) in job.transfers().items()
        if name == "dp_p0_t0"
    ]
    assert set(last) == {0, 1, 2, 3}


def test_a_fault_changes_nothing_before_its_first_iteration() -> None:
    base = SimulatorSettings(iterations=8, clock="per_host")
    healthy = record(base)
    faults = ("slow_nic:rank=17,from=5,factor=8", "slow_rank:rank=3,from=5,factor=2", "uneven_data:spread=1,from=5")
    for text in (*faults, "hang:rank=5,from=5"):
        slow = record(faulty(base, text))
        early, as_early = (job.commops["iteration"] < 5 for job in (healthy, slow))
        for name, before in healthy.commops.items():
            is_float = before.dtype.kind == "f"
            assert np.array_equal(before[early], slow.commops[name][as_early], equal_nan=is_float), name
        assert not np.array_equal(healthy.commops["start_ns"], slow.commops["start_ns"])


def test_faults_end_and_the_job_recovers(tidy: Tidy) -> None:
    base = tidy(iterations=12)
    slow = faulty(base, "slow_nic:rank=17,from=3,to=6,factor=8", "slow_rank:rank=40,from=8,to=9,add_ms=40")
    excess = times_s(slow) / times_s(base) - 1
    assert np.flatnonzero(excess > 0.1).tolist() == [3, 4, 5, 8]
    assert np.abs(excess[[0, 1, 2, 6, 7, 9, 10, 11]]).max() < 0.01


def test_shapes_of_a_fault(tidy: Tidy) -> None:
    base = tidy(iterations=20)
    healthy = times_s(base)

    def excess(shape: str) -> np.ndarray:
        text = f"slow_rank:rank=40,from=5,to=15,add_ms=100,shape={shape}"
        return times_s(faulty(base, text)) - healthy

    assert np.flatnonzero(excess("spike") > 0.01).tolist() == [5]
    assert np.ptp(excess("lasting")[5:15]) < 1e-3
    fluctuating = excess("fluctuating")
    assert np.ptp(fluctuating[5:15]) > 0.02
    assert np.abs(fluctuating[15:]).max() < 1e-3


def test_a_healthy_job_has_noise_and_no_lasting_excess() -> None:
    found_s = times_s(SimulatorSettings())
    windows = np.convolve(found_s, np.ones(10) / 10, mode="valid")
    assert 0.2 < found_s.mean() < 0.3
    assert found_s.std() > 0.002
    assert windows.max() / windows.min() < 1.06


def test_drift_lengthens_the_work_over_the_run(tidy: Tidy) -> None:
    found_s = times_s(tidy(iterations=11, drift_ratio=0.1))
    assert np.all(np.diff(found_s) > 0)
    assert found_s[-1] / found_s[0] == pytest.approx(1.1, abs=0.02)


def test_a_buffered_send_does_not_wait_for_its_receiver(tidy: Tidy) -> None:
    waited_ms = {}
    for is_buffered in (False, True):
        base = tidy(iterations=2, is_send_buffered=is_buffered)
        job = record(faulty(base, "slow_rank:rank=16,from=1,add_ms=60"))
        columns = job.commops
        own = (columns["rank"] == 0) & (columns["iteration"] == 1) & (columns["operator"] == SEND)
        waited_ms[is_buffered] = columns["elapsed_ns"][own][:3] / 1e6
    assert waited_ms[False].max() > 30
    assert waited_ms[True].max() < 1


@pytest.mark.parametrize(("is_marked", "phase"), [(True, "checkpoint"), (False, "train")])
def test_checkpoints_lengthen_their_iteration_marked_if_wanted(tidy: Tidy, is_marked: bool, phase: str) -> None:
    job = record(tidy(iterations=9, checkpoint_every=4, checkpoint_ms=200.0, is_checkpoint_marked=is_marked))
    assert np.flatnonzero(job.iteration_s() > 1.5 * np.median(job.iteration_s())).tolist() == [3, 7]
    phases = job.iterations["phase"][np.isin(job.iterations["iteration"], (3, 7))]
    assert set(phases.tolist()) == {PHASES.index(phase)}


SIX: dict[str, Any] = {
    "dp": 2, "pp": 2, "tp": 2, "cp": 2, "ep": 2, "shards": 2, "rank_order": "tp-cp-ep-pp-dp", "micro_batches": 6,
    "gpus_per_nic": 2,
}  # fmt: skip


@pytest.mark.parametrize(("preset", "shape", "second_ns", "fourth_ns"), [
    ("default", {}, 241703863.0, 243145304.0), ("suite", {}, 249864690.1, 267260610.0),
    ("untidy", {}, 249561122.5, 262778106.7), ("suite", {"model_chunks": 2, "dp": 2}, 225655978.4, 232859571.1),
    ("suite", SIX, 173360490.5, 191026022.4),
])  # fmt: skip
def test_iterations_take_as_long(preset: str, shape: dict[str, Any], second_ns: float, fourth_ns: float) -> None:
    """The figures are of the commit before any of `producers.simulator.settings` came."""
    engine = Engine(with_preset(SimulatorSettings(iterations=4, seed=3, **shape), preset))
    times_ns = [engine.advance().elapsed_ns for _ in range(4)]
    assert times_ns[1::2] == pytest.approx([second_ns, fourth_ns], abs=1.0)
