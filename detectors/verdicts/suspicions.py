"""What made a job's suspect iterations long, one after the other: what a new accusation is held against.

A rank that pauses once says little where another one pauses every third iteration. So each suspect iteration that was
looked into is noted, with the rank or lane that its path lost most to, and an accusation that rests on few iterations
must stand alone among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from irregulars.detectors.blame.causes import MATCH_SHARE, is_late_together
from irregulars.detectors.blame.observation import uneven_ns
from irregulars.detectors.job.lanes import EVERYBODY, LANE_KINDS, Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Attribution


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When suspect iterations belong together.

    Parameters
    ----------
    memory
        Iterations that an event is remembered for: the window of δ-irregularity.
    alike
        Events are of one size if the smaller is this share of the larger: pauses of garbage collection vary
        threefold.
    uneven_seen, uneven_ranks
        Data are uneven if, of the newest `uneven_seen` suspect iterations, each is lost to own work and this many
        ranks came last, none of them in most. Of six fair draws among four ranks, five in six show three or more.
    """

    memory: int = 50
    alike: float = 1 / 3
    uneven_seen: int = 6
    uneven_ranks: int = 3


THRESHOLDS: Final = Thresholds()


class Suspicion(NamedTuple):
    """A suspect iteration: the lane that its path lost most to, and how much that is, ns.

    `work_ns` is what the path lost to ranks' own work, less what other ranks were quicker, and `total_ns` what it
    lost to anything, everybody's longer work included. `is_of_stage`: the lane is a rank's own work, and its stage is
    late with it.
    """

    iteration: int
    lane: Lane
    lost_ns: float
    work_ns: float
    total_ns: float
    is_of_stage: bool = False


def _is_of_stage(lane: Lane, attribution: Attribution, topology: Topology) -> bool:
    stage = topology.stage(lane.first) if lane.kind == "work" else None
    if stage is None or len(stage.ranks) == topology.world_size:
        return False
    return is_late_together(stage, [attribution])


def _is_lost_to_ranks(one: Suspicion) -> bool:
    """Whether ranks' own work made an iteration long: by as large a share of it as any cause must explain.

    Where a batch is longer for everybody, what is left beside that is noise, and its largest part another rank's in
    each iteration.
    """
    return one.lane.kind == "work" and one.work_ns >= MATCH_SHARE * one.total_ns


class Suspicions:
    """The suspect iterations of late."""

    def __init__(self, known: Iterable[Suspicion] = ()) -> None:
        self._known: deque[Suspicion] = deque(known)

    def note(self, attribution: Attribution, topology: Topology) -> None:
        """Take in a suspect iteration that was looked into."""
        lost = {lane: ns for lane, ns in attribution.path_excess_ns.items() if ns > 0 and lane != EVERYBODY}
        if not lost:
            return
        lane = max(sorted(lost), key=lambda one: lost[one])
        if lane in attribution.lanes and attribution.lanes[lane].is_stray:
            return  # one transfer hung, which is no device's doing
        total_ns = sum(ns for ns in attribution.path_excess_ns.values() if ns > 0)
        is_of_stage = _is_of_stage(lane, attribution, topology)
        known = Suspicion(attribution.iteration, lane, lost[lane], uneven_ns(attribution), total_ns, is_of_stage)
        self._known.append(known)
        while self._known[0].iteration <= attribution.iteration - 2 * THRESHOLDS.memory:
            self._known.popleft()

    @property
    def lanes(self) -> set[Lane]:
        """Lanes that some suspect iteration lost most to."""
        return {one.lane for one in self._known}

    def rivals(
        self,
        lanes: Collection[Lane],
        iterations: Collection[int],
        least_ns: float,
        kinds: Collection[str] = LANE_KINDS,
    ) -> int:
        """Count the iterations around these that lost as much, about `least_ns`, to other lanes of these kinds."""
        first, last = min(iterations) - THRESHOLDS.memory, max(iterations) + THRESHOLDS.memory
        return sum(
            one.lane.kind in kinds
            and one.lane not in lanes
            and one.iteration not in iterations
            and first < one.iteration < last
            for one in self._known
            if one.lost_ns >= THRESHOLDS.alike * least_ns
        )

    def uneven(self, topology: Topology) -> dict[int, float]:
        """Return the newest suspect iterations if who was last in them changes as uneven data have it; else nothing.

        With each, what was lost to ranks' own work, ns. Ranks of a slow host or stage take turns as well. Those of a
        slow stage are late together; of a heavy batch the path may pass the longest stage alone.
        """
        newest = list(self._known)[-THRESHOLDS.uneven_seen :]
        if len(newest) < THRESHOLDS.uneven_seen or not all(_is_lost_to_ranks(one) for one in newest):
            return {}
        if newest[-1].iteration - newest[0].iteration >= 2 * THRESHOLDS.uneven_seen:
            return {}  # uneven data make most iterations long
        ranks = [one.lane.first for one in newest]
        if len(set(ranks)) < THRESHOLDS.uneven_ranks or 2 * max(map(ranks.count, ranks)) > len(ranks):
            return {}
        host = topology.host(ranks[0])
        if host is not None and set(ranks) <= set(host.ranks) and len(host.ranks) < topology.world_size:
            return {}
        if 2 * sum(one.is_of_stage for one in newest) > len(newest):
            return {}
        return {one.iteration: one.work_ns for one in newest}

    def state(self) -> list[Any]:
        """Everything that `from_state` needs, as JSON values."""
        return [[one.iteration, list(one.lane), *one[2:]] for one in self._known]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Suspicions:
        """Restore."""
        return cls(Suspicion(iteration, Lane(*lane), *rest) for iteration, lane, *rest in state)
