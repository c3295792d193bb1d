"""Keys and values that go round in a context parallel group."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.messages.records import RECV, SEND
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.schedule import ring_pairs
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.producers.simulator.conftest import Tidy, faulty, record


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


def test_a_ring_on_one_host_crosses_no_nic_and_hops_follow_the_ring(tidy: Tidy) -> None:
    inside = Engine(ring(tidy, 4, gpus_per_host=4))
    assert len(inside.network.hop_path) == 0
    across = Engine(ring(tidy, 4)).network
    assert all(across.has_link(one, (one + 1) % 4) for one in range(4))
