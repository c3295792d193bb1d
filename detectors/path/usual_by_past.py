"""Usual values, learned from regular iterations: for each place of an operator in its iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from irregulars.detectors.arrays.grouped_medians import column_medians
from irregulars.detectors.arrays.row_keys import find_sorted, group_rows, sort_within
from irregulars.detectors.arrays.runs import run_ends, run_lengths, run_starts
from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.path.lane_tables import lane_table, usual_lanes
from irregulars.detectors.path.operator_classes import pack_class
from irregulars.detectors.path.operator_graph import CollectiveRows, OperatorGraph
from irregulars.dtypes import Column, Flags, Floats, Ints

_ORDINALS: Final = 1 << 20
_FIRST: Final = -1  # place before the first operators of a rank's iteration
_NEW: Final = -2  # place of an operator that no regular iteration had


class _Placed(NamedTuple):
    """Some rows of a graph: the columns that make up their places."""

    rank: Ints
    communicator: Ints
    operator: Ints
    peer: Ints
    ordinal: Ints


Rows: TypeAlias = OperatorGraph | CollectiveRows | _Placed  # rows with a class and an ordinal each


@dataclass(frozen=True, slots=True)
class Reference:
    """Usual values: medians over some regular iterations, by the place of an operator in the iteration.

    ``classes`` (ascending) are packed communicator, operator and peer; ``places`` (ascending) pack rank, class and
    ordinal; ``previous`` (the place of the operator that had ended last before; -1: none), ``start_ns`` and
    ``end_ns`` (from the first start of the rank's iteration), ``gap_ns``, ``since_ns``
    (`OperatorGraph.since_previous_ns`), ``is_overlapped`` (whether the rank works on while the operator before
    runs), ``transfer_ns`` and ``size_bytes`` (`OperatorGraph.moved_bytes`) belong to the places. ``lanes``: the
    usual values for each lane of transfers. ``operators``: how many each rank runs in an iteration.
    """

    classes: Ints
    places: Ints
    previous: Ints
    start_ns: Floats
    end_ns: Floats
    gap_ns: Floats
    since_ns: Floats
    is_overlapped: Flags
    transfer_ns: Floats
    size_bytes: Floats
    lanes: Mapping[Lane, UsualLane]
    iterations: tuple[int, ...]
    operators: Mapping[int, int] = field(default_factory=dict)


class UsualTransfers(NamedTuple):
    """The usual values of transfers alone; names and meanings are those of `Reference`."""

    classes: Ints
    places: Ints
    transfer_ns: Floats
    size_bytes: Floats


def learn_transfers(rows: CollectiveRows) -> UsualTransfers:
    """Learn the usual transfers from collectives of regular iterations, as `learn_reference` does."""
    classes, keys = _places_of(rows)
    place, first = group_rows([keys])
    values = np.stack([rows.transfer_ns.astype(np.float64), _whole_bytes(rows.moved_bytes)], axis=1)
    transfer_ns, size_bytes = column_medians(place, values).T
    return UsualTransfers(classes, keys[first], transfer_ns, size_bytes)


def usual_transfers(graph: OperatorGraph, rows: Ints, usual: Reference | UsualTransfers) -> Floats:
    """Return the usual transfer of some rows, ns, as `usual_times` does for all; NaN where the place is new."""
    if len(usual.places) == 0:
        return np.full(len(rows), np.nan)
    place, is_known = _find_places(_Placed(*(getattr(graph, name)[rows] for name in _Placed._fields)), usual)
    transfer_ns = np.where(is_known & ~graph.is_partial[rows], usual.transfer_ns[place], np.nan)
    return transfer_ns * _times_as_large(graph.moved_bytes[rows], usual.size_bytes[place])


def learn_reference(graph: OperatorGraph) -> Reference:
    """Learn the usual values from the rows of regular iterations."""
    classes, keys = _places_of(graph)
    inverse, first = group_rows([keys])
    places = keys[first]
    # The first start in the iteration of each row's rank, ns
    earliest = np.full(int(graph.block.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, graph.block, graph.start_ns)
    begun_ns = earliest[graph.block]
    columns = (
        graph.start_ns - begun_ns, graph.end_ns - begun_ns, graph.gap_ns, graph.since_previous_ns, graph.transfer_ns,
        _whole_bytes(graph.moved_bytes),
    )  # fmt: skip
    usual = column_medians(inverse, np.stack(columns, axis=1).astype(np.float64, copy=False))
    start_ns, end_ns, gap_ns, since_ns, transfer_ns, size_bytes = np.ascontiguousarray(usual.T)
    return Reference(
        classes=classes,
        places=places,
        previous=_most_common(inverse, graph.of_previous(inverse, _FIRST), len(places), end_ns),
        start_ns=start_ns,
        end_ns=end_ns,
        gap_ns=gap_ns,
        since_ns=since_ns,
        is_overlapped=_overlapped(
            places % (max(len(classes), 1) * _ORDINALS),
            inverse,
            np.abs(graph.gap_ns - gap_ns[inverse]),
            np.abs(graph.since_previous_ns - since_ns[inverse]),
        ),
        transfer_ns=transfer_ns,
        size_bytes=size_bytes,
        lanes=usual_lanes(lane_table(graph)),
        iterations=tuple(np.unique(graph.iteration).tolist()),
        operators=_usual_operators(graph),
    )


def usual_times(graph: OperatorGraph, reference: Reference) -> tuple[Floats, Floats, Floats]:
    """Return the usual gap and the usual transfer of each row, and that of the operator before it, ns.

    NaN where the place is new. A rank may work on while the operator before runs, which hides that much of its work.
    """
    place, is_known = _find_places(graph, reference)
    nan = np.full(len(graph), np.nan)
    # Nothing was learned: no index into the empty columns is valid.
    if len(reference.places) == 0:
        return nan, nan, nan
    longer_ns = graph.since_previous_ns - reference.since_ns[place]
    worked_ns = np.maximum(graph.gap_ns - longer_ns, 0.0)  # had it begun to work when the operator before began
    gap_ns = np.where(reference.is_overlapped[place], worked_ns, reference.gap_ns[place])
    after = graph.of_previous(np.where(is_known, place, _NEW), _FIRST)
    # An operator on a second stream may end before or after a row begins: where a gradient bucket of 20 ms is stuck
    # for 100 ms, the next operator of the rank begins while it is still open, and follows an older one. The gap after
    # that one holds the work that usually hides behind the bucket. It is not known after an operator that is new.
    end_ns = np.where(after >= 0, reference.end_ns[np.maximum(after, 0)], 0.0)
    after_ns = np.where(after == _NEW, np.nan, np.maximum(reference.start_ns[place] - end_ns, 0.0))
    gap_ns = np.where(after == reference.previous[place], gap_ns, after_ns)
    gap_ns = np.where(is_known, gap_ns, nan)
    # Where many rows were lost, the last arrival is not known, and a wait would seem to be transfer.
    transfer_ns = np.where(is_known & ~graph.is_partial, reference.transfer_ns[place], nan)
    transfer_ns = transfer_ns * _times_as_large(graph.moved_bytes, reference.size_bytes[place])
    return gap_ns, transfer_ns, np.where(graph.previous >= 0, transfer_ns[graph.previous], 0.0)


def _places_of(rows: Rows) -> tuple[Ints, Ints]:
    """Return the classes of some rows, ascending, and the place of each row."""
    packed = pack_class(class_columns(rows))
    classes = np.unique(packed)
    return classes, place_keys(rows, np.searchsorted(classes, packed), len(classes))


def _find_places(rows: Rows, usual: Reference | UsualTransfers) -> tuple[Ints, Flags]:
    """Return the number of each row's place, and whether it is known; where it is not, it is only a valid index."""
    class_index, is_known_class = find_sorted(usual.classes, pack_class(class_columns(rows)))
    place, is_known = find_sorted(usual.places, place_keys(rows, class_index, len(usual.classes)))
    return place, is_known & is_known_class


def _whole_bytes(size_bytes: Floats) -> Floats:
    """Return sizes as whole numbers; 0 where one is not known."""
    return np.nan_to_num(size_bytes).astype(np.int64).astype(np.float64)


def _most_common(index: Ints, places: Ints, size: int, end_ns: Floats) -> Ints:
    """Return the most frequent place of each index from 0 to `size` - 1, all of which occur.

    Of several it is the one that usually ends last. Their numbers would be no good choice: they follow those of
    communicators, which mean nothing.
    """
    ordered = sort_within(index, places, size)
    index = np.repeat(np.arange(size), np.bincount(index, minlength=size))
    runs = run_starts(index, ordered)
    counts = run_lengths(runs, len(ordered))
    ends_ns = np.where(ordered[runs] >= 0, end_ns[ordered[runs]], -np.inf)
    order = np.lexsort((ends_ns, counts, index[runs]))
    best = run_ends(index[runs][order])
    return ordered[runs][order][best].astype(np.int64)


def _overlapped(turn: Ints, place: Ints, gap_apart_ns: Floats, since_apart_ns: Floats) -> Flags:
    """Return for each place whether ranks work on while the operator before runs; ranks of one turn together.

    See `detectors.path.usual_by_peers` for why it matters. The noise of an operator, on top of that of work, is in
    the time since it began where it keeps ranks from working, and in the time since it ended where it does not.
    """
    _, of_place = np.unique(turn, return_inverse=True)
    gaps, sinces = (np.bincount(of_place[place], apart_ns) for apart_ns in (gap_apart_ns, since_apart_ns))
    # What comes on top of the noise of work is then as large as that noise: variances add up.
    return np.asarray((2 * sinces**2 < gaps**2)[of_place])


def incomplete_ranks(graph: OperatorGraph, iteration: int, reference: Reference) -> frozenset[int]:
    """Return the ranks that logged fewer operators of an iteration than usual."""
    ranks, counts = np.unique(graph.rank[graph.iteration == iteration], return_counts=True)
    logged = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
    return frozenset(rank for rank, usual in reference.operators.items() if logged.get(rank, 0) < usual)


def follows_lost(graph: OperatorGraph, reference: Reference) -> Flags:
    """Return for each row whether it is the first that its rank logged of the iteration, and usually is not."""
    if len(reference.places) == 0:
        return np.zeros(len(graph), dtype=np.bool_)
    place, is_known = _find_places(graph, reference)
    return is_known & (graph.previous < 0) & (reference.previous[place] != _FIRST)


def class_columns(graph: Rows) -> dict[str, Column]:
    """Return the columns of a graph that `pack_class` packs."""
    return {"communicator": graph.communicator, "operator": graph.operator, "peer": graph.peer}


def place_keys(graph: Rows, class_index: Ints, classes: int) -> Ints:
    """Pack rank, class and ordinal of each row: the place of an operator in its iteration."""
    return (graph.rank * max(classes, 1) + class_index) * _ORDINALS + np.minimum(graph.ordinal, _ORDINALS - 1)


def usual_counts(rank: Ints, operators: Ints) -> Ints:
    """Return how many operators each rank (from 0 on) runs in an iteration, by those that it logged in some.

    A quarter of its iterations hold as many: rows get lost, in most iterations perhaps, and few iterations have an
    operator more, as one in ten that gathers times to print.

    >>> usual_counts(np.array([0] * 10 + [1] * 4), np.array([9] * 6 + [10] * 3 + [11, 7, 7, 8, 9]))
    array([10,  8])
    """
    ordered, count = operators[np.lexsort((operators, rank))], np.bincount(rank)
    return ordered[np.cumsum(count) - 1 - count // 4]


def _usual_operators(graph: OperatorGraph) -> dict[int, int]:
    """Return the operators that each rank runs in an iteration."""
    _, first, counts = np.unique(graph.block, return_index=True, return_counts=True)
    ranks, inverse = np.unique(graph.rank[first], return_inverse=True)
    return dict(zip(ranks.tolist(), usual_counts(inverse, counts).tolist(), strict=True))


def _times_as_large(size_bytes: Floats, usual_bytes: Floats) -> Floats:
    """Return how many times as many bytes as usual each row moves: sequences may have got longer.

    1 where a size is not known.
    """
    is_known = (size_bytes > 0) & (usual_bytes > 0)
    return np.divide(size_bytes, usual_bytes, out=np.ones(len(size_bytes)), where=is_known)
