"""Lanes that made a job's suspect iterations long, one after the other: new accusations are held against them.

A rank that pauses once says little where another one pauses every third iteration. So each suspect iteration that was
looked into is kept, with the rank or lane that its path lost most to, and an accusation that rests on few iterations
must stand alone among them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from irregulars.detectors.blame.observation import Observation, uneven_ns
from irregulars.detectors.blame.work_causes import is_by_chance, is_late_together
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import EVERYBODY, LANE_KINDS, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Topology


class Suspicion(NamedTuple):
    """A suspect iteration: the lanes that its path lost most to, the costliest first, and how much that is, ns.

    `work_ns` is the path's loss to ranks' own work, less the time by which other ranks were quicker; `total_ns` its
    loss to anything but single transfers that hung, everybody's longer work included. `is_of_stage`: the stage of
    the rank whose work cost most is late with it. `ordinal`, `excess_ns`: as of an `Observation`. `is_told`: a
    verdict that accuses somebody explains it. `beyond_ns`: its excess beyond what all share and twice the noise.
    `stands_out`: it or its latest rank does by itself, and not only together with the iterations before it.
    """

    iteration: int
    losses: tuple[tuple[Lane, float], ...]
    work_ns: float
    total_ns: float
    is_of_stage: bool
    ordinal: int
    is_told: bool = False
    excess_ns: float = 0.0
    beyond_ns: float = 0.0
    stands_out: bool = True

    @property
    def lane(self) -> Lane:
        """The lane that its path lost most to."""
        return self.losses[0][0]

    @property
    def lost_ns(self) -> float:
        """How much that is."""
        return self.losses[0][1]


def _last_rank(losses: Sequence[tuple[Lane, float]]) -> int | None:
    """Return the rank whose own work cost most; None if none cost anything."""
    return next((lane.first for lane, _ in losses if lane.kind == "work"), None)


def _live_on_one_host(ranks: Sequence[int], topology: Topology) -> bool:
    """Whether most of these ranks live on one host, and chance would hardly put as many on any host.

    Not all need to: another rank may pause meanwhile.
    """
    hosts = Counter(host for rank in ranks if (host := topology.host(rank)) is not None)
    if not hosts:
        return False
    host, seen = hosts.most_common(1)[0]
    return 2 * seen > len(ranks) and not is_by_chance(host, seen, len(ranks), topology)


class Suspicions:
    """The suspect iterations of late."""

    def __init__(self, known: Iterable[Suspicion] = ()) -> None:
        self._known: deque[Suspicion] = deque(known)

    def note(self, observation: Observation, topology: Topology) -> None:
        """Take in a suspect iteration that was looked into."""
        attribution, place = observation.attribution, observation.ordinal
        assert attribution is not None
        longer = {lane: ns for lane, ns in attribution.path_excess_ns.items() if ns > 0}
        # One transfer that hung is no device's doing.
        hung = [lane for lane in longer if lane in attribution.lanes and attribution.lanes[lane].is_stray]
        hung_ns = sum(map(longer.pop, hung))
        total_ns = sum(longer.values())
        if hung_ns > total_ns:
            return
        longer.pop(EVERYBODY, None)
        # All ranks were slow together, or nothing was: no lane made it long.
        if not longer:
            return
        most = sorted(longer.items(), key=lambda one: (-one[1], one[0]))
        losses = tuple(one for at, one in enumerate(most) if not at or one[1] >= JOB.least_share * total_ns)
        last = _last_rank(losses)
        stage = None if last is None else topology.stage(last)
        is_of_stage = (
            stage is not None
            and topology.logged_share(stage) < 1  # of all ranks: there is no other one to be quicker
            and is_late_together(stage, [attribution], topology)
        )
        number, work_ns = attribution.iteration, uneven_ns(attribution)
        excess_ns, shared_ns = observation.excess_ns, max(attribution.path_excess_ns.get(EVERYBODY, 0.0), 0.0)
        beyond_ns = excess_ns - shared_ns - JOB.twice * observation.spread_ns
        stands_out = observation.is_long or observation.has_late_rank
        self._known.append(
            Suspicion(number, losses, work_ns, total_ns, is_of_stage, place, False, excess_ns, beyond_ns, stands_out)
        )
        # Twice the memory: rivals are also looked for before the first iteration of a cause.
        while self._known[0].ordinal <= place - 2 * IRREGULAR.memory:
            self._known.popleft()

    def tell(self, iterations: Collection[int]) -> None:
        """Take in that a verdict that accuses somebody explains these."""
        for at, one in enumerate(self._known):
            if one.iteration in iterations:
                self._known[at] = one._replace(is_told=True)

    def __iter__(self) -> Iterator[Suspicion]:
        return iter(self._known)

    @property
    def lanes(self) -> set[Lane]:
        """Lanes that some suspect iteration lost most to."""
        return {one.lane for one in self._known}

    @property
    def ordinals(self) -> dict[int, int]:
        """The ordinal of each suspect iteration, by its number."""
        return {one.iteration: one.ordinal for one in self._known}

    def rivals(
        self,
        lanes: Collection[Lane],
        ordinals: Collection[int],
        least_ns: float,
        kinds: Collection[str] = LANE_KINDS,
    ) -> int:
        """Count the iterations around these that lost as much, about `least_ns`, to other lanes of these kinds.

        One that is told is no reason to doubt another cause.
        """
        first, last = min(ordinals) - IRREGULAR.memory, max(ordinals) + IRREGULAR.memory
        return sum(
            one.lane.kind in kinds
            and one.lane not in lanes
            and one.ordinal not in ordinals
            and not one.is_told
            and first < one.ordinal < last
            for one in self._known
            if one.lost_ns >= JOB.most * least_ns
        )

    def leading_to(self, lanes: Collection[Lane], ordinal: int, least_ns: float) -> dict[Suspicion, float]:
        """Return the iterations before an ordinal that a verdict on these lanes would have seen, had it been open.

        The newest is first, each with its loss to these lanes, without any to ranks' own work. They end where it
        would have closed; `least_ns`: a smaller loss shows no such cause.
        """
        found: dict[Suspicion, float] = {}
        for one in reversed(self._known):
            if one.ordinal >= ordinal:
                continue
            if ordinal - one.ordinal > IRREGULAR.min_iterations:
                break
            own_ns = sum(ns for lane, ns in one.losses if lane in lanes) if lanes else one.work_ns
            if own_ns >= max(least_ns, JOB.part * one.total_ns) and not one.is_told:
                found[one] = own_ns
                ordinal = one.ordinal
        return found

    def uneven(self, topology: Topology) -> dict[int, float]:
        """Return the newest suspect iterations, each with its loss to ranks' own work, ns, if data are uneven.

        Then ever other ranks come last. Ranks of a slow host or stage take turns as well; those of a slow stage are
        late together, while of a heavy batch the path may pass the longest stage alone. Empty if data are not uneven.
        """
        # In one of a slow phase that does not stand out by itself some rank is last as well, by chance.
        newest = [one for one in self._known if one.stands_out][-IRREGULAR.recent :]
        ranks = [rank for one in newest if (rank := _last_rank(one.losses)) is not None]
        is_uneven = (
            len(ranks) == IRREGULAR.recent
            # Lost to ranks' own work, by as large a share as any cause must explain; by half where some transfer
            # took more than any one of them. Where a batch is longer for everybody, the rest is noise, and its
            # largest part another rank's in each iteration.
            and all(o.work_ns >= (JOB.part if o.lane.kind == "work" else JOB.most) * o.total_ns for o in newest)
            and newest[-1].ordinal - newest[0].ordinal < 2 * IRREGULAR.recent  # most iterations are long
            and len(set(ranks)) >= JOB.repeated
            and 2 * max(map(ranks.count, ranks)) <= len(ranks)  # none of them came last in most iterations
            and not _live_on_one_host(ranks, topology)
            and 2 * sum(one.is_of_stage for one in newest) <= len(newest)
            # Some rank is always last: where all work longer, or by chance, another one in each iteration.
            and median(one.beyond_ns for one in newest) >= 0
        )
        return {one.iteration: one.work_ns for one in newest} if is_uneven else {}

    def state(self) -> tuple[Suspicion, ...]:
        """Everything that the constructor needs."""
        return tuple(self._known)
