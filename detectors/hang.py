"""Who keeps everybody waiting for ever: operators that some ranks entered and that never ended.

A rank that waits inside an operator is a victim if somebody else is missing from it. The missing one may wait inside
another operator itself, for somebody else again; who is missing and waits nowhere is the one to look at. Where nobody
is missing, the operator itself broke: then the ranks that stopped inside, while others came out, are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from detectors.codes import group_rows
from detectors.operator_graph import pack_class
from detectors.topology import Topology
from streams.records import RECV, SEND, UNKNOWN

Array = np.ndarray

Operation = tuple[int, int, int, int]
"""Communicator, sequence, and sender and receiver of p2p (-1 elsewhere)."""


class Hang(NamedTuple):
    """What hangs.

    Parameters
    ----------
    ranks
        Those to look at: that did not arrive, or that stopped inside.
    waiting
        How many ranks are inside an operator that has not ended.
    communicator, operator
        Codes of the operator in which most of them wait.
    since_ns
        When the first of them entered, ns since the epoch, its own clock; None if not known.
    has_arrived
        Whether `ranks` stopped inside.
    """

    ranks: tuple[int, ...]
    waiting: int
    communicator: int
    operator: int
    since_ns: int | None
    has_arrived: bool


def find_hang(columns: Mapping[str, Array], topology: Topology, trusted: Collection[int]) -> Hang | None:
    """Find who is missing from operators that never ended.

    Parameters
    ----------
    columns
        Rows of the last iterations of all ranks, as `detectors.operator_graph.build_graph` takes them.
    trusted
        Ranks that are logged and lost no rows: only of them a missing row means that they did not arrive.
    """
    open_rows = np.flatnonzero(np.isnan(columns["elapsed_ns"]))
    if len(open_rows) == 0:
        return None
    inside: dict[int, Operation] = {}
    for row in open_rows.tolist():
        inside[int(columns["rank"][row])] = _operation(columns, row)
    arrived = _arrivals(columns, set(inside.values()))
    missing = {one: _expected(one, topology).intersection(trusted) - arrived[one].keys() for one in arrived}
    accused = {rank for one in set(inside.values()) for rank in missing[one] if rank not in inside}
    has_arrived = not accused
    if has_arrived:
        accused = _stopped_inside(inside, arrived)
    if not accused:
        return None
    return _hang(accused, inside, columns, open_rows, has_arrived)


def ranks_without_gaps(columns: Mapping[str, Array]) -> set[int]:
    """Ranks of whose operators none is missing: their sequences have no holes, on any communicator."""
    group, first = group_rows([columns["rank"], pack_class(columns)])
    sequence = columns["sequence"]
    lowest, highest = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), -1)
    np.minimum.at(lowest, group, sequence)
    np.maximum.at(highest, group, sequence)
    has_holes = highest - lowest + 1 != np.bincount(group, minlength=len(first))
    rank = columns["rank"]
    return set(rank.tolist()) - set(rank[first[has_holes]].tolist())


def _operation(columns: Mapping[str, Array], row: int) -> Operation:
    rank, peer, operator = (int(columns[name][row]) for name in ("rank", "peer", "operator"))
    ends = (rank, peer) if operator == SEND else (peer, rank) if operator == RECV else (-1, -1)
    return int(columns["communicator"][row]), int(columns["sequence"][row]), *ends


def _arrivals(columns: Mapping[str, Array], wanted: Collection[Operation]) -> dict[Operation, dict[int, bool]]:
    """For each of these operations: the ranks that entered it, and whether they came out."""
    arrived: dict[Operation, dict[int, bool]] = {one: {} for one in wanted}
    sequences = np.array(sorted({one[1] for one in wanted}))
    for row in np.flatnonzero(np.isin(columns["sequence"], sequences)).tolist():
        one = _operation(columns, row)
        if one in arrived:
            arrived[one][int(columns["rank"][row])] = bool(np.isfinite(columns["elapsed_ns"][row]))
    return arrived


def _expected(one: Operation, topology: Topology) -> set[int]:
    communicator, _, source, destination = one
    return set(topology.members.get(communicator, ())) if source < 0 else {source, destination}


def _stopped_inside(inside: Mapping[int, Operation], arrived: Mapping[Operation, Mapping[int, bool]]) -> set[int]:
    """Ranks inside an operator that other ranks have left."""
    return {rank for rank, one in inside.items() if any(arrived[one].values())}


def _hang(
    accused: set[int], inside: Mapping[int, Operation], columns: Mapping[str, Array], rows: Array, has_arrived: bool
) -> Hang:
    communicators = columns["communicator"][rows].tolist()
    communicator = max(sorted(set(communicators)), key=communicators.count)
    row = rows[communicators.index(communicator)]
    starts = columns["start_ns"][rows]
    known = starts[starts != UNKNOWN]
    since_ns = int(known.min()) if len(known) else None
    waiting = len(inside.keys() - accused)
    return Hang(tuple(sorted(accused)), waiting, communicator, int(columns["operator"][row]), since_ns, has_arrived)
