"""Hold regular iterations against peers from time to time: a fault may be older than the recording."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.standing_causes import Reviewed, review
from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.iteration_rows import IterationRows, ReadBack, pauses_beyond_usual
from irregulars.detectors.judging.nic_rates import stage_rates, with_rates
from irregulars.detectors.judging.operator_reader import OperatorReader
from irregulars.detectors.judging.operator_rows import joined
from irregulars.detectors.judging.review_candidates import ToReview, late_of, ranks_to_review
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.path.critical_path import Attribution, path_work_ns
from irregulars.detectors.path.microbatch_work import microbatch_work_ns
from irregulars.detectors.path.ranks_to_read import accused_lanes, ends_of, may_be_slow, narrow_groups, others_beside
from irregulars.detectors.path.usual_by_peers import attribute_by_peers
from irregulars.detectors.path.without_start_times import attribute_untimed_by_peers, find_waits
from irregulars.detectors.verdicts.open_verdict import History
from irregulars.dtypes import Column
from irregulars.messages.records import RECV

_PLANS = ("slow_stage", "imbalance")  # kinds that the next restart mends, with another plan

Plan = tuple[str, tuple[int, ...]]  # kind and ranks of a cause that a review found


class StandingReview:
    """Decides when a review is due, and remembers the causes that the last one found: only those found again count.

    `planned`: plans that the last review found wanting, and ranks that it would have accused, unlike the one before.
    `well_until`: the newest iteration that a review looked at which held nothing back; None: there was none.
    """

    def __init__(self) -> None:
        self.planned: tuple[Plan, ...] = ()
        self.well_until: int | None = None

    def is_due(self, judged: int, *, has_standing: bool) -> bool:
        """Whether a review is due after this many judged iterations: at the first level, and then regularly.

        `has_standing`: whether a verdict is open on a fault that was always there: only reviews can confirm or close
        it.
        """
        if self.planned:
            every = IRREGULAR.min_iterations
        else:
            every = IRREGULAR.level_iterations if has_standing else IRREGULAR.memory
        return judged == IRREGULAR.min_iterations or judged % every == 0

    def confirmed(self, causes: list[Cause], known: Collection[Cause] = ()) -> list[Cause]:
        """Leave out causes that the review before did not find: no plan is urgent, and hosts have slow phases.

        A slow communicator that is nobody's fault needs no second review: it accuses nobody.

        `known`: those of them on which a verdict is open. Held back, such a cause would seem to be gone, and the
        verdict would close.
        """
        before, self.planned = self.planned, ()
        unsure = [cause for cause in causes if cause not in known and (cause.kind in _PLANS or cause.suspects)]
        new = [cause for cause in unsure if not any(_is_again(plan_of(cause), one) for one in before)]
        self.planned = tuple(map(plan_of, new))
        return [cause for cause in causes if cause not in new]

    def unreviewed(self, history: History, newest: int) -> History:
        """Return the iterations since a review held nothing back: what the next one finds is no older.

        Called once for each review, after `confirmed`. `newest`: the newest iteration that it looked at.
        """
        well_until = self.well_until
        if not self.planned:
            self.well_until = newest
        return [one for one in history if well_until is None or one[0] > well_until]


def plan_of(cause: Cause) -> Plan:
    """Return a cause's kind, and the ranks of its first suspect."""
    return cause.kind, () if cause.first_device is None else cause.first_device.ranks


def _is_again(found: Plan, before: Plan) -> bool:
    """Whether two reviews found the same: a rank may turn out to be its host, and a link its receiver's NIC."""
    if found[0] in _PLANS or before[0] in _PLANS:
        return found == before
    return not set(found[1]).isdisjoint(before[1])


