"""A verdict in the making, or open: the iterations that showed its cause, their cost, and its last revision."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from irregulars.detectors.blame.causes import Cause, find_causes, is_sure
from irregulars.detectors.blame.observation import Observation, explained_ns
from irregulars.detectors.blame.own_time import CoveredBy, covering_cause
from irregulars.detectors.blame.reported import Report
from irregulars.detectors.blame.suspects import is_carried
from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.dtypes import Floats
from irregulars.messages.kinds import CAUSES

_KEPT: Final = 64  # attributions that a verdict keeps to think over its suspects
_KEPT_RECOVERIES: Final = 9  # the newest ones, of iterations with a revision


@dataclass(slots=True, eq=False)
class OpenVerdict:
    """One verdict, as it is now.

    `judged`, `passed_ns`: iterations judged since the first, and how long they took; `lasted_ns`: those up to `last`.
    """

    # Its name, and the cause that it accuses now
    verdict_id: str
    cause: Cause
    # First and newest iteration in which the cause was seen, and the event time of the newest
    first: int
    last: int = 0
    time_ns: int = 0
    kept: deque[Observation] = field(default_factory=deque)  # the newest irregular iterations in which it was seen
    # Of some of them, which share of their excess comes back with the first suspect as usual
    recovered: deque[float] = field(default_factory=deque)
    # Iterations in which the cause was seen, and all that were looked into from the first of them to the newest,
    # irregular or nearly so
    seen: int = 0
    tried: int = 0
    lost_ns: float = 0.0  # lost so far
    quiet: int = 0  # judged iterations in a row in which the cause was not seen
    most_quiet: int = 0  # the most after which it was seen again
    # The newest revision: its number, kind and first suspect, and loss
    revision: int = 0
    said: tuple[str, Device | None] = ("", None)
    said_lost_ns: float = 0.0
    said_cause: str | None = None  # the cause that covers it, or else the layer
    noise_ns: float = 0.0  # standard deviation of the job's iterations before it; 0: not known
    # More on a fault without a healthy past; None for one that irregular iterations showed
    standing: StandingFault | None = None
    judged: int = 0
    severity: str = "note"  # the worst that was published (`messages.judgements.SEVERITIES`)
    passed_ns: float = 0.0
    lasted_ns: float = 0.0
    has_news: bool = False  # whether a suspect's device reported something since the newest revision
    late_ns: deque[float] = field(default_factory=deque)  # from which lateness on accused ranks showed the cause
    unheard: int = 0  # judged iterations in a row without a row of the first suspect's ranks
    reported: tuple[Report, ...] = ()  # by devices of its suspects, since it opened
    tried_since: int = 0  # looked into since the newest iteration in which the cause was seen
    worked: int = 0  # iterations in which the accused ranks worked longer, and nothing else showed
    # Of a typical iteration that shows it: the part that the cause explains, and its cost
    typical_ns: float = 0.0
    costs_ns: float = 0.0
    # Of all iterations that show it together: the part that the cause explains, and by how much they took longer
    explained_ns: float = 0.0
    longer_ns: float = 0.0
    # Of those since `last`: its cost by their times, and Page's sum of their excess beyond half of `costs_ns`
    unseen_ns: float = 0.0
    beyond_ns: float = 0.0

    def __post_init__(self) -> None:
        # `replace` runs this too: so `state` returns a copy that shares no deque with this verdict.
        self.kept = deque(self.kept, _KEPT)
        self.recovered = deque(self.recovered, _KEPT_RECOVERIES)
        self.late_ns = deque(self.late_ns, _KEPT_RECOVERIES)

    # --- iterations -------------------------------------------------------------------------------------------------

    def is_seen(self, observation: Observation, late_ns: Mapping[int, float]) -> bool:
        """Whether the cause shows in an iteration; `late_ns`: by how much ranks work longer than their stage."""
        if self.standing is not None:
            return self.standing.stands(self.cause, late_ns)
        if not observation.shows(self.cause):
            return False
        if observation.is_long:
            return True
        # One that is not long by itself must lose about as much to the cause as is typical of it.
        assert observation.attribution is not None
        return explained_ns(self.cause, observation.attribution) >= JOB.most * self.typical_ns

    def take_in_lanes(self, observation: Observation, topology: Topology) -> None:
        """Let slow lanes on the path that the first suspect carries belong to the cause.

        Each iteration's path passes other lanes of a switch.
        """
        if observation.attribution is None or self.standing is not None:
            return
        path_ns, known = observation.attribution.path_excess_ns, observation.attribution.lanes
        slow = (lane for lane in known.keys() & path_ns.keys() - self.cause.lanes if known[lane].is_beyond_noise)
        more = [
            lane for lane in slow if topology.crosses_network(lane) and carries_lane(self.cause, lane, topology)
            and not known[lane].is_stray
        ]  # fmt: skip
        own = [known[lane].is_beyond_noise for lane in self.cause.lanes & known.keys()] if more else []
        if 2 * sum(own) > len(own):  # else it is another device that is slow, and has some lanes in common
            self.cause = replace(self.cause, lanes=self.cause.lanes.union(more))
            self.learn_typical()

    @property
    def shown(self) -> Iterable[int]:
        """The newest iterations in which the cause was seen."""
        if self.standing is not None:
            return range(max(self.first, self.last - _KEPT), self.last + 1)
        return [one.iteration for one in self.kept]

    @property
    def is_unheard(self) -> bool:
        """Whether its ranks have sent no rows for so long that a review would not know them either."""
        unknown = 0 if self.standing is None else self.standing.unknown
        return max(self.unheard, unknown) >= IRREGULAR.shift_iterations

    @property
    def is_over(self) -> bool:
        """Whether the cause was absent for long, and twice as long as between any two sightings of it."""
        twice = 0 if self.standing is not None else min(2 * self.most_quiet, IRREGULAR.memory)
        return self.quiet >= max(IRREGULAR.min_iterations, twice)

    def is_absent(self, late_ns: Mapping[int, float]) -> bool:
        """Whether lateness alone shows that the cause, ranks' own work, is not there.

        Ranks that lack processor time cost most by their transfers, and are late by less than that.
        """
        return (
            self.cause.kind == "slow_rank"
            and all(lane.kind == "work" for lane in self.cause.lanes)
            and late_ranks_ns(self.cause, late_ns) < JOB.most * self.typical_ns
        )

    def learn_typical(self) -> None:
        """Take in that the cause or the iterations with it have changed."""
        shown = [(explained_ns(self.cause, o.attribution), o) for o in self.kept if o.attribution is not None]
        self.typical_ns = median(ns for ns, _ in shown)
        self.costs_ns = median(min(ns, o.excess_ns) for ns, o in shown)

    @property
    def is_working(self) -> bool:
        """Whether it accuses a rank or host that works longer though its transfers are as always."""
        return self.cause.kind == "slow_rank" and self.worked >= JOB.often

    @property
    def is_starved(self) -> bool:
        """Whether its ranks were late for want of their host, which makes their transfers slow as well."""
        covered = self.covered(self.kept)
        return covered is not None and covered.layer == "host"

    def covered(self, observations: Sequence[Observation]) -> CoveredBy | None:
        """Return the cause that covers its ranks' time in some iterations; None: none does, or it has no ranks."""
        # Against its peers no rank of a stage that was heavy from the start is late: its pauses cover nothing.
        is_of_ranks = self.cause.kind == "slow_rank" or (self.cause.kind == "slow_stage" and self.standing is None)
        if self.cause.kind == "imbalance":
            return covering_cause(None, observations)
        return covering_cause(self.first_device.ranks, observations) if is_of_ranks and self.first_device else None

    @property
    def has_found_cause(self) -> bool:
        """Whether a cause covers its time by now that the newest revision did not name."""
        # The newest iteration alone costs little, and shows it as well.
        if self.said_cause in CAUSES or self.covered([self.kept[-1]]) is None:
            return False
        covered = self.covered(self.kept)
        return covered is not None and (covered.cause or covered.layer) != self.said_cause

    def follow(
        self,
        observation: Observation,
        is_seen: bool,
        topology: Topology,
        late_ns: Mapping[int, float],
        working: frozenset[Device] = frozenset(),
        share: float = 1.0,
    ) -> None:
        """Take in the next judged iteration; `late_ns`: by how much ranks work longer than their stage.

        `working`: as of `find_causes`. `share`: as of `pass_unseen`.
        """
        own_late_ns = late_ranks_ns(self.cause, late_ns) if self.cause.kind == "slow_rank" else math.nan
        self.pass_by(observation)
        unknown = 0
        if self.standing is not None:
            unknown, self.standing.unknown = self.standing.unknown, 0
        self.tried_since += observation.attribution is not None and (observation.is_long or is_seen)
        if not is_seen:
            # The fault is over where its ranks are on time in most iterations: chance makes them late in some.
            # Ranks may be late as ever though nothing made their iteration worth a look, or something else cost more.
            least_ns = median(self.late_ns) if self.late_ns else math.inf
            step = -1 if own_late_ns >= least_ns > 0 else 1
            # An iteration that should have been read, and was not, counts neither way, nor one that was read without
            # the rows of the accused ranks.
            is_unknown = observation.is_unread or (self.unheard > 0 and observation.attribution is not None)
            self.quiet = max(self.quiet + step * (not is_unknown), 0)
            self.pass_unseen(observation, share)
        elif self.standing is not None:
            self._extend(observation, (1 + unknown) * self.standing.costs_ns)
        else:
            self.add(observation)
            if not math.isnan(own_late_ns) and observation.attribution is not None:
                # Its usual lateness and half of the fault's: from there on lateness alone shows the cause.
                usual_ns = max(own_late_ns - explained_ns(self.cause, observation.attribution), 0.0)
                self.late_ns.append(usual_ns + JOB.most * (own_late_ns - usual_ns))
            # Look for the cause again in all kept iterations; take over a sure one that shares lanes with this. One
            # that was taken for like another is no further evidence: its lanes would be the other's, noise included.
            attributions = [o.attribution for o in self.kept if o.attribution is not None and not o.is_carried]
            found = find_causes(attributions, topology, working)
            about = [cause for cause in found if cause.lanes & self.cause.lanes]
            # Two slow NICs share a group: the other one is another verdict's, however much more it costs.
            own = [one for one in about if one.suspects and one.first_device == self.first_device and is_sure(one)]
            about = own or about
            if about and is_sure(about[0]):
                self.cause = about[0]
                self.learn_typical()

    def pass_by(self, observation: Observation) -> None:
        """Count a judged iteration, whether the cause is seen in it or nobody can tell."""
        self.judged += 1
        self.passed_ns += observation.elapsed_ns

    def cost_by_time_ns(self, observation: Observation) -> float:
        """Return the cost of the cause, were it the only one, in an iteration of which only the time is known, ns."""
        excess_ns = observation.elapsed_ns - observation.reference_ns
        return 0.0 if self.standing is not None else cost_by_time_ns(excess_ns, self.costs_ns, self.noise_ns)

    def pass_unseen(self, observation: Observation, share: float = 1.0) -> None:
        """Count the cost of the cause in an iteration in which it was not seen, which may not have been looked into.

        The cause has lasted for as long as such iterations took longer together (Page's cumulative sum). `share`: of
        its cost by time, where other causes may have cost the same time.
        """
        if self.standing is not None or math.isnan(observation.reference_ns):
            return
        excess_ns = observation.elapsed_ns - observation.reference_ns
        if observation.attribution is not None:  # looked into: the rest of its time is another cause's
            excess_ns = min(explained_ns(self.cause, observation.attribution), excess_ns)
        self.unseen_ns += share * cost_by_time_ns(excess_ns, self.costs_ns, self.noise_ns)
        self.beyond_ns += float(beyond_half_ns(np.array([excess_ns]), self.costs_ns)[0])
        if self.beyond_ns > 0:
            self.last, self.time_ns, self.lasted_ns = observation.iteration, observation.time_ns, self.passed_ns
            self._count_unseen()

    def _count_unseen(self) -> None:
        self.lost_ns = max(self.lost_ns + self.unseen_ns, 0.0)  # noise may be all that there was
        self.unseen_ns = self.beyond_ns = 0.0

    def add(self, observation: Observation) -> None:
        """Count an irregular iteration in which the cause was seen."""
        assert observation.attribution is not None
        self.kept.append(observation)
        path_ns = observation.attribution.path_excess_ns
        own_ns = sum(path_ns.get(lane, 0.0) for lane in self.cause.lanes if lane.kind == "work")
        all_ns = observation.attribution.held_against_ns(is_work=False)
        self.worked += own_ns > (1 - JOB.part) * all_ns
        own_ns = explained_ns(self.cause, observation.attribution)
        self._extend(observation, self.lose(own_ns, observation.elapsed_ns - observation.reference_ns))
        self.learn_typical()

    def lose(self, own_ns: float, excess_ns: float) -> float:
        """Return the loss that an iteration adds: together they lose no more than they took longer.

        Each by itself would lose too little: those quicker by chance would count, and those slower would not.
        Where noise can't hide the cause, one that took no longer was quicker for another reason.

        `own_ns`: its part by the cause. `excess_ns`: how much longer it took; beyond twice that is another matter.
        """
        before_ns = min(self.explained_ns, self.longer_ns)
        self.explained_ns += own_ns
        least_ns = -own_ns if _may_hide(self.noise_ns, own_ns) else 0.0
        self.longer_ns = max(self.longer_ns + min(max(excess_ns, least_ns), JOB.twice * own_ns), 0.0)
        return min(self.explained_ns, self.longer_ns) - before_ns

    def learn_more(self, cause: Cause, reviewed: Sequence[Observation], history: History = ()) -> None:
        """Let a review that is surer of the culprit correct the cause of a standing fault."""
        if _certainty(cause) > _certainty(self.cause):
            device = cause.first_device
            if self.standing is not None and (cause.kind, device) != (self.cause.kind, self.first_device):
                # A NIC is not judged by the lateness of the rank that seemed to be slow, nor a rank by another's.
                self.standing.costs_ns = median(cause.explained_ns.values())
                self.standing.late_ns = typical_lateness_ns(cause, history)
            self.cause = cause
            self.kept = without_cause(cause, reviewed)

    def confirm(self) -> None:
        """Note that a review has seen a standing fault up to here."""
        assert self.standing is not None
        self.standing.confirmed = self.last, self.time_ns, self.seen, self.lost_ns, self.lasted_ns

    def presume(self, newest: Observation) -> None:
        """Count a standing fault up to the newest iteration, where none since it was seen could tell."""
        if self.standing is not None and self.standing.unknown and not self.quiet and not self.is_unheard:
            self.last, self.time_ns, self.lasted_ns = newest.iteration, newest.time_ns, self.passed_ns
            self.lost_ns += self.standing.unknown * self.standing.costs_ns

    def cut_back(self) -> None:
        """Take back the counts since a review saw the fault last: it was not there all that time."""
        assert self.standing is not None
        self.last, self.time_ns, self.seen, self.lost_ns, self.lasted_ns = self.standing.confirmed

    def _extend(self, observation: Observation, lost_ns: float) -> None:
        self.last, self.time_ns = observation.iteration, observation.time_ns
        self.seen += 1
        self.tried, self.tried_since = self.tried + self.tried_since, 0
        self.most_quiet = max(self.most_quiet, self.quiet)
        self.quiet, self.lasted_ns = 0, self.passed_ns
        self.lost_ns += lost_ns
        self._count_unseen()

    def note_recovery(self, observation: Observation, what_if: WhatIf | None) -> None:
        """Run the iteration again with the first suspect as usual, and keep the share that comes back."""
        # A standing fault has no healthy past whose times a replay could use.
        if what_if is None or observation.excess_ns <= 0 or self.first_device is None or self.standing is not None:
            return
        ratio = what_if.recovered_ns([self.cause]) / observation.excess_ns
        if not math.isnan(ratio):
            self.recovered.append(min(max(ratio, 0.0), 1.0))

    @property
    def recovers_ratio(self) -> float | None:
        """Median share of an iteration's excess that comes back without the first suspect; None if not known."""
        return median(self.recovered) if self.recovered else None

    # --- its last revision ------------------------------------------------------------------------------------------

    @property
    def first_device(self) -> Device | None:
        """The first suspect; None if it accuses nobody."""
        return self.cause.first_device

    @property
    def has_changed(self) -> bool:
        """Whether kind, first suspect or reports of devices have changed since the last published revision."""
        return self.has_news or (self.cause.kind, self.first_device) != self.said

    @property
    def has_grown(self) -> bool:
        """Whether the loss has doubled since the last published revision."""
        # Of no loss the double is no more: each iteration would be worth a revision.
        return self.lost_ns > self.said_lost_ns and self.lost_ns >= JOB.twice * self.said_lost_ns

    def mark_published(self, severity: str = "note") -> None:
        """Begin the next revision: kind, first suspect, loss and severity of now count as published."""
        self.revision += 1
        self.severity = severity
        self.said = (self.cause.kind, self.first_device)
        self.said_lost_ns = self.lost_ns
        self.has_news = False

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> OpenVerdict:
        """Return a copy: a verdict is its own state."""
        return replace(self, standing=None if self.standing is None else replace(self.standing))


