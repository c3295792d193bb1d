"""What the bandwidth of NICs tells where no rank logged an operator: a NIC whose rate is steady and capped.

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

from irregulars.detectors.blame.likelihoods import LIKELIHOODS
from irregulars.detectors.blame.suspects import KINDS
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.peak_caps import End, log_odds
from irregulars.detectors.nics.steadiness import WHOLE, Swing, steady_ends
from irregulars.detectors.path.critical_path import Attribution, Piece

_SENDS: Final = 0


def attribute_by_bandwidth(
    iteration: int, elapsed_ns: float, usual_ns: float, swings: Sequence[Swing], topology: Topology
) -> Attribution:
    """Attribute the excess of an iteration to the NIC that was steady and capped in it; to nobody if none was.

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
    """Return the NIC that the iterations were attributed to, and how probable it is by all of them together."""
    nic = topology.nic(lane.first)
    ends = _steady([a for a in attributions if lane in a.path_excess_ns], topology)
    odds = _odds(ends, topology)
    senders = sum(is_steady and way == _SENDS for (_, way), is_steady in ends.items())
    links = senders * LIKELIHOODS.prior_link * LIKELIHOODS.steady_if_link
    return nic, odds.get(nic, 0.0) / (sum(odds.values()) + links + LIKELIHOODS.prior_nobody)


def _odds(ends: Mapping[End, bool], topology: Topology) -> dict[Device, float]:
    """Odds of the NICs, and of the switches that they are plugged into, by which ends are steady."""
    nics = sorted({nic for nic, _ in ends})
    switches = sorted(topology.switches(rank for nic in nics for rank in nic.ranks))
    return {device: KINDS[device.kind].prior * math.exp(log_odds(device, ends)) for device in (*nics, *switches)}


def _steady(attributions: Sequence[Attribution], topology: Topology) -> dict[End, bool]:
    """Ends that are steady beside their peers: the NICs of their stage, or of the job where stages are small."""
    ranks = np.array(sorted({one.rank for a in attributions for one in a.swings}), dtype=np.int64)
    swings = [a.swings for a in attributions]
    stages = topology.stages(ranks) if len(ranks) else ranks
    counts = dict(zip(*(found.tolist() for found in np.unique(stages, return_counts=True)), strict=True))
    is_small = min(counts.values(), default=0) < BLAME.min_stage_nics
    groups = [ranks] if is_small else [ranks[stages == stage] for stage in counts]
    found: dict[End, bool] = {}
    for group in groups:
        found |= steady_ends(WHOLE, group.tolist(), swings, topology)
    return found
