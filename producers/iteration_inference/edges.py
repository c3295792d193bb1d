"""Edges: set-up, operators after the last iteration, and those after an iteration's last reduction."""

from __future__ import annotations

from typing import Final

import numpy as np

from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.iteration_inference.operators import REDUCTIONS, Operators

Array = np.ndarray

_TRAILING: Final = (*REDUCTIONS, OPERATOR_CODES["all_gather"])
_MOSTLY: Final = 0.9
_FIRST_SEQUENCE: Final = 1


def with_trailing(operators: Operators, iteration: Array) -> Array:
    """Move operators behind an iteration's last reduction, such as gathered parameters, back into that iteration.

    Only the beginning of a job tells: there, what trails an iteration is missing before the first border.
    """
    inner = _inner(iteration)
    if inner is None:
        return iteration
    first, last = inner
    usual = usual_counts(operators, iteration, first, last)
    missing = np.maximum(usual - _shares(operators, iteration == first), 0)
    kind_lane, kind_operator = _of_kinds(operators, len(usual))
    if not missing.any() or not np.isin(kind_operator[missing > 0], _TRAILING).all():
        return iteration
    lowest = np.full(int(operators.lane.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, operators.lane, operators.sequence)
    trailing = np.bincount(kind_lane, weights=missing, minlength=len(lowest)).astype(np.int64)
    if (lowest[trailing > 0] > _FIRST_SEQUENCE).any():  # the job's beginning was not recorded
        return iteration
    is_moved = (iteration > first) & (_place_in_lane(operators, iteration) < trailing[operators.lane])
    if not _come_first(operators, iteration, is_moved & (iteration < last)):
        return iteration
    return np.where(is_moved, iteration - 1, iteration)


def without_edges(operators: Operators, iteration: Array) -> Array:
    """Leave out set-up and operators after the last iteration, which a usual iteration lacks or has less often."""
    inner = _inner(iteration)
    if inner is None:
        return iteration
    first, last = inner
    usual = usual_counts(operators, iteration, first, last)
    result = iteration.copy()
    for number, is_last in ((first, False), (last, True)):
        rows = np.flatnonzero(iteration == number)
        kind, sequence = operators.kind[rows], operators.sequence[rows]
        width = int(sequence.max(initial=0)) + 1
        shares = np.unique(kind * width + sequence)
        begins = np.flatnonzero(np.diff(shares // width, prepend=-1))
        sizes = np.diff(np.append(begins, len(shares)))
        nth = np.arange(len(shares)) - np.repeat(begins, sizes)
        from_inside = nth if is_last else np.repeat(sizes, sizes) - 1 - nth
        kept = shares[from_inside < usual[shares // width]]
        result[rows[~np.isin(kind * width + sequence, kept)]] = UNKNOWN
    return result


def usual_counts(operators: Operators, iteration: Array, first: int, last: int) -> Array:
    """Return how many operators of each kind an iteration has: the upper median from `first` to `last`."""
    kinds = int(operators.kind.max()) + 1
    rows = np.flatnonzero((iteration > first) & (iteration < last))
    usual = np.zeros(kinds, dtype=np.int64)
    if not len(rows):
        return usual
    block = operators.kind[rows] * (last + 1) + iteration[rows]
    names, counts = np.unique(_distinct(block, operators.sequence[rows]), return_counts=True)
    kind = names // (last + 1)
    order = np.lexsort((counts, kind))
    kind, counts = kind[order], counts[order]
    begins = np.flatnonzero(np.diff(kind, prepend=-1))
    sizes = np.diff(np.append(begins, len(kind)))
    # Iterations without any are zeros, below all that was counted.
    middle = (last - first - 1) // 2 - (last - first - 1 - sizes)
    usual[kind[begins]] = np.where(middle >= 0, counts[begins + np.clip(middle, 0, sizes - 1)], 0)
    return usual


def _distinct(block: Array, sequence: Array) -> Array:
    """Block of each distinct pair of block and sequence."""
    order = np.lexsort((sequence, block))
    block, sequence = block[order], sequence[order]
    return block[(np.diff(block, prepend=-1) != 0) | (np.diff(sequence, prepend=-1) != 0)]


def _inner(iteration: Array) -> tuple[int, int] | None:
    known = iteration[iteration != UNKNOWN]
    if not len(known):
        return None
    return int(known.min()), int(known.max())


def _shares(operators: Operators, chosen: Array) -> Array:
    """Count the operators of each kind; shares of one collective count once."""
    kind = _distinct(operators.kind[chosen], operators.sequence[chosen])
    return np.bincount(kind, minlength=int(operators.kind.max()) + 1)


def _of_kinds(operators: Operators, count: int) -> tuple[Array, Array]:
    """Lane and operator of each kind."""
    lane, operator = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    lane[operators.kind], operator[operators.kind] = operators.lane, operators.operator
    return lane, operator


def _place_in_lane(operators: Operators, iteration: Array) -> Array:
    """How far each operator is behind the first of its iteration in its lane."""
    order = np.lexsort((operators.sequence, iteration, operators.lane))
    lane, number, sequence = operators.lane[order], iteration[order], operators.sequence[order]
    begins = np.flatnonzero((np.diff(lane, prepend=-1) != 0) | (np.diff(number, prepend=UNKNOWN) != 0))
    begins = np.unique(np.append(0, begins))
    sizes = np.diff(np.append(begins, len(order)))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = sequence - np.repeat(sequence[begins], sizes)
    return place


def _come_first(operators: Operators, iteration: Array, is_moved: Array) -> bool:
    """Return whether each rank runs the operators that would be moved before all others of the iteration."""
    order = np.lexsort((operators.start_ns, iteration, operators.rank))
    rank, number, moved = operators.rank[order], iteration[order], is_moved[order]
    begins = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(number, prepend=UNKNOWN) != 0))
    begins = np.unique(np.append(0, begins))
    sizes = np.diff(np.append(begins, len(order)))
    count = np.repeat(np.add.reduceat(moved.astype(np.int64), begins), sizes)
    place = np.arange(len(order)) - np.repeat(begins, sizes)
    return bool(moved.any() and (place[moved] < count[moved]).mean() >= _MOSTLY)