def _may_hide(noise_ns: float, costs_ns: float) -> bool:
    return JOB.noise_sigmas * noise_ns >= JOB.most * costs_ns


def cost_by_time_ns(excess_ns: float, typical_ns: float, noise_ns: float) -> float:
    """Return the cost of a cause in an iteration of which only the time is known, ns.

    Where noise may hide the cause, that is its excess, positive or negative, and noise averages out. Else its time
    shows whether the cause was there. One that is shorter by more is of another sort, as an unmarked evaluation.

    >>> cost_by_time_ns(4.0, 10.0, 3.0), cost_by_time_ns(4.0, 10.0, 1.0), cost_by_time_ns(50.0, 10.0, 1.0)
    (4.0, 0.0, 10.0)
    >>> cost_by_time_ns(-4.0, 10.0, 3.0), cost_by_time_ns(-40.0, 10.0, 3.0)
    (-4.0, 0.0)
    """
    if excess_ns < JOB.most * typical_ns and not _may_hide(noise_ns, typical_ns):
        return 0.0
    return 0.0 if excess_ns < -typical_ns else min(excess_ns, typical_ns)


def beyond_half_ns(excess_ns: Floats, typical_ns: float) -> Floats:
    """Return by how much iterations take longer than half way between the times without and with a cause, ns.

    One counts for no more than that half.
    """
    half_ns = JOB.most * typical_ns
    return np.clip(excess_ns - half_ns, -half_ns, half_ns)


