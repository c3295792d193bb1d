"""Iterations of a job that marks none: from the operators of all its ranks to the iteration of each.

Also when iterations began and ended on each rank, by the operators in them, and unmarked phases: evaluations and
checkpoints, known by how regularly they recur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from irregulars.messages.records import OPERATOR_CODES, OPERATORS, PHASES, UNKNOWN, iteration_columns
from irregulars.producers.iteration_inference.anchors import Anchor, find_anchors
from irregulars.producers.iteration_inference.operators import (
    REDUCTIONS,
    TRAINING,
    Operators,
    arrange_operators,
    runs_of,
)

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class IterationSpans:
    """Times of iterations on ranks."""

    ranks: Array  # ascending
    # start_ns, past_ns: ``(ranks, iterations)``, int64; from the first operator's start to the last one's end, as
    # where nothing else is known of an iteration; `UNKNOWN` where a rank has no timed operator of one
    start_ns: Array
    past_ns: Array
    gaps_ns: Array  # time without an operator before the first one, float64; NaN where unknown


def measure_iterations(rank: Array, all_start_ns: Array, elapsed_ns: Array, iteration: Array) -> IterationSpans:
    """Measure the iterations of all ranks by columns of their operators."""
    ranks, place = np.unique(rank, return_inverse=True)
    count = int(iteration.max(initial=-1)) + 1
    is_timed = (iteration != UNKNOWN) & (all_start_ns != UNKNOWN)
    cell = (place[is_timed], iteration[is_timed])
    start_ns = all_start_ns[is_timed]
    took_ns = np.where(np.isnan(elapsed_ns[is_timed]), 0, elapsed_ns[is_timed]).astype(np.int64)
    first_ns = np.full((len(ranks), count), np.iinfo(np.int64).max)
    past_ns = np.full((len(ranks), count), UNKNOWN)
    np.minimum.at(first_ns, cell, start_ns)
    np.maximum.at(past_ns, cell, start_ns + took_ns)
    is_known = past_ns != UNKNOWN
    before_ns = np.full_like(past_ns, UNKNOWN)
    before_ns[:, 1:] = past_ns[:, :-1]
    has_before = is_known & (before_ns != UNKNOWN)
    gaps_ns = np.where(has_before, np.maximum(first_ns - np.where(has_before, before_ns, first_ns), 0), np.nan)
    return IterationSpans(ranks, np.where(is_known, first_ns, UNKNOWN), past_ns, gaps_ns)


_TRAIN: Final = PHASES.index("train")
_EVAL: Final = PHASES.index("eval")
_CHECKPOINT: Final = PHASES.index("checkpoint")
_LESS: Final = 0.8  # share of the usual number of an operator below which an iteration has less of it
_FEWEST_MORE: Final = 2  # operators more than usual, where usual is a small number
_TIMES: Final = 3
_KEPT: Final = 0.8  # share of the even distances that must hold the event, and of the events that must lie on them
# A gap is long from this share of an iteration's length, and this many times the usual gap.
_LONG_GAP: Final = 0.3
_USUAL_GAPS: Final = 3.0


def find_phases(operators: Operators, iteration: Array, spans: IterationSpans) -> Array:
    """Find evaluations and checkpoints.

    An evaluation has less of a training operator than usual (no backward pass) or more of one; a checkpoint has more
    operators that gather and wait, or keeps every rank from its first operator for long. Either must recur at even
    distances, `_TIMES` at least: an event that comes once is no phase, and one rank that is late is never one.

    Returns of each iteration the index into `PHASES`, uint8.
    """
    count = spans.start_ns.shape[1]
    phases = np.full(count, _TRAIN, dtype=np.uint8)
    if count < 2 * _TIMES:
        return phases  # too few for three events at even distances, and usual iterations between them
    # For each iteration and operator whether there were fewer, or more, than usual in the whole job.
    known = np.flatnonzero(iteration != UNKNOWN)
    order = known[np.lexsort((operators.sequence[known], operators.lane[known], iteration[known]))]
    lane, sequence = operators.lane[order], operators.sequence[order]
    is_new = (np.diff(lane, prepend=-1) != 0) | (np.diff(sequence, prepend=-1) != 0)
    key = iteration[order][is_new] * len(OPERATORS) + operators.operator[order][is_new]
    counts = np.bincount(key, minlength=count * len(OPERATORS)).reshape(count, len(OPERATORS)).astype(np.float64)
    usual = np.median(counts, axis=0)
    less, more = counts < _LESS * usual, counts > np.maximum(usual / _LESS, usual + _FEWEST_MORE - 1)
    is_training = np.isin(np.arange(len(OPERATORS)), TRAINING)
    is_evaluation = np.asarray((less | more)[:, is_training].any(axis=1))
    is_checkpoint: Array = ~is_evaluation & more.any(axis=1)
    # Iterations before which all ranks ran nothing for long
    shortest = np.where(np.isnan(spans.gaps_ns), np.inf, spans.gaps_ns).min(axis=0, initial=np.inf)
    shortest = np.where(np.isfinite(shortest), shortest, 0.0)
    elapsed_ns = np.where(spans.start_ns == UNKNOWN, 0, spans.past_ns - spans.start_ns).max(axis=0, initial=0)
    floor = max(_LONG_GAP * float(np.median(elapsed_ns)), _USUAL_GAPS * float(np.median(shortest)))
    pauses = shortest > floor
    # The last one wins: an evaluation that begins with a pause stays one.
    for found, phase in ((pauses, _CHECKPOINT), (is_checkpoint, _CHECKPOINT), (is_evaluation, _EVAL)):
        phases[_recurring(found)] = phase
    return phases


def _recurring(found: Array) -> Array:
    """Keep the iterations that recur at even distances; neighbours count as one."""
    at = np.flatnonzero(found)
    firsts = at[np.diff(at, prepend=-2) > 1]
    if len(firsts) < _TIMES:
        return at[:0]
    steps, counts = np.unique(np.diff(firsts), return_counts=True)
    step = int(steps[counts.argmax()])
    phase = np.bincount(firsts % step).argmax()
    lattice = np.arange(phase, len(found), step)
    lattice = lattice[(lattice >= firsts[0]) & (lattice <= firsts[-1])]
    kept = np.intersect1d(lattice, firsts)
    if len(kept) < max(_TIMES, _KEPT * len(lattice), _KEPT * len(firsts)):
        return at[:0]
    run = np.searchsorted(firsts, at, side="right") - 1
    return at[np.isin(firsts[run], kept)]


# Columns that are read: communicators as codes of the whole job, the rest as in `messages.records`.
COLUMNS: Final = ("rank", "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes")


@dataclass(frozen=True, slots=True)
class Inferred:
    """The inferred iterations."""

    iteration: Array  # of each row given, int64; `UNKNOWN` outside of iterations
    anchors: tuple[Anchor, ...] = ()  # the communicators that mark the ends of iterations, and their ranks
    spans: IterationSpans | None = None  # when each iteration began and ended on each rank; None where there are none
    # Index into `messages.records.PHASES` of each iteration, uint8
    phases: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    # Whether ranks run no operator for most of the time: iterations then begin as the one before ended
    are_mostly_gaps: bool = False

    @property
    def count(self) -> int:
        """Number of iterations."""
        return int(self.iteration.max(initial=-1)) + 1

    def rows_of(self, rank: int) -> dict[str, Array]:
        """Return the columns of the record ``iterations`` of one rank, in order."""
        assert self.spans is not None, "only what was inferred has rows"
        own_ns, past_ns, gaps_ns = (
            column[self.spans.ranks == rank].reshape(-1)
            for column in (self.spans.start_ns, self.spans.past_ns, self.spans.gaps_ns)
        )
        number = np.flatnonzero(own_ns != UNKNOWN)
        start_ns = own_ns[number]
        if self.are_mostly_gaps:
            start_ns = start_ns - np.nan_to_num(gaps_ns[number]).astype(np.int64)
        elapsed_ns = (past_ns[number] - start_ns).astype(np.float64)
        return iteration_columns(number, start_ns, elapsed_ns, self.phases[number])


def infer_iterations(columns: Mapping[str, Array], kinds: Sequence[str]) -> Inferred:
    """Number the iterations of a job from its operators alone.

    `columns`: `COLUMNS` of all ranks, in any order; unknown values as in `messages.records`. `kinds`: kind of each
    communicator, by code.
    """
    if not len(columns["rank"]):
        return Inferred(np.empty(0, dtype=np.int64))
    operators, place = arrange_operators(columns)
    iteration, anchors = infer_arranged(operators, kinds)
    if not anchors:
        return Inferred(iteration[place])
    elapsed_ns = columns["elapsed_ns"][operators.row]
    spans = measure_iterations(operators.rank, operators.start_ns, elapsed_ns, iteration)
    phases = find_phases(operators, iteration, spans)
    return Inferred(iteration[place], tuple(anchors), spans, phases, _are_mostly_gaps(spans))


def measure_marked(columns: Mapping[str, Array], iteration: Array) -> Inferred:
    """Measure iterations that operators name, from 0 on; one that never ended on some rank is no iteration."""
    unended = np.unique(iteration[np.isnan(columns["elapsed_ns"])])
    iteration = np.where(np.isin(iteration, unended), UNKNOWN, iteration)
    spans = measure_iterations(columns["rank"], columns["start_ns"], columns["elapsed_ns"], iteration)
    phases = np.full(spans.start_ns.shape[1], _TRAIN, dtype=np.uint8)
    return Inferred(iteration, (), spans, phases, _are_mostly_gaps(spans))


def _are_mostly_gaps(spans: IterationSpans) -> bool:
    length_ns = (spans.past_ns - spans.start_ns)[spans.start_ns != UNKNOWN]
    gaps_ns = spans.gaps_ns[np.isfinite(spans.gaps_ns)]
    return bool(len(gaps_ns) and np.median(gaps_ns) > np.median(length_ns))


def infer_arranged(operators: Operators, kinds: Sequence[str]) -> tuple[Array, list[Anchor]]:
    """Return the iteration of each operator, and the anchors by which it was found."""
    anchors = find_anchors(operators, kinds)
    if not anchors:
        return np.full(len(operators), UNKNOWN), []
    return assign_iterations(operators, anchors), anchors


_TRAILING: Final = (*REDUCTIONS, OPERATOR_CODES["all_gather"])
_MOSTLY: Final = 0.9  # share of the moved operators that must come before all others of their iteration
# Highest first sequence of a lane that was recorded from its beginning: some count from 0 and some from 1.
_FIRST_SEQUENCE: Final = 1


def with_trailing(operators: Operators, iteration: Array) -> Array:
    """Move operators behind an iteration's last reduction, such as gathered parameters, back into that iteration.

    Only the beginning of a job shows them: there, trailing operators are missing before the first border.
    """
    known = iteration[iteration != UNKNOWN]
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
    # Each rank must run the operators that would be moved before all others of the iteration.
    order = np.lexsort((operators.start_ns, iteration, operators.rank))
    moved = (is_moved & (iteration < last))[order]
    begins, sizes = runs_of(operators.rank[order], iteration[order])
    count = np.repeat(np.add.reduceat(moved.astype(np.int64), begins), sizes)
    nth = np.arange(len(order)) - np.repeat(begins, sizes)
    come_first = moved.any() and (nth[moved] < count[moved]).mean() >= _MOSTLY
    return np.where(is_moved, iteration - 1, iteration) if come_first else iteration


def without_edges(operators: Operators, iteration: Array) -> Array:
    """Leave out set-up and operators after the last iteration, which a usual iteration lacks or has less often."""
    known = iteration[iteration != UNKNOWN]
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


_STRAY: Final = 2  # operators by which a single iteration may begin early or late, and is corrected
_PASSES: Final = 8  # lanes between a rank with an anchor and one without, over which iterations are carried


def assign_iterations(operators: Operators, anchors: Sequence[Anchor]) -> Array:
    """Number the iterations of all operators, from 0.

    Returns int64, one per operator: the same for all shares of one collective or message; `UNKNOWN` before the first
    iteration, after the last, and where it can't be known.
    """
    own = np.full(len(operators), UNKNOWN)
    group = np.full(len(operators), -1)
    for code, anchor in enumerate(anchors):
        for first, past in np.searchsorted(operators.rank, np.stack([anchor.ranks, anchor.ranks + 1], 1)).tolist():
            own[first:past] = _by_anchor(operators.only(slice(first, past)), anchor)  # type: ignore[arg-type]
            group[first:past] = code
    own = _aligned(operators, own, group, len(anchors))
    iteration = _by_lane(operators, own)
    for _ in range(_PASSES):  # to ranks without an anchor, from lane to lane
        if not (is_open := iteration == UNKNOWN).any():
            break
        # The newest iteration that the same rank had reached before each operator
        lowest = int(iteration[~is_open].min(initial=0))
        value = np.where(~is_open & (operators.start_ns != UNKNOWN), iteration - lowest + 1, 0)
        lift = int(value.max(initial=0)) + 1
        reached = np.maximum.accumulate(value + operators.rank * lift) - operators.rank * lift
        reached = np.where(reached > 0, reached + lowest - 1, UNKNOWN)
        carried = _by_lane(operators, np.where(is_open, reached, iteration))
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
    order = known[np.lexsort((own[known], operators.sequence[known], operators.lane[known]))]
    lane, sequence, value = operators.lane[order], operators.sequence[order], own[order]
    firsts, counts = runs_of(lane, sequence)
    lane, sequence, value = lane[firsts], sequence[firsts], value[firsts + counts // 2]  # the upper median
    # The largest so far in each lane.
    lift = int(value.max()) - int(value.min()) + 1
    number = np.cumsum(np.diff(lane, prepend=lane[:1]) != 0)
    value = np.maximum.accumulate(value + number * lift) - number * lift
    lane, begin, value = _steady(lane, sequence, value)
    # Each operator by lane and sequence; before a lane's first known one nothing changes
    width = int(operators.sequence.max()) + 2
    place = np.searchsorted(lane * width + begin, operators.lane * width + operators.sequence, side="right") - 1
    is_found = (place >= 0) & (lane[np.maximum(place, 0)] == operators.lane)
    return np.where(is_found, value[np.maximum(place, 0)], own)


def _steady(lane: Array, sequence: Array, value: Array) -> tuple[Array, Array, Array]:
    """Return where each iteration begins in its lane; correct a single one that begins a little early or late."""
    firsts, _ = runs_of(lane, value)
    lane, begin, value = lane[firsts], sequence[firsts], value[firsts]
    if len(lane) < 5:
        return lane, begin, value  # the window of a correction is two iterations on each side
    length = np.diff(begin, append=begin[-1:])
    usual = _medians(np.where(np.append(lane[1:] == lane[:-1], False), length, np.nan), lane)
    # An iteration that is as long as several: the rank lost the operator between them
    jump = np.where(np.append(lane[1:] == lane[:-1], False), np.diff(value, append=value[-1:]), 1)
    is_joined = (jump > 1) & (np.abs(length - jump * usual) <= _STRAY) & (usual > 0)
    times = np.where(is_joined, jump, 1)
    row = np.repeat(np.arange(len(lane)), times)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    lane, usual, value = lane[row], usual[row], value[row] + nth
    begin = (begin[row] + nth * usual).astype(np.int64)
    offset = begin - usual * value
    window = np.stack([np.roll(offset, shift) for shift in (2, 1, 0, -1, -2)])
    is_inside = np.ones(len(lane), dtype=bool)
    for shift in (-2, -1, 1, 2):
        is_inside &= (np.roll(lane, shift) == lane) & (np.roll(value, shift) == value + (-shift))
    stray = np.median(window, axis=0) - offset
    moves = is_inside & (np.abs(stray) <= _STRAY) & (usual > 0)
    return lane, np.where(moves, begin + stray, begin).astype(np.int64), value


def _medians(values: Array, group: Array) -> Array:
    """Lower median of each group of neighbours, for each of its members; 0 where all are NaN."""
    order = np.lexsort((values, group))  # NaN last, so that the known values of a group come first
    firsts, sizes = runs_of(group[order])
    known = np.add.reduceat(~np.isnan(values[order]), firsts).astype(np.int64)
    middle = values[order][firsts + np.maximum(known - 1, 0) // 2]
    spread = np.empty(len(group))
    spread[order] = np.repeat(np.where(known > 0, middle, 0.0), sizes)
    return spread
