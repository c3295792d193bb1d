"""Anchors: the communicators whose reductions mark, for all their ranks alike, where an iteration ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from irregulars.messages.records import OPERATORS
from irregulars.producers.iteration_inference.operators import REDUCTIONS, TRAINING, Operators, number_rows

Array = np.ndarray
# Ranks of a communicator whose other operators are counted: each costs a pass over its rows, and all run alike.
_SAMPLED: Final = 4
# An operator of at most these bytes, and this share of the largest one, reduces single numbers: a loss, a norm.
_SCALAR_BYTES: Final = 4096
_SCALAR_SHARE: Final = 1 / 64
_NOT_TRAINING: Final = tuple(set(range(len(OPERATORS))).difference(TRAINING))
_SPREAD: Final = 0.3  # share of a rank's operators that the iterations must span
# Times as many iterations by which gradients win over single numbers that all ranks share: those are an evaluation's.
_FINER: Final = 2.0
_KIND_ORDER: Final = {"world": 0, "dp": 1, "unknown": 2}
_OTHER_KIND: Final = 3


@dataclass(frozen=True, slots=True)
class Anchor:
    """A communicator that marks where iterations end."""

    communicator: int  # its code
    ranks: Array  # those that are numbered by it
    last_sequence: Array  # of each iteration, ascending: its last reduction on the communicator


def find_anchors(operators: Operators, kinds: Sequence[str]) -> list[Anchor]:
    """Choose an anchor for each rank; a rank that nothing periodic connects to others gets none.

    First comes the communicator of all ranks (kind ``world``), then those of data parallel ranks, then those of
    unknown kind, then the others; of equals the one that is used least.
    If all ranks share only single numbers, rarer than the gradients of the others (an evaluation's loss), the
    gradients mark where an iteration ends.

    `kinds`: kind of each communicator, by code.
    """
    uncovered = set(np.unique(operators.rank).tolist())
    found: list[Anchor] = []
    candidates = _candidates(operators, kinds)
    for place, candidate in enumerate(candidates):
        # Better candidates come first: one whose ranks all have an anchor adds nothing.
        if candidate.used < REPEATS or not uncovered.intersection(candidate.ranks.tolist()):
            continue
        anchor = _learn(operators, candidate)
        if anchor is None:
            continue
        if candidate.is_scalar and _has_finer(operators, candidate, candidates[place + 1 :], anchor):
            continue
        own = np.array(sorted(uncovered.intersection(candidate.ranks.tolist())), dtype=np.int64)
        found.append(replace(anchor, ranks=own))
        uncovered.difference_update(own.tolist())
        if not uncovered:
            break
    return found


def is_settled(operators: Operators, kinds: Sequence[str], anchors: Sequence[Anchor]) -> bool:
    """Return whether more operators would hardly change the anchors: no better communicator was used even once."""
    best: dict[int, int] = {}
    for candidate in _candidates(operators, kinds):
        for rank in candidate.ranks.tolist():
            best.setdefault(rank, candidate.communicator)
    return all(best[rank] == anchor.communicator for anchor in anchors for rank in anchor.ranks.tolist())


@dataclass(frozen=True, slots=True)
class _Candidate:
    communicator: int
    ranks: Array
    used: int
    is_scalar: bool
    is_data_parallel: bool


def _candidates(operators: Operators, kinds: Sequence[str]) -> list[_Candidate]:
    is_reduction = np.isin(operators.operator, REDUCTIONS)
    communicator, rank = operators.communicator[is_reduction], operators.rank[is_reduction]
    sequence, size_bytes = operators.sequence[is_reduction], operators.size_bytes[is_reduction]
    largest = np.fmax.reduce(operators.size_bytes, initial=0.0)
    ranked = []
    by_communicator = np.argsort(communicator, kind="stable")
    codes, firsts = np.unique(communicator[by_communicator], return_index=True)
    for code, rows in zip(codes.tolist(), np.split(by_communicator, firsts[1:]), strict=False):
        used = len(np.unique(sequence[rows]))
        ranks = np.unique(rank[rows])
        own = np.fmax.reduce(size_bytes[rows], initial=0.0)
        order = _KIND_ORDER.get(kinds[code], _OTHER_KIND)
        candidate = _Candidate(code, ranks, used, _is_scalar(own, largest), order <= _KIND_ORDER["dp"])
        ranked.append(((order, used, -len(ranks), code), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda one: one[0])]


def _learn(operators: Operators, candidate: _Candidate) -> Anchor | None:
    lane = anchor_lane(operators, candidate.communicator, candidate.ranks)
    cuts = find_cuts(lane)
    if len(cuts) < REPEATS + 1:
        return None
    last_sequence = lane.sequence[cuts[1:] - 1]
    first_sequence = int(lane.sequence[cuts[0]])
    # The iterations must hold a good part of a rank's operators: set-up repeats itself too.
    rows = rows_of_rank(operators, int(candidate.ranks[0]))
    own = np.flatnonzero((rows.communicator == candidate.communicator) & rows.is_collective)
    inside = own[(rows.sequence[own] >= first_sequence) & (rows.sequence[own] <= last_sequence[-1])]
    if not len(inside) or inside.max() - inside.min() + 1 < _SPREAD * len(rows):
        return None
    return Anchor(candidate.communicator, candidate.ranks, last_sequence)


def _has_finer(operators: Operators, candidate: _Candidate, others: Sequence[_Candidate], anchor: Anchor) -> bool:
    for other in others:
        # Only gradients of at least two of its ranks can show that iterations end more often.
        if other.is_scalar or not other.is_data_parallel or len(np.intersect1d(other.ranks, candidate.ranks)) < 2:
            continue
        lane = anchor_lane(operators, other.communicator, other.ranks)
        if not lane.sides and len(np.unique(lane.classes)) < 2:
            return False  # one operator over and over: nothing tells buckets from iterations
        return len(find_cuts(lane)) >= _FINER * len(anchor.last_sequence)
    return False


def rows_of_rank(operators: Operators, rank: int) -> Operators:
    """Take the rows of one rank, in order of start."""
    first, past = np.searchsorted(operators.rank, [rank, rank + 1])
    return operators.only(slice(first, past))  # type: ignore[arg-type]


def anchor_lane(operators: Operators, communicator: int, ranks: Array) -> AnchorLane:
    """Join the reductions that the members of a communicator logged."""
    own = operators.only((operators.communicator == communicator) & operators.is_collective)
    reductions = own.only(np.isin(own.operator, REDUCTIONS))
    # The reductions, and the missing ones between them: rows were lost, unless numbers count otherwise.
    sequence = np.unique(reductions.sequence)
    if len(sequence) and sequence[-1] - sequence[0] < 2 * len(np.unique(own.sequence)):
        span = np.arange(sequence[0], sequence[-1] + 1)
        sequence = span[np.isin(span, sequence) | ~np.isin(span, own.sequence)]
    place = np.searchsorted(sequence, reductions.sequence)
    size_bytes = np.full(len(sequence), np.nan)
    np.fmax.at(size_bytes, place, reductions.size_bytes)
    coarse = np.full(len(sequence), HOLE)
    coarse[place] = reductions.operator
    is_known = coarse != HOLE
    classes = np.full(len(sequence), HOLE)
    sizes = np.where(np.isnan(size_bytes), -1, size_bytes).astype(np.int64)
    classes[is_known] = number_rows(coarse[is_known], sizes[is_known])
    sampled = ranks[np.unique(np.linspace(0, len(ranks) - 1, _SAMPLED).astype(np.int64))]
    sides = [side for rank in sampled.tolist() for side in _sides(operators, rank, communicator, sequence, TRAINING)]
    others = _sides(operators, int(ranks[0]), communicator, sequence, _NOT_TRAINING)
    is_scalar = _is_scalar(size_bytes, np.fmax.reduce(operators.size_bytes, initial=0.0))
    starts = np.full(len(sequence), np.inf)
    is_timed = reductions.start_ns > 0
    np.minimum.at(starts, place[is_timed], reductions.start_ns[is_timed].astype(np.float64))
    timed, every = np.flatnonzero(np.isfinite(starts)), np.arange(len(sequence), dtype=np.float64)
    # Without times each operator counts as one unit after the one before it.
    starts = np.interp(every, timed, starts[timed]) if len(timed) else every
    return AnchorLane(sequence, classes, coarse, size_bytes, is_scalar, starts, sides, others)


def _sides(operators: Operators, rank: int, communicator: int, sequence: Array, wanted: Sequence[int]) -> list[Array]:
    """Return the number of operators of each `wanted` kind that a rank ran before each operator of the lane.

    NaN where it has no row of that operator, or of the one before.
    """
    rows = rows_of_rank(operators, rank)
    rows = rows.only(rows.start_ns > 0)
    is_anchor = (rows.communicator == communicator) & np.isin(rows.operator, REDUCTIONS)
    position = np.full(len(sequence), np.nan)
    position[np.searchsorted(sequence, rows.sequence[is_anchor])] = np.flatnonzero(is_anchor)
    ends = np.where(np.isnan(position), 0, position).astype(np.int64)
    is_known = ~np.isnan(position) & ~np.isnan(np.roll(position, 1))
    is_known[:1] = False  # `roll` puts the last one before it
    sides = []
    is_side = np.isin(rows.operator, wanted) & ~is_anchor
    largest = np.fmax.reduce(rows.size_bytes, initial=0.0)
    kind = number_rows(rows.communicator, rows.operator)
    for code in np.unique(kind[is_side]).tolist():
        chosen = is_side & (kind == code)
        own = np.fmax.reduce(rows.size_bytes[chosen], initial=0.0)
        if chosen.sum() >= REPEATS and not _is_scalar(own, largest):  # single numbers are metrics, and no sign
            count = np.diff(np.cumsum(chosen)[ends], prepend=0).astype(np.float64)
            sides.append(np.where(is_known & (count >= 0), count, np.nan))
    return sides


def _is_scalar(size_bytes: Any, largest_bytes: float) -> Any:
    """Whether an operator, or each of some, reduces single numbers, such as a loss, and not gradients."""
    return (size_bytes > 0) & (size_bytes <= min(_SCALAR_BYTES, _SCALAR_SHARE * largest_bytes))


HOLE: Final = -1  # class of an operator that is in no rank's rows: it may be any
REPEATS: Final = 3  # number of exact repeats in a row that make a template
_CLASSES: Final = 24  # classes that are compared, each by a Fourier transform of the lane
_CORRELATED: Final = 0.3  # share of equal pairs from which a lag may be a period
_MOST_TRIES: Final = 200  # lags, the best ones: each costs a pass over the lane
_COVERED: Final = 0.3  # share of the lane that exact repeats must cover
# Share of the periods that hold a kind of operator: from 1 / `_RARE` to `_MOSTLY` they are parts of an iteration.
_RARE: Final = 32
_MOSTLY: Final = 0.6
# Numbers of a kind must be alike by `_ALIKE` from period to period. Where they are by more than `_UNEVEN` more alike
# some periods later, the iteration has that many of them.
_UNEVEN: Final = 0.3
_ALIKE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Template:
    """A repeated pattern.

    The classes of one period, and the longest stretch ``[first, past)`` that repeats it exactly.
    """

    classes: Array
    first: int
    past: int

    def __len__(self) -> int:
        return len(self.classes)


def find_template(classes: Array, sides: Sequence[Array], is_scalar: Array) -> Template | None:
    """Find the smallest period that is an iteration: autocorrelation proposes some, an exact template confirms one.

    A period is accepted if exact repeats (`REPEATS` in a row) cover a good part of the lane, and if it holds every
    kind of training communication: a kind that comes in few of the supposed periods, but at least once in 32, shows
    that they are parts (micro-batches, buckets of gradients). A rarer kind is an evaluation or a checkpoint.

    `classes`: class of each operator of one lane in order of sequence; `HOLE` where unknown. `sides`: of each kind of
    training communication beside the lane, how many there were before each operator of the lane since the one before
    (float64, NaN where not known). `is_scalar`: whether each operator carries single numbers: a loss or a norm, which
    has an interval of its own.
    """
    longest = len(classes) // REPEATS
    # Where each class of the lane comes, except holes and single numbers
    names, counts = np.unique(classes, return_counts=True)
    marks = [(classes == name).astype(np.float64) for name in names[(names != HOLE) & (counts >= REPEATS)][:_CLASSES]]
    marks = [mark for mark in marks if not is_scalar[mark > 0].all()]
    for period in _periods(classes, longest).tolist():
        # Stretches ``[first, past)`` in which at least `REPEATS` periods are equal.
        early, late = classes[:-period], classes[period:]
        is_same = (early == late) | (early == HOLE) | (late == HOLE)
        edges = np.flatnonzero(np.diff(is_same.astype(np.int8), prepend=0, append=0))
        firsts, pasts = edges[::2], edges[1::2]
        is_long = pasts - firsts >= (REPEATS - 1) * period
        runs = list(zip(firsts[is_long].tolist(), (pasts[is_long] + period).tolist(), strict=True))
        covered = sum(past - first for first, past in runs)
        if covered < _COVERED * len(classes):
            continue
        stretch = slice(runs[0][0], runs[-1][1])
        if not all(_is_in_each(_blocks(mark[stretch], period)) for mark in marks):
            continue
        if all(_is_whole(side, period, runs) for side in sides):
            first, past = max(runs, key=lambda run: (run[1] - run[0], -run[0]))
            # Class of each place of the template: the most frequent of the known ones
            own, place = classes[first:past], np.arange(past - first) % period
            is_known = own != HOLE
            shape = period, int(own.max()) + 1
            votes = np.zeros(shape, dtype=np.int64)
            np.add.at(votes, (place[is_known], own[is_known]), 1)
            majority = np.where(votes.any(axis=1), votes.argmax(axis=1), HOLE) if shape[1] else np.full(period, HOLE)
            return Template(majority, first, past)
    return None


def _correlate(values: Array, size: int) -> Array:
    spectrum = np.fft.rfft(values, size)
    return np.fft.irfft(spectrum * np.conj(spectrum), size)


def _periods(classes: Array, longest: int) -> Array:
    """Return the lags that may be periods, ascending."""
    # Share of equal pairs among the known pairs of each lag ``0 .. longest``
    # Twice the length: a Fourier transform correlates in a circle, and the end must not meet the begin.
    size = 1 << int(np.ceil(np.log2(max(2 * len(classes), 2))))
    is_known = classes != HOLE
    names, counts = np.unique(classes[is_known], return_counts=True)
    equal = np.zeros(size)
    for name in names[np.argsort(-counts, kind="stable")][:_CLASSES]:
        equal += _correlate((classes == name).astype(np.float64), size)
    pairs = _correlate(is_known.astype(np.float64), size)
    share = equal[: longest + 1] / np.maximum(pairs[: longest + 1], 1.0)
    lags = np.arange(1, longest + 1)
    lags = lags[share[1:] >= _CORRELATED]
    if len(lags) > _MOST_TRIES:
        best = np.argsort(-share[lags], kind="stable")[:_MOST_TRIES]
        lags = np.sort(lags[best])
    return lags


def _is_whole(side: Array, period: int, runs: Sequence[tuple[int, int]]) -> bool:
    """Whether a kind of communication, by its numbers, comes anew in each period."""
    blocks = np.concatenate([_blocks(side[first:past], period) for first, past in runs])
    blocks = blocks[~np.isnan(blocks).any(axis=1)]
    if len(blocks) < REPEATS or not blocks.any():
        return True  # too little is known to contradict the period
    if not _is_in_each(blocks):
        return False
    # Less than usual is an evaluation; more than usual, at even distances, shows where the true period begins.
    blocks = np.maximum(blocks, np.percentile(blocks, 50, axis=0, method="lower"))
    alike = _alike(blocks, 1)
    longest = min(len(blocks) // REPEATS, _RARE)
    return alike >= _ALIKE and all(_alike(blocks, lag) <= alike + _UNEVEN for lag in range(2, longest + 1))


def _is_in_each(blocks: Array) -> bool:
    """Whether most periods have some, or hardly any has."""
    share = float((blocks.sum(axis=1) > 0).mean()) if len(blocks) else 0.0
    return not 1 / _RARE <= share < _MOSTLY


def _blocks(side: Array, period: int) -> Array:
    count = len(side) // period
    return side[: count * period].reshape(count, period)


def _alike(blocks: Array, lag: int) -> float:
    """How much the numbers of one period are those of the period `lag` later: 1 is equal."""
    early, late = blocks[:-lag], blocks[lag:]
    return float(np.minimum(early, late).sum() / max(np.maximum(early, late).sum(), 1.0))


# Times the usual number of operators before the first one of a burst: the forward pass runs before it.
_BURST: Final = 1.5
_ALL_ALIKE: Final = 0.95  # share of one class up to which the classes, with their sizes, tell operators apart
_LEAST_BURSTS: Final = 1 / 64  # share of the operators; fewer are no rhythm, but rows that were lost
_LEAST_NS: Final = 1_000_000  # no training iteration is shorter: its two passes launch hundreds of kernels
_TIED: Final = 0.8  # of the longest pause: a template whose last one is as long already ends where iterations do
_BRIEF: Final = 0.3  # of an iteration's length: a block that is shorter trails the iteration before
# Times as large: a block whose largest operator differs by more from an iteration's is no warm-up of it.
_SCALAR: Final = 64.0
_LONG_BLOCK: Final = 8  # periods after a break within which the template must hold again
_CELLS: Final = 1 << 22  # comparisons at once: they bound the memory
_SHORTEST_HALF: Final = 32  # operators; shorter stretches are not halved again


@dataclass(frozen=True, slots=True)
class AnchorLane:
    """Reductions of one communicator in order of sequence; arrays of equal length."""

    sequence: Array  # of each operator
    # Equal for operators that are equal in all known respects; `HOLE` where no rank's rows hold the operator
    classes: Array
    operators: Array  # coarser classes, without sizes
    size_bytes: Array  # float64, NaN where unknown
    is_scalar: Array  # whether it carries single numbers
    start_ns: Array  # float64, of some member
    sides: Sequence[Array]  # as `find_template` wants them
    others: Sequence[Array] = ()  # the same of operators that do not train, such as gathered logits

    @property
    def is_of_layers(self) -> bool:
        """Whether its operators are all alike, and too close for iterations: parts of one, as those of layers."""
        distance_ns = float(np.median(np.diff(self.start_ns))) if len(self) > 1 else 0.0
        return len(np.unique(self.classes[self.classes != HOLE])) == 1 and 1 < distance_ns < _LEAST_NS

    def __len__(self) -> int:
        return len(self.sequence)


def find_cuts(lane: AnchorLane) -> Array:
    """Find where iterations begin on the lane.

    Returns ascending places in the lane: an iteration lies between each and the next. Empty where nothing repeats.
    """
    if lane.is_of_layers:
        before = np.nansum([*lane.sides, *lane.others], axis=0)
        return np.flatnonzero(before > _BURST * np.median(before) + 0.5)
    # From the finest classes to the coarsest: the first that repeat are used.
    for classes in (_with_bursts(lane), lane.classes, lane.operators):
        search = _Search(lane, classes)
        search.segment(0, len(lane))
        if search.cuts:
            return np.array(sorted(search.cuts), dtype=np.int64)
    return np.empty(0, dtype=np.int64)


def _with_bursts(lane: AnchorLane) -> Array:
    """Give the first of several equal operators, before which the rank ran much else, a class of its own."""
    before = np.sum(list(lane.sides), axis=0) if lane.sides else np.full(len(lane), np.nan)
    known = before[~np.isnan(before)]
    _, counts = np.unique(lane.classes[lane.classes != HOLE], return_counts=True)
    if not len(known) or counts.max(initial=0) < _ALL_ALIKE * counts.sum():  # sizes tell them apart, exactly
        return lane.classes
    is_burst = before > _BURST * float(np.median(known)) + 0.5
    if is_burst.mean() < _LEAST_BURSTS:  # nothing to tell apart, or a few rows were lost
        return lane.classes
    return np.where(np.isnan(before) | (lane.classes == HOLE), HOLE, 2 * lane.classes + is_burst)


class _Search:
    """Learn a template, follow it as far as it holds, and begin anew on the stretches before and after."""

    def __init__(self, lane: AnchorLane, classes: Array) -> None:
        self._lane, self._classes = lane, classes
        self.cuts: set[int] = set()

    def segment(self, low: int, high: int) -> bool:
        """Find the cuts in ``[low, high)``; return whether anything repeats there."""
        if high - low < REPEATS:
            return False
        lane = self._lane
        sides = [side[low:high] for side in lane.sides]
        template = find_template(self._classes[low:high], sides, lane.is_scalar[low:high])
        if template is None:
            if high - low < _SHORTEST_HALF:
                return False
            middle = (low + high) // 2  # a repetition in one half may be too short to show in the whole
            return any([self.segment(low, middle), self.segment(middle, high)])
        classes, start = self._rotated(template, low)
        self.cuts.add(start)
        end = self._follow(classes, start, high)
        begin = self._follow(classes, start, low) if start > low else start
        period = len(classes)  # a stretch shorter than one iteration holds no others
        if begin - low <= period or not self.segment(low, begin):
            # Iterations before the template held, whose operators had other sizes, count as well.
            while begin - period >= low and self._is_warm_up(classes, begin - period, begin):
                begin -= period
                self.cuts.add(begin)
        if high - end > period and self.segment(end, high):
            # Iterations that looked like the former job belong to the job as it goes on.
            later = sorted(cut for cut in self.cuts if cut > end)[:2]
            change = 2 * later[0] - later[1] if len(later) == 2 else end
            if end - _LONG_BLOCK // 2 * period <= change < end and change in self.cuts:
                self.cuts.difference_update(range(change + 1, later[0]))
        return True

    def _rotated(self, template: Template, low: int) -> tuple[Array, int]:
        """Let the template begin after the longest pause of the lane: forward passes reduce no gradients."""
        period, first, past = len(template), template.first + low, template.past + low
        pause_ns = np.diff(self._lane.start_ns[first:past])
        pause_ns = pause_ns[: len(pause_ns) // period * period].reshape(-1, period)
        medians = np.median(pause_ns, axis=0)
        after = period - 1 if medians[-1] >= _TIED * medians.max() else int(medians.argmax())
        shift = (after + 1) % period
        return np.roll(template.classes, -shift), first + shift

    def _follow(self, classes: Array, at: int, end: int) -> int:
        """Follow the template from `at` on or back, as far as `end` at most; return where it is lost."""
        step = 1 if end >= at else -1
        while True:
            own = self._classes[at:end] if step > 0 else self._classes[end:at][::-1]
            period = len(classes)
            count = len(own) // period
            is_whole = _is_equal(own[: count * period].reshape(count, period), classes[::step]).all(axis=1)
            past = at + step * (count if is_whole.all() else int(is_whole.argmin())) * period
            self.cuts.update(range(at, past + step, step * period))
            # The template broke: rows were lost, or an evaluation or a checkpoint came between.
            skipped = _next_match(own[abs(past - at) :], classes[::step])
            if skipped is None:
                return past
            at = past + step * skipped
            # The block between holds other iterations, or trails the one before, or else stays one by itself.
            first, past = min(at, past), max(at, past)
            self.cuts.update((first, past))
            if (past - first) % period == 0 and self._has_operators(classes, first, past):
                self.cuts.update(range(first, past, period))
            elif first > period:
                start_ns = self._lane.start_ns
                usual_ns = start_ns[first - 1] - start_ns[first - 1 - period]
                if start_ns[past - 1] - start_ns[first - 1] < _BRIEF * usual_ns:  # they trail the iteration before
                    self.cuts.discard(first)

    def _has_operators(self, classes: Array, first: int, past: int) -> bool:
        """Whether a block has the operators of the template, with other sizes."""
        coarse = dict(zip(self._classes.tolist(), self._lane.operators.tolist(), strict=True))
        wanted = np.array([coarse[name] for name in classes.tolist()])
        return bool(_is_equal(self._lane.operators[first:past].reshape(-1, len(classes)), wanted).all())

    def _is_warm_up(self, classes: Array, first: int, past: int) -> bool:
        if not self._has_operators(classes, first, past):
            return False
        lane, after = self._lane, slice(past, past + len(classes))
        own, usual = (
            float(np.fmax.reduce(lane.size_bytes[part], initial=0.0)) for part in (slice(first, past), after)
        )
        if usual > _SCALAR * own > 0 or own > _SCALAR * usual > 0:
            return False  # single numbers, beside gradients: an evaluation or set-up
        return not any(side[first:past].sum() == 0 and np.nansum(side[after]) > 0 for side in lane.sides)


def _is_equal(found: Array, wanted: Array) -> Array:
    return (found == wanted) | (found == HOLE) | (wanted == HOLE)


def _next_match(classes: Array, template: Array) -> int | None:
    """Return where the template holds twice in a row, or once at the end; None if it does not nearby."""
    # Twice, so that a few operators which are alike by chance are no match; holes behind the end match any.
    wanted = np.concatenate([template, template])
    classes = np.concatenate([classes, np.full(len(template), HOLE)])
    searched = min(len(classes) - len(wanted), _LONG_BLOCK * len(template))
    step = max(_CELLS // len(wanted), 1)
    for first in range(0, searched + 1, step):
        part = classes[first : min(first + step, searched + 1) + len(wanted) - 1]
        is_match = _is_equal(np.lib.stride_tricks.sliding_window_view(part, len(wanted)), wanted).all(axis=1)
        if is_match.any():
            return first + int(is_match.argmax())
    return None