def longer_since(excess_ns: Floats, typical_ns: float) -> int:
    """Return the place since which iterations take longer by a cause's cost; that behind the last one if none does.

    It is where the sum of the time that iterations since take beyond half way is largest (Page's cumulative sum).

    >>> longer_since(np.array([0.0, 1.0, 6.0, 2.0, 6.0]), 6.0), longer_since(np.array([6.0, 0.0]), 6.0)
    (2, 2)
    """
    sums_ns = np.cumsum(beyond_half_ns(excess_ns, typical_ns)[::-1])[::-1]
    at = int(np.argmax(sums_ns)) if len(sums_ns) else 0
    return at if len(sums_ns) and sums_ns[at] > 0 else len(excess_ns)


def without_cause(cause: Cause, reviewed: Sequence[Observation]) -> deque[Observation]:
    """Return the reviewed iterations that show a standing fault. None was healthy: usual is their time without it."""
    shown = [
        (o, o.elapsed_ns - cause.explained_ns[o.iteration]) for o in reviewed if o.iteration in cause.explained_ns
    ]
    return deque((replace(o, reference_ns=max(healthy_ns, 1.0)) for o, healthy_ns in shown), maxlen=_KEPT)


def carries_lane(cause: Cause, lane: Lane, topology: Topology) -> bool:
    """Whether a cause's first suspect carries the transfers of a lane: a rank, a host and a stage carry none."""
    if not cause.suspects or cause.is_of_work or lane.kind == "work":
        return False
    return is_carried(cause.suspects[0][0], lane, min(cause.lanes), topology)


