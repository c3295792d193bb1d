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
