"""Operators that wait in the queue of their stream: buckets beside the backward, parameters that come ahead."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.simulator.presets import SHAPES
from irregulars.producers.simulator.settings import MIB, SimulatorSettings
from tests.producers.simulator.conftest import Recorded, Tidy, faulty, record

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
