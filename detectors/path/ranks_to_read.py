"""How far to read: which ranks' operators the critical path of one iteration can depend on.

Reading all operators of an irregular iteration moves far more bytes than the path needs. So a few ranks are read
first, and the path is walked in their operators. Where it passes an operator whose last arriver may be among the
unread ranks, these are read next. Class summaries in the evidence show which ranks may be: all members of a
collective leave together, so the last arriver spends least time inside, and a rank whose shortest operator of the
class is longer than the least time that a rank that was read spent inside is not the last arriver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import median_low
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, medians, robust_sigma
from irregulars.detectors.arrays.row_keys import find_sorted, group_rows, pack_columns, stable_order
from irregulars.detectors.arrays.runs import run_starts
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import CARRIERS, Topology
from irregulars.detectors.path.critical_path import Attribution, path_steps
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.messages.records import RECV

WIDE: Final = 16
"""Of collectives of more ranks than this the evidence has summaries; all members of smaller ones are read."""


class Summaries(NamedTuple):
    """Class summaries of one iteration: of recvs, and of collectives of more than `WIDE` ranks. Equal lengths.

    ``communicator`` are the job's codes; ``peer`` is -1 for collectives; ``shortest_ns`` is the least
    elapsed of the ``counts`` operators.
    """

    rank: Ints
    communicator: Ints
    operator: Ints
    peer: Ints
    counts: Ints
    shortest_ns: Floats

    def take(self, rows: Flags) -> Summaries:
        """Return some of them."""
        return Summaries._make(column[rows] for column in self)


class LaneSums(NamedTuple):
    """Transfers of lanes, by class summaries: an upper bound of their mean time, and their number."""

    mean_ns: Mapping[Lane, float]
    counts: Mapping[Lane, int]


def path_rows(graph: OperatorGraph, iteration: int) -> list[int]:
    """Rows of the operators that the critical path passes, the last one first."""
    passed: list[int] = []
    for row, blocker in path_steps(graph, iteration):
        passed += [row] if blocker == row else [row, blocker]
    return passed


def wanted_ranks(
    graph: OperatorGraph,
    iteration: int,
    summaries: Summaries,
    topology: Topology,
    unread: Collection[int],
    worth_ns: float,
    slow: Callable[[], Collection[int]] | None = None,
) -> set[int]:
    """Return the ranks that must still be read before the critical path is certain.

    The set is empty if no unread rank could move any operator on the path by more than `worth_ns`.

    `unread`: all ranks that were not read. `slow`: returns the communicators whose collectives took longer than
    usual, as far as they were read (`detectors.path.critical_path.slow_collectives`). It is called only if members of
    a collective without a summary are missing, which matter only if that is slow. None if usual values are not
    known.
    """
    rows = np.array(path_rows(graph, iteration), dtype=np.int64)
    is_p2p = graph.is_p2p[rows] if len(rows) else np.empty(0, dtype=bool)
    wanted = _partners(graph, rows[is_p2p], topology).intersection(unread)
    least_ns = _least_inside(graph, rows[~is_p2p])
    narrow: dict[int, set[int]] = {}
    unread = frozenset(unread)
    for (communicator, operator), inside_ns in least_ns.items():
        members = topology.lane_set(Lane("collective", communicator))
        # Only wide collectives have summaries that show who may be last.
        if len(members) > WIDE:
            wanted |= _may_be_last(summaries, communicator, operator, members, unread, inside_ns - worth_ns)
        elif missing := set(members & unread):
            narrow[communicator] = missing
    # `slow` may have to learn usual values: it is called only if it can keep a rank from being read.
    is_asked = slow is not None and not wanted.issuperset(rank for missing in narrow.values() for rank in missing)
    known = slow() if slow is not None and is_asked else narrow.keys()
    return wanted.union(*(missing for communicator, missing in narrow.items() if communicator in known))


def _partners(graph: OperatorGraph, rows: Ints, topology: Topology) -> set[int]:
    """Return the partners of sends and recvs and of their batches, and all members of their (small) communicators."""
    partners: set[int] = set()
    if len(rows):
        messages = np.flatnonzero(graph.is_p2p)  # a row's batch began with it
        began = pack_columns([graph.block[messages], graph.start_ns[messages]])
        partners.update(graph.peer[messages[np.isin(began, began[np.searchsorted(messages, rows)])]].tolist())
    for communicator in set(graph.communicator[rows].tolist()):
        members = topology.members.get(communicator, ())
        if len(members) <= WIDE:
            partners.update(members)
    return partners


def _least_inside(graph: OperatorGraph, rows: Ints) -> dict[tuple[int, int], float]:
    """Return for each communicator and operator on the path the least time inside of a member that was read, ns.

    Of several such operators on the path it is that with the longest.
    """
    if len(rows) == 0:
        return {}
    is_own = np.isin(graph.group, graph.group[rows])
    group = graph.group[is_own]
    order = np.argsort(group, kind="stable")
    begins = run_starts(group[order])
    inside_ns = (graph.end_ns - graph.start_ns)[is_own][order]
    least_ns = np.minimum.reduceat(inside_ns, begins)
    first = np.flatnonzero(is_own)[order][begins]
    found: dict[tuple[int, int], float] = {}
    keys = zip(graph.communicator[first].tolist(), graph.operator[first].tolist(), strict=True)
    for key, ns in zip(keys, least_ns.tolist(), strict=True):
        found[key] = max(found.get(key, 0.0), float(ns))
    return found


def _may_be_last(
    summaries: Summaries,
    communicator: int,
    operator: int,
    members: Collection[int],
    unread: Collection[int],
    below_ns: float,
) -> set[int]:
    """Return the unread members that may have spent less time inside than all that were read, the likeliest few."""
    is_own = (summaries.communicator == communicator) & (summaries.operator == operator)
    rows = np.flatnonzero(is_own & (summaries.shortest_ns < below_ns))
    likeliest = rows[np.argsort(summaries.shortest_ns[rows], kind="stable")]
    # Of 100,000 members a few are asked for: no set of all that are missing is made for each operator on the path.
    missing = (rank for rank in summaries.rank[likeliest].tolist() if rank in members and rank in unread)
    return set(islice(missing, IRREGULAR.most_ranks))


# --- lanes beside a slow transfer -----------------------------------------------------------------------------------


def lane_sums(summaries: Summaries) -> LaneSums:
    """Return an upper bound of the mean transfer of each lane in the summaries, ns.

    For a pair that is the shortest recv, if its transfers are alike; for a collective the shortest operator of the
    member that spent least time inside, which was the last to arrive, or nearly so.
    """
    is_recv = summaries.operator == RECV
    mean_ns, counts = _sums_of_pairs(summaries.take(is_recv))
    rows = np.flatnonzero(~is_recv)
    group, first = group_rows([summaries.communicator[rows], summaries.operator[rows]])
    least_ns = np.full(len(first), np.inf)
    np.minimum.at(least_ns, group, summaries.shortest_ns[rows])
    communicators, lane = np.unique(summaries.communicator[rows[first]], return_inverse=True)
    numbers = summaries.counts[rows[first]]
    sums_ns = np.bincount(lane, least_ns * numbers)
    found = zip(communicators.tolist(), sums_ns.tolist(), np.bincount(lane, numbers).tolist(), strict=True)
    for communicator, ns, number in found:
        own = Lane("collective", communicator)
        mean_ns[own], counts[own] = ns / max(number, 1), int(number)
    return LaneSums(mean_ns, counts)


def _sums_of_pairs(recvs: Summaries) -> tuple[dict[Lane, float], dict[Lane, int]]:
    """Return the shortest recv of each pair, ns, and how many it had, in the order in which pairs appear."""
    group, first = group_rows([recvs.peer, recvs.rank])
    least_ns = np.full(len(first), np.nan)
    np.fmin.at(least_ns, group, recvs.shortest_ns)
    counts = np.bincount(group, recvs.counts, len(first)).astype(np.int64)
    order = np.argsort(first)
    rows = first[order]
    lanes = [Lane("pair", *ends) for ends in zip(recvs.peer[rows].tolist(), recvs.rank[rows].tolist(), strict=True)]
    of_lanes = (dict(zip(lanes, values[order].tolist(), strict=True)) for values in (least_ns, counts))
    mean_ns, numbers = of_lanes
    return mean_ns, numbers


def beside(summaries: Summaries, carried: Collection[int], topology: Topology) -> Summaries:
    """Return the summaries of lanes that touch these ranks: a few of a large job's, for `lane_sums` to sum up."""
    ranks = np.array(sorted(carried), dtype=np.int64)
    is_recv = summaries.operator == RECV
    collectives = np.unique(summaries.communicator[~is_recv])
    touching = [not topology.lane_set(Lane("collective", one)).isdisjoint(carried) for one in collectives.tolist()]
    at, _ = find_sorted(collectives, summaries.communicator)
    ends = np.isin(summaries.rank, ranks) | np.isin(summaries.peer, ranks)
    # The last entry: where there are recvs alone, and no collective, the lookup still needs a valid index.
    is_beside = np.where(is_recv, ends, np.array([*touching, False])[at])
    return summaries.take(is_beside)


