"""Whether evidence alone shows that a large job may have a standing fault, and which ranks to read to find it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_median, medians
from irregulars.detectors.arrays.row_keys import find_sorted, stable_order
from irregulars.detectors.blame.standing_causes import late_against_stage
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.iteration_rows import IterationRows
from irregulars.detectors.path.ranks_to_read import (
    LaneSums,
    against_role,
    ends_of,
    lane_sums,
    lanes_by_role,
    may_be_slow,
    others_beside,
)
from irregulars.dtypes import Floats, Ints, Numbers
from irregulars.grouping import grouped


class ToReview(NamedTuple):
    """The ranks that a review of a large job has to read, and the summaries that chose them."""

    is_odd: bool  # whether evidence shows anything odd at all
    ranks: set[int]  # the ranks with which to begin: the slowest one, and the odd ones
    peers: set[int]  # the ranks of each stage to compare them with
    # Of each iteration its lanes by the summaries, and groups of them that should take equally long
    sums: Sequence[LaneSums] = ()
    roles: Sequence[Sequence[Sequence[Lane]]] = ()


def ranks_to_review(
    rows: Sequence[IterationRows], codes: Mapping[str, int], topology: Topology, delta: float
) -> ToReview:
    """Look through regular iterations for late ranks, slow lanes and heavy stages, each held against its peers."""
    worth_ns = JOB.most * (delta - 1) * median(one.elapsed_ns for one in rows)
    late = [lateness_of(one, topology, rows) for one in rows]
    sums = [lane_sums(one.summaries(codes)) for one in rows]
    odd = _odd_ranks(late, worth_ns)
    roles = [lanes_by_role(one, topology) for one in sums]
    slow = _slow_lanes(sums, roles, worth_ns)
    below = lanes_of_slow_switch(sums, roles, topology)
    # With uneven data another rank is late each time: the latest one of each iteration counts.
    is_uneven = median(float(np.max(late_ns)) if len(late_ns) else 0.0 for _, late_ns in late) > worth_ns
    far = _far_pairs(sums, roles)
    is_odd = bool(odd or slow or below or far) or is_uneven or _has_heavy_stage(rows, topology, worth_ns)
    slowest = int(rows[-1].columns["rank"][np.argmax(rows[-1].columns["elapsed_ns"])])
    # In turns: none of the lists may crowd out the others.
    turns = chain.from_iterable(zip_longest(odd, _ends_in_order(slow, topology), _ends_in_order(far, topology)))
    oddest = list(dict.fromkeys(one for one in turns if one is not None))[: IRREGULAR.most_ranks]
    beside = _often_slow([others_beside(slow, own, alike, topology) for own, alike in zip(sums, roles, strict=True)])
    ranks = {slowest, *oddest, *ends_of(below, topology), *ends_of(beside, topology)}
    return ToReview(is_odd, ranks, _some_of_each_stage(rows[-1], topology), sums, roles)


def _ends_in_order(lanes: Sequence[Lane], topology: Topology) -> list[int]:
    return [rank for lane in lanes for rank in sorted(ends_of([lane], topology))]


def late_of(rows: IterationRows, topology: Topology, others: Iterable[IterationRows] = ()) -> dict[int, float]:
    """Return the lateness of `lateness_of` by rank, ns."""
    rank, late_ns = lateness_of(rows, topology, others)
    return dict(zip(rank.tolist(), late_ns.tolist(), strict=True))


def lateness_of(
    rows: IterationRows, topology: Topology, others: Iterable[IterationRows] = ()
) -> tuple[Ints, Numbers]:
    """Return ranks, and by how much each works longer than its stage, ns.

    `others`: more iterations of the job, which tell by the most operators that each rank logged which are peers. A
    rank that now logged fewer than most of its peers lost some, so that its work is not known.
    """
    iterations = [rows, *others]
    rank, operators = (np.concatenate([one.columns[name] for one in iterations]) for name in ("rank", "operators"))
    # At the place of each rank's number, the most operators that it logged in one of them
    most = np.zeros(int(rank.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, rank, operators)
    own = rows.columns
    return late_against_stage(own["rank"], own["work_ns"], own["operators"], topology, most[own["rank"]])


def _odd_ranks(late: Sequence[tuple[Ints, Numbers]], worth_ns: float) -> list[int]:
    """Return the ranks whose median lateness exceeds `worth_ns`, the latest first."""
    ranks = late[-1][0]
    # A rank counts as on time, 0, in an iteration that has no row of it.
    table = np.zeros((len(late), len(ranks)))
    for own, (rank, late_ns) in zip(table, late, strict=True):
        order = stable_order(rank)
        at, is_known = find_sorted(rank[order], ranks)
        own[is_known] = late_ns[order][at[is_known]]
    typical_ns = np.median(table, axis=0)
    odd = np.flatnonzero(typical_ns > worth_ns)
    found: list[int] = ranks[odd[np.argsort(-typical_ns[odd], kind="stable")]].tolist()
    return found[: IRREGULAR.most_ranks]


def _slow_lanes(
    iterations: Sequence[LaneSums], roles: Sequence[Sequence[Sequence[Lane]]], worth_ns: float
) -> list[Lane]:
    """Return the lanes that lose more than this to others in the same role in the median iteration, slowest first."""
    pairs = list(zip(iterations, roles, strict=True))
    # Of most lanes no iteration lost as much, and no more has to be known of them.
    slow: set[Lane] = set()
    for sums, of_role in pairs:
        for lanes in of_role:
            totals_ns = _totals_ns(lanes, sums)
            slow.update(lanes[at] for at in np.flatnonzero(totals_ns - lower_median(totals_ns) > worth_ns).tolist())
    excess: dict[Lane, list[float]] = {}
    for sums, of_role in pairs if slow else ():
        for lanes in of_role:
            some = [lane for lane in lanes if lane in slow]
            usual_ns = lower_median(_totals_ns(lanes, sums)) if some else 0.0
            for ns, lane in sorted(zip(_totals_ns(some, sums).tolist(), some, strict=True)):
                excess.setdefault(lane, []).append(ns - usual_ns)
    typical = {lane: median(own) for lane, own in excess.items()}
    return sorted((lane for lane, ns in typical.items() if ns > worth_ns), key=lambda lane: -typical[lane])[
        : IRREGULAR.most_ranks
    ]


def _totals_ns(lanes: Sequence[Lane], sums: LaneSums) -> Floats:
    return np.array([sums.mean_ns[lane] * sums.counts[lane] for lane in lanes], dtype=np.float64)


def _far_pairs(iterations: Sequence[LaneSums], roles: Sequence[Sequence[Sequence[Lane]]]) -> list[Lane]:
    """Return the pairs that take a multiple of their role's time in most iterations, slowest first.

    Each by itself may cost little. But where a NIC slows a collective, and with it all collectives of the role alike,
    nothing else shows it.
    """
    return _often_slow(
        [
            {
                lane: pair
                for role in of_role
                for lane, pair in against_role(_far(role, sums), role, sums).items()
                if pair.excess_ns > pair.usual_ns  # twice as long is no matter of distance or load
            }
            for sums, of_role in zip(iterations, roles, strict=True)
        ]
    )


def _far(role: Sequence[Lane], sums: LaneSums) -> list[Lane]:
    """Return the pairs of a role that may be far: a few, of thousands."""
    if role[0].kind != "pair":  # a role is of one kind
        return []
    mean_ns = np.array([sums.mean_ns[lane] for lane in role])
    least_ns = 1.5 * lower_median(mean_ns)  # well below twice: rounding must lose none
    return [role[at] for at in np.flatnonzero(~(mean_ns < least_ns)).tolist()]


def _often_slow(iterations: Sequence[Mapping[Lane, LaneExcess]]) -> list[Lane]:
    """Return the lanes that may be slow in most iterations, slowest first."""
    ratios = grouped(
        (lane, own.excess_ns / max(own.usual_ns, 1.0))
        for lanes in iterations for lane, own in lanes.items() if may_be_slow(own)
    )  # fmt: skip
    often = [lane for lane, own in ratios.items() if 2 * len(own) > len(iterations)]
    return sorted(often, key=lambda lane: (-median(ratios[lane]), lane))[: IRREGULAR.most_ranks]


def _has_heavy_stage(rows: Sequence[IterationRows], topology: Topology, worth_ns: float) -> bool:
    """Whether one stage works more than `worth_ns` longer than the median stage."""
    excess = []
    for one in rows:
        stage = topology.stages(one.columns["rank"])
        work = [float(np.median(one.columns["work_ns"][stage == number])) for number in np.unique(stage)]
        # One stage alone has nothing to be held against.
        excess.append(max(work) - median(work) if len(work) > 1 else 0.0)
    return median(excess) > worth_ns


def _some_of_each_stage(rows: IterationRows, topology: Topology) -> set[int]:
    """Return ranks of each stage, evenly spread over it, so that few share a host."""
    rank = rows.columns["rank"]
    stage = topology.stages(rank)
    peers: set[int] = set()
    for number in np.unique(stage):
        own = rank[stage == number]
        count = min(IRREGULAR.most_ranks, len(own))
        peers.update(own[np.linspace(0, len(own) - 1, count).astype(np.int64)].tolist())
    return peers


# --------------------------------------------------------------------------------------------------------------------
# Switches that evidence alone makes suspects: slow in many lanes, of which none costs much by itself.
# A lane is held against the typical lane of its role, and a switch by the typical lane that passes it. That accuses
# nobody: it chooses whose operators to read.


_ROUNDING: Final = 1e-9  # more than the difference between two ways to take a mean of two


def lanes_of_slow_switch(
    iterations: Sequence[LaneSums], roles: Sequence[Sequence[Sequence[Lane]]], topology: Topology
) -> list[Lane]:
    """Choose lanes to read where one switch looks slow; none where no switch does.

    `roles`: of each iteration the lanes that should take as long (`detectors.path.ranks_to_read.lanes_by_role`).
    Returns its slowest lanes, and its fastest ones; and, of those that pass the switches at their other ends, some
    that do not pass it: they show which of the two it is.
    """
    ratios = _typical_ratios(iterations, roles, topology)
    if not _may_be_slow(ratios, topology):
        return []
    passing = grouped((switch, lane) for lane in ratios for switch in topology.switches(topology.lane_ranks(lane)))
    typical = {s: median(ratios[lane] for lane in own) for s, own in passing.items() if len(own) >= JOB.often}
    slowest = max(sorted(typical), key=lambda switch: typical[switch], default=None)
    if slowest is None or typical[slowest] < math.log(JOB.twice):
        return []
    by_ratio = sorted(passing[slowest], key=lambda lane: -ratios[lane])
    own = list(dict.fromkeys([*by_ratio[: IRREGULAR.most_ranks], *by_ratio[-IRREGULAR.most_ranks :]]))
    others = sorted(topology.switches(rank for lane in own for rank in topology.lane_ranks(lane)) - {slowest})
    below = set(by_ratio)
    beside = {switch: [lane for lane in passing[switch] if lane not in below] for switch in others}
    return own + [lane for lanes in beside.values() for lane in lanes[: max(IRREGULAR.most_ranks // len(beside), 1)]]


def _typical_ratios(
    iterations: Iterable[LaneSums], roles: Iterable[Sequence[Sequence[Lane]]], topology: Topology
) -> dict[Lane, float]:
    """For each pair over the network the logarithm of its time over that of its role; the median over iterations."""
    lanes: dict[Lane, int] = {}
    at: list[Ints] = []
    logs: list[float] = []
    for sums, of_role in zip(iterations, roles, strict=True):
        for alike in of_role:
            own = [lane for lane in alike if sums.mean_ns[lane] > 0]
            if len(own) >= JOB.often and own[0].kind == "pair" and topology.crosses_network(own[0]):
                mean_ns = np.array([sums.mean_ns[lane] for lane in own])
                logs += map(math.log, (mean_ns / lower_median(mean_ns)).tolist())
                at.append(np.array([lanes.setdefault(lane, len(lanes)) for lane in own]))
    if not lanes:
        return {}
    return dict(zip(lanes, medians(np.concatenate(at), np.array(logs)).tolist(), strict=True))


def _may_be_slow(ratios: Mapping[Lane, float], topology: Topology) -> bool:
    """Whether a switch may look slow; without a list of a large job's lanes by switch, as mostly none does."""
    if not ratios:
        return False
    ends = np.array([(lane.first, lane.second) for lane in ratios], dtype=np.int64)
    below = topology.switch_codes(ends)  # a row of two for each lane
    below[below[:, 0] == below[:, 1], 1] = -1  # a lane passes each switch once
    lane, _ = np.nonzero(below >= 0)
    switch, counts = np.unique(below[below >= 0], return_inverse=True, return_counts=True)[1:]
    typical = medians(switch, np.array(list(ratios.values()))[lane]) if len(lane) else np.empty(0)
    least = math.log(JOB.twice) - _ROUNDING
    return bool((typical[counts >= JOB.often] >= least).any())
