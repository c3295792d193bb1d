"""From the symptom to the first cause: the critical path of an iteration, against what is usual.

The path starts at the operator that ended the iteration and goes back in time. Each operator on it first gives its
transfer (from the last partner's arrival to its end); then the path jumps to that partner, whose gap it was that all
had waited for; then to the operator before that gap, and so on to the beginning. So the path tiles the iteration with
transfers and with work of single ranks, and passes over all waiting: a victim's waits are not on it.

What the iteration took longer than usual is then the sum of what the pieces of the path took longer than the same
piece (same rank, communicator, operator, peer and place in the iteration) takes in regular iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from detectors.codes import group_rows, sort_rows
from detectors.medians import weighted_medians
from detectors.operator_graph import OperatorGraph, pack_class
from streams.records import RECV, SEND

Array = np.ndarray

_ORDINALS: Final = 1 << 20
_STRAY_TRANSFERS: Final = 1.2


class Lane(NamedTuple):
    """Where time is spent: ``work`` of a rank, a collective of a communicator, or the way from one rank to another.

    ``first`` is the rank, the communicator's code, or the sender; ``second`` the receiver (-1 elsewhere). Work of the
    rank -1 is everybody's: what all ranks took longer, as when sequences get longer.
    """

    kind: str
    first: int
    second: int = -1


EVERYBODY: Final = Lane("work", -1)


class Piece(NamedTuple):
    """One piece of the critical path: what took how long, and what it usually takes (NaN: never seen before).

    ``rank``, ``operator`` (code) and ``communicator`` (the job's code) are those of the operator that the time was
    spent in, or before which the rank worked.
    """

    lane: Lane
    rank: int
    operator: int
    communicator: int
    elapsed_ns: float
    usual_ns: float

    @property
    def excess_ns(self) -> float:
        """How much longer than usual."""
        return self.elapsed_ns - self.usual_ns


@dataclass(frozen=True, slots=True)
class Reference:
    """What is usual: medians over some regular iterations, by the place of an operator in the iteration.

    ``classes`` (ascending) are packed communicator, operator and peer; ``places`` (ascending) pack rank, class and
    ordinal; ``gap_ns``, ``transfer_ns`` and ``size_bytes`` belong to the places. ``lane_noise_ns``: for each lane of
    transfers its robust standard deviation over the iterations, and ``lane_usual_ns`` its median. ``operators``: how
    many each rank runs in an iteration.
    """

    classes: Array
    places: Array
    gap_ns: Array
    transfer_ns: Array
    size_bytes: Array
    lane_usual_ns: Mapping[Lane, float]
    lane_noise_ns: Mapping[Lane, float]
    lane_size_bytes: Mapping[Lane, float]
    iterations: tuple[int, ...]
    operators: Mapping[int, int] = field(default_factory=dict)


class LaneExcess(NamedTuple):
    """Transfers of one lane in one iteration: how much longer than usual, what is usual, and how noisy that is.

    ``size_bytes`` is what one rank gave to all of them; NaN where not known. ``slow_transfers`` says over how many of
    them the excess is spread: 1 where one transfer has it all, their number where all have the same. It is
    (Σx)² / Σx² of their excesses x, the participation number. ``transfers`` is how many there were.
    """

    excess_ns: float
    usual_ns: float
    noise_ns: float
    size_bytes: float
    slow_transfers: float = 1.0
    transfers: float = 1.0

    @property
    def is_stray(self) -> bool:
        """Whether one of several transfers has all of the excess: it hung, and what carries the lane is not slow."""
        return self.transfers > 1 and self.slow_transfers < _STRAY_TRANSFERS


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where one iteration's excess went.

    Parameters
    ----------
    path_excess_ns
        For each lane on the critical path what it took longer than usual; may be negative.
    pieces
        For each lane the piece of the path with the largest excess.
    lanes
        For each lane of transfers that was seen in the iteration and has a usual value, on the path or not.
    work_excess_ns
        For each rank the sum of its gaps over the usual, on the path or not.
    incomplete
        Ranks that logged fewer operators than usual: what lies beside a lost row looks longer than it was.
    """

    iteration: int
    path_excess_ns: Mapping[Lane, float]
    pieces: Mapping[Lane, Piece]
    lanes: Mapping[Lane, LaneExcess]
    work_excess_ns: Mapping[int, float]
    incomplete: frozenset[int] = frozenset()


def learn_reference(graph: OperatorGraph) -> Reference:
    """Learn what is usual from the rows of regular iterations."""
    packed = pack_class(class_columns(graph))
    classes = np.unique(packed)
    keys = place_keys(graph, np.searchsorted(classes, packed), len(classes))
    places, inverse = np.unique(keys, return_inverse=True)
    usual_ns, noise_ns, size_bytes = _lane_statistics(graph)
    return Reference(
        classes=classes,
        places=places,
        gap_ns=_median_by(inverse, graph.gap_ns, len(places)),
        transfer_ns=_median_by(inverse, graph.transfer_ns, len(places)),
        size_bytes=_median_by(inverse, np.nan_to_num(graph.size_bytes).astype(np.int64), len(places)),
        lane_usual_ns=usual_ns,
        lane_noise_ns=noise_ns,
        lane_size_bytes=size_bytes,
        iterations=tuple(np.unique(graph.iteration).tolist()),
        operators=_usual_operators(graph),
    )


def attribute(
    graph: OperatorGraph, iteration: int, reference: Reference, most_common: float = math.inf
) -> Attribution:
    """Say where the excess of one iteration of `graph` went, against the job's own past.

    ``most_common``: all ranks worked at most so many times as long as usual; of ranks that are not in the graph.
    """
    table = lane_table(graph)
    usual = {
        lane: (ns, reference.lane_noise_ns[lane], reference.lane_size_bytes[lane])
        for lane, ns in reference.lane_usual_ns.items()
    }
    gap_ns, transfer_ns = _usual(graph, reference)
    lanes = lane_excess(table, iteration, usual)
    factor = min(_common_factor(graph, iteration, gap_ns), most_common)
    attribution = attribute_against(graph, iteration, gap_ns, transfer_ns, lanes, factor)
    return replace(attribution, incomplete=_incomplete(graph, iteration, reference))


def _usual_operators(graph: OperatorGraph) -> dict[int, int]:
    """Operators that each rank runs in an iteration: the most that it logged of one, since rows only get lost."""
    _, first, counts = np.unique(graph.block, return_index=True, return_counts=True)
    ranks, inverse = np.unique(graph.rank[first], return_inverse=True)
    most = np.zeros(len(ranks), dtype=np.int64)
    np.maximum.at(most, inverse, counts)
    return dict(zip(ranks.tolist(), most.tolist(), strict=True))


def _incomplete(graph: OperatorGraph, iteration: int, reference: Reference) -> frozenset[int]:
    ranks, counts = np.unique(graph.rank[graph.iteration == iteration], return_counts=True)
    logged = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
    return frozenset(rank for rank, usual in reference.operators.items() if logged.get(rank, 0) < usual)


def attribute_against(
    graph: OperatorGraph,
    iteration: int,
    usual_gap_ns: Array,
    usual_transfer_ns: Array,
    lanes: Mapping[Lane, LaneExcess],
    common_factor: float = 1.0,
) -> Attribution:
    """Say where the excess of one iteration went, against what each row is said to take usually (NaN: not known).

    ``common_factor``: how many times as long all ranks worked. What the path has of that is everybody's work.
    """
    path_excess_ns: dict[Lane, float] = {}
    worst: dict[Lane, Piece] = {}
    common_ns = 0.0
    for piece in _walk(graph, iteration, usual_gap_ns * common_factor, usual_transfer_ns):
        if np.isnan(piece.excess_ns):
            continue
        if piece.lane.kind == "work":
            common_ns += piece.usual_ns * (1 - 1 / common_factor)
        path_excess_ns[piece.lane] = path_excess_ns.get(piece.lane, 0.0) + piece.excess_ns
        if piece.lane not in worst or piece.excess_ns > worst[piece.lane].excess_ns:
            worst[piece.lane] = piece
    if common_ns:
        path_excess_ns[EVERYBODY] = common_ns
    return Attribution(
        iteration=iteration,
        path_excess_ns=path_excess_ns,
        pieces=worst,
        lanes=_with_slow_transfers(lanes, graph, iteration, usual_transfer_ns),
        work_excess_ns=_work_excess(graph, iteration, usual_gap_ns * common_factor),
    )


def _common_factor(graph: OperatorGraph, iteration: int, usual_gap_ns: Array) -> float:
    """How many times as long as usual all ranks worked in one iteration, for whatever they worked on.

    Of each rank the median over its work, weighted by the usual time, so that a standstill at one place is no factor;
    of those the lower median, since of two ranks (or stages) the slower is the odd one.
    """
    rows = np.flatnonzero((graph.iteration == iteration) & (usual_gap_ns > 0))
    if len(rows) == 0:
        return 1.0
    ranks, rank = np.unique(graph.rank[rows], return_inverse=True)
    usual_ns = usual_gap_ns[rows]
    medians = np.sort(weighted_medians(rank, graph.gap_ns[rows] / usual_ns, usual_ns))
    factor = float(medians[(len(ranks) - 1) // 2])
    return factor if factor > 0 else 1.0


def _walk(graph: OperatorGraph, iteration: int, usual_gap_ns: Array, usual_transfer_ns: Array) -> Iterator[Piece]:
    """Yield the pieces of the path, the newest first."""
    for row, blocker in path_steps(graph, iteration):
        transfer_ns = float(graph.end_ns[row] - graph.ready_ns[row])
        yield _piece(graph, row, lane_of(graph, row), transfer_ns, usual_transfer_ns)
        work = Lane("work", int(graph.rank[blocker]))
        yield _piece(graph, blocker, work, float(graph.gap_ns[blocker]), usual_gap_ns)


def path_steps(graph: OperatorGraph, iteration: int) -> Iterator[tuple[int, int]]:
    """Go from the operator that ends the iteration back to its beginning: each row, and the row it waited for."""
    rows = np.flatnonzero(graph.iteration == iteration)
    row = int(rows[np.argmax(graph.end_ns[rows])]) if len(rows) else -1
    for _ in range(len(rows)):  # a row is visited once: each step goes back in time
        if row < 0:
            return
        blocker = int(graph.blocker[row])
        yield row, blocker
        row = int(graph.previous[blocker])


def path_work_ns(graph: OperatorGraph, iteration: int) -> dict[int, float]:
    """For each rank: what its own work has of the iteration's critical path, ns."""
    unknown = np.full(len(graph), np.nan)
    work: dict[int, float] = {}
    for piece in _walk(graph, iteration, unknown, unknown):
        if piece.lane.kind == "work":
            work[piece.rank] = work.get(piece.rank, 0.0) + piece.elapsed_ns
    return work


def _piece(graph: OperatorGraph, row: int, lane: Lane, elapsed_ns: float, usual_ns: Array) -> Piece:
    where = int(graph.rank[row]), int(graph.operator[row]), int(graph.communicator[row])
    return Piece(lane, *where, elapsed_ns, float(usual_ns[row]))


def lane_of(graph: OperatorGraph, row: int) -> Lane:
    """Lane of a row's transfer."""
    operator, rank, peer = int(graph.operator[row]), int(graph.rank[row]), int(graph.peer[row])
    if operator == SEND:
        return Lane("pair", rank, peer)
    return Lane("pair", peer, rank) if operator == RECV else Lane("collective", int(graph.communicator[row]))


def _usual(graph: OperatorGraph, reference: Reference) -> tuple[Array, Array]:
    """Gap and transfer that each row usually has; NaN where the place is new."""
    packed = pack_class(class_columns(graph))
    class_index, is_known_class = find(reference.classes, packed)
    keys = place_keys(graph, class_index, len(reference.classes))
    place, is_known = find(reference.places, keys)
    is_known &= is_known_class
    nan = np.full(len(graph), np.nan)
    if len(reference.places) == 0:
        return nan, nan
    gap_ns = np.where(is_known, reference.gap_ns[place], nan)
    transfer_ns = np.where(is_known, reference.transfer_ns[place], nan)
    return gap_ns, transfer_ns * _times_as_large(graph.size_bytes, reference.size_bytes[place])


def _times_as_large(size_bytes: Array, usual_bytes: Array) -> Array:
    """By what a transfer of another size than usual is expected to take longer: sequences may have got longer.

    1 where a size is not known.
    """
    is_known = (size_bytes > 0) & (usual_bytes > 0)
    return np.divide(size_bytes, usual_bytes, out=np.ones(len(size_bytes)), where=is_known)


def find(ascending: Array, values: Array) -> tuple[Array, Array]:
    """Index of each value in an ascending array, and whether it is there."""
    if len(ascending) == 0:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    index = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return index, ascending[index] == values


def class_columns(graph: OperatorGraph) -> dict[str, Array]:
    """Columns of a graph that `pack_class` packs."""
    return {"communicator": graph.communicator, "operator": graph.operator, "peer": graph.peer}


def place_keys(graph: OperatorGraph, class_index: Array, classes: int) -> Array:
    """Pack rank, class and ordinal of each row: the place of an operator in its iteration."""
    return (graph.rank * max(classes, 1) + class_index) * _ORDINALS + np.minimum(graph.ordinal, _ORDINALS - 1)


def _median_by(index: Array, values: Array, size: int) -> Array:
    """Median of the values of each index 0 to `size` - 1, each of which occurs."""
    order = sort_rows([index, values])
    counts = np.bincount(index, minlength=size)
    firsts = np.cumsum(counts) - counts
    ordered = values[order].astype(np.float64)
    return (ordered[firsts + (counts - 1) // 2] + ordered[firsts + counts // 2]) / 2


def _work_excess(graph: OperatorGraph, iteration: int, usual_gap_ns: Array) -> dict[int, float]:
    rows = np.flatnonzero((graph.iteration == iteration) & np.isfinite(usual_gap_ns))
    ranks, inverse = np.unique(graph.rank[rows], return_inverse=True)
    sums = np.bincount(inverse, weights=graph.gap_ns[rows] - usual_gap_ns[rows], minlength=len(ranks))
    return dict(zip(ranks.tolist(), sums.tolist(), strict=True))


# --- lanes of transfers ---------------------------------------------------------------------------------------------


class LaneTable(NamedTuple):
    """Transfers of each lane (first axis) in each iteration (second axis)."""

    lanes: list[Lane]
    iterations: Array
    sums_ns: Array
    counts: Array
    sizes_bytes: Array


def lane_table(graph: OperatorGraph) -> LaneTable:
    """Sum the transfers of each lane in each iteration.

    A collective's transfer is the smallest of its members' (the late have nothing left to wait for); a pair's is that
    of its recv, since a send may return before the bytes arrive.
    """
    rows = np.flatnonzero(~graph.is_p2p | (graph.operator == RECV))
    of_row, row, lane, lanes = _transfers(graph, rows)
    transfer_ns = np.full(len(row), np.iinfo(np.int64).max)
    np.minimum.at(transfer_ns, of_row, graph.transfer_ns[rows])
    iterations, at = np.unique(graph.iteration[row], return_inverse=True)
    shape = (len(lanes), len(iterations))
    cell = lane * max(shape[1], 1) + at

    def by_cell(weights: Array | None) -> Array:
        return np.bincount(cell, weights=weights, minlength=shape[0] * shape[1]).reshape(shape)

    return LaneTable(
        lanes=lanes,
        iterations=iterations,
        sums_ns=by_cell(transfer_ns),
        counts=by_cell(None),
        sizes_bytes=by_cell(graph.size_bytes[row]),
    )


class _Transfers(NamedTuple):
    """Transfers of some rows: a collective is one, however many members logged it; a pair is its recv's."""

    of_row: Array
    """Number of the transfer of each row."""
    row: Array
    """A row of each transfer."""
    lane: Array
    """Index of the lane of each transfer."""
    lanes: list[Lane]


def _transfers(graph: OperatorGraph, rows: Array) -> _Transfers:
    _, first, of_row = np.unique(graph.group[rows], return_index=True, return_inverse=True)
    row = rows[first]
    is_p2p = graph.is_p2p[row]
    ends = [is_p2p.astype(np.int64), np.where(is_p2p, graph.source[row], graph.communicator[row])]
    ends.append(np.where(is_p2p, graph.destination[row], -1))
    lane, first_of_lane = group_rows(ends)
    unique = np.stack([end[first_of_lane] for end in ends], axis=1).tolist()
    lanes = [Lane("pair" if is_pair else "collective", one, two) for is_pair, one, two in unique]
    return _Transfers(of_row, row, lane, lanes)


def _with_slow_transfers(
    lanes: Mapping[Lane, LaneExcess], graph: OperatorGraph, iteration: int, usual_transfer_ns: Array
) -> dict[Lane, LaneExcess]:
    """Count over how many transfers each lane's excess is spread."""
    is_seen = ~graph.is_p2p | (graph.operator == RECV)
    rows = np.flatnonzero((graph.iteration == iteration) & is_seen & np.isfinite(usual_transfer_ns))
    found = _transfers(graph, rows)
    excess_ns = np.full(len(found.row), np.inf)
    np.minimum.at(excess_ns, found.of_row, graph.transfer_ns[rows] - usual_transfer_ns[rows])
    excess_ns = np.maximum(excess_ns, 0.0)
    sums = np.bincount(found.lane, excess_ns, minlength=len(found.lanes))
    squares = np.bincount(found.lane, excess_ns**2, minlength=len(found.lanes))
    counts = np.divide(sums**2, squares, out=np.ones(len(sums)), where=squares > 0)
    slow = dict(zip(found.lanes, counts.tolist(), strict=True))
    return {lane: excess._replace(slow_transfers=slow.get(lane, 1.0)) for lane, excess in lanes.items()}


def _lane_statistics(graph: OperatorGraph) -> tuple[dict[Lane, float], dict[Lane, float], dict[Lane, float]]:
    """For each lane, of its mean transfer over the iterations: median, robust standard deviation, ns, and bytes."""
    table = lane_table(graph)
    usual_ns, noise_ns, size_bytes = {}, {}, {}
    for lane, sums, counts, sizes in zip(table.lanes, table.sums_ns, table.counts, table.sizes_bytes, strict=True):
        means = sums[counts > 0] / counts[counts > 0]
        median = float(np.median(means))
        usual_ns[lane] = median
        noise_ns[lane] = 1.4826 * float(np.median(np.abs(means - median)))
        size_bytes[lane] = float(np.median(sizes[counts > 0] / counts[counts > 0]))
    return usual_ns, noise_ns, size_bytes


def lane_excess(
    table: LaneTable, iteration: int, usual: Mapping[Lane, tuple[float, float, float]]
) -> dict[Lane, LaneExcess]:
    """Compare the lanes of one iteration with what is usual: mean transfer and its noise, ns, and its bytes."""
    at, is_there = find(table.iterations, np.array([iteration]))
    if not is_there[0]:
        return {}
    columns = [column[:, at[0]].tolist() for column in (table.sums_ns, table.counts, table.sizes_bytes)]
    found = {}
    for lane, total_ns, count, size_bytes in zip(table.lanes, *columns, strict=True):
        if count and lane in usual:
            mean_ns, noise_ns, mean_bytes = usual[lane]
            usual_ns = mean_ns * count
            if size_bytes > 0 and mean_bytes > 0:
                usual_ns *= size_bytes / (mean_bytes * count)
            found[lane] = LaneExcess(total_ns - usual_ns, usual_ns, noise_ns * count, size_bytes, 1.0, count)
    return found
