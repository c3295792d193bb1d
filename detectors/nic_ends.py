"""What the rates of the NICs at the ends of a slow transfer say: which of them stand out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from detectors.capped_rates import End, capped_ends, peak_if_capped
from detectors.critical_path import Attribution
from detectors.lanes import Lane
from detectors.steady_rates import WHOLE, steady_ends
from detectors.topology import Topology


def telling_ends(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> dict[End, bool]:
    """Say of each end whether it stands out: steady while the operators of the lane ran, else with the lowest peak.

    One of the two counts, not both: they are two views of the same samples. Empty if they say nothing. Where no
    operator says when it ran, there are patterns of the iteration as a whole instead.
    """
    ranks, rates = topology.lane_ranks(lane), [a.rates for a in attributions if a.rates]
    slow = [a for a in attributions if a.path_excess_ns.get(lane, 0.0) > 0]
    steady: dict[End, bool] = {}
    for communicator in (lane.first, WHOLE) if lane.kind == "collective" else ():
        steady = steady or steady_ends(communicator, ranks, [a.swings for a in slow], topology)
    return steady or capped_ends(ranks, rates, topology, peak_if_capped(_slowdown(lane, attributions)))


def _slowdown(lane: Lane, attributions: Sequence[Attribution]) -> float:
    """How many times as long as usual the transfers of a lane took; 1 where that is not known."""
    found = [a.lanes[lane] for a in attributions if lane in a.lanes]
    return median(1 + one.excess_ns / max(one.usual_ns, 1.0) for one in found) if found else 1.0
