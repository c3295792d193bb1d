"""From the attributions of some irregular iterations to the devices that may have caused them.

The lane that cost most is explained first: a rank's own work (`work_causes.py`) or slow transfers
(`transfer_causes.py`). The excess that this explains is taken away, and the next lane is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from irregulars.detectors.blame.explanation import Explanation, Unexplained
from irregulars.detectors.blame.likelihoods import Suspects
from irregulars.detectors.blame.slow_lanes import observe_lanes
from irregulars.detectors.blame.suspects import is_carried
from irregulars.detectors.blame.transfer_causes import explain_by_bandwidth, explain_transfers
from irregulars.detectors.blame.work_causes import explain_work, latest_rank
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause of some irregular iterations."""

    kind: str  # a kind of verdict
    suspects: Suspects  # devices with the probability of each, best first; alternatives
    lanes: frozenset[Lane]  # lanes whose excess the first suspect explains
    communicator: int | None  # the job's code of the communicator that the excess was seen on; None for own work
    explained_ns: Mapping[int, float]  # for each iteration in which the cause was seen the excess that it explains

    @property
    def first_device(self) -> Device | None:
        """The device that is most probably to blame; None: nobody's."""
        return self.suspects[0][0] if self.suspects else None

    @property
    def is_of_work(self) -> bool:
        """Whether it accuses ranks for their own work, and no transfers."""
        return self.kind in ("slow_rank", "slow_stage")


def find_causes(
    attributions: Sequence[Attribution],
    topology: Topology,
    working: frozenset[Device] = frozenset(),
) -> list[Cause]:
    """Find the causes of the excess of irregular iterations, the largest first.

    The excess of one cause is taken away before the next is looked for, so that two faults at once are two causes.

    `working`: devices known to work longer though their transfers are as always: slow transfers are none of theirs.
    """
    unexplained = Unexplained.of(attributions, topology, working)
    totals_ns = [attribution.held_against_ns(is_work=False) for attribution in attributions]
    # Let no iteration count for more than two typical ones: a single long hang does not recur.
    limit_ns = JOB.twice * median(totals_ns) if totals_ns else 0.0
    weights = [min(1.0, limit_ns / total) if total > 0 else 0.0 for total in totals_ns]
    works_ns = [attribution.held_against_ns(is_work=True) for attribution in attributions]
    causes = []
    while (lane := _costliest(unexplained, weights)) is not None:
        found = _explain(lane, unexplained)
        own_ns = unexplained.own_ns(found.lanes)
        held_against_ns = works_ns if lane.kind == "work" else totals_ns
        # The costliest lane explains too little, so no other one is tried.
        if _weighted(own_ns, weights) < JOB.part * _weighted(held_against_ns, weights):
            break
        seen = {
            a.iteration: ns
            for a, ns, total, weight in zip(attributions, own_ns, held_against_ns, weights, strict=True)
            if ns >= JOB.part * total * weight > 0
        }
        if seen and found.kind is not None:
            causes.append(_cause(found.kind, found, lane, seen, unexplained.attributions))
        # Also where nobody is accused: the next search must not find the same lanes, and ends as none is left.
        unexplained = unexplained.without(found.lanes | {lane})
    return causes


def _explain(lane: Lane, unexplained: Unexplained) -> Explanation:
    """Return the explanation of a lane's excess; without a kind where one rank alone is logged, of several."""
    topology = unexplained.topology
    if topology.unlogged and len(topology.logged) < 2:
        # Nothing shows whether the others worked as long, came late, or waited for this one.
        return Explanation(None, (), frozenset([lane]))
    if lane.kind == "work":
        return explain_work(lane, unexplained)
    if lane.kind == "nic":
        return explain_by_bandwidth(lane, unexplained)
    late = _late_work(unexplained) if topology.hides_late_ranks(lane) else None
    return late or explain_transfers(lane, unexplained)


