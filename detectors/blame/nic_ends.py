"""Which NICs at the ends of a slow transfer stand out by their rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np

from irregulars.detectors.blame.likelihoods import LIKELIHOODS
from irregulars.detectors.blame.suspects import TRANSFER_SUSPECTS
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import CARRIERS, Device, Topology
from irregulars.detectors.nics.peak_caps import End, capped_ends, peak_if_capped
from irregulars.detectors.nics.steadiness import WHOLE, Swing, steady_ends
from irregulars.detectors.path.critical_path import Attribution, Piece


def telling_ends(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> dict[End, bool]:
    """Return of each end whether it stands out: steady while the lane's operators ran, else with the lowest peak.

    One of the two counts, not both: they are two views of the same samples. Empty if they show nothing. Where no
    operator has a start, there are patterns of the iteration as a whole instead.
    """
    ranks = topology.lane_ranks(lane)
    # Other iterations were long for something else, and their rates are as usual.
    slow = [a for a in attributions if _was_slow(lane, a)]
    rates, swings = [a.rates for a in slow if a.rates], [a.swings for a in slow]
    low: dict[End, bool] = {}
    # The communicator's own patterns come first: traffic of other operators does not blur them.
    for communicator in (lane.first, WHOLE) if lane.kind == "collective" else ():
        low = low or steady_ends(communicator, ranks, swings, topology)
    known = [a.lanes[lane] for a in slow if lane in a.lanes]
    slowdown = median(1 + one.excess_ns / max(one.usual_ns, 1.0) for one in known) if known else 1.0
    return low or capped_ends(ranks, rates, topology, peak_if_capped(slowdown))


def _was_slow(lane: Lane, attribution: Attribution) -> bool:
    """Whether a transfer was slow in an iteration, on its critical path or beside it."""
    beside = attribution.lanes.get(lane)
    on_path_ns = attribution.path_excess_ns.get(lane, 0.0)
    return on_path_ns > 0 or (beside is not None and beside.excess_ns > beside.most_ns)


def is_capped(nic: Device, lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> bool:
    """Whether a NIC's rate stands out, of those at the ends of a slow transfer."""
    ends = {} if lane.kind == "work" else telling_ends(lane, attributions, topology)
    return any(is_low for (device, _), is_low in ends.items() if device == nic)


def passes_nics(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> bool:
    """Whether the NICs of all members moved bytes, both ways, while operators of a collective ran.

    Traffic inside a host may take NVLink, or the NICs (gloo, NCCL without P2P): their samples show which.
    """
    members = set(topology.lane_ranks(lane)) if lane.kind == "collective" else set()
    swings = [one for a in attributions for one in a.swings if one.communicator == lane.first and one.rank in members]
    moving = Counter(
        one.rank for one in swings if one.tx_ratio >= JOB.least_share and one.rx_ratio >= JOB.least_share
    )
    return bool(members) and all(2 * moving[rank] > len(attributions) for rank in members)


def log_odds(device: Device, low: Mapping[End, bool]) -> float:
    """Return the log odds that the lowest peaks give to `device`, against a cause that touches none of these ends.

    A capped rate has a cause in the network. If a communicator is slow as such, an end is capped by rare chance
    alone. How rare that is, the ends themselves show where there are many: of 256, one that stands out alone.
    """
    kind = TRANSFER_SUSPECTS[device.kind]
    if not kind.is_in_network:
        return math.log(LIKELIHOODS.low_by_chance) if any(low.values()) else 0.0
    # By Jeffreys' prior (half an end of each kind is added), so that it is neither 0 nor 1.
    by_chance = min(LIKELIHOODS.low_by_chance, (sum(low.values()) + 0.5) / (len(low) + 1))
    told = 0.0
    for end, chance in kind.ends(device, low).items():
        likely = max(chance, by_chance)
        told += math.log(likely / by_chance) if low[end] else math.log((1 - likely) / (1 - by_chance))
    # A device may not show at its NICs at all: then the ends are as likely as by chance (log odds 0).
    shows = kind.shows
    return told if shows == 1 else float(np.logaddexp(math.log(shows) + told, math.log(1 - shows)))


# --------------------------------------------------------------------------------------------------------------------
# Bandwidth as the only evidence, where no rank logged an operator: a NIC whose rate is steady and capped.
# Without operators nobody knows who waited for whom, so ranks, links and communicators are not judged. A slow NIC
# still shows: it moves steadily all through a slow iteration, at less than its usual peak, while its peers burst and
# idle. That one of its links is slow instead looks the same from here, and lowers the NIC's probability.


_SENDS: Final = 0


def attribute_by_bandwidth(
    iteration: int, elapsed_ns: float, usual_ns: float, swings: Sequence[Swing], topology: Topology
) -> Attribution:
    """Attribute the excess of an iteration to the NIC that was steady and capped in it; to nobody if none was.

    `elapsed_ns`, `usual_ns`: of the iteration. `swings`: of the iteration as a whole, of all ranks.
    """
    excess_ns = max(elapsed_ns - usual_ns, 0.0)
    nothing = Attribution(iteration, {EVERYBODY: excess_ns}, {}, {}, {}, excess_ns=excess_ns, swings=tuple(swings))
    odds = _odds(_steady([nothing], topology), topology)
    nics = sorted(device for device in odds if device == topology.nic(device.ranks[0]))
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
    # Each steady sender may be held up by one of its links instead.
    senders = sum(is_steady and way == _SENDS for (_, way), is_steady in ends.items())
    links = senders * LIKELIHOODS.prior_link * LIKELIHOODS.steady_if_link
    return nic, odds.get(nic, 0.0) / (sum(odds.values()) + links + LIKELIHOODS.prior_none)


def _odds(ends: Mapping[End, bool], topology: Topology) -> dict[Device, float]:
    """Odds of the NICs, and of the switches that they are plugged into, by which ends are steady."""
    nics = sorted({nic for nic, _ in ends})
    shared = {topology.shared(kind, rank) for kind in CARRIERS for nic in nics for rank in nic.ranks}
    others = sorted(one for one in shared - set(nics) if one and TRANSFER_SUSPECTS[one.kind].ends(one, ends))
    return {one: TRANSFER_SUSPECTS[one.kind].prior * math.exp(log_odds(one, ends)) for one in (*nics, *others)}


def _steady(attributions: Sequence[Attribution], topology: Topology) -> dict[End, bool]:
    """Ends that are steady beside their peers: the NICs of their stage, or of the job where stages are small."""
    ranks = np.array(sorted({one.rank for a in attributions for one in a.swings}), dtype=np.int64)
    swings = [a.swings for a in attributions]
    stages = topology.stages(ranks) if len(ranks) else ranks
    counts = dict(zip(*(found.tolist() for found in np.unique(stages, return_counts=True)), strict=True))
    is_small = min(counts.values(), default=0) < JOB.repeated
    groups = [ranks] if is_small else [ranks[stages == stage] for stage in counts]
    found: dict[End, bool] = {}
    for group in groups:
        found |= steady_ends(WHOLE, group.tolist(), swings, topology)
    return found
