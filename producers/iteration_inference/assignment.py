"""From anchors to the iteration of every operator: the same on all ranks.

Edges: set-up, operators after the last iteration, and those after an iteration's last reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.iteration_inference.anchors import Anchor
from irregulars.producers.iteration_inference.operators import REDUCTIONS, Operators, runs_of

Array = np.ndarray

_TRAILING: Final = (*REDUCTIONS, OPERATOR_CODES["all_gather"])
_MOSTLY: Final = 0.9
_FIRST_SEQUENCE: Final = 1


def with_trailing(operators: Operators, iteration: Array) -> Array:
    """Move operators behind an iteration's last reduction, such as gathered parameters, back into that iteration.

    Only the beginning of a job shows them: there, trailing operators are missing before the first border.
    """
    known = iteration[iteration != UNKNOWN]
    if not len(known):
        return iteration
    first, last = int(known.min()), int(known.max())
    usual = usual_counts(operators, iteration, first, last)
    is_first = iteration == first
    shares = np.bincount(_distinct(operators.kind[is_first], operators.sequence[is_first]), minlength=len(usual))
    missing = np.maximum(usual - shares, 0)
    kind_lane, kind_operator = np.zeros_like(usual), np.zeros_like(usual)
    kind_lane[operators.kind], kind_operator[operators.kind] = operators.lane, operators.operator
    if not missing.any() or not np.isin(kind_operator[missing > 0], _TRAILING).all():
        return iteration
    lowest = np.full(int(operators.lane.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, operators.lane, operators.sequence)
    trailing = np.bincount(kind_lane, weights=missing, minlength=len(lowest)).astype(np.int64)
    if (lowest[trailing > 0] > _FIRST_SEQUENCE).any():  # the job's beginning was not recorded
        return iteration
    # How far each operator is behind the first of its iteration in its lane
    order = np.lexsort((operators.sequence, iteration, operators.lane))
    begins, sizes = runs_of(operators.lane[order], iteration[order])
    sequence = operators.sequence[order]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = sequence - np.repeat(sequence[begins], sizes)
    is_moved = (iteration > first) & (place < trailing[operators.lane])
    if not _come_first(operators, iteration, is_moved & (iteration < last)):
        return iteration
    return np.where(is_moved, iteration - 1, iteration)


def without_edges(operators: Operators, iteration: Array) -> Array:
    """Leave out set-up and operators after the last iteration, which a usual iteration lacks or has less often."""
    known = iteration[iteration != UNKNOWN]
    if not len(known):
        return iteration
    first, last = int(known.min()), int(known.max())
    usual = usual_counts(operators, iteration, first, last)
    result = iteration.copy()
    for number, is_last in ((first, False), (last, True)):
        rows = np.flatnonzero(iteration == number)
        kind, sequence = operators.kind[rows], operators.sequence[rows]
        width = int(sequence.max(initial=0)) + 1
        shares = np.unique(kind * width + sequence)
        begins, sizes = runs_of(shares // width)
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
    begins, sizes = runs_of(kind)
    # Iterations without any are zeros, below all that was counted.
    middle = (last - first - 1) // 2 - (last - first - 1 - sizes)
    usual[kind[begins]] = np.where(middle >= 0, counts[begins + np.clip(middle, 0, sizes - 1)], 0)
    return usual


def _distinct(block: Array, sequence: Array) -> Array:
    """Return the block of each distinct pair of block and sequence: shares of one collective count once."""
    order = np.lexsort((sequence, block))
    begins, _ = runs_of(block[order], sequence[order])
    return block[order][begins]


def _come_first(operators: Operators, iteration: Array, is_moved: Array) -> bool:
    """Return whether each rank runs the operators that would be moved before all others of the iteration."""
    order = np.lexsort((operators.start_ns, iteration, operators.rank))
    moved = is_moved[order]
    begins, sizes = runs_of(operators.rank[order], iteration[order])
    count = np.repeat(np.add.reduceat(moved.astype(np.int64), begins), sizes)
    place = np.arange(len(order)) - np.repeat(begins, sizes)
    return bool(moved.any() and (place[moved] < count[moved]).mean() >= _MOSTLY)


_STRAY: Final = 2
_PASSES: Final = 8


def assign_iterations(operators: Operators, anchors: Sequence[Anchor]) -> Array:
    """Number the iterations of all operators, from 0.

    Returns int64, one per operator: the same for all shares of one collective or message; `UNKNOWN` before the first
    iteration, after the last, and where it can't be known.
    """
    own = np.full(len(operators), UNKNOWN)
    group = np.full(len(operators), -1)
    for code, anchor in enumerate(anchors):
        firsts = np.searchsorted(operators.rank, anchor.ranks, side="left").tolist()
        pasts = np.searchsorted(operators.rank, anchor.ranks, side="right").tolist()
        for first, past in zip(firsts, pasts, strict=True):
            own[first:past] = _by_anchor(operators.only(slice(first, past)), anchor)  # type: ignore[arg-type]
            group[first:past] = code
    own = _aligned(operators, own, group, len(anchors))
    iteration = _by_lane(operators, own)
    for _ in range(_PASSES):  # to ranks without an anchor, from lane to lane
        if not (is_open := iteration == UNKNOWN).any():
            break
        carried = _by_lane(operators, np.where(is_open, _carried(operators, iteration), iteration))
        if np.array_equal(carried, iteration):
            break
        iteration = carried
    iteration = without_edges(operators, with_trailing(operators, iteration))
    is_known = iteration != UNKNOWN
    lowest = int(iteration[is_known].min()) if is_known.any() else 0
    return np.where(is_known, iteration - lowest, UNKNOWN)


def _by_anchor(rows: Operators, anchor: Anchor) -> Array:
    """Return the iteration of each operator of one rank: how many ends of iterations it started after."""
    is_anchor = (rows.communicator == anchor.communicator) & np.isin(rows.operator, REDUCTIONS)
    sequence = np.where(is_anchor, rows.sequence, -1)
    reached = np.maximum.accumulate(np.where(rows.start_ns == UNKNOWN, -1, sequence))
    iteration = np.searchsorted(anchor.last_sequence, reached, side="right")
    within = np.searchsorted(anchor.last_sequence, sequence[is_anchor], side="left")
    iteration[is_anchor] = within
    if len(within) and within[0] > 1:  # not one that was lost: the rank's rows begin later than those of others
        iteration[: int(is_anchor.argmax())] = within[0]
    is_open = (rows.start_ns == UNKNOWN) & ~is_anchor
    return np.where(is_open, UNKNOWN, iteration.astype(np.int64))


def _aligned(operators: Operators, own: Array, group: Array, count: int) -> Array:
    """Shift the numbers of each anchor's ranks, so that those which share a lane agree on it."""
    if count < 2:
        return own
    votes: dict[tuple[int, int], dict[int, int]] = {}
    order = np.flatnonzero((own != UNKNOWN) & (group >= 0))
    order = order[np.lexsort((group[order], operators.sequence[order], operators.lane[order]))]
    same = (np.diff(operators.lane[order]) == 0) & (np.diff(operators.sequence[order]) == 0)
    left, right = order[:-1][same], order[1:][same]
    is_pair = group[left] != group[right]
    left, right = left[is_pair], right[is_pair]
    pairs = np.stack([group[left], group[right], own[left] - own[right]], axis=1)
    rows, numbers = np.unique(pairs, axis=0, return_counts=True)
    for (first, second, shift), number in zip(rows.tolist(), numbers.tolist(), strict=True):
        votes.setdefault((first, second), {})[shift] = number
    near: dict[int, list[tuple[int, int]]] = {code: [] for code in range(count)}
    for (first, second), found in votes.items():
        shift = max(sorted(found), key=found.__getitem__)
        near[first].append((second, shift))
        near[second].append((first, -shift))
    shifts: dict[int, int] = {}  # by how many iterations each group is off the first one connected with it
    for begin in range(count):
        waiting = [(begin, 0)]
        while waiting:
            code, shift = waiting.pop()
            if code not in shifts:
                shifts[code] = shift
                waiting += [(other, shift + step) for other, step in near[code]]
    by_group = np.array([*(shifts[code] for code in range(count)), 0], dtype=np.int64)
    return np.where(own == UNKNOWN, UNKNOWN, own + by_group[group])


