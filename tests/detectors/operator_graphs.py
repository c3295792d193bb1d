"""Operators written down one by one, as the graph takes them; times in any unit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN

FLOATS = ("elapsed_ns", "size_bytes")
NAMES = ("rank", "iteration", "communicator", "operator", "sequence", "peer", "start_ns", *FLOATS)


def row(
    rank: int,
    start: int | None,
    end: int | None,
    operator: str = "all_reduce",
    *,
    group: int = 0,
    sequence: int = 0,
    peer: int | None = None,
    iteration: int = 0,
    size: float = np.nan,
) -> dict[str, Any]:
    """One operator; None: not known."""
    return {
        "rank": rank,
        "iteration": iteration,
        "communicator": group,
        "operator": OPERATOR_CODES[operator],
        "sequence": sequence,
        "peer": UNKNOWN if peer is None else peer,
        "start_ns": UNKNOWN if start is None else start,
        "elapsed_ns": np.nan if start is None or end is None else float(end - start),
        "size_bytes": size,
    }


def columns_of(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {
        name: np.array([row[name] for row in rows], dtype=np.float64 if name in FLOATS else np.int64)
        for name in NAMES
    }


def exact_graph(rows: list[dict[str, Any]], entry: dict[tuple[int, int], int] | None = None) -> OperatorGraph:
    """Graph of times that are exact: those of these tests fit on a napkin, and would drown in a microsecond."""
    return build_graph(columns_of(rows), entry or {}, is_exact=True)


def graph_of(*rows: dict[str, Any], entry: dict[tuple[int, int], int] | None = None) -> OperatorGraph:
    return exact_graph(list(rows), entry)


def logged_graph(*rows: dict[str, Any], entry: dict[tuple[int, int], int] | None = None) -> OperatorGraph:
    """Graph of times as a log has them: what they can tell is measured from them."""
    return build_graph(columns_of(list(rows)), entry or {})


def at(graph: OperatorGraph, rank: int, start: int, operator: str | None = None) -> int:
    """Row of the operator of a rank that starts then."""
    is_it = (graph.rank == rank) & (graph.start_ns == start)
    if operator is not None:
        is_it &= graph.operator == OPERATOR_CODES[operator]
    (found,) = np.flatnonzero(is_it).tolist()
    return int(found)


@st.composite
def any_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Operators of few ranks, groups and times, so that ties, overlaps and lengths of zero are common."""
    rows: dict[Any, dict[str, Any]] = {}
    for _ in range(draw(st.integers(0, 24))):
        operator = draw(st.sampled_from(["all_reduce", "broadcast", "send", "recv"]))
        rank, start = draw(st.integers(0, 3)), draw(st.integers(-3, 12))
        peer = draw(st.integers(0, 3)) if operator in ("send", "recv") else None
        one = row(
            rank,
            start,
            start + draw(st.integers(0, 6)),
            operator,
            group=draw(st.integers(0, 1)),
            peer=peer,
            sequence=draw(st.integers(0, 2)),
            iteration=draw(st.integers(0, 1)),
        )
        rows[rank, operator, peer, one["communicator"], one["sequence"]] = one
    return list(rows.values())


RING = 4
WORK, QUICK, SLOW = 20, 10, 50
"""What comes before a round, and how long the two batches of a link last that is as usual, and that is slow."""


def ring_rows(*rounds: Collection[int], iteration: int = 0, size: int = RING) -> list[dict[str, Any]]:
    """Rows of one iteration; for each round which links are slow, called by their senders."""
    rows, begin = [], 1000 * iteration
    for at, slow_links in enumerate(rounds):
        starts = begin + WORK
        ends = [starts + (SLOW if {rank, (rank - 1) % size} & set(slow_links) else QUICK) for rank in range(size)]
        number: dict[str, Any] = {"sequence": iteration * len(rounds) + at, "iteration": iteration}
        for rank, end in enumerate(ends):
            rows.append(row(rank, starts, end, "send", peer=(rank + 1) % size, **number))
            rows.append(row(rank, starts, end, "recv", peer=(rank - 1) % size, **number))
        begin = max(ends)
    return rows


RANKS, BUCKETS = 6, 8
WORK_NS, TRANSFER_NS, LATER_NS = 100_000, 30_000, 4_000


def rows_of(
    iterations: int,
    late: Mapping[int, int],
    *,
    is_overlapped: bool,
    hung_ns: Mapping[int, int] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Rows of each rank, all a little unlike each other.

    ``late``: by iteration, the rank that works `LATER_NS` longer before each reduction. ``hung_ns``: by sequence, how
    much longer a transfer takes.
    """
    rows, free = [], 0
    for iteration in range(iterations):
        done = [free] * RANKS  # the rank's own work
        for bucket in range(BUCKETS):
            for rank in range(RANKS):
                uneven = 37 * ((7 * rank + 5 * bucket + 3 * iteration) % 11)
                done[rank] += WORK_NS + uneven + LATER_NS * (late.get(iteration) == rank)
            starts = [max(one, free) for one in done]
            number = iteration * BUCKETS + bucket
            free = max(starts) + TRANSFER_NS + hung_ns.get(number, 0)
            rows += [
                row(rank, start, free, sequence=number, iteration=iteration) for rank, start in enumerate(starts)
            ]
            if not is_overlapped:
                done = [free] * RANKS
    return rows
