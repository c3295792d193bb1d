"""What is usual, told by peers: ranks that do the same work in the same iteration.

A fault that is older than the recording has no healthy past to be held against. But a synchronous job has many ranks
in the same role: the same pipeline stage, the same place in the program. What most of them take for a piece of work
or for a transfer is what it takes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, medians
from irregulars.detectors.arrays.row_keys import group_rows, sort_rows, sort_within
from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Attribution, attribute_against
from irregulars.detectors.path.lane_tables import LaneTable, lane_excess, lane_table
from irregulars.detectors.path.operator_graph import NO_ORDINAL, OperatorGraph
from irregulars.streams.messages.records import OPERATORS, SEND

Array = np.ndarray

_MAX_TURNS: Final = 1 << 16
_SCRAMBLE: Final = np.uint64(0x9E3779B97F4A7C15)

_LAUNCH_SHARE: Final = 0.01  # of the time since the operator before began: a shorter gap is what a launch takes

MIN_PEERS: Final = 2
"""Ranks (or lanes) in a role before they say anything of one another."""

MIN_PEERS_OF_ANY_STAGE: Final = 4
"""The same for transfers of different stages, which are less alike."""


def attribute_by_peers(graph: OperatorGraph, iteration: int, topology: Topology) -> Attribution:
    """Say where one iteration's time went beyond what peers take for the same.

    Ranks without peers are held against nothing: their pieces are left out.
    """
    usual = graph.derive("usual of peers", lambda: _learn(graph, topology))
    if usual.topology is not topology:
        usual = _learn(graph, topology)
    lanes = lane_excess(usual.table, iteration, lanes_by_peers(usual.table, iteration, topology))
    return attribute_against(graph, iteration, usual.gap_ns, usual.transfer_ns, lanes)


class _UsualOfPeers(NamedTuple):
    """What peers take for each row of a graph, for all iterations of it at once; NaN without peers."""

    topology: Topology
    gap_ns: Array
    transfer_ns: Array
    table: LaneTable


def _learn(graph: OperatorGraph, topology: Topology) -> _UsualOfPeers:
    work = _roles(graph, topology)
    role = group_rows([graph.iteration, *work])[0]
    gap_ns = _usual_gaps(graph, role, group_rows(work)[0])
    # Members of one collective are not each other's peers in transfers: they share it.
    of_any_stage = _transfer_roles(graph, topology)
    transfer_ns = _usual_of_peers(of_any_stage, graph.group, graph.transfer_ns, MIN_PEERS_OF_ANY_STAGE)
    of_stage_ns = _usual_of_peers(role, graph.group, graph.transfer_ns)
    transfer_ns = np.where(np.isnan(transfer_ns), of_stage_ns, transfer_ns)
    transfer_ns = np.where(graph.is_partial, np.nan, transfer_ns)
    return _UsualOfPeers(topology, gap_ns, transfer_ns, lane_table(graph))


def _usual_gaps(graph: OperatorGraph, role: Array, place: Array) -> Array:
    """Gap that each row would have if its rank had worked as its peers did, ns.

    There are three measures of the work before an operator. It is the gap, where the operator before keeps its rank
    from working. Where the rank works on meanwhile (gradients in buckets, layers fetched ahead), it is the time since
    that operator began, or the time since the operator before in the same communicator ended. The last one is needed
    beside a late rank: all others wait for its gradients and hide their work behind that, while the late rank and
    those that share collectives with it do not wait and would seem to work longer. Which measure holds, the noise
    tells: the one that varies least from iteration to iteration, against peers, is the work alone.

    A row without a gap was held up by the operator before it, and its work left no trace. So how long work takes is
    told by rows that have a gap.

    Parameters
    ----------
    role, place
        The number of a row's work, in its iteration and over all iterations.
    """
    own = group_rows([graph.rank, place])[0]
    measures = (graph.gap_ns, graph.since_previous_ns, graph.since_same_communicator_ns)
    is_free = graph.gap_ns > np.maximum(graph.slack_ns, _LAUNCH_SHARE * graph.since_previous_ns)
    usual = [_usual_of_free_peers(role, graph.rank, values, is_free) for values in measures]
    restless_ns = [
        np.bincount(place, _unrest(own, np.nan_to_num(values - of_peers)))
        for values, of_peers in zip(measures, usual, strict=True)
    ]
    calmest = np.argmin(restless_ns, axis=0)[place]  # the gap itself, where all are alike
    found = usual[0]
    for number in (1, 2):
        longer_ns = measures[number] - usual[number]
        found = np.where(calmest == number, np.maximum(graph.gap_ns - longer_ns, 0.0), found)
    return found


def _unrest(own: Array, apart_ns: Array) -> Array:
    """How far each value is from the median of its rank and place over the iterations."""
    return np.asarray(np.abs(apart_ns - medians(own, apart_ns)[own]))


def _roles(graph: OperatorGraph, topology: Topology) -> list[Array]:
    """Columns in which rows agree that do the same work, of whatever iteration."""
    stage = topology.stages(graph.rank)
    other = np.where(graph.is_p2p, graph.peer, graph.rank)
    kinds = np.array([topology.kind_code(code) for code in range(int(graph.communicator.max(initial=-1)) + 1)] or [0])
    kind = kinds[graph.communicator]
    is_unknown = kind == topology.kind_code(-1)
    if is_unknown.any():
        kind = np.where(is_unknown, -1 - _turns(graph), kind)  # nobody said what it is: by its turn
    way = np.where(graph.is_p2p, topology.ways(graph.rank, other), 0) + 1  # up or down the pipeline
    program = _programs(graph, ((kind + _MAX_TURNS) * len(OPERATORS) + graph.operator) * 3 + way)
    return [stage, program, topology.stages(other), kind, graph.operator, graph.ordinal]


def _transfer_roles(graph: OperatorGraph, topology: Topology) -> Array:
    """Give transfers of the same iteration that should take as long the same number: of whatever stage.

    As many bytes, of the same operator, in a communicator of the same kind and size, over the same kind of network: a
    switch may carry all transfers of a stage, and then only other stages tell that it is slow.
    """
    codes = range(int(graph.communicator.max(initial=-1)) + 1)
    kinds = np.array([topology.kind_code(code) for code in codes] or [0])[graph.communicator]
    is_unknown = kinds == topology.kind_code(-1)
    if is_unknown.any():
        kinds = np.where(is_unknown, -1 - _turns(graph), kinds)
    crosses = np.array([topology.crosses_network(Lane("collective", code)) for code in codes] or [False])
    hosts = topology.host_codes(max(int(graph.rank.max(initial=0)), int(graph.peer.max(initial=0))) + 1)
    is_apart = hosts[graph.rank] != hosts[np.where(graph.is_p2p, graph.peer, graph.rank)]
    is_crossing = np.where(graph.is_p2p, is_apart, crosses[graph.communicator]).astype(np.int64)
    other = np.where(graph.is_p2p, graph.peer, graph.rank)
    way = np.where(graph.is_p2p, np.where(graph.operator == SEND, 1, -1) * topology.ways(graph.rank, other), 0)
    size = np.nan_to_num(graph.size_bytes).astype(np.int64)
    return group_rows([graph.iteration, kinds, graph.operator, way, is_crossing, size])[0]


def _turns(graph: OperatorGraph) -> Array:
    """Which of the communicators, in the order in which its rank first uses them in the iteration, each row is of."""
    use, first = graph.derive("uses", lambda: group_rows([graph.block, graph.communicator]))
    order = sort_rows([graph.block[first], first])
    turn = np.empty(len(order), dtype=np.int64)
    starts = np.searchsorted(graph.block[first][order], graph.block[first][order])
    turn[order] = np.arange(len(order)) - starts
    return np.minimum(turn[use], _MAX_TURNS - 1)


def _programs(graph: OperatorGraph, code: Array) -> Array:
    """Give rows of ranks with the same program, the same operators as often, the same number.

    Tells pipeline stages apart where nobody announced them: by a sum of scrambled codes, which no order changes.
    """
    if len(graph) == 0:
        return code
    use, first = group_rows([graph.rank, code, graph.communicator])
    scrambled = (code[first].astype(np.uint64) + np.uint64(1)) * _SCRAMBLE
    scrambled ^= scrambled >> np.uint64(29)
    # Counted by ordinals, and over all iterations, so that rows that were lost count, also at an iteration's end.
    runs = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(runs, use, np.where(graph.ordinal == NO_ORDINAL, 0, graph.ordinal) + 1)
    is_first = np.diff(graph.rank[first], prepend=-1) != 0
    sums = np.add.reduceat(scrambled * _SCRAMBLE * runs.astype(np.uint64), np.flatnonzero(is_first))
    owner = np.empty(int(graph.rank.max()) + 1, dtype=np.int64)
    owner[graph.rank[first]] = np.cumsum(is_first) - 1
    return np.unique(sums, return_inverse=True)[1][owner[graph.rank]]


def _usual_of_peers(role: Array, owner: Array, values: Array, least: int = MIN_PEERS) -> Array:
    """Lower median of the values of each role; NaN where fewer than `least` owners share it.

    The lower one, since of two peers the slower is the odd one.
    """
    usual = np.full(len(role), np.nan)
    if len(role) == 0:
        return usual
    sizes = np.bincount(role)
    firsts = np.cumsum(sizes) - sizes
    median = sort_within(role, values, len(sizes))[firsts + (sizes - 1) // 2].astype(np.float64)
    owners = sort_within(role, owner, len(sizes))
    is_new = np.ones(len(role), dtype=bool)
    np.not_equal(owners[1:], owners[:-1], out=is_new[1:])
    is_new[firsts] = True
    has_peers = np.add.reduceat(is_new, firsts, dtype=np.int64) >= least
    return np.where(has_peers[role], median[role], np.nan)


def _usual_of_free_peers(role: Array, owner: Array, values: Array, is_free: Array) -> Array:
    """Usual values: of free rows those of the free rows in their role, where these have peers; else those of all."""
    usual = _usual_of_peers(role, owner, values)
    free = np.flatnonzero(is_free)
    of_free = _usual_of_peers(group_rows([role[free]])[0], owner[free], values[free])
    usual[free] = np.where(np.isnan(of_free), usual[free], of_free)
    return usual


def lanes_by_peers(table: LaneTable, iteration: int, topology: Topology) -> dict[Lane, UsualLane]:
    """For each lane of the iteration: lower median of the mean transfers in its role, their spread; NaN for bytes."""
    at = int(np.searchsorted(table.iterations, iteration))
    if at == len(table.iterations) or table.iterations[at] != iteration:
        return {}
    used = np.flatnonzero(table.counts[:, at])
    counts, lanes = table.counts[used, at], [table.lanes[number] for number in used.tolist()]
    mean_ns = table.sums_ns[used, at] / counts
    sizes = np.nan_to_num(table.sizes_bytes[used, at]).astype(np.int64)
    found: dict[Lane, UsualLane] = {}
    for of_any_stage, least in ((False, MIN_PEERS), (True, MIN_PEERS_OF_ANY_STAGE)):
        role, first = group_rows([topology.role_codes(lanes, of_any_stage=of_any_stage), sizes, counts])
        members = np.bincount(role, minlength=len(first))
        usual_ns = _middles(role, mean_ns, members)[0][role]
        lower_ns, upper_ns = _middles(role, np.abs(mean_ns - usual_ns), members)
        spread_ns = MAD_TO_SIGMA * ((lower_ns + upper_ns) / 2)[role]
        known = np.flatnonzero(members[role] >= least)
        rows = zip(known.tolist(), usual_ns[known].tolist(), spread_ns[known].tolist(), strict=True)
        found |= {lanes[number]: UsualLane(ns, spread, math.nan) for number, ns, spread in rows}
    return found


def _middles(group: Array, values: Array, sizes: Array) -> tuple[Array, Array]:
    """Lower and upper median of each group, numbered from 0 without holes."""
    ordered = values[np.lexsort((values, group))]
    firsts = np.cumsum(sizes) - sizes
    return ordered[firsts + (sizes - 1) // 2], ordered[firsts + sizes // 2]
