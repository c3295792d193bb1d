"""Switches that evidence alone makes suspects: slow in many lanes, of which none costs much by itself.

A lane is held against the typical lane of its role, and a switch by the typical lane that passes it. That accuses
nobody: it says whose operators to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median, median_low

from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.ranks_to_read import LaneSums


def lanes_of_slow_switch(
    iterations: Sequence[LaneSums], roles: Sequence[Sequence[Sequence[Lane]]], topology: Topology
) -> list[Lane]:
    """Choose lanes to read where one switch looks slow; none where no switch does.

    Parameters
    ----------
    roles
        Of each iteration the lanes that should take as long (`detectors.path.ranks_to_read.lanes_by_role`).

    Returns
    -------
    Its slowest lanes, and its fastest ones; and, of those that pass the switches at their other ends, some that do
    not pass it: they tell which of the two it is.
    """
    ratios = _typical_ratios(iterations, roles, topology)
    passing: dict[Device, list[Lane]] = {}
    for lane in ratios:
        for switch in topology.switches(topology.lane_ranks(lane)):
            passing.setdefault(switch, []).append(lane)
    typical = {
        s: median(ratios[lane] for lane in own) for s, own in passing.items() if len(own) >= BLAME.switch_lanes
    }
    slowest = max(sorted(typical), key=lambda switch: typical[switch], default=None)
    if slowest is None or typical[slowest] < math.log(BLAME.switch_ratio):
        return []
    by_ratio = sorted(passing[slowest], key=lambda lane: -ratios[lane])
    own = list(dict.fromkeys([*by_ratio[: BLAME.switch_read_lanes], *by_ratio[-BLAME.switch_lanes :]]))
    others = sorted(topology.switches(rank for lane in own for rank in topology.lane_ranks(lane)) - {slowest})
    below = set(by_ratio)
    beside = {switch: [lane for lane in passing[switch] if lane not in below] for switch in others}
    return own + [
        lane for lanes in beside.values() for lane in lanes[: max(BLAME.switch_read_lanes // len(beside), 1)]
    ]


def _typical_ratios(
    iterations: Iterable[LaneSums], roles: Iterable[Sequence[Sequence[Lane]]], topology: Topology
) -> dict[Lane, float]:
    """For each pair over the network the logarithm of its time over that of its role; the median over iterations."""
    found: dict[Lane, list[float]] = {}
    for sums, of_role in zip(iterations, roles, strict=True):
        for alike in of_role:
            lanes = [lane for lane in alike if sums.mean_ns[lane] > 0]
            if len(lanes) >= BLAME.switch_peers and lanes[0].kind == "pair" and topology.crosses_network(lanes[0]):
                usual_ns = median_low(sums.mean_ns[lane] for lane in lanes)
                for lane in lanes:
                    found.setdefault(lane, []).append(math.log(sums.mean_ns[lane] / usual_ns))
    return {lane: median(values) for lane, values in found.items()}