def _late_work(unexplained: Unexplained) -> Explanation | None:
    """Accuse a rank that worked longer by as much as ranks without a log may have come late: they waited for it."""
    path = {lane for one in unexplained.path_excess_ns for lane in one}
    hidden = frozenset(lane for lane in path if unexplained.topology.hides_late_ranks(lane))
    rank, late_ns = latest_rank(unexplained.attributions)
    # No transfer makes the gaps between operators longer, so work comes before a NIC.
    if late_ns < JOB.most * median(unexplained.own_ns(hidden)):
        return None
    work = explain_work(Lane("work", rank), unexplained)
    if work.kind is None:
        return None
    lanes = work.lanes | hidden
    return replace(work, lanes=lanes, suspects=tuple((one, unexplained.share(lanes)) for one, _ in work.suspects))


def _cause(
    kind: str, found: Explanation, lane: Lane, seen: Mapping[int, float], attributions: Sequence[Attribution]
) -> Cause:
    """Make a cause of a lane's explanation; a suspect is as probable as the cause was seen regularly.

    Of five iterations between its first and its last one, a cause that was seen in three has (3 + 0.5) / (5 + 0.5) of
    its suspects' probabilities left.
    """
    first, last = min(seen), max(seen)
    tried = sum(first <= a.iteration <= last for a in attributions)
    factor = (len(seen) + 0.5) / (tried + 0.5)
    suspects = tuple((device, probability * factor) for device, probability in found.suspects)
    pieces = [a.pieces[lane] for a in attributions if lane in a.pieces and lane.kind not in ("work", "nic")]
    return Cause(kind, suspects, found.lanes, pieces[0].communicator if pieces else None, seen)


def is_sure(cause: Cause) -> bool:
    """Whether a cause may open a verdict: its suspects together are more probable than that it is none of them.

    A communicator without a member that stands out accuses nobody, and uneven data neither.
    """
    if cause.kind in ("slow_communicator", "imbalance") and not cause.suspects:
        return True
    return sum(probability for _, probability in cause.suspects) >= JOB.most


def slow_transfers(cause: Cause, attribution: Attribution, topology: Topology) -> float:
    """Return over how many transfers of one iteration the excess of a cause's lanes is spread.

    Infinite for work. The participation number (Σx)² / Σx² of the excesses, over lanes that were slow: near 1 where
    a single transfer hung.
    """
    if cause.is_of_work:
        return math.inf
    accused = max(sorted(cause.lanes), key=lambda lane: attribution.path_excess_ns.get(lane, 0.0))
    lanes = {accused}
    if cause.suspects:
        seen, device = observe_lanes(accused, [attribution]), cause.suspects[0][0]
        lanes |= {one for one, times in seen.items() if times and is_carried(device, one, accused, topology)}
    found = [attribution.lanes[lane] for lane in lanes if lane in attribution.lanes]
    squares = sum(max(lane.excess_ns, 0.0) ** 2 / lane.slow_transfers for lane in found)
    return sum(max(lane.excess_ns, 0.0) for lane in found) ** 2 / squares if squares else 1.0


def _weighted(values_ns: Sequence[float], weights: Sequence[float]) -> float:
    return sum(ns * weight for ns, weight in zip(values_ns, weights, strict=True))


def _costliest(unexplained: Unexplained, weights: Sequence[float]) -> Lane | None:
    """Return the lane with most excess over all iterations; None if no excess is left.

    A transfer that is slow in one iteration, and as always in the others, tells nothing of a device that is slow in
    all of them: the costliest of the transfers that are typically slow does, if these cost more together.
    """
    sums: dict[Lane, float] = {}
    for path, weight in zip(unexplained.path_excess_ns, weights, strict=True):
        for lane, ns in path.items():
            sums[lane] = sums.get(lane, 0.0) + weight * ns

    # Sorted: of equal sums the lane decides, and not the order of the attributions.
    found = max(sorted(sums), key=lambda lane: sums[lane], default=None)
    slow = [] if found is None else sorted(sums.keys() & unexplained.seen.slow_besides(found))
    is_costlier = found is not None and sum(sums[lane] for lane in slow) > sums[found]
    return max(slow, key=lambda lane: sums[lane]) if is_costlier else found
