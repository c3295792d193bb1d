"""Reviews of a job that runs as always: whether "as always" is healthy, by peers held against each other.

A fault that was there before the first recorded iteration makes no iteration irregular. So from time to time some
regular iterations are held against the times of peers (`detectors.path.usual_by_peers`), and against the other
pipeline stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_medians
from irregulars.detectors.arrays.row_keys import group_rows, sort_rows, stable_order
from irregulars.detectors.arrays.runs import run_ends
from irregulars.detectors.blame.causes import Cause, find_causes, is_sure
from irregulars.detectors.blame.observation import uneven_ns
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.dtypes import Ints, Numbers
from irregulars.grouping import grouped
from irregulars.messages.kinds import STAGE


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One regular iteration under review."""

    elapsed_ns: float  # how long it took, ns, the work before its first operator included
    attribution: Attribution  # against peers
    work_ns: Mapping[int, float]  # for each rank the sum of its gaps, ns
    # For each rank its own work on the critical path, ns; empty where that is not known
    path_work_ns: Mapping[int, float]
    # Share of the recvs that ranks left open while they worked on. Gaps don't tell whether they waited for them in
    # the end or worked until then, so stages can't be compared by their gaps.
    beside_ratio: float = 0.0
    # For each rank between the first and the last stage, and where gaps are hidden also of these, its work on
    # micro-batches, ns (`detectors.path.microbatch_work`), which open recvs don't hide; empty where it is not known
    microbatch_ns: Mapping[int, float] = field(default_factory=dict)
    # For each rank the sum of its gaps to its last message, ns; empty where that is not known
    to_last_message_ns: Mapping[int, float] = field(default_factory=dict)
    what_if: WhatIf | None = None  # all reviewed iterations, to be run again by peers' times; None: not timed


def review(reviewed: Sequence[Reviewed], topology: Topology, delta: float) -> list[Cause]:
    """Find the causes that make all of these iterations longer than they need be.

    `reviewed`: some regular iterations, the more the surer; fewer than five give nothing.
    `delta`: a cause counts if the iterations take longer than without it by more than this ratio; slow transfers of a
    device may cost half of that.
    """
    if len(reviewed) < IRREGULAR.shift_iterations:
        return []
    found = _with_shared_time(find_causes([one.attribution for one in reviewed], topology), reviewed)
    found = [_as_sure_as_seen(one, len(reviewed)) if one.kind == "slow_rank" else one for one in found]
    # One device must be more probable than all others: without a healthy past a choice says too little.
    named = [one for one in found if is_sure(one) and all(p >= JOB.most for _, p in one.suspects[:1])]
    least = 1 + JOB.most * (delta - 1)
    limits = [least if one.suspects and one.kind != "slow_rank" else delta for one in named]
    causes = [one for one, limit in zip(named, limits, strict=True) if _matters(one, reviewed, limit)]
    if causes:
        return [_as_replayed(one, reviewed[-1].what_if) for one in causes]
    stage = _slow_stage(reviewed, topology, 1 + BLAME.stage_excess * (delta - 1))
    if stage is not None:
        return [stage]
    uneven = _imbalance(reviewed)
    limit = 1 + BLAME.uneven_excess * (delta - 1)
    return [uneven] if uneven is not None and _matters(uneven, reviewed, limit) else []


def _as_sure_as_seen(cause: Cause, reviewed: int) -> Cause:
    """Let a device be as probable as it was seen regularly: luck makes another rank late in each iteration.

    Its share of the loss to late ranks depends on how late the others are.
    """
    probability = (len(cause.explained_ns) + 0.5) / (reviewed + 1)
    return replace(cause, suspects=tuple((device, probability) for device, _ in cause.suspects))


def _with_shared_time(found: Sequence[Cause], reviewed: Sequence[Reviewed]) -> list[Cause]:
    """Let a slow rank explain also the iterations in which another one came last.

    Of two ranks that are equally slow now the one comes last and now the other, and where a third one pauses both
    wait; the path shows the last one alone.
    """
    shared = {}
    for cause in (one for one in found if one.kind == "slow_rank"):
        explained = dict(cause.explained_ns)
        for attribution in (one.attribution for one in reviewed if one.attribution.iteration not in explained):
            path = attribution.path_excess_ns.items()
            others_ns = max((ns for lane, ns in path if lane.kind == "work" and lane != EVERYBODY), default=0.0)
            # One that lacks processor time has slow transfers among its lanes, which are named by communicators.
            works = (lane for lane in cause.lanes if lane.kind == "work")
            own_ns = max(attribution.work_excess_ns.get(lane.first, 0.0) for lane in works)
            if min(own_ns, others_ns) > 0:
                explained[attribution.iteration] = min(own_ns, others_ns)
        shared[id(cause)] = replace(cause, explained_ns=explained)
    return [shared.get(id(one), one) for one in found]


