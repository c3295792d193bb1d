"""What the bandwidth of NICs tells where no operator has a time: a NIC whose rate is steady and capped.

Without operators nobody knows who waited for whom, so nothing is said of ranks, links and communicators. A slow NIC
still shows: it moves steadily all through a slow iteration, at less than its usual peak, while its peers burst and
idle. That one of its links is slow instead looks the same from here, and lowers the NIC's probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.peak_caps import End, log_odds
from irregulars.detectors.nics.steadiness import WHOLE, Swing, steady_ends
from irregulars.detectors.path.critical_path import Attribution, Piece

_PRIORS: Final = {"nic": 1.0, "switch": 0.3, "none": 0.05}
_LINK_PRIOR: Final = 0.5  # that it is one of a NIC's links, against the NIC
_STEADY_IF_LINK: Final = 3.0  # times as likely as by chance: other transfers of the NIC would burst in between
_MIN_PEERS: Final = 3


def attribute_by_bandwidth(
    iteration: int, elapsed_ns: float, usual_ns: float, swings: Sequence[Swing], topology: Topology
) -> Attribution:
    """Lay what an iteration took longer upon the NIC that was steady and capped in it; upon nobody if none was.

    Parameters
    ----------
    elapsed_ns, usual_ns
        Of the iteration.
    swings
        Of the iteration as a whole, of all ranks.
    """
    excess_ns = max(elapsed_ns - usual_ns, 0.0)
    nothing = Attribution(iteration, {EVERYBODY: excess_ns}, {}, {}, {}, excess_ns=excess_ns, swings=tuple(swings))
    odds = _odds(_steady([nothing], topology), topology)
    nics = sorted(device for device in odds if device.kind == "nic")
    if not nics:
        return nothing
    nic = max(nics, key=lambda device: odds[device])
    lane = Lane("nic", nic.ranks[0])
    piece = Piece(lane, lane.first, 0, WHOLE, elapsed_ns, usual_ns)
    return replace(nothing, path_excess_ns={lane: excess_ns}, pieces={lane: piece})


def steady_nic(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> tuple[Device, float]:
    """Return the NIC that the iterations were laid upon, and how probable it is by all of them together."""
    nic = topology.nic(lane.first)
    ends = _steady([a for a in attributions if lane in a.path_excess_ns], topology)
    odds = _odds(ends, topology)
    links = sum(_LINK_PRIOR * _STEADY_IF_LINK for (_, way), is_steady in ends.items() if is_steady and way == 0)
    return nic, odds.get(nic, 0.0) / (sum(odds.values()) + links + _PRIORS["none"])


def _odds(ends: Mapping[End, bool], topology: Topology) -> dict[Device, float]:
    """Odds of the NICs, and of the switches that they are plugged into, by which ends are steady."""
    nics = sorted({nic for nic, _ in ends})
    switches = sorted(topology.switches(rank for nic in nics for rank in nic.ranks))
    return {device: _PRIORS[device.kind] * math.exp(log_odds(device, ends)) for device in (*nics, *switches)}


def _steady(attributions: Sequence[Attribution], topology: Topology) -> dict[End, bool]:
    """Ends that are steady beside their peers: the NICs of their stage, or of the job where stages are small."""
    ranks = np.array(sorted({one.rank for a in attributions for one in a.swings}), dtype=np.int64)
    swings = [a.swings for a in attributions]
    stages = topology.stages(ranks) if len(ranks) else ranks
    counts = dict(zip(*(found.tolist() for found in np.unique(stages, return_counts=True)), strict=True))
    is_small = min(counts.values(), default=0) < _MIN_PEERS
    groups = [ranks] if is_small else [ranks[stages == stage] for stage in counts]
    found: dict[End, bool] = {}
    for group in groups:
        found |= steady_ends(WHOLE, group.tolist(), swings, topology)
    return found