def lanes_by_role(sums: LaneSums, topology: Topology) -> list[list[Lane]]:
    """Group the lanes that should take equally long, and that were used equally often.

    Lanes of one group are of the same stages, since the shortest recv holds waiting, which differs from stage to
    stage in a healthy pipeline.
    """
    lanes = list(sums.mean_ns)
    role = _roles(lanes, topology)
    counts = np.fromiter((sums.counts[lane] for lane in lanes), dtype=np.int64, count=len(lanes))
    group, first = group_rows([role, counts])
    order = stable_order(group)
    of_group = np.split(order, run_starts(group[order])[1:]) if len(lanes) else []
    return [[lanes[at] for at in of_group[number].tolist()] for number in np.argsort(first).tolist()]


def _roles(lanes: Sequence[Lane], topology: Topology) -> Ints:
    """Number the roles of lanes, as far as these lanes go."""
    role = np.empty(len(lanes), dtype=np.int64)
    is_pair = np.fromiter((lane.kind == "pair" for lane in lanes), dtype=bool, count=len(lanes))
    ends = np.array([(lane.first, lane.second) for lane in lanes if lane.kind == "pair"], dtype=np.int64)
    of_pair, first = group_rows(topology.pair_roles(*ends.reshape(-1, 2).T))
    role[is_pair] = of_pair
    others = [lane for lane in lanes if lane.kind != "pair"]  # of a large job a few
    role[~is_pair] = len(first) + topology.role_codes(others, of_any_stage=False)
    return role