def _certainty(cause: Cause) -> float:
    return cause.suspects[0][1] if cause.suspects else 0.0


# --------------------------------------------------------------------------------------------------------------------
# Faults that are older than the recording: since when they stand, what they cost, and whether they still do.


History = Sequence[tuple[int, Mapping[int, float]]]
"""Judged iterations, oldest first, with by how much their latest ranks worked longer than their stage, ns.

NaN: of that rank it is not known."""


@dataclass(slots=True)
class StandingFault:
    """A fault without a healthy past, found by review."""

    costs_ns: float  # its typical cost for an iteration
    # By how much the rank is late against its stage; NaN where it is not a rank's own work, or does not show
    late_ns: float
    # The verdict's counts in the newest iteration in which a review saw it (`OpenVerdict.confirm`)
    confirmed: tuple[int, int, int, float, float] = (0, 0, 0, 0.0, 0.0)
    unknown: int = 0  # iterations in a row that could not tell: it costs as before in them if it is seen again

    @property
    def is_seen_by_review_alone(self) -> bool:
        """Whether an iteration by itself can't show it."""
        return math.isnan(self.late_ns)

    def stands(self, cause: Cause, late_ns: Mapping[int, float]) -> bool:
        """Whether it is seen to be there; one that a review alone can see counts until the next review."""
        return self.is_seen_by_review_alone or late_ranks_ns(cause, late_ns) >= JOB.most * self.late_ns

    def is_unknown(self, cause: Cause, late_ns: Mapping[int, float]) -> bool:
        """Whether an iteration should show it and can't tell: its ranks lost rows."""
        return not self.is_seen_by_review_alone and math.isnan(late_ranks_ns(cause, late_ns))