def _as_replayed(cause: Cause, what_if: WhatIf | None) -> Cause:
    """Let a cause explain no more than comes back without it: its peers may be nearly as late at another place.

    Where less than half comes back, other ranks wait for it in ways that no operator shows, or are as late: then its
    part of the path counts.
    """
    back_ns = {} if what_if is None else what_if.recovered_by_iteration([cause])
    lesser = {at: back_ns[at] for at, ns in cause.explained_ns.items() if ns / 2 <= back_ns.get(at, 0.0) < ns}
    return replace(cause, explained_ns={**cause.explained_ns, **lesser})


def _matters(cause: Cause, reviewed: Sequence[Reviewed], delta: float) -> bool:
    """Whether the cause is seen nearly always, and costs more than δ allows."""
    elapsed_ns = {one.attribution.iteration: one.elapsed_ns for one in reviewed}
    if len(cause.explained_ns) < JOB.nearly_all * len(reviewed):
        return False
    ratios = [elapsed_ns[i] / max(elapsed_ns[i] - ns, 1.0) for i, ns in cause.explained_ns.items()]
    return median(ratios) > delta


def _always_matters(cause: Cause, reviewed: Sequence[Reviewed], delta: float) -> bool:
    """Whether a cause costs more than δ allows in nearly each iteration by itself.

    Medians of stages differ by noise alone, and few stages or ranks average it badly.
    """
    elapsed_ns = {one.attribution.iteration: one.elapsed_ns for one in reviewed}
    costly = [elapsed_ns[i] > delta * (elapsed_ns[i] - ns) for i, ns in cause.explained_ns.items()]
    return sum(costly) >= JOB.nearly_all * len(reviewed)


def _slow_stage(reviewed: Sequence[Reviewed], topology: Topology, delta: float) -> Cause | None:
    """Find a pipeline stage all of whose ranks work longer than the ranks of the other stages.

    Its excess is the difference between the median work of its ranks and that of the ranks of the median other
    stage: the other stages wait for it in each iteration. Where several seem heavy (that of the first and the last
    one is extrapolated), the costliest is taken.
    """
    hides_work = median(one.beside_ratio for one in reviewed) > JOB.most
    work_ns = [_work_of_stages(one, topology, has_gaps=not hides_work) for one in reviewed]
    stages = sorted(set.intersection(*map(set, work_ns)))
    found = [_stage_cause(stage, work_ns, reviewed, topology) for stage in stages] if len(stages) > 1 else []
    slow = [cause for cause in found if _always_matters(cause, reviewed, delta)]
    return max(slow, key=lambda cause: median(cause.explained_ns.values()), default=None)


def _stage_cause(
    stage: int, work_ns: Sequence[Mapping[int, float]], reviewed: Sequence[Reviewed], topology: Topology
) -> Cause:
    """Make a cause of a stage: in which iterations it works longer than the median other one, and by how much."""
    explained = {}
    for one, work in zip(reviewed, work_ns, strict=True):
        # After its last message a stage may wait, and no operator need show it; work on micro-batches has no waiting.
        has_microbatches = stage in _stage_work(one.microbatch_ns, topology)
        to_last_ns = {} if has_microbatches else _stage_work(one.to_last_message_ns, topology)
        excess_ns = min(
            own_ns.get(stage, 0.0) - median([ns for other, ns in own_ns.items() if other != stage] or [0.0])
            for own_ns in (work, to_last_ns)
            if own_ns
        )
        if excess_ns > 0 and _works(one, stage, topology):
            explained[one.attribution.iteration] = excess_ns
    device = Device(STAGE, tuple(sorted(rank for rank, own in topology.stage_of.items() if own == stage)))
    return _as_sure_as_seen(Cause("slow_stage", ((device, 1.0),), frozenset(), None, explained), len(reviewed))