def usual_sums(iterations: Iterable[LaneSums]) -> dict[Lane, tuple[float, float]]:
    """Return for each lane the median over regular iterations, and its robust standard deviation, ns."""
    lanes: dict[Lane, int] = {}
    sums = [(lanes.setdefault(lane, len(lanes)), ns) for one in iterations for lane, ns in one.mean_ns.items()]
    lane = np.array([own for own, _ in sums], dtype=np.int64)
    mean_ns = np.array([ns for _, ns in sums], dtype=np.float64)
    middle_ns = medians(lane, mean_ns)
    sigma_ns = MAD_TO_SIGMA * medians(lane, np.abs(mean_ns - middle_ns[lane]))
    return dict(zip(lanes, zip(middle_ns.tolist(), sigma_ns.tolist(), strict=True), strict=True))


def accused_lanes(attribution: Attribution, topology: Topology) -> list[Lane]:
    """Return the lanes of slow transfers on the path that leave a host: lanes beside them show whose device it is."""
    positive = {lane: ns for lane, ns in attribution.path_excess_ns.items() if ns > 0}
    total_ns = sum(positive.values())
    return [
        lane
        for lane, ns in sorted(positive.items())
        if lane.kind != "work" and ns >= JOB.part * total_ns and topology.crosses_network(lane)
    ]


def devices_of(lanes: Iterable[Lane], topology: Topology) -> set[int]:
    """Return all ranks on the NICs and switches that these lanes cross."""
    ranks = {rank for lane in lanes for rank in topology.lane_ranks(lane)}
    shared = (topology.shared(kind, rank) for kind in CARRIERS for rank in ranks)
    return ranks.union(*(device.ranks for device in shared if device is not None))


