"""Switches that evidence alone makes suspects: slow in many lanes, of which none costs much by itself.

A lane is held against the typical lane of its role, and a switch by the typical lane that passes it. That accuses
nobody: it says whose operators to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_median, medians
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.ranks_to_read import LaneSums
from irregulars.dtypes import Ints

_ROUNDING: Final = 1e-9  # more than two ways to take a mean of two differ by


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
    if not _may_be_slow(ratios, topology):
        return []
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
    lanes: dict[Lane, int] = {}
    at: list[Ints] = []
    logs: list[float] = []
    for sums, of_role in zip(iterations, roles, strict=True):
        for alike in of_role:
            own = [lane for lane in alike if sums.mean_ns[lane] > 0]
            if len(own) >= BLAME.switch_peers and own[0].kind == "pair" and topology.crosses_network(own[0]):
                mean_ns = np.array([sums.mean_ns[lane] for lane in own])
                logs += map(math.log, (mean_ns / lower_median(mean_ns)).tolist())
                at.append(np.array([lanes.setdefault(lane, len(lanes)) for lane in own]))
    if not lanes:
        return {}
    return dict(zip(lanes, medians(np.concatenate(at), np.array(logs)).tolist(), strict=True))


def _may_be_slow(ratios: Mapping[Lane, float], topology: Topology) -> bool:
    """Whether a switch may look slow: of a large job's lanes not a list is made to learn that none does."""
    if not ratios:
        return False
    ends = np.array([(lane.first, lane.second) for lane in ratios], dtype=np.int64)
    below = topology.switch_codes(ends)  # a row of two for each lane
    below[below[:, 0] == below[:, 1], 1] = -1  # a lane passes each switch once
    lane, _ = np.nonzero(below >= 0)
    switch, counts = np.unique(below[below >= 0], return_inverse=True, return_counts=True)[1:]
    typical = medians(switch, np.array(list(ratios.values()))[lane]) if len(lane) else np.empty(0)
    least = math.log(BLAME.switch_ratio) - _ROUNDING
    return bool((typical[counts >= BLAME.switch_lanes] >= least).any())
