"""What the rates of the NICs at the ends of a slow transfer say: which of them stand out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.peak_caps import End, capped_ends, peak_if_capped
from irregulars.detectors.nics.steadiness import WHOLE, Swing, by_places, steady_ends, typical_swing
from irregulars.detectors.path.critical_path import Attribution


def telling_ends(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> dict[End, bool]:
    """Say of each end whether it stands out: steady while the operators of the lane ran, else with the lowest peak.

    One of the two counts, not both: they are two views of the same samples. Empty if they say nothing. Where no
    operator says when it ran, there are patterns of the iteration as a whole instead.
    """
    ranks, rates = topology.lane_ranks(lane), [a.rates for a in attributions if a.rates]
    slow = [a for a in attributions if a.path_excess_ns.get(lane, 0.0) > 0]
    swings = [a.swings for a in slow]
    low: dict[End, bool] = {}
    for communicator in (lane.first, WHOLE) if lane.kind == "collective" else ():
        low = low or steady_ends(communicator, ranks, swings, topology)
    low = low or capped_ends(ranks, rates, topology, peak_if_capped(_slowdown(lane, attributions)))
    return _held(low, lane, swings)


def _held(low: dict[End, bool], lane: Lane, swings: Sequence[Sequence[Swing]]) -> dict[End, bool]:
    """Leave out ends that burst and idle while the lane's operators run, as far as that is known.

    Who is held back by its own rate moves bytes all the time. Who idles in between waits for somebody: its peaks are
    lower than usual only since less of what it moves falls into one sample.
    """
    if lane.kind != "collective":
        return low
    by_place = by_places(swings)
    kept = {
        end: is_low and (typical_swing(end, lane.first, by_place) or 0.0) <= BLAME.held_swing
        for end, is_low in low.items()
    }
    return kept if any(kept.values()) else {}


def is_capped(nic: Device, lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> bool:
    """Whether a NIC's rate stands out, of those at the ends of a slow transfer."""
    ends = {} if lane.kind == "work" else telling_ends(lane, attributions, topology)
    return any(is_low for (device, _), is_low in ends.items() if device == nic)


def passes_nics(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> bool:
    """Whether the NICs of all members moved bytes, both ways, while operators of a collective ran.

    What stays inside a host may take NVLink, or pass by the NICs (gloo, NCCL without P2P): their samples tell.
    """
    members = set(topology.lane_ranks(lane)) if lane.kind == "collective" else set()
    swings = [one for a in attributions for one in a.swings if one.communicator == lane.first and one.rank in members]
    moving = Counter(one.rank for one in swings if _is_moving(one))
    return bool(members) and all(2 * moving[rank] > len(attributions) for rank in members)


def _is_moving(one: Swing) -> bool:
    return one.tx_ratio >= BLAME.moving_ratio and one.rx_ratio >= BLAME.moving_ratio


def _slowdown(lane: Lane, attributions: Sequence[Attribution]) -> float:
    """How many times as long as usual the transfers of a lane took; 1 where that is not known."""
    found = [a.lanes[lane] for a in attributions if lane in a.lanes]
    return median(1 + one.excess_ns / max(one.usual_ns, 1.0) for one in found) if found else 1.0