def lanes_beside(
    now: LaneSums, usual: Mapping[Lane, tuple[float, float]], carried: Collection[int], topology: Topology
) -> tuple[dict[Lane, LaneExcess], list[Lane]]:
    """Split the lanes that touch these ranks into those seen to be normal, and those that may be slow.

    Returns the normal lanes, for which an upper bound is enough; and those that may be slow, whose ends must be read
    to know: first those that stand out most, since behind a slow lane others wait for longer than its own transfers
    take.
    """
    quick: dict[Lane, LaneExcess] = {}
    slow: list[tuple[float, Lane]] = []
    carried = set(carried)
    for lane in now.mean_ns:
        # Without a usual value a lane can be neither slow nor quick.
        if lane not in usual or carried.isdisjoint(topology.lane_ranks(lane)):
            continue
        found = _at_most(now, lane, *usual[lane])
        if may_be_slow(found):
            slow.append((-found.excess_ns / _slow_from_ns(found), lane))
        else:
            quick[lane] = found
    return quick, [lane for _, lane in sorted(slow)[: IRREGULAR.most_ranks]]


def others_beside(
    lanes: Iterable[Lane], sums: LaneSums, roles: Sequence[Sequence[Lane]], topology: Topology
) -> dict[Lane, LaneExcess]:
    """Return the lanes of the other kind that share a rank with these, over the network, each against its role.

    Pairs cost next to nothing. But of all members of a slow collective the one with a slow NIC alone has slow pairs,
    so they show whose NIC it is. Beside a slow pair a wide collective, of which no member need be read, shows whether
    it is a NIC at all.
    """
    ends: dict[str, set[int]] = {"collective": set(), "pair": set()}  # of the lanes beside, by their kind
    for lane in lanes:
        ends["pair" if lane.kind == "collective" else "collective"].update(topology.lane_ranks(lane))
    found: dict[Lane, LaneExcess] = {}
    for role in roles:
        ranks = ends[role[0].kind]  # a role is of one kind
        own = [lane for lane in role if ranks and not ranks.isdisjoint(topology.lane_set(lane))]
        found |= against_role([lane for lane in own if topology.crosses_network(lane)], role, sums)
    return found


def against_role(lanes: Sequence[Lane], role: Sequence[Lane], sums: LaneSums) -> dict[Lane, LaneExcess]:
    """Hold some lanes of a role against the role's median; their times are upper bounds, by summaries."""
    if not lanes:
        return {}
    mean_ns = np.array([sums.mean_ns[lane] for lane in role])
    usual_ns = median_low(mean_ns.tolist())
    noise_ns = robust_sigma(mean_ns - usual_ns)
    return {lane: _at_most(sums, lane, usual_ns, noise_ns) for lane in lanes}


def may_be_slow(lane: LaneExcess) -> bool:
    """Whether a lane must be read to know that it is not slow: summaries are bounds from above."""
    return lane.excess_ns > _slow_from_ns(lane)


def _slow_from_ns(lane: LaneExcess) -> float:
    """Return the excess from which a lane may be slow, ns."""
    return max(JOB.part * lane.usual_ns, JOB.noise_sigmas * lane.noise_ns, 1.0)


def _at_most(sums: LaneSums, lane: Lane, usual_ns: float, noise_ns: float) -> LaneExcess:
    """Return a lane's excess as summaries bound it from above."""
    count, excess_ns = sums.counts[lane], sums.mean_ns[lane] - usual_ns
    return LaneExcess(excess_ns * count, usual_ns * count, noise_ns * count, np.nan, max(count, 1))


def ends_of(lanes: Iterable[Lane], topology: Topology) -> set[int]:
    """Return the ranks whose operators show these lanes: both ends of a pair, all members of a narrow collective."""
    found: set[int] = set()
    for lane in lanes:
        ranks = topology.lane_ranks(lane)
        found.update(ranks if lane.kind == "pair" or len(ranks) <= WIDE else ())
    return found


def is_known(lane: Lane, read: Collection[int], unread: Collection[int], topology: Topology) -> bool:
    """Return whether all ranks that show how long a lane's transfers took have been read."""
    ranks = topology.lane_ranks(lane)
    if lane.kind == "collective" and len(ranks) > WIDE:
        return any(rank in read for rank in ranks)
    return not any(rank in unread for rank in ranks)


def narrow_groups(ranks: Iterable[int], topology: Topology) -> Iterator[Lane]:
    """Yield the collectives with one of these ranks that leave a host, and that are too small to have summaries."""
    ranks = set(ranks)
    for communicator, members in topology.members.items():
        if 1 < len(members) <= WIDE and not ranks.isdisjoint(members):
            lane = Lane("collective", communicator)
            if topology.crosses_network(lane):
                yield lane