def review_regular(
    regular: Sequence[IterationRows],
    reader: OperatorReader,
    delta: float,
    read_back: ReadBack,
    *,
    has_standing: bool,
    judged: int = 2 * JUDGING.reviewed_iterations,
) -> tuple[list[Cause], list[Observation]] | None:
    """Hold the newest regular iterations against peers.

    `judged`: iterations so far. Of the first ones the newer half is looked at: a fault may have begun in the other.

    Returns the causes found, and the iterations as verdicts see them: none, where evidence alone shows that a large
    job has nothing to be found. Returns None if there are too few iterations, or a large job has no start times.
    """
    if len(regular) < IRREGULAR.shift_iterations:
        return None
    rows = list(regular)[-min(JUDGING.reviewed_iterations, judged // 2) :]
    if len(rows[-1]) <= JUDGING.whole_ranks:
        reviewed = hold_against_peers(rows, reader.read(rows, read_back), reader)
    else:
        rows = rows[-IRREGULAR.shift_iterations :]
        # Without start times there is no path to follow, and a large job is not read whole.
        if rows[-1].is_untimed:
            return None
        found = ranks_to_review(rows, reader.codes, reader.topology, delta)
        if not found.is_odd and not has_standing:
            return [], []
        rows, reviewed = _hold_some_against_peers(rows, found, delta, reader, read_back)
        reviewed = _with_others_beside(reviewed, found, reader.topology)
    observations = [
        Observation(
            one.number,
            one.period_ns,
            one.period_ns,
            one.start_ns,
            r.attribution,
            pauses=pauses_beyond_usual(rows[: at + 1], ()),
        )
        for at, (one, r) in enumerate(zip(rows, reviewed, strict=True))
    ]
    return review(reviewed, reader.topology, delta), observations


def _hold_some_against_peers(
    rows: Sequence[IterationRows], found: ToReview, delta: float, reader: OperatorReader, read_back: ReadBack
) -> tuple[list[IterationRows], list[Reviewed]]:
    """Hold as many ranks of a large job against peers as are needed to find the loss of these iterations.

    Returns the iterations, of those ranks alone, and their reviews.
    """
    own, columns = read_paths(rows, found, delta, reader, read_back)
    reviewed = hold_against_peers(own, columns, reader)
    unread = set(rows[-1].columns["rank"].tolist()).difference(own[-1].columns["rank"].tolist())
    # The ranks that show whether a NIC makes a pair slow: it would slow its collectives as well
    topology = reader.topology
    accused = {lane for one in reviewed for lane in accused_lanes(one.attribution, topology) if lane.kind == "pair"}
    ends = ends_of(accused, topology)
    more = ends_of(narrow_groups(ends, topology), topology).intersection(unread)
    if more:
        columns = joined([columns, reader.read([one.only(more) for one in rows], read_back)])
        own = [now.only({*one.columns["rank"].tolist(), *more}) for now, one in zip(rows, own, strict=True)]
        reviewed = hold_against_peers(own, columns, reader)
    return own, reviewed


def read_paths(
    rows: Sequence[IterationRows], found: ToReview, delta: float, reader: OperatorReader, read_back: ReadBack
) -> tuple[list[IterationRows], dict[str, Column]]:
    """Read the ranks on which the path of any of these iterations of a large job can depend, and their peers.

    Returns the iterations, of those ranks alone, and their operators.
    """
    worth_ns = JOB.alike * (delta - 1) * min(one.elapsed_ns for one in rows)
    ranks, columns = reader.follow(rows, found.ranks | found.peers, worth_ns, read_back)
    return [one.only(ranks) for one in rows], columns


def _with_others_beside(reviewed: Sequence[Reviewed], found: ToReview, topology: Topology) -> list[Reviewed]:
    """Add the unread lanes beside slow ones of which summaries show that they were not slow."""
    more = []
    for one, sums, roles in zip(reviewed, found.sums, found.roles, strict=True):
        beside = others_beside(accused_lanes(one.attribution, topology), sums, roles, topology)
        normal = {lane: own for lane, own in beside.items() if not may_be_slow(own)}
        more.append(replace(one, attribution=replace(one.attribution, lanes={**normal, **one.attribution.lanes})))
    return more


def hold_against_peers(
    rows: Sequence[IterationRows], columns: Mapping[str, Column], reader: OperatorReader
) -> list[Reviewed]:
    """Return for each iteration where its time went beyond the time that peers take."""
    if not rows[-1].is_untimed:
        return _by_paths(rows, columns, reader)
    topology, waits = reader.topology, find_waits(columns)  # without start times: by durations alone
    found = []
    for one in rows:
        late_ns = late_of(one, topology, rows)
        attribution = attribute_untimed_by_peers(waits, one.number, one.work_ns, late_ns, topology)
        found.append(Reviewed(one.period_ns, attribution, one.work_ns, {}))
    return found


def _by_paths(rows: Sequence[IterationRows], columns: Mapping[str, Column], reader: OperatorReader) -> list[Reviewed]:
    topology = reader.topology
    # By these iterations alone: the regular ones behind the usual values may be hours older than a review.
    graph = reader.build(rows, columns, reader.clocks_of(columns))
    beside = graph.is_worked_beside[graph.operator == RECV]
    beside_ratio = float(beside.mean()) if len(beside) else 0.0
    what_if = WhatIf(graph, None, topology)
    found = []
    for one in rows:
        attribution = _without_partial_lanes(attribute_by_peers(graph, one.number, topology), one, topology)
        attribution = with_rates(attribution, one, stage_rates(one, topology), reader.codes)
        found.append(
            Reviewed(
                one.period_ns,
                attribution,
                graph.own_work_ns(one.number),
                path_work_ns(graph, one.number),
                beside_ratio,
                microbatch_work_ns(graph, one.number, topology.stage_of, of_ends=beside_ratio > JOB.most),
                graph.own_work_ns(one.number, to_last_message=True),
                what_if,
            )
        )
    return found


def _without_partial_lanes(attribution: Attribution, rows: IterationRows, topology: Topology) -> Attribution:
    """Leave out lanes of which a rank was not read: they may have waited for it, and not be slow at all.

    Those to which the path lost most stay: following the path has read every rank that may have come last.
    """
    known = topology.unlogged.union(rows.columns["rank"].tolist())
    accused = set(accused_lanes(attribution, topology))
    lanes = {
        lane: own
        for lane, own in attribution.lanes.items()
        if lane in accused or known.issuperset(topology.lane_ranks(lane))
    }
    return replace(attribution, lanes=lanes)
