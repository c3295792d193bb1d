"""Usual values by peers: ranks that do the same work in the same iteration.

A fault that is older than the recording has no healthy past to be held against. But a synchronous job has many ranks
in the same role: the same pipeline stage, the same place in the program. The time that most of them take for a
piece of work or for a transfer is the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, alike_codes, lower_medians, medians
from irregulars.detectors.arrays.row_keys import group_rows, sort_rows, sort_within
from irregulars.detectors.arrays.runs import begins_run, places_in_runs, run_numbers, starts_of
from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Attribution, attribute_against
from irregulars.detectors.path.graph_edges import NO_ORDINAL
from irregulars.detectors.path.lane_tables import LaneTable, lane_excess, lane_table
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.dtypes import Flags, Floats, Ints, Numbers
from irregulars.messages.records import SEND


def attribute_by_peers(graph: OperatorGraph, iteration: int, topology: Topology) -> Attribution:
    """Return where one iteration's time went beyond the time that peers take for the same work.

    Pieces of ranks without peers are left out, since nothing is known to compare them with.
    """
    usual = _usual(graph, topology)
    of_peers = lanes_by_peers(usual.table, iteration, topology, usual.read)
    lanes = lane_excess(usual.table, iteration, of_peers)
    attribution = attribute_against(graph, iteration, usual.gap_ns, usual.transfer_ns, lanes)
    return replace(attribution, is_by_peers=True)


def usual_times_of_peers(graph: OperatorGraph, topology: Topology) -> tuple[Floats, Floats]:
    """Return the gap and the transfer of each row's peers, ns; NaN for a row without peers."""
    usual = _usual(graph, topology)
    return usual.gap_ns, usual.transfer_ns


class _UsualOfPeers(NamedTuple):
    """Time that peers take for the work and the transfer of each row of a graph; NaN for a row without peers."""

    topology: Topology
    gap_ns: Floats
    transfer_ns: Floats
    table: LaneTable
    read: Set[int]  # the ranks of the rows


def _usual(graph: OperatorGraph, topology: Topology) -> _UsualOfPeers:
    usual = graph.derive("usual of peers", lambda: _learn(graph, topology))
    # The graph keeps the values for the topology of the first call, and may be asked with another one.
    return usual if usual.topology is topology else _learn(graph, topology)


def _learn(graph: OperatorGraph, topology: Topology) -> _UsualOfPeers:
    kind = _kinds(graph, topology)
    # Columns that agree, all of them, in rows that do the same work, in whichever iterations.
    stage = topology.stages(graph.rank)
    other = np.where(graph.is_p2p, graph.peer, graph.rank)
    way = np.where(graph.is_p2p, topology.ways(graph.rank, other), 0)  # up or down the pipeline
    program = _programs(graph, group_rows([kind, graph.operator, way])[0])
    work = [stage, program, topology.stages(other), kind, graph.operator, graph.ordinal]
    role = group_rows([graph.iteration, *work])[0]
    gap_ns = _usual_gaps(graph, role, group_rows(work)[0])
    # Members of one collective are not each other's peers in transfers: they share it.
    of_any_stage = _transfer_roles(graph, topology, kind)
    transfer_ns = _usual_transfers(of_any_stage, graph, JOB.often)
    of_stage_ns = _usual_transfers(group_rows([role, _half_read(graph)])[0], graph, JOB.another)
    # More peers are better; those of the own stage serve where too few are alike in all stages.
    transfer_ns = np.where(np.isnan(transfer_ns), of_stage_ns, transfer_ns)
    transfer_ns = np.where(graph.is_partial, np.nan, transfer_ns)
    return _UsualOfPeers(topology, gap_ns, transfer_ns, lane_table(graph), set(np.unique(graph.rank).tolist()))


def _usual_transfers(role: Ints, graph: OperatorGraph, least: int) -> Floats:
    """Return the usual transfer of each row's role, ns; each transfer counts once, however many members were read.

    Else the ranks that are read to know the slow ones better would make a slow transfer usual.
    """
    transfer, first = group_rows([role, graph.group])
    return _usual_of_peers(role[first], graph.group[first], graph.transfer_ns[first], least)[transfer]


