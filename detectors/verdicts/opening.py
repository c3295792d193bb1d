"""When a cause was seen often enough to accuse, and how a verdict on it begins.

Any of these rules suffices; the numbers are those of `JOB`:

| seen | which cause | and besides |
|---|---|---|
| in 3 of the last 6 iterations | the work of a rank or host | it was seen in twice as many as all others |
| in 4 of the last 6 | transfers, or the work of a whole stage | |
| in 3 in a row, long and beyond noise | transfers | it is clear whose they are (0.8) |
| in 2 of the last 6, long | a rank that stands out in both | nothing else made an iteration as long |
| in all of the last 6, none of them long | any | beyond noise, and it is sure whose (0.9) |

A cause counts in an iteration if it explains half of that iteration's excess, or enough (`Observation.is_mainly`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

import numpy as np

from irregulars.detectors.blame.causes import Cause, find_causes
from irregulars.detectors.blame.nic_ends import is_capped
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.slow_lanes import stands_out
from irregulars.detectors.blame.work_causes import is_by_chance, late_beside
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import LANE_KINDS, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.verdicts.open_verdict import (
    History,
    OpenVerdict,
    StandingFault,
    carries_lane,
    cost_by_time_ns,
    longer_since,
    standing_since,
    typical_lateness_ns,
    without_cause,
)
from irregulars.detectors.verdicts.suspicions import Suspicions


@dataclass(frozen=True, slots=True)
class Evidence:
    """The newest iterations that were looked into, and the facts that a cause is held against before it accuses."""

    recent: Sequence[Observation]  # of the last 6 judged iterations those that were looked into
    suspicions: Suspicions  # the lanes that made iterations of late long
    is_uneven: bool  # whether a verdict on uneven data is open
    topology: Topology
    working: frozenset[Device] = frozenset()  # as of `find_causes`

    def find(self, imbalance: Sequence[Cause] = ()) -> list[Cause]:
        """Find causes, seen often enough or not; `imbalance`: uneven data, if that is news."""
        return [*find_causes(_attributions(self.recent), self.topology, self.working), *imbalance]

    def late_beside(self, cause: Cause) -> list[Cause]:
        """Return the ranks that the recent iterations show as late as those that a cause accuses of their work.

        The path passes the latest one alone, so that the others are in no cause, and yet each costs time without it.
        """
        ranks = {lane.first for lane in cause.lanes if lane.kind == "work"}
        if cause.kind != "slow_rank" or not ranks:
            return []
        late = late_beside(ranks, _attributions(self.recent))
        return [Cause("slow_rank", (), frozenset(Lane("work", rank) for rank in late), None, {})] if late else []

    def is_seen_enough(self, cause: Cause) -> bool:
        """Whether a cause was seen often enough in the recent iterations, by any rule of the table."""
        if cause.kind == "imbalance":
            return True  # it was seen in several, or it would be none
        seen = [o for o in self.recent if o.iteration in cause.explained_ns and o.is_mainly(cause)]
        clear = [o for o in seen if o.is_long or o.is_late(cause) or (o.is_shifted and o.is_slow_group(cause))]
        if cause.kind == "slow_rank" and len(clear) >= JOB.repeated:
            return self._is_one_of_few(cause, len(clear))
        if cause.kind != "slow_rank" and len(clear) >= JOB.often:
            return True
        if _is_clear_run(cause, clear):
            return True
        if len(clear) >= JOB.another and all(o.is_late(cause) and o.is_long for o in clear):
            shown = [o for o in self.recent if o.iteration in cause.explained_ns]
            return stands_alone(cause, shown, self.suspicions, self.topology, ("work",))
        return self._is_in_all(cause, seen)

    def _is_one_of_few(self, cause: Cause, seen: int) -> bool:
        """Whether a rank was seen in most long iterations: where data are uneven, each is last now and then.

        A host that holds half of the job has the last rank in five of six by chance.
        """
        others = sum(o.is_long for o in self.recent) - seen
        if not (self.is_uneven or self.suspicions.uneven(self.topology)):
            return seen >= 2 * others
        # Of six at most one is due to others, or was not long: where each rank is last now and then, one is little.
        if seen < IRREGULAR.recent - 1:
            return False
        return not is_by_chance(cause.suspects[0][0], seen, seen + max(others, 0), self.topology)

    def _is_in_all(self, cause: Cause, seen: Sequence[Observation]) -> bool:
        """Whether each recent iteration shows a cause, though none is long by itself.

        Where the counters of the accused NIC show a capped rate, which slow phases don't, it need not be beyond noise
        in each: all of them together must be.
        """
        # A job has slow phases that nobody is to blame for: only a sure suspect is accused of one.
        if cause.suspects and cause.suspects[0][1] < JOB.sure:
            return False
        shown = [o for o in seen if o.may_show(cause)]
        if len(shown) < IRREGULAR.recent:
            return False
        return all(o.is_beyond_noise(cause) for o in shown) or _is_capped(cause, shown, self.topology)


def stands_alone(
    cause: Cause,
    shown: Sequence[Observation],
    suspicions: Suspicions,
    topology: Topology,
    kinds: Collection[str] = LANE_KINDS,
) -> bool:
    """Whether nothing else in lanes of these kinds made iterations of late as long as this cause did.

    `shown`: the iterations that it explains. A transfer that hung once is no reason to doubt a rank that was late
    twice, nor are other lanes of a device.
    """
    least_ns = min(cause.explained_ns.values())
    own = {lane for lane in suspicions.lanes if lane in cause.lanes or carries_lane(cause, lane, topology)}
    return not suspicions.rivals(own, [one.ordinal for one in shown], least_ns, kinds)


def _attributions(observations: Sequence[Observation]) -> list[Attribution]:
    return [o.attribution for o in observations if o.attribution is not None]


def _is_clear_run(cause: Cause, clear: Sequence[Observation]) -> bool:
    """Whether transfers were slow beyond noise in several long iterations in a row, and it is clear whose they are.

    Nobody may be the suspect: a communicator that is slow as such is nobody's fault.
    """
    run = clear[-JOB.repeated :]
    is_run = len(run) == JOB.repeated and run[-1].ordinal - run[0].ordinal < JOB.repeated
    is_clear = not cause.suspects or cause.suspects[0][1] >= JOB.nearly_all
    if not (is_run and is_clear) or cause.is_of_work:
        return False
    return all(o.is_long and o.is_beyond_noise(cause) for o in run)


def _is_capped(cause: Cause, shown: Sequence[Observation], topology: Topology) -> bool:
    """Whether iterations together show that transfers are slow, and its counters that it is the accused NIC."""
    if cause.kind != "slow_nic" or not cause.suspects:
        return False
    attributions = _attributions(shown)
    worst = max(sorted(cause.lanes), key=lambda lane: sum(a.path_excess_ns.get(lane, 0.0) for a in attributions))
    return stands_out(worst, attributions) and is_capped(cause.suspects[0][0], worst, attributions, topology)


# --------------------------------------------------------------------------------------------------------------------
# Whether two causes are one incident: one cause, one verdict.
# found now                       open verdict                    one incident?
# NIC of rank 1 slow              its communicator slow           yes: the NIC carries the communicator's lanes
# link from 1 to 3 slow           NIC of rank 3 slow, sure        yes: the NIC carries the link's lanes
# NIC of rank 1 slow, sure        NIC of rank 7 slow, sure        no, even if both are in one communicator
# rank 1 works longer             the stage of rank 1 does        no: a heavy stage is a plan, a slow rank is not


def is_same(one: Cause, other: Cause) -> bool:
    """Whether two causes blame the same lanes; those of a whole stage or of nobody are compared by kind.

    A stage that works more than the others is a plan: one of its ranks that is slow besides is another matter.
    """
    if (one.kind == "slow_stage") != (other.kind == "slow_stage"):
        return False
    shared = one.lanes & other.lanes
    if _accuse_others(one, other) and all(lane.kind == "collective" for lane in shared):
        return False  # both NICs are in the communicator of all ranks
    return bool(shared) or (not one.lanes and one.kind == other.kind)


def _accuse_others(one: Cause, other: Cause) -> bool:
    """Whether two causes surely accuse devices that have no rank in common, all alternatives included."""
    if not one.suspects or not other.suspects:
        return False
    if min(cause.suspects[0][1] for cause in (one, other)) < JOB.sure:
        return False
    first, second = ({rank for device, _ in cause.suspects for rank in device.ranks} for cause in (one, other))
    return first.isdisjoint(second)


# --------------------------------------------------------------------------------------------------------------------
# How a verdict begins: since when the cause was there, and its cost since.


Name = Callable[[int], str]  # gives a verdict its id, from its first iteration


def verdict_on_recurring(
    name: Name,
    cause: Cause,
    irregular: Iterable[Observation],
    suspicions: Suspicions | None = None,
    elapsed_ns: Mapping[int, float] = MappingProxyType({}),
    told: int = -1,
) -> OpenVerdict:
    """Begin a verdict on a cause that was seen in some of the newest irregular iterations.

    `suspicions`: those of late: the verdict begins with the first of those that led to it without a break, or with
    those before it that took longer (`elapsed_ns`) and were not looked into.
    An iteration that is not long by itself belongs to it if it loses about as much to the cause as is typical; the
    newest one always does, as it may be the only one that is known of those in which data were uneven.
    `told`: the last iteration that another verdict explains. Up to there neither uneven data nor times show a cause.
    """
    irregular = list(irregular)
    alike_ns = JOB.most * median(cause.explained_ns.values())
    belongs = {one.iteration for one in irregular if one.is_long} | {max(cause.explained_ns)}
    own = {at: ns for at, ns in cause.explained_ns.items() if at in belongs or ns >= alike_ns}
    suspicions = suspicions or Suspicions()
    if cause.kind == "imbalance":
        suspicions = Suspicions(one for one in suspicions if one.iteration > told)
    ordinals = {**suspicions.ordinals, **{one.iteration: one.ordinal for one in irregular}}
    earlier = suspicions.leading_to(cause.lanes, ordinals[min(own)], alike_ns)
    shown = min([*own, *(one.iteration for one in earlier)])
    shown_in = [one for one in irregular if one.iteration in own]
    usual_ns = median(one.reference_ns for one in shown_in)
    costs_ns = median(min(own[one.iteration], one.excess_ns) for one in shown_in)
    unseen_ns = {at: ns - usual_ns for at, ns in elapsed_ns.items() if at > told and at not in ordinals}
    looked = max((at for at in ordinals if at < shown), default=-1)
    before = [at for at in unseen_ns if looked < at < shown]
    before = before[longer_since(np.array([unseen_ns[at] for at in before]), costs_ns) :]
    first = min([shown, *before])
    verdict = OpenVerdict(
        name(first), replace(cause, explained_ns={**{one.iteration: ns for one, ns in earlier.items()}, **own}), first
    )
    # Of the time before the cause was there: afterwards its own ups and downs are in the window.
    verdict.noise_ns = shown_in[0].spread_ns
    known, span = {one.iteration for one in irregular}, range(ordinals[shown], ordinals[max(own)])
    older = [one for one in suspicions if one.ordinal in span and one.iteration not in known]
    verdict.seen, verdict.tried = len(earlier), len(older) if earlier else 0
    verdict.lost_ns = sum(verdict.lose(ns, one.excess_ns) for one, ns in earlier.items()) + sum(
        cost_by_time_ns(ns, costs_ns, verdict.noise_ns) for at, ns in unseen_ns.items() if first <= at < max(own)
    )
    for observation in irregular:
        verdict.tried += observation.iteration >= shown
        if observation.iteration in own:
            verdict.add(observation)
    verdict.judged = ordinals[verdict.last] - ordinals[shown] + 1 + len(before)
    known_ns = {**elapsed_ns, **{one.iteration: one.elapsed_ns for one in irregular}}
    passed_ns = [ns for at, ns in known_ns.items() if first <= at <= verdict.last]
    verdict.passed_ns = verdict.lasted_ns = sum(passed_ns) + (verdict.judged - len(passed_ns)) * usual_ns
    return verdict


def verdict_on_standing(
    name: Name,
    cause: Cause,
    reviewed: Sequence[Observation],
    history: History,
    elapsed_ns: Mapping[int, float] = MappingProxyType({}),
) -> OpenVerdict:
    """Begin a verdict on a cause that a review found.

    `reviewed`: the reviewed iterations; their attributions are against peers. `history`: how long it has been so: the
    verdict begins with the first iteration, or when the rank is late without a break, or, where lateness can't tell,
    when iterations grew longer (`elapsed_ns`).
    """
    late_ns = typical_lateness_ns(cause, history)
    costs_ns = median(cause.explained_ns.values())
    first = standing_since(cause, late_ns, history)
    if math.isnan(late_ns):
        since = _standing_longer_since(cause, costs_ns, {n: elapsed_ns[n] for n, _ in history if n in elapsed_ns})
        first = max(first, min(since, *cause.explained_ns))  # an iteration that shows it may be short by chance
    last = max([max(cause.explained_ns), *(iteration for iteration, _ in history)])
    seen = sum(first <= iteration <= last for iteration, _ in history)
    shown = [o for o in reviewed if o.iteration in cause.explained_ns]
    passed_ns = seen * median(o.elapsed_ns for o in shown)
    verdict = OpenVerdict(
        verdict_id=name(first), cause=cause, first=first, last=last, time_ns=shown[-1].time_ns,
        kept=without_cause(cause, reviewed),
        seen=seen, tried=seen, lost_ns=costs_ns * seen, standing=StandingFault(costs_ns, late_ns),
        judged=seen, passed_ns=passed_ns, lasted_ns=passed_ns,
    )  # fmt: skip
    # The review that opens it is the first that saw it: `cut_back` goes back to here.
    verdict.confirm()
    return verdict


def _standing_longer_since(cause: Cause, costs_ns: float, elapsed_ns: Mapping[int, float]) -> int:
    """Return the iteration since which iterations take longer by a fault's cost; -1 if they have always done so.

    A few at the begin are chance.

    >>> times = {number: 100.0 if number < 60 else 106.0 for number in range(50, 70)}
    >>> cause = Cause("slow_nic", (), frozenset(), None, {68: 6.0, 69: 6.0})
    >>> _standing_longer_since(cause, 6.0, times), _standing_longer_since(cause, 6.0, {68: 106.0, 69: 106.0})
    (60, -1)
    """
    shown_ns = [elapsed_ns[number] for number in cause.explained_ns if number in elapsed_ns]
    if not shown_ns:
        return -1
    at = longer_since(np.fromiter(elapsed_ns.values(), np.float64) - (median(shown_ns) - costs_ns), costs_ns)
    return list(elapsed_ns)[at] if IRREGULAR.shift_iterations <= at < len(elapsed_ns) else -1