def typical_lateness_ns(cause: Cause, history: History) -> float:
    """Return the median lateness of the accused ranks; NaN where it is not a rank's own work or does not show."""
    late = [late_ns for iteration, late_ns in history if iteration in cause.explained_ns]
    if cause.kind != "slow_rank" or not late:
        return math.nan
    known = [ns for one in late if not math.isnan(ns := late_ranks_ns(cause, one))]
    typical_ns = median(known) if known else 0.0
    return typical_ns if typical_ns > 0 else math.nan


def standing_since(cause: Cause, late_ns: float, history: History) -> int:
    """Return the iteration since which the fault stands without a break; the oldest known one if lateness can't tell.

    With a rank that is typically 50 ms late, and was so in the iterations 9 to 5 and 10 ms in iteration 4, that is 5.
    """
    first = min(cause.explained_ns)
    for iteration, late in reversed(history):
        if iteration < first and not math.isnan(late_ns) and late_ranks_ns(cause, late) < JOB.most * late_ns:
            break
        first = min(first, iteration)
    return first


def late_ranks_ns(cause: Cause, late_ns: Mapping[int, float]) -> float:
    """Return by how much the accused ranks were late, the median of those that are known, ns; NaN: none is.

    A rank that `late_ns` leaves out counts as on time. Of an open verdict's ranks it leaves out none. A history holds
    only the latest ranks: one that it leaves out may have been late, and is not accused of it.
    """
    known = [ns for rank in cause.suspects[0][0].ranks if not math.isnan(ns := late_ns.get(rank, 0.0))]
    return median(known) if known else math.nan