def _usual_gaps(graph: OperatorGraph, role: Ints, place: Ints) -> Floats:
    """Return the gap that each row would have if its rank had worked as long as its peers did, ns.

    The work before an operator can be measured in three ways.

    * By the gap, if the rank works only after the operator before has ended.
    * By the time since that operator began, if the rank works on while it runs (gradients in buckets, layers fetched
      ahead).
    * By the time since the operator before in the same communicator ended. This is needed beside a late rank: all
      others wait for its gradients and work meanwhile, while the late rank and those that share collectives with it
      do not wait, and would seem to work longer.

    The right one measures work alone, and so varies least from iteration to iteration, against peers.

    A row without a gap was held up by the operator before it, and its work left no trace. So usual values are taken
    from rows that have a gap.

    `role`, `place`: number of each row's work, in its iteration and over all iterations.
    """
    own = group_rows([graph.rank, place])[0]
    measures = (graph.gap_ns, graph.since_previous_ns, graph.since_same_communicator_ns)
    is_free = graph.gap_ns > np.maximum(graph.slack_ns, JOB.negligible * graph.since_previous_ns)
    usual = [_usual_of_free_peers(role, graph.rank, values, is_free) for values in measures]
    jitter_ns = []  # of each measure the sum of distances to the median over iterations, by place
    for values, of_peers in zip(measures, usual, strict=True):
        apart_ns = np.nan_to_num(values - of_peers)
        jitter_ns.append(np.bincount(place, np.abs(apart_ns - medians(own, apart_ns)[own])))
    calmest = np.argmin(jitter_ns, axis=0)[place]  # the first, which is the gap, where all are alike
    found = usual[0]
    for number in (1, 2):
        longer_ns = measures[number] - usual[number]
        found = np.where(calmest == number, np.maximum(graph.gap_ns - longer_ns, 0.0), found)
    return found


def _transfer_roles(graph: OperatorGraph, topology: Topology, kind: Ints) -> Ints:
    """Number the roles of transfers: those with one number should take equally long, whatever their stage.

    They are of one iteration and operator, move about as many bytes (one replica's batch may be a little longer than
    another's), in communicators of one kind and size, within a host, a switch or beyond: uplinks of switches are
    shared. Stages do not count, since a switch may carry all transfers of a stage, and then only other stages show
    that it is slow. Messages of which one end was not read hold the waiting for it, and are apart.
    """
    codes = range(int(graph.communicator.max(initial=-1)) + 1)
    level = np.array([topology.network_level(Lane("collective", code)) for code in codes] or [0])[graph.communicator]
    p2p = np.flatnonzero(graph.is_p2p)
    pair, first = group_rows([graph.rank[p2p], graph.peer[p2p]])
    ends = zip(graph.rank[p2p][first].tolist(), graph.peer[p2p][first].tolist(), strict=True)
    level[p2p] = np.array([topology.network_level(Lane("pair", *own)) for own in ends], dtype=np.int64)[pair]
    other = np.where(graph.is_p2p, graph.peer, graph.rank)
    way = np.where(graph.is_p2p, np.where(graph.operator == SEND, 1, -1) * topology.ways(graph.rank, other), 0)
    size = alike_codes(graph.moved_bytes, JOB.alike)
    return group_rows([graph.iteration, kind, graph.operator, way, level, size, _half_read(graph)])[0]


def _half_read(graph: OperatorGraph) -> Ints:
    """Return 1 for messages to or from a rank of which nothing was read, 0 for other rows."""
    return (graph.is_p2p & ~np.isin(graph.peer, graph.rank)).astype(np.int64)


def _kinds(graph: OperatorGraph, topology: Topology) -> Ints:
    """Return a number for kind and size of each row's communicator, and as which of these its rank first used it.

    Ranks with the same program use theirs in the same order: of shards and replicas of data, both of kind dp, say.
    """
    codes = range(int(graph.communicator.max(initial=-1)) + 1)
    kind = np.array([topology.kind_code(code) for code in codes] or [0])[graph.communicator]
    # How many other communicators of its kind each row's rank had used before in the iteration
    use, first = graph.derive("uses", lambda: group_rows([graph.block, graph.communicator]))
    order = sort_rows([graph.block[first], kind[first], first])
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = places_in_runs(np.bincount(group_rows([graph.block[first], kind[first]])[0]))
    return group_rows([kind, turn[use]])[0]


