"""What is usual: learned from regular iterations, by the place of an operator in its iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows, sort_within
from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.path.lane_tables import lane_table, usual_lanes
from irregulars.detectors.path.operator_graph import OperatorGraph, pack_class

Array = np.ndarray

_ORDINALS: Final = 1 << 20
_FIRST: Final = -1  # place before the first operators of a rank's iteration
_NEW: Final = -2  # place of an operator that no regular iteration had

CLEARLY: Final = 0.5**0.5
"""Deviations differ clearly by this factor: what comes on top of the noise of work is as large as that."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What is usual: medians over some regular iterations, by the place of an operator in the iteration.

    ``classes`` (ascending) are packed communicator, operator and peer; ``places`` (ascending) pack rank, class and
    ordinal; ``previous`` (the place of the operator that had ended last before; -1: none), ``start_ns`` and
    ``end_ns`` (from the first start of the rank's iteration), ``gap_ns``, ``since_ns``
    (`OperatorGraph.since_previous_ns`), ``is_overlapped`` (whether the rank works on while the operator before
    runs), ``transfer_ns`` and ``size_bytes`` belong to the places. ``lanes``: what is usual for each lane of
    transfers. ``operators``: how many each rank runs in an iteration.
    """

    classes: Array
    places: Array
    previous: Array
    start_ns: Array
    end_ns: Array
    gap_ns: Array
    since_ns: Array
    is_overlapped: Array
    transfer_ns: Array
    size_bytes: Array
    lanes: Mapping[Lane, UsualLane]
    iterations: tuple[int, ...]
    operators: Mapping[int, int] = field(default_factory=dict)


def learn_reference(graph: OperatorGraph) -> Reference:
    """Learn what is usual from the rows of regular iterations."""
    packed = pack_class(class_columns(graph))
    classes = np.unique(packed)
    keys = place_keys(graph, np.searchsorted(classes, packed), len(classes))
    inverse, first = group_rows([keys])
    places = keys[first]
    begun_ns = _block_starts(graph)
    gap_ns = _median_by(inverse, graph.gap_ns, len(places))
    since_ns = _median_by(inverse, graph.since_previous_ns, len(places))
    end_ns = _median_by(inverse, graph.end_ns - begun_ns, len(places))
    return Reference(
        classes=classes,
        places=places,
        previous=_most_common(inverse, graph.of_previous(inverse, _FIRST), len(places), end_ns),
        start_ns=_median_by(inverse, graph.start_ns - begun_ns, len(places)),
        end_ns=end_ns,
        gap_ns=gap_ns,
        since_ns=since_ns,
        is_overlapped=_overlapped(
            places % (max(len(classes), 1) * _ORDINALS),
            inverse,
            np.abs(graph.gap_ns - gap_ns[inverse]),
            np.abs(graph.since_previous_ns - since_ns[inverse]),
        ),
        transfer_ns=_median_by(inverse, graph.transfer_ns, len(places)),
        size_bytes=_median_by(inverse, np.nan_to_num(graph.size_bytes).astype(np.int64), len(places)),
        lanes=usual_lanes(lane_table(graph)),
        iterations=tuple(np.unique(graph.iteration).tolist()),
        operators=_usual_operators(graph),
    )


def usual_times(graph: OperatorGraph, reference: Reference) -> tuple[Array, Array]:
    """Gap and transfer that each row usually has; NaN where the place is new."""
    packed = pack_class(class_columns(graph))
    class_index, is_known_class = find(reference.classes, packed)
    keys = place_keys(graph, class_index, len(reference.classes))
    place, is_known = find(reference.places, keys)
    is_known &= is_known_class
    nan = np.full(len(graph), np.nan)
    if len(reference.places) == 0:
        return nan, nan
    longer_ns = graph.since_previous_ns - reference.since_ns[place]
    worked_ns = np.maximum(graph.gap_ns - longer_ns, 0.0)  # had it begun to work when the operator before began
    gap_ns = np.where(reference.is_overlapped[place], worked_ns, reference.gap_ns[place])
    after = graph.of_previous(np.where(is_known, place, _NEW), _FIRST)
    gap_ns = np.where(after == reference.previous[place], gap_ns, _gap_after(reference, place, after))
    gap_ns = np.where(is_known, gap_ns, nan)
    transfer_ns = np.where(is_known & ~graph.is_partial, reference.transfer_ns[place], nan)
    return gap_ns, transfer_ns * _times_as_large(graph.size_bytes, reference.size_bytes[place])


def _gap_after(reference: Reference, place: Array, after: Array) -> Array:
    """Gap that each row usually has after another operator than the one that usually ends last before it, ns.

    What runs on a second stream may end before or after a row begins: where a gradient bucket of 20 ms is stuck for
    100 ms, the next operator of the rank begins while it is still open, and follows an older one. The gap after that
    one holds the work that usually hides behind the bucket. NaN after an operator that is new.
    """
    end_ns = np.where(after >= 0, reference.end_ns[after], 0.0)
    return np.where(after == _NEW, np.nan, np.maximum(reference.start_ns[place] - end_ns, 0.0))


def _block_starts(graph: OperatorGraph) -> Array:
    """First start in the iteration of each row's rank."""
    earliest = np.full(int(graph.block.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, graph.block, graph.start_ns)
    return earliest[graph.block]


def _most_common(index: Array, places: Array, size: int, end_ns: Array) -> Array:
    """Of the places of each index 0 to `size` - 1, each of which occurs, the most frequent one.

    Of several the one that usually ends last: the numbers of places follow those of communicators and say nothing.
    """
    ordered = sort_within(index, places, size)
    index = np.repeat(np.arange(size), np.bincount(index, minlength=size))
    runs = np.flatnonzero((np.diff(index, prepend=-1) != 0) | (np.diff(ordered, prepend=_NEW) != 0))
    counts = np.diff(np.append(runs, len(ordered)))
    ends_ns = np.where(ordered[runs] >= 0, end_ns[ordered[runs]], -np.inf)
    order = np.lexsort((ends_ns, counts, index[runs]))
    best = np.flatnonzero(np.diff(index[runs][order], append=size) != 0)
    return ordered[runs][order][best]


def _overlapped(turn: Array, place: Array, gap_apart_ns: Array, since_apart_ns: Array) -> Array:
    """Whether, at each place, ranks work on while the operator before runs, of all ranks with the same turn together.

    See `detectors.path.usual_by_peers` for why it matters. The noise of an operator, on top of that of work, is in
    the time since it began where it keeps ranks from working, and in the time since it ended where it does not.
    """
    _, of_place = np.unique(turn, return_inverse=True)
    gaps, sinces = (np.bincount(of_place[place], apart_ns) for apart_ns in (gap_apart_ns, since_apart_ns))
    return np.asarray((sinces < CLEARLY * gaps)[of_place])


def incomplete_ranks(graph: OperatorGraph, iteration: int, reference: Reference) -> frozenset[int]:
    """Ranks that logged fewer operators of an iteration than usual."""
    ranks, counts = np.unique(graph.rank[graph.iteration == iteration], return_counts=True)
    logged = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
    return frozenset(rank for rank, usual in reference.operators.items() if logged.get(rank, 0) < usual)


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
    counts = np.bincount(index, minlength=size)
    firsts = np.cumsum(counts) - counts
    ordered = sort_within(index, values, size)
    lower, upper = ordered[firsts + (counts - 1) // 2], ordered[firsts + counts // 2]
    return (lower.astype(np.float64) + upper.astype(np.float64)) / 2


def _usual_operators(graph: OperatorGraph) -> dict[int, int]:
    """Operators that each rank runs in an iteration: the most that it logged of one, since rows only get lost."""
    _, first, counts = np.unique(graph.block, return_index=True, return_counts=True)
    ranks, inverse = np.unique(graph.rank[first], return_inverse=True)
    most = np.zeros(len(ranks), dtype=np.int64)
    np.maximum.at(most, inverse, counts)
    return dict(zip(ranks.tolist(), most.tolist(), strict=True))


def _times_as_large(size_bytes: Array, usual_bytes: Array) -> Array:
    """By what a transfer of another size than usual is expected to take longer: sequences may have got longer.

    1 where a size is not known.
    """
    is_known = (size_bytes > 0) & (usual_bytes > 0)
    return np.divide(size_bytes, usual_bytes, out=np.ones(len(size_bytes)), where=is_known)
