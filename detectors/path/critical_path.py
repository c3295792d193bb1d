"""From the symptom to the first cause: the critical path of an iteration, against usual times.

The path starts at the operator that ended the iteration and goes back in time. Each operator on it first gives its
transfer (from the last partner's arrival to its end); then the path jumps to that partner, whose gap it was that all
had waited for; then to the operator before that gap, and so on to the beginning. So the path tiles the iteration with
transfers and with work of single ranks, and passes over all waiting: a victim's waits are not on it.

The excess of the iteration is then the sum of the excesses of these pieces, each compared with the same piece (same
rank, communicator, operator, peer and place in the iteration) in regular iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_median, round_to_bits, weighted_medians
from irregulars.detectors.job.lanes import EVERYBODY, Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.peak_caps import Rates
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.lane_tables import (
    LaneColumns,
    lane_columns,
    lane_excess,
    lane_of,
    lane_table,
    with_slow_transfers,
)
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.usual_by_past import (
    Reference,
    UsualTransfers,
    incomplete_ranks,
    usual_times,
    usual_transfers,
)
from irregulars.dtypes import Floats, Ints

Derived = TypeVar("Derived")
_WAITS_KNOWN: Final = 8  # lanes of the path whose waits are kept: an explanation shows fewer
_WORK_BITS: Final = 15  # significant ones of the excess in each snapshot: 3 us of a rank that is late by 100 ms


class Piece(NamedTuple):
    """One piece of the critical path: its time, and the usual time of the same piece (NaN: never seen before).

    ``rank``, ``operator`` (code) and ``communicator`` (the job's code) are those of the operator that the time was
    spent in, or before which the rank worked. ``waiting`` ranks waited there for the end of a rank's work, of them
    ``waited_rank`` longest (`waited_ns`); 0: none, or not computed (`attribute_against`).
    """

    lane: Lane
    rank: int
    operator: int
    communicator: int
    elapsed_ns: float
    usual_ns: float
    waiting: int = 0
    waited_rank: int = -1
    waited_ns: float = 0.0

    @property
    def excess_ns(self) -> float:
        """How much longer than usual it took."""
        return self.elapsed_ns - self.usual_ns


class _Derived:
    """Keeps values derived from an object that never changes, beside its fields: no state of a worker holds them."""

    __slots__ = ("_derived",)

    _derived: dict[str, Any]

    def _derive(self, name: str, make: Callable[[], Derived]) -> Derived:
        """Return the value computed under this name before; else compute it, and keep it."""
        try:
            known = self._derived
        except AttributeError:  # nothing was yet
            known = {}
            object.__setattr__(self, "_derived", known)  # the value is frozen
        if name not in known:
            known[name] = make()
        found: Derived = known[name]
        return found


@dataclass(frozen=True, slots=True)
class Attribution(_Derived):
    """Where one iteration's excess went."""

    iteration: int
    # How much longer than usual each lane on the critical path took; may be negative
    path_excess_ns: Mapping[Lane, float]
    pieces: Mapping[Lane, Piece]  # for each lane the piece of the path with the largest excess
    # For each lane of transfers that was seen in the iteration and has a usual value, on the path or not
    lanes: Mapping[Lane, LaneExcess]
    # How much longer than usual each rank worked, on the path or not: the sum over its gaps
    work_excess_ns: Mapping[int, float]
    # Ranks that logged fewer operators than usual: the piece beside a lost row looks longer than it was
    incomplete: frozenset[int] = frozenset()
    # How much longer than usual the iteration took; None while unknown. The path's parts may add up to more: without
    # the excess of one of them, some of the time would have been spent waiting for another.
    excess_ns: float | None = None
    # Peak rates of ranks' NICs, sent and received, as ratios to the usual values
    rates: Rates = field(default_factory=dict)
    swings: tuple[Swing, ...] = ()  # how steadily ranks' NICs moved while operators of the path's communicators ran
    # Whether the usual values are those of peers in the same iteration, and not of the job's past
    is_by_peers: bool = False
    # Of collectives that were slow: the communicator, by the job's code, and the rank that left first
    left_first: tuple[tuple[int, int], ...] = ()

    def held_against_ns(self, *, is_work: bool) -> float:
        """Return the excess that a cause is held against, ns: the parts of the path; those of work less their chance.

        At each step of each iteration some rank is last by chance, so that the path of an iteration has parts of work
        that add up to more than it took longer. Not more than half of all parts is taken for such chance, since the
        usual time is not exact.
        """
        parts_ns = sum(ns for ns in self.path_excess_ns.values() if ns > 0)
        if self.excess_ns is None or not is_work:
            return parts_ns
        return min(parts_ns, max(self.excess_ns, parts_ns / 2))

    @property
    def lane_columns(self) -> LaneColumns:
        """`lanes` as arrays."""
        return self._derive("lanes", lambda: lane_columns(self.lanes))

    @property
    def work_columns(self) -> tuple[Ints, Floats]:
        """`work_excess_ns` as arrays: ranks, and the excess of each, ns."""
        own = self.work_excess_ns
        return self._derive(
            "work",
            lambda: (np.fromiter(own, np.int64, len(own)), np.fromiter(own.values(), np.float64, len(own))),
        )

    @property
    def rate_columns(self) -> tuple[Ints, Floats]:
        """`rates` as arrays: ranks, and a row of both ratios for each."""
        own = self.rates
        return self._derive(
            "rates",
            lambda: (np.fromiter(own, np.int64, len(own)), np.array(list(own.values()), np.float64).reshape(-1, 2)),
        )


def attribute(
    graph: OperatorGraph, iteration: int, reference: Reference, most_common: float = math.inf
) -> Attribution:
    """Return where the excess of one iteration of `graph` went, against the job's own past.

    ``most_common`` is an upper bound of how many times as long as usual all ranks worked, known from evidence also of
    ranks that are not in the graph.
    """
    table = lane_table(graph)
    gap_ns, transfer_ns, hidden_ns = usual_times(graph, reference)
    lanes = lane_excess(table, iteration, reference.lanes)
    longer = min(_common_factor(graph, iteration, gap_ns), most_common) - 1
    # Nothing makes work twice as quick: where most ranks' gaps are that short, they wait in operators instead.
    longer = longer if longer > JOB.most - 1 else 0.0
    common_ns = longer * gap_ns
    # An operator hides no more of longer work than always: so the gap after it is longer by more than the factor.
    most_ns = max(longer, 0.0) * np.nan_to_num(hidden_ns)
    common_ns += np.clip(graph.gap_ns - gap_ns - common_ns, 0.0, most_ns)
    attribution = attribute_against(graph, iteration, gap_ns, transfer_ns, lanes, common_ns)
    return replace(attribution, incomplete=incomplete_ranks(graph, iteration, reference))


def attribute_against(
    graph: OperatorGraph,
    iteration: int,
    usual_gap_ns: Floats,
    usual_transfer_ns: Floats,
    lanes: Mapping[Lane, LaneExcess],
    common_ns: Floats | float = 0.0,
) -> Attribution:
    """Return where the excess of one iteration went, by the usual gap and transfer of each row (NaN: not known).

    ``common_ns``: how much longer than usual each gap is since all ranks worked longer. On the path it is
    `EVERYBODY`'s.
    """
    usual_gap_ns = usual_gap_ns + common_ns
    path_excess_ns: dict[Lane, float] = {}
    worst: dict[Lane, Piece] = {}
    rows: dict[Lane, int] = {}
    blockers: list[int] = []
    for piece, row, blocker in _walk(graph, iteration, usual_gap_ns, usual_transfer_ns):
        lane, excess_ns = piece.lane, piece.excess_ns
        # A piece that was never seen before has no usual time to exceed.
        if math.isnan(excess_ns):
            continue
        if lane.kind == "work":
            blockers.append(blocker)
        path_excess_ns[lane] = path_excess_ns.get(lane, 0.0) + excess_ns
        if lane not in worst or excess_ns > worst[lane].excess_ns:
            worst[lane], rows[lane] = piece, row
    # Waits are for people: of the costliest pieces alone, as a path of a large job has thousands.
    costly = nlargest(_WAITS_KNOWN, worst, key=lambda lane: (path_excess_ns[lane], lane))
    for lane in costly:
        if lane.kind == "work":
            worst[lane] = _with_waits(worst[lane], graph, rows[lane])
    if everybody_ns := float(np.broadcast_to(common_ns, len(graph))[blockers].sum()):
        path_excess_ns[EVERYBODY] = everybody_ns
    return Attribution(
        iteration=iteration,
        path_excess_ns=path_excess_ns,
        pieces=worst,
        lanes=with_slow_transfers(lanes, graph, iteration, usual_transfer_ns),
        work_excess_ns=_work_excess(graph, iteration, usual_gap_ns),
    )


def path_steps(graph: OperatorGraph, iteration: int) -> Iterator[tuple[int, int]]:
    """Go from the operator that ends the iteration back to its beginning: each row, and the row it waited for."""
    rows = np.flatnonzero(graph.iteration == iteration)
    row = int(rows[np.argmax(graph.end_ns[rows])]) if len(rows) else -1
    blockers, previous = graph.blocker, graph.previous
    for _ in range(len(rows)):  # a row is visited once: each step goes back in time
        if row < 0:
            return
        blocker = blockers.item(row)
        yield row, blocker
        row = previous.item(blocker)


def path_collectives(graph: OperatorGraph, iteration: int) -> Ints:
    """Return the rows of the collectives on the critical path, the last one first."""
    rows = [row for row, _ in path_steps(graph, iteration)]
    return np.array([row for row in rows if not graph.is_p2p[row]], dtype=np.int64)


def slow_collectives(
    graph: OperatorGraph, rows: Ints, usual: Reference | UsualTransfers, worth_ns: float
) -> set[int]:
    """Return the communicators whose collectives on the critical path took more than `worth_ns` longer than usual.

    It is also an upper bound of the time by which a member that is missing from the graph may have come later.

    `rows`: the collectives on the path (`path_collectives`). `usual`: of their communicators at least.
    """
    usual_ns = np.nan_to_num(usual_transfers(graph, rows, usual))  # never seen before: all of it is new
    excess_ns: dict[int, float] = {}
    columns = (graph.communicator[rows], graph.transfer_ns[rows].astype(np.float64), usual_ns)
    for communicator, elapsed_ns, ns in zip(*(column.tolist() for column in columns), strict=True):
        excess_ns[communicator] = excess_ns.get(communicator, 0.0) + elapsed_ns - ns
    return {communicator for communicator, ns in excess_ns.items() if ns > worth_ns}


def path_work_ns(graph: OperatorGraph, iteration: int) -> dict[int, float]:
    """Return for each rank how much of the iteration's critical path is its own work, ns."""
    unknown = np.full(len(graph), np.nan)
    work: dict[int, float] = {}
    for piece, *_ in _walk(graph, iteration, unknown, unknown):
        if piece.lane.kind == "work":
            work[piece.rank] = work.get(piece.rank, 0.0) + piece.elapsed_ns
    return work


def _with_waits(piece: Piece, graph: OperatorGraph, row: int) -> Piece:
    """Return a piece of work with the ranks that waited for its end, in the collective or message of a row."""
    own = np.flatnonzero(graph.group == graph.group[row])
    # A send may be over before its receiver comes: it waited no longer than it lasted.
    wait_ns = np.minimum(graph.ready_ns[own], graph.end_ns[own]) - graph.start_ns[own]
    wait_ns[graph.rank[own] == piece.rank] = 0
    waiting = int((wait_ns > 0).sum())
    if not waiting:
        return piece
    longest = int(np.argmax(wait_ns))
    return piece._replace(
        waiting=waiting, waited_rank=int(graph.rank[own[longest]]), waited_ns=float(wait_ns[longest])
    )


def _walk(
    graph: OperatorGraph, iteration: int, usual_gap_ns: Floats, usual_transfer_ns: Floats
) -> Iterator[tuple[Piece, int, int]]:
    """Yield the pieces of the path, the newest first, each with the row that it is of or led to, and its blocker."""
    steps = np.array(list(path_steps(graph, iteration)), dtype=np.int64).reshape(-1, 2)
    rows, blockers = steps.T
    slow = _slow_parts(graph, rows, usual_transfer_ns)
    columns = (
        slow,
        rows, blockers, *_where(graph, slow), graph.transfer_ns[rows].astype(np.float64), usual_transfer_ns[rows],
        *_where(graph, blockers), graph.gap_ns[blockers].astype(np.float64), usual_gap_ns[blockers],
    )  # fmt: skip
    for part, row, blocker, *piece in zip(*(column.tolist() for column in columns), strict=True):
        yield Piece(lane_of(graph, part), *piece[:5]), row, blocker
        # The blocker's gap is the work that all others waited for; a row that waited for nobody is its own blocker.
        yield Piece(Lane("work", piece[5]), *piece[5:]), row, blocker


def _slow_parts(graph: OperatorGraph, rows: Ints, usual_transfer_ns: Floats) -> Ints:
    """Return for each row the part of its batch whose message has the largest excess; itself if it is in no batch."""
    batches = np.flatnonzero(graph.is_batched & np.isin(graph.batch, graph.batch[rows]))
    if not len(batches):
        return rows
    usual_ns = usual_transfer_ns[batches]
    longer_ns = graph.own_transfer_ns[batches] - np.nan_to_num(usual_ns)
    # Where the other end or the usual time is not known, this is only a bound, and yields to a part that is surely
    # slow.
    is_bound = np.isnan(usual_ns) | (np.bincount(graph.group)[graph.group[batches]] < 2)
    longer_ns = np.where(is_bound, longer_ns / 2, longer_ns)
    part = np.arange(len(graph))
    order = batches[np.argsort(longer_ns, kind="stable")]
    part[graph.batch[order]] = order  # the last one written is the slowest
    return np.where(graph.is_batched[rows], part[graph.batch[rows]], rows)


def _where(graph: OperatorGraph, rows: Ints) -> tuple[Ints, Ints, Ints]:
    return graph.rank[rows], graph.operator[rows], graph.communicator[rows]


def _common_factor(graph: OperatorGraph, iteration: int, usual_gap_ns: Floats) -> float:
    """Return how many times as long as usual all ranks worked in one iteration.

    That is the median over each rank's work, weighted by the usual time, so that a standstill at one place is no
    factor; and of these the lower median, since of two ranks (or stages) the slower is the odd one.
    """
    rows = np.flatnonzero((graph.iteration == iteration) & (usual_gap_ns > 0))
    # No work is known to compare: as usual.
    if len(rows) == 0:
        return 1.0
    _, rank = np.unique(graph.rank[rows], return_inverse=True)
    usual_ns = usual_gap_ns[rows]
    factor = lower_median(weighted_medians(rank, graph.gap_ns[rows] / usual_ns, usual_ns))
    return factor if factor > 0 else 1.0


def _work_excess(graph: OperatorGraph, iteration: int, usual_gap_ns: Floats) -> dict[int, float]:
    rows = np.flatnonzero((graph.iteration == iteration) & np.isfinite(usual_gap_ns))
    ranks, inverse = np.unique(graph.rank[rows], return_inverse=True)
    sums = np.bincount(inverse, weights=graph.gap_ns[rows] - usual_gap_ns[rows], minlength=len(ranks))
    return dict(zip(ranks.tolist(), round_to_bits(sums, _WORK_BITS).tolist(), strict=True))