def _programs(graph: OperatorGraph, kind: Ints) -> Ints:
    """Number the programs of the rows' ranks: two ranks have the same one if they run each kind equally often.

    This separates pipeline stages where none were announced.

    `kind`: number of each row's kind of operator, from 0 on.
    """
    if len(graph) == 0:
        return kind
    use, first = group_rows([graph.rank, kind, graph.communicator])
    # Counted by the highest ordinal over all iterations, so that lost rows count, also at an iteration's end.
    runs = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(runs, use, np.where(graph.ordinal == NO_ORDINAL, 0, graph.ordinal) + 1)
    rank = run_numbers(graph.rank[first])  # rows of a graph, and so these, are in the order of their ranks
    counts = np.zeros((int(rank[-1]) + 1, int(kind.max()) + 1), dtype=np.int64)
    np.add.at(counts, (rank, kind[first]), runs)
    program, _ = group_rows(list(counts.T))
    return program[run_numbers(graph.rank)]


def _usual_of_peers(role: Ints, owner: Ints, values: Ints, least: int) -> Floats:
    """Return the lower median of the values of each row's role; NaN where fewer than `least` owners share it.

    It is the lower one, since of two peers the slower is the odd one.
    """
    usual = np.full(len(role), np.nan)
    if len(role) == 0:
        return usual
    median = lower_medians(role, values).astype(np.float64)
    sizes = np.bincount(role)
    owners = sort_within(role, owner, len(sizes))
    is_new = begins_run(np.repeat(np.arange(len(sizes)), sizes), owners)
    has_peers = np.add.reduceat(is_new, starts_of(sizes), dtype=np.int64) >= least
    return np.where(has_peers[role], median[role], np.nan)


def _usual_of_free_peers(role: Ints, owner: Ints, values: Ints, is_free: Flags) -> Floats:
    """Return the usual values in each row's role; for a free row among free rows only, if they have enough owners."""
    usual = _usual_of_peers(role, owner, values, JOB.another)
    free = np.flatnonzero(is_free)
    of_free = _usual_of_peers(group_rows([role[free]])[0], owner[free], values[free], JOB.another)
    # Too few free peers: all peers, held up or not, are better than none.
    usual[free] = np.where(np.isnan(of_free), usual[free], of_free)
    return usual


def _spreads(role: Ints, members: Ints, mean_ns: Floats, usual_ns: Numbers) -> Floats:
    """Return the robust standard deviation in each row's role, ns.

    Where one device slows half of them, the median distance from the usual time is the device's cost. The lanes below
    the usual time are healthy, so the distance of the quickest one is another bound, if there are several.
    """
    spread_ns = MAD_TO_SIGMA * medians(role, np.abs(mean_ns - usual_ns))[role]
    below_ns = np.zeros(len(members))
    np.maximum.at(below_ns, role, usual_ns - mean_ns)
    return np.where(members[role] >= JOB.often, np.minimum(spread_ns, below_ns[role]), spread_ns)


def lanes_by_peers(
    table: LaneTable, iteration: int, topology: Topology, read: Set[int] | None = None
) -> dict[Lane, UsualLane]:
    """Return the usual time of each lane of one iteration: the lower median of the lanes in its role, and the spread.

    Lanes without peers are left out. Sizes are NaN, since lanes of one role move about as many bytes. `read`: ranks
    of which operators were read; None: all. Pairs with another rank hold the waiting for it, and are apart.
    """
    at = int(np.searchsorted(table.iterations, iteration))
    if at == len(table.iterations) or table.iterations[at] != iteration:
        return {}
    used = np.flatnonzero(table.counts[:, at])
    counts, lanes = table.counts[used, at], [table.lanes[number] for number in used.tolist()]
    mean_ns = table.sums_ns[used, at] / counts
    sizes = alike_codes(table.sizes_bytes[used, at], JOB.alike)
    is_half = [lane.kind == "pair" and read is not None and not {*lane[1:]} <= read for lane in lanes]
    found: dict[Lane, UsualLane] = {}
    for of_any_stage, least in ((False, JOB.another), (True, JOB.often)):
        role, first = group_rows(
            [topology.role_codes(lanes, of_any_stage=of_any_stage), sizes, counts, np.array(is_half, dtype=np.int64)]
        )
        members = np.bincount(role, minlength=len(first))
        usual_ns = lower_medians(role, mean_ns)[role]
        spread_ns = _spreads(role, members, mean_ns, usual_ns)
        known = np.flatnonzero(members[role] >= least)
        rows = zip(known.tolist(), usual_ns[known].tolist(), spread_ns[known].tolist(), strict=True)
        found |= {lanes[number]: UsualLane(ns, spread, math.nan) for number, ns, spread in rows}
    return found