def _by_lane(operators: Operators, own: Array) -> Array:
    """Return the iteration that a lane's members agree on.

    It never falls with the sequence, and one late start does not move it.
    """
    known = np.flatnonzero(own != UNKNOWN)
    if not len(known):
        return own
    order = known[np.lexsort((own[known], operators.sequence[known], operators.lane[known]))]
    lane, sequence, value = operators.lane[order], operators.sequence[order], own[order]
    firsts, counts = runs_of(lane, sequence)
    lane, sequence, value = lane[firsts], sequence[firsts], value[firsts + counts // 2]  # the upper median
    # The largest so far in each lane.
    lift = int(value.max()) - int(value.min()) + 1
    number = np.cumsum(np.diff(lane, prepend=lane[:1]) != 0)
    value = np.maximum.accumulate(value + number * lift) - number * lift
    lane, begin, value = _steady(lane, sequence, value)
    return _looked_up(operators, lane, begin, value, own)


def _steady(lane: Array, sequence: Array, value: Array) -> tuple[Array, Array, Array]:
    """Return where each iteration begins in its lane; correct a single one that begins a little early or late."""
    firsts, _ = runs_of(lane, value)
    lane, begin, value = lane[firsts], sequence[firsts], value[firsts]
    if len(lane) < 5:
        return lane, begin, value
    length = np.diff(begin, append=begin[-1:])
    usual = _medians(np.where(np.append(lane[1:] == lane[:-1], False), length, np.nan), lane)
    lane, begin, value, usual = _with_missing(lane, begin, value, usual)
    offset = begin - usual * value
    window = np.stack([np.roll(offset, shift) for shift in (2, 1, 0, -1, -2)])
    is_inside = np.ones(len(lane), dtype=bool)
    for shift in (-2, -1, 1, 2):
        is_inside &= (np.roll(lane, shift) == lane) & (np.roll(value, shift) == value + (-shift))
    stray = np.median(window, axis=0) - offset
    moves = is_inside & (np.abs(stray) <= _STRAY) & (usual > 0)
    return lane, np.where(moves, begin + stray, begin).astype(np.int64), value


def _with_missing(lane: Array, begin: Array, value: Array, usual: Array) -> tuple[Array, Array, Array, Array]:
    """Split an iteration that is as long as several: the rank lost the operator between them."""
    jump = np.where(np.append(lane[1:] == lane[:-1], False), np.diff(value, append=value[-1:]), 1)
    length = np.diff(begin, append=begin[-1:])
    is_joined = (jump > 1) & (np.abs(length - jump * usual) <= _STRAY) & (usual > 0)
    times = np.where(is_joined, jump, 1)
    row = np.repeat(np.arange(len(lane)), times)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    return lane[row], (begin[row] + nth * usual[row]).astype(np.int64), value[row] + nth, usual[row]


def _medians(values: Array, group: Array) -> Array:
    """Lower median of each group of neighbours, for each of its members; 0 where all are NaN."""
    order = np.lexsort((values, group))  # NaN last
    firsts, sizes = runs_of(group[order])
    known = np.add.reduceat(~np.isnan(values[order]), firsts).astype(np.int64)
    middle = values[order][firsts + np.maximum(known - 1, 0) // 2]
    spread = np.empty(len(group))
    spread[order] = np.repeat(np.where(known > 0, middle, 0.0), sizes)
    return spread


def _looked_up(operators: Operators, lane: Array, begin: Array, value: Array, own: Array) -> Array:
    """Return the iteration of each operator by lane and sequence; before a lane's first known one nothing changes."""
    width = int(operators.sequence.max()) + 2
    place = np.searchsorted(lane * width + begin, operators.lane * width + operators.sequence, side="right") - 1
    is_found = (place >= 0) & (lane[np.maximum(place, 0)] == operators.lane)
    return np.where(is_found, value[np.maximum(place, 0)], own)


def _carried(operators: Operators, iteration: Array) -> Array:
    """The newest iteration that the same rank had reached before each operator."""
    lowest = int(iteration[iteration != UNKNOWN].min(initial=0))
    is_timed = (iteration != UNKNOWN) & (operators.start_ns != UNKNOWN)
    value = np.where(is_timed, iteration - lowest + 1, 0)
    lift = int(value.max(initial=0)) + 1
    reached = np.maximum.accumulate(value + operators.rank * lift) - operators.rank * lift
    return np.where(reached > 0, reached + lowest - 1, UNKNOWN)
