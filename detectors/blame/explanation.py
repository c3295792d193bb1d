"""The state of the search for causes: the excess that no cause explains yet, and explanations of parts of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from irregulars.detectors.blame.likelihoods import Suspects
from irregulars.detectors.blame.slow_lanes import SeenLanes
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution

PathExcess: TypeAlias = Mapping[Lane, float]
"""For each lane of one iteration's critical path its excess over the usual time, ns."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of the excess of a lane."""

    # Kind of the verdict; None: nobody is accused, since all ranks worked longer, or any may have
    kind: str | None
    suspects: Suspects  # who may be to blame; empty if nobody stands out
    lanes: frozenset[Lane]  # all lanes whose excess is explained with it


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Some irregular iterations, and how much of their excess no cause explains yet."""

    attributions: Sequence[Attribution]  # the iterations
    path_excess_ns: Sequence[PathExcess]  # of each iteration the excess that is left on its path
    excess_ns: Sequence[float | None]  # by how much each took longer, less the explained part; None: not known
    topology: Topology
    explained: frozenset[Lane]  # the lanes that a cause explains: that they are slow is no evidence for another one
    seen: SeenLanes  # the lanes of the iterations, explained or not
    working: frozenset[Device] = frozenset()  # devices known to work longer though their transfers are as always

    @classmethod
    def of(
        cls, attributions: Sequence[Attribution], topology: Topology, working: frozenset[Device] = frozenset()
    ) -> Unexplained:
        """Return all excess of the iterations; lanes that were quicker than usual have none."""
        left = [{lane: ns for lane, ns in a.path_excess_ns.items() if ns > 0} for a in attributions]
        excess_ns = [a.excess_ns for a in attributions]
        return cls(attributions, left, excess_ns, topology, frozenset(), SeenLanes(attributions), working)

    def own_ns(self, lanes: Collection[Lane]) -> list[float]:
        """Return of each iteration the excess that is left in these lanes, ns."""
        return [sum(ns for lane, ns in path.items() if lane in lanes) for path in self.path_excess_ns]

    def without(self, lanes: frozenset[Lane]) -> Unexplained:
        """Take away the excess of the lanes that a cause explains."""
        left = [{lane: ns for lane, ns in path.items() if lane not in lanes} for path in self.path_excess_ns]
        excess_ns = [
            None if whole_ns is None else max(whole_ns - own_ns, 0.0)
            for whole_ns, own_ns in zip(self.excess_ns, self.own_ns(lanes), strict=True)
        ]
        return replace(self, path_excess_ns=left, excess_ns=excess_ns, explained=self.explained | lanes)

    def share(self, lanes: frozenset[Lane]) -> float:
        """Return which share of the excess, in the iterations where these lanes have any, is theirs."""
        own = self.own_ns(lanes)
        totals = [
            self.to_explain_ns(whole_ns, ns, sum(path.values()))
            for whole_ns, ns, path in zip(self.excess_ns, own, self.path_excess_ns, strict=True)
        ]
        total_ns = sum(total for total, ns in zip(totals, own, strict=True) if ns > 0)
        return sum(own) / total_ns if total_ns > 0 else 0.0

    def to_explain_ns(self, excess_ns: float | None, own_ns: float, parts_ns: float) -> float:
        """Return the excess of an iteration that a cause is held against, ns, of which it explains `own_ns`.

        The parts of the path may add up to more than the iteration's own excess; the smaller of the two counts. An
        iteration 30 ms longer whose path has parts of 20 and 25 ms: a cause of 20 ms explains two thirds of it. What
        an earlier cause leaves of it may be less than the cause: then the parts count, which may all be chance.
        """
        if excess_ns is None or (self.explained and excess_ns < own_ns):
            return parts_ns
        return max(own_ns, min(parts_ns, excess_ns))