def _work_of_stages(one: Reviewed, topology: Topology, *, has_gaps: bool) -> dict[int, float]:
    """Return how long each stage works in an iteration, as far as that is known, ns.

    That is the work on micro-batches, and for other stages their gaps less the waiting. Stages that are through with
    their micro-batches wait for those that are not, and no operator need show it. So the rest of the gaps, beside
    micro-batches, grows or falls evenly along the pipeline, and a line through that of the stages between gives that
    of the first and the last one.
    """
    inner_ns = _stage_work(one.microbatch_ns, topology)
    gaps_ns = _stage_work(one.work_ns, topology) if has_gaps else {}
    rest_ns = {stage: gaps_ns[stage] - ns for stage, ns in inner_ns.items() if stage in gaps_ns}
    # A line needs two stages. Work and gaps are not mixed without it, since gaps contain waiting.
    if len(rest_ns) < 2:
        return inner_ns if len(inner_ns) > 1 else gaps_ns
    slope, base = np.polyfit(list(rest_ns), list(rest_ns.values()), 1).tolist()
    return {stage: ns - base - slope * stage for stage, ns in gaps_ns.items()} | inner_ns


def _stage_work(work_ns: Mapping[int, float], topology: Topology) -> dict[int, float]:
    """Return the median work of the ranks of each stage of which any is known, ns."""
    stage_of = topology.stage_of
    by_stage = grouped((stage_of[rank], ns) for rank, ns in work_ns.items() if rank in stage_of)
    return {stage: median(values) for stage, values in by_stage.items()}


def _works(one: Reviewed, stage: int, topology: Topology) -> bool:
    """Whether the time that is taken for a stage's work is not waiting.

    Unless its work on micro-batches is known, it must have most of the critical path, and no stage more of the path
    than its gaps contain: else some stage's work is within recvs that lay open, and gaps compare nothing.
    """
    if stage in _stage_work(one.microbatch_ns, topology):
        return True
    path_ns: dict[int, float] = {}
    for rank, ns in one.path_work_ns.items():
        if rank in topology.stage_of:
            at = topology.stage_of[rank]
            path_ns[at] = path_ns.get(at, 0.0) + ns
    gaps_ns = _stage_work(one.work_ns, topology)
    hides_work = any(ns > (1 + JOB.part) * gaps_ns.get(at, 0.0) for at, ns in path_ns.items())
    # Where the path is not known no stage has most of it.
    return path_ns.get(stage, 0.0) >= max(path_ns.values(), default=math.inf) and not hides_work


def _imbalance(reviewed: Sequence[Reviewed]) -> Cause | None:
    """Uneven data: much is lost to late ranks in each iteration, and it is never the same rank."""
    late: list[dict[Lane, float]] = [
        {lane: ns for lane, ns in one.attribution.path_excess_ns.items() if lane.kind == "work" and ns > 0}
        for one in reviewed
    ]
    totals: dict[Lane, float] = {}
    for lanes in late:
        for lane, ns in lanes.items():
            totals[lane] = totals.get(lane, 0.0) + ns
    # A rank with half of it is slow by itself: that is no matter of the data.
    if not totals or 2 * max(totals.values()) >= sum(totals.values()):
        return None
    explained = {one.attribution.iteration: uneven_ns(one.attribution) for one in reviewed}
    explained = {iteration: ns for iteration, ns in explained.items() if ns > 0}
    return Cause("imbalance", (), frozenset(), None, explained)


def late_against_stage(
    rank: Ints, work_ns: Numbers, operators: Ints, topology: Topology, most: Ints | None = None
) -> tuple[Ints, Numbers]:
    """Return the ranks with peers, and by how much each works longer than their lower median, ns.

    Peers are ranks of the same stage with the same `most`. If they were those that logged as many operators in this
    iteration, the ranks of a slow host would be on time wherever each other rank lost a row. Ranks with fewer
    operators than most of their peers are left out: the time in which a lost operator ran looks like work.

    `most`: how many operators each rank runs at most; None: those of this iteration. In the result peers are
    neighbours.
    """
    stage, most = topology.stages(rank), operators if most is None else most
    role, first = group_rows([stage, most])
    is_alone = np.bincount(role)[role] == 1  # it ran one more once: its peers' most is what it ran now
    role, first = group_rows([stage, np.where(is_alone, operators, most)])
    usual_ns = lower_medians(role, work_ns)  # the lower: half of the peers may be late
    has_peers = np.bincount(role, minlength=len(first)) > 1
    own = np.flatnonzero(has_peers[role] & (operators >= _modes(role, operators)[role]))
    own = own[stable_order(role[own])]
    return rank[own], work_ns[own] - usual_ns[role[own]]


def _modes(group: Ints, values: Ints) -> Ints:
    """Return the most frequent value of each group, of several the largest; groups are numbered without holes.

    >>> _modes(np.array([0, 1, 0, 0, 0]), np.array([4, 9, 7, 4, 7]))
    array([7, 9])
    """
    alike, first = group_rows([group, values])
    counts = np.bincount(alike, minlength=len(first))
    order = sort_rows([group[first], counts, values[first]])
    return values[first[order[run_ends(group[first[order]])]]]
