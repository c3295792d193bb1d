"""Which switch evidence alone makes a suspect."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from irregulars.detectors.blame.slow_switches import lanes_of_slow_switch
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.ranks_to_read import LaneSums, lanes_by_role

MS = 1e6
PER_SWITCH = 16
JOB = Topology(
    world_size=3 * PER_SWITCH,
    places={rank: Place(f"node-{rank}", 0, "nic-0", f"leaf-{rank // PER_SWITCH}") for rank in range(3 * PER_SWITCH)},
    members={},
    stage_of={rank: rank // PER_SWITCH for rank in range(3 * PER_SWITCH)},
)
"""Three stages, each below its own switch; each rank sends to those of the other stages."""


def chosen(iterations: Sequence[LaneSums], topology: Topology) -> list[Lane]:
    return lanes_of_slow_switch(iterations, [lanes_by_role(one, topology) for one in iterations], topology)


def sums(slow: Collection[int], factor: float, seed: int = 0) -> LaneSums:
    """Transfers of 1 ms; those that pass the `slow` switches take `factor` of it."""
    random = np.random.default_rng(seed)
    mean_ns = {}
    for source in range(3 * PER_SWITCH):
        for target in range(3 * PER_SWITCH):
            if source // PER_SWITCH != target // PER_SWITCH:
                is_slow = {source // PER_SWITCH, target // PER_SWITCH} & set(slow)
                mean_ns[Lane("pair", source, target)] = MS * random.normal(factor if is_slow else 1.0, 0.05)
    return LaneSums(mean_ns, dict.fromkeys(mean_ns, 4))


def test_nothing_is_odd_where_all_switches_are_alike() -> None:
    assert chosen([sums((), 1.0, seed) for seed in range(5)], JOB) == []


def test_a_difference_that_noise_makes_is_not_looked_at() -> None:
    assert chosen([sums((0,), 1.2, seed) for seed in range(5)], JOB) == []


def test_without_iterations_or_switches_there_is_nothing_to_look_at() -> None:
    assert chosen([], JOB) == []
    bare = Topology(JOB.world_size, {}, {}, stage_of=JOB.stage_of)
    assert chosen([sums((0,), 3.0)], bare) == []


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_switch_has_lanes_read_of_it_and_beside_it(slow: int) -> None:
    """Eight switches carry ranks of both stages: lanes of one role pass different switches."""
    half, per_switch = 64, 8

    def leaf(rank: int) -> int:
        return rank % half // per_switch

    places = {rank: Place(f"node-{rank}", 0, "nic-0", f"leaf-{leaf(rank)}") for rank in range(2 * half)}
    job = Topology(2 * half, places, {}, stage_of={rank: rank // half for rank in range(2 * half)})
    random = np.random.default_rng(slow)
    mean_ns = {}
    for rank in range(half):
        other = half + (rank + per_switch) % half
        for source, target in ((rank, other), (other, rank)):
            factor = 3.0 if slow in (leaf(source), leaf(target)) else 1.0
            mean_ns[Lane("pair", source, target)] = MS * random.normal(factor, 0.05)
    found = chosen([LaneSums(mean_ns, dict.fromkeys(mean_ns, 4))], job)
    passing = [lane for lane in found if slow in (leaf(lane.first), leaf(lane.second))]
    assert len(passing) >= 16
    assert 8 <= len(found) - len(passing) <= 16


# --- on either side of each threshold -------------------------------------------------------------------------------


def between(lanes: int, factor: float, peers: int = 6) -> tuple[LaneSums, Topology]:
    """Pairs of the same role: as many pass leaf-0 and take `factor` ms, and `peers` pass leaf-1 and take 1 ms."""
    ranks = 2 * (lanes + peers)
    of_0 = set(range(2 * lanes))
    places = {
        rank: Place(f"node-{rank}", 0, "nic-0", "leaf-0" if rank in of_0 else "leaf-1") for rank in range(ranks)
    }
    pairs = [Lane("pair", rank, rank + 1) for rank in range(0, ranks, 2)]
    mean_ns = {lane: MS * (factor if lane.first in of_0 else 1.0) for lane in pairs}
    return LaneSums(mean_ns, dict.fromkeys(mean_ns, 4)), Topology(ranks, places, {})


def read(lanes: int, factor: float, peers: int = 20) -> list[Lane]:
    """Lanes that are chosen to be read, of pairs that are all of one role."""
    sums_of, topology = between(lanes, factor, peers)
    return lanes_of_slow_switch([sums_of], [[list(sums_of.mean_ns)]], topology)


@pytest.mark.parametrize(("factor", "is_read"), [(1.4, False), (1.6, True)])
def test_a_switch_is_read_whose_lanes_take_half_as_long_again(factor: float, is_read: bool) -> None:
    assert bool(read(10, factor)) == is_read


@pytest.mark.parametrize(("lanes", "is_read"), [(7, False), (8, True)])
def test_a_switch_with_few_lanes_is_not_looked_at_as_one(lanes: int, is_read: bool) -> None:
    assert bool(read(lanes, 3.0)) == is_read


@pytest.mark.parametrize(("peers", "is_read"), [(3, False), (4, True)])
def test_with_few_lanes_of_a_role_nobody_knows_what_is_usual(peers: int, is_read: bool) -> None:
    """Nine pairs pass the slow switch, in roles of as many lanes each, of which the quicker half does not."""
    sums_of, topology = between(12, 3.0, peers=12)
    slow, usual = list(sums_of.mean_ns)[:12], list(sums_of.mean_ns)[12:]
    roles = [slow[at : at + peers // 2] + usual[at : at + (peers + 1) // 2] for at in range(0, 12, peers // 2)]
    assert bool(lanes_of_slow_switch([sums_of], [[*roles]], topology)) == is_read


def test_of_a_slow_switch_the_sixteen_slowest_lanes_and_the_eight_fastest_are_read() -> None:
    assert len(read(40, 3.0, peers=60)) == 16 + 8
