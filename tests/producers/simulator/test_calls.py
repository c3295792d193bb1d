"""Second streams, rooted operators, waits that nobody logged, and ranks that stop: who waits, and who does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, Batch
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.schedule import ring_pairs
from irregulars.producers.simulator.settings import MIB, SHAPES, SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource
from tests.producers.simulator.conftest import Recorded, Tidy, faulty, record


def test_buckets_overlap_the_backward_and_shorten_the_iteration(tidy: Tidy) -> None:
    base = tidy(iterations=2, gradient_buckets=4, gradient_bytes=1 << 31, pp=1, dp=8, tp=8)
    plain, overlapped = record(base), record(replace(base, is_gradient_overlapped=True))
    _, names, start, end = overlapped.operators(3, 1)
    is_bucket = np.char.startswith(names, "dp")
    buckets, others = np.flatnonzero(is_bucket)[:4], np.flatnonzero(~is_bucket)
    overlaps = [(start[others] < end[b]) & (end[others] > start[b]) for b in buckets]
    assert sum(found.any() for found in overlaps) >= 1
    assert np.all(start[buckets][1:] >= end[buckets][:-1])  # the stream is a queue
    assert overlapped.iteration_s()[1] < plain.iteration_s()[1]


def test_the_optimizer_waits_for_the_last_bucket(tidy: Tidy) -> None:
    job = record(tidy(iterations=2, gradient_buckets=4, gradient_bytes=1 << 31, is_gradient_overlapped=True))
    for rank in (0, 17, 63):
        _, names, start, end = job.operators(rank, 1)
        own = np.flatnonzero(np.char.startswith(names, "dp"))
        assert start[own[4:]].min() >= end[own[:4]].max() + 5_000_000


def test_only_the_leader_loads_data_and_the_others_wait_for_its_broadcast(tidy: Tidy) -> None:
    job = record(tidy(iterations=2, has_data_broadcast=True, data_loading_ms=30.0))
    columns = job.commops
    own = (columns["operator"] == OPERATOR_CODES["broadcast"]) & (columns["iteration"] == 1)
    elapsed_ms = columns["elapsed_ns"][own] / 1e6
    is_leader = columns["rank"][own] % 4 == 0
    assert elapsed_ms[is_leader].max() < 1
    assert elapsed_ms[~is_leader].min() > 29


def test_a_root_does_not_wait_for_those_it_broadcasts_to(tidy: Tidy) -> None:
    base = tidy(iterations=2, has_data_broadcast=True)
    slow = record(faulty(base, "slow_rank:rank=0,from=1,factor=10"))
    usual = record(base)
    columns = usual.commops
    own = (columns["operator"] == OPERATOR_CODES["broadcast"]) & (columns["iteration"] == 1)
    added_ms = (slow.commops["elapsed_ns"] - columns["elapsed_ns"])[own] / 1e6
    ranks = columns["rank"][own]
    assert added_ms[ranks == 0] == pytest.approx(0, abs=0.01)
    assert added_ms[np.isin(ranks, (1, 2, 3))] == pytest.approx(27, abs=0.1)  # ten times 3 ms of loading
    assert np.abs(added_ms[ranks > 3]).max() < 0.1


def test_in_a_reduction_the_root_alone_waits(tidy: Tidy) -> None:
    base = tidy(iterations=2, has_loss_reduction=True, gradient_sync="all_reduce")
    usual, slow = record(base), record(faulty(base, "slow_host:host=3,from=1,factor=3"))
    columns = usual.commops
    own = (columns["operator"] == OPERATOR_CODES["reduce"]) & (columns["iteration"] == 1)
    added_ms = (slow.commops["elapsed_ns"] - columns["elapsed_ns"])[own] / 1e6
    ranks = columns["rank"][own]
    roots = np.isin(ranks, (16, 17, 18, 19))  # of the groups in which ranks 24 to 31, host 3, are
    assert added_ms[roots] == pytest.approx(10, abs=0.1)  # three times 5 ms of the optimizer
    assert np.abs(added_ms[~roots]).max() < 0.1


def test_a_wait_that_nobody_logged_looks_like_a_gap(tidy: Tidy) -> None:
    base = tidy(iterations=2, dp=4, pp=1, tp=2, hidden=("tp",), gpus_per_host=2)
    slow = record(faulty(base, "slow_rank:rank=2,from=1,add_ms=50"))
    assert not np.char.startswith(slow.commops["communicator"], "tp").any()
    *_, begins, _ = slow.operators(3, 1)
    *_, usual, _ = record(base).operators(3, 1)
    assert (begins[0] - usual[0]) / 1e6 == pytest.approx(50, abs=0.1)  # the innocent peer is as late as the culprit


def test_a_hidden_barrier_makes_all_late_together(tidy: Tidy) -> None:
    base = tidy(iterations=2, pp=1, dp=8, tp=8, hidden=("barrier",), gradient_sync="all_reduce")
    slow, usual = (record(job) for job in (faulty(base, "slow_rank:rank=9,from=1,add_ms=50"), base))
    assert set(usual.commops["operator"]) == {OPERATOR_CODES["all_reduce"]}
    late_ms = [(slow.operators(rank, 1)[2][-1] - usual.operators(rank, 1)[2][-1]) / 1e6 for rank in (9, 40)]
    assert late_ms == pytest.approx([50, 50], abs=0.1)


class TestHang:
    BASE = SimulatorSettings(iterations=6, dp=2, pp=2, tp=2, gpus_per_host=2, micro_batches=4)

    def test_a_rank_that_never_arrives_leaves_its_peers_inside(self) -> None:
        job = record(faulty(self.BASE, "hang:rank=5,from=3"))
        columns = job.commops
        assert columns["iteration"].max() == 3
        assert set(job.iterations["iteration"]) == {0, 1, 2}
        stuck = columns["rank"][np.isnan(columns["elapsed_ns"])]
        assert 4 in stuck
        assert 5 not in stuck
        for rank in set(stuck.tolist()):  # in its last call; a batched send and recv have a row each
            own = columns["rank"] == rank
            open_ns = columns["start_ns"][own & np.isnan(columns["elapsed_ns"])]
            assert set(open_ns.tolist()) == {columns["start_ns"][own].max()}
        counts = np.bincount(columns["rank"][columns["iteration"] == 3], minlength=8)
        assert counts[5] < counts[4]

    def test_a_rank_that_stops_inside_has_the_first_row_without_end(self) -> None:
        columns = record(faulty(self.BASE, "hang:rank=5,from=3,inside=yes")).commops
        is_open = np.isnan(columns["elapsed_ns"])
        first = np.argmin(np.where(is_open, columns["start_ns"], np.iinfo(np.int64).max))
        assert columns["rank"][first] == 5
        names = ("communicator", "sequence")
        same = np.logical_and(*(columns[name] == columns[name][first] for name in names))
        assert not is_open[same & (columns["rank"] != 5)].any()

    def test_at_real_pace_the_job_stays_silent_before_it_ends(self) -> None:
        start_ns = now_ns = 1_900_000_000_000_000_000
        settings = replace(faulty(self.BASE, "hang:rank=5,from=3"), recorded_after_hang_s=30.0)
        source = SimulatorSource(settings, start_ns=start_ns, now_ns=lambda: now_ns)
        now_ns += 10_000_000_000
        rows = [batch for batch in source.poll(1_000_000) if isinstance(batch, Batch)]
        assert rows
        assert source.poll(1_000_000) == ()
        assert not source.is_exhausted
        now_ns += 30_000_000_000
        assert source.is_exhausted

    def test_counters_show_no_transfer_that_never_began(self) -> None:
        job = record(replace(faulty(self.BASE, "hang:rank=5,from=3,at=0"), bandwidth_period_ms=10.0))
        assert np.isfinite(job.bandwidth["tx_bytes_per_s"]).all()
        assert job.bandwidth["tx_bytes_per_s"].max() > 0


GATHER, SCATTER, REDUCE = (OPERATOR_CODES[name] for name in ("all_gather", "reduce_scatter", "all_reduce"))


def own_rows(job: Recorded, rank: int, *operators: int, iteration: int = 1) -> tuple[np.ndarray, ...]:
    """Operator, start and end of what a rank did in groups that carry gradients."""
    rows, names, start, end = job.operators(rank, iteration)
    own = np.isin(job.commops["operator"][rows], operators) & (names != "world")
    return job.commops["operator"][rows][own], start[own], end[own]


def ddp(tidy: Tidy, **values: object) -> SimulatorSettings:
    shape = {**SHAPES["ddp"], "dp": 16, "gradient_buckets": 6, "gradient_bytes": 6 << 30, "iterations": 2}
    return tidy(**(shape | values))


def test_the_culprit_begins_each_bucket_after_a_gap_in_which_it_worked_and_a_victim_when_the_one_before_ends(
    tidy: Tidy,
) -> None:
    job = record(faulty(ddp(tidy, gradient_bytes=64 * MIB), "slow_rank:rank=5,from=1,factor=1.3"))
    _, start, end = own_rows(job, 5, REDUCE)
    gaps_ms = (start[1:] - end[:-1]) / 1e6
    assert len(start) == 6
    assert gaps_ms.min() > 20  # a sixth of a backward of 140 ms, 1.3 times as long, and the bucket is quick
    for rank in (0, 4, 6, 15):
        _, start, end = own_rows(job, rank, REDUCE)
        assert np.array_equal(start[1:], end[:-1])
    # All have spent the same time since the bucket before began.
    ends = np.array([own_rows(job, rank, REDUCE)[2] for rank in range(16)])
    assert np.ptp(np.diff(ends, axis=1), axis=0).max() < 50_000


def test_without_a_queue_a_bucket_is_launched_after_the_one_before(tidy: Tidy) -> None:
    base = ddp(tidy, is_launched_ahead=False, gradient_bytes=64 * MIB)
    job = record(faulty(base, "slow_rank:rank=5,from=1,factor=1.3"))
    _, start, end = own_rows(job, 3, REDUCE)
    assert np.abs(start[1:] - end[:-1] - 20_000).max() <= 1


def fsdp(tidy: Tidy, **values: object) -> SimulatorSettings:
    return tidy(**({**SHAPES["fsdp"], "dp": 16, "fsdp_units": 4, "micro_batches": 1, "iterations": 2} | values))


def test_units_are_gathered_in_both_passes_and_scattered_in_the_backward(tidy: Tidy) -> None:
    operator, _, _ = own_rows(record(fsdp(tidy)), 3, GATHER, SCATTER)
    assert operator[:4].tolist() == [GATHER] * 4
    assert operator[4:6].tolist() == [GATHER] * 2  # the first unit of the backward, and the one after it
    assert sorted(operator[4:].tolist()) == sorted([GATHER] * 4 + [SCATTER] * 4)
    assert operator[-1] == SCATTER


def test_a_unit_comes_while_the_one_before_is_computed(tidy: Tidy) -> None:
    slow_network = record(fsdp(tidy, nic_bytes_per_s=4e9))
    quick = record(fsdp(tidy, gradient_bytes=64 * MIB))
    _, start, end = own_rows(quick, 3, GATHER)
    assert np.diff(start[1:4]) / 1e6 == pytest.approx([10, 10], abs=0.1)  # one for each quarter of a forward of 40 ms
    assert end[1] - start[0] < 10e6  # two of them before the first was computed
    _, start, end = own_rows(slow_network, 3, GATHER, SCATTER)
    assert np.array_equal(start[1:4], end[:3])  # the network is late: one after the other, without a gap


def test_work_waits_for_the_parameters_of_its_own_unit_alone(tidy: Tidy) -> None:
    base = fsdp(tidy, data_loading_ms=0.0, optimizer_ms=0.0)
    job = record(base)
    first_gather_ms = np.diff([times[0] for times in own_rows(job, 3, GATHER)[1:]])[0] / 1e6
    rows = job.iterations
    elapsed_ms = float(rows["elapsed_ns"][(rows["rank"] == 3) & (rows["iteration"] == 1)][0]) / 1e6
    last_scatter_ms = np.diff([times[-1] for times in own_rows(job, 3, SCATTER)[1:]])[0] / 1e6
    gather_again_ms = first_gather_ms  # the first unit of the backward, too
    hidden = elapsed_ms - (40 + 80 + first_gather_ms + gather_again_ms + last_scatter_ms)
    assert hidden == pytest.approx(0, abs=3)


def test_hybrid_shards_are_reduced_between_replicas_beside_the_next_scatter(tidy: Tidy) -> None:
    shape = {**SHAPES["hybrid"], "dp": 4, "shards": 4, "gpus_per_host": 4, "fsdp_units": 4, "micro_batches": 1}
    job = record(tidy(**(shape | {"iterations": 2, "gradient_bytes": 8 << 30})))
    columns = job.commops
    names = columns["communicator"][columns["rank"] == 5]
    assert {"shard_p0_d1_t0", "replica_p0_s1_t0"} <= set(names.tolist())
    _, scattered, scatter_ends = own_rows(job, 5, SCATTER)
    _, reduced, reduce_ends = own_rows(job, 5, REDUCE)
    assert len(scattered) == len(reduced) == 4
    assert np.all(reduced >= scatter_ends)
    assert np.all(reduced[1:] >= reduce_ends[:-1])
    rows = job.iterations
    mine = (rows["rank"] == 5) & (rows["iteration"] == 1)
    end = (rows["start_ns"] + rows["elapsed_ns"].astype(np.int64))[mine][0]
    assert end >= reduce_ends[-1] + 5_000_000  # the optimizer waits for all of them


def ring(tidy: Tidy, cp: int, **values: object) -> SimulatorSettings:
    shape = {"dp": 1, "pp": 1, "tp": 1, "cp": cp, "cp_exchange": "ring", "micro_batches": 1, "gpus_per_host": 1}
    return tidy(**(shape | {"cp_operators": 2, "iterations": 2, "is_launched_ahead": True} | values))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_each_neighbour_of_a_ring_is_met_once_and_nobody_twice_at_a_time(size: int) -> None:
    parts = ring_pairs(size)
    pairs = {frozenset(pair) for part in parts for pair in part}
    assert pairs == {frozenset((one, (one + 1) % size)) for one in range(size)}
    assert all(len({one for pair in part for one in pair}) == 2 * len(part) for part in parts)


@pytest.mark.parametrize("cp", [2, 3, 4, 5])
def test_each_sends_to_the_next_and_receives_from_the_one_before_in_one_batch(tidy: Tidy, cp: int) -> None:
    columns = record(ring(tidy, cp)).commops
    is_ring = columns["communicator"] == "cp_p0_d0_t0"
    for rank in range(cp):
        own = is_ring & (columns["rank"] == rank) & (columns["iteration"] == 1)
        sends, recvs = own & (columns["operator"] == SEND), own & (columns["operator"] == RECV)
        assert sends.sum() == recvs.sum() == 2 * 2 * (cp - 1)  # layers, passes, steps
        assert set(columns["peer"][sends].tolist()) == {(rank + 1) % cp}
        assert set(columns["peer"][recvs].tolist()) == {(rank - 1) % cp}
        assert np.array_equal(columns["start_ns"][sends], columns["start_ns"][recvs])
        assert np.array_equal(columns["elapsed_ns"][sends], columns["elapsed_ns"][recvs])


def test_blocks_travel_beside_the_work_on_the_block_before(tidy: Tidy) -> None:
    quick = Engine(ring(tidy, 4)).advance().elapsed_ns
    gathered = Engine(ring(tidy, 4, cp_operators=0)).advance().elapsed_ns
    assert quick == pytest.approx(gathered, rel=0.02)
    late = Engine(ring(tidy, 4, nic_bytes_per_s=1e9)).advance().elapsed_ns
    assert late > 2 * gathered


def test_a_slow_link_of_a_ring_is_late_on_that_link_first(tidy: Tidy) -> None:
    slow = record(faulty(ring(tidy, 4), "slow_link:src=1,dst=2,from=1,factor=20"))
    first = {
        (source, target): left[1] - came.max()
        for (name, sequence, source, target), (_, _, came, left) in slow.transfers().items()
        if name == "cp_p0_d0_t0" and sequence == 13  # in iteration 1, after 2 layers, 2 passes and 3 steps
    }
    assert max(first, key=lambda pair: first[pair]) == (1, 2)


def test_a_slow_nic_of_a_ring_slows_no_message_between_others(tidy: Tidy) -> None:
    slow = record(faulty(ring(tidy, 4), "slow_nic:rank=3,from=1,factor=20"))
    took = {
        (source, target): left.min() - came.max()  # where it was one batch with a slow message it ended with that
        for (name, sequence, source, target), (_, _, came, left) in slow.transfers().items()
        if name == "cp_p0_d0_t0" and sequence == 13  # in iteration 1, as above
    }
    assert min(took[2, 3], took[3, 0]) > 10 * max(took[0, 1], took[1, 2])


def test_a_ring_on_one_host_crosses_no_nic_and_hops_follow_the_ring(tidy: Tidy) -> None:
    inside = Engine(ring(tidy, 4, gpus_per_host=4))
    assert len(inside.network.hop_path) == 0
    across = Engine(ring(tidy, 4)).network
    assert all(across.has_link(one, (one + 1) % 4) for one in range(4))
