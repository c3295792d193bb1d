"""From the operators of one lane to the borders of iterations: where each ends on that lane.

Autocorrelation proposes a period of the operators' classes, an exactly repeated template confirms it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

Array = np.ndarray

HOLE: Final = -1  # class of an operator that is in no rank's rows: it may be any
REPEATS: Final = 3  # number of exact repeats in a row that make a template
_CLASSES: Final = 24
_CORRELATED: Final = 0.3
_MOST_TRIES: Final = 200
_COVERED: Final = 0.3
_RARE: Final = 32
_MOSTLY: Final = 0.6
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


def find_template(classes: Array, sides: Sequence[Array] = (), is_scalar: Array | None = None) -> Template | None:
    """Find the smallest period that is an iteration.

    A period is accepted if exact repeats (`REPEATS` in a row) cover a good part of the lane, and if it holds every
    kind of training communication: a kind that comes in few of the supposed periods, but at least once in 32, shows
    that they are parts (micro-batches, buckets of gradients). A rarer kind is an evaluation or a checkpoint.

    `classes`: class of each operator of one lane in order of sequence; `HOLE` where unknown. `sides`: of each kind of
    training communication beside the lane, how many there were before each operator of the lane since the one before
    (float64, NaN where not known). `is_scalar`: whether each operator carries single numbers: a loss or a norm, which
    comes when people want to see it.
    """
    longest = len(classes) // REPEATS
    # Where each class of the lane comes, except holes and single numbers
    names, counts = np.unique(classes, return_counts=True)
    marks = [(classes == name).astype(np.float64) for name in names[(names != HOLE) & (counts >= REPEATS)][:_CLASSES]]
    marks = [mark for mark in marks if is_scalar is None or not is_scalar[mark > 0].all()]
    for period in _candidates(classes, longest).tolist():
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
            return Template(_majority(classes[first:past], period), first, past)
    return None


def _correlate(values: Array, size: int) -> Array:
    spectrum = np.fft.rfft(values, size)
    return np.fft.irfft(spectrum * np.conj(spectrum), size)


def _candidates(classes: Array, longest: int) -> Array:
    """Lags that may be periods, ascending."""
    if longest < 1:
        return np.empty(0, dtype=np.int64)
    # Share of equal pairs among the known pairs of each lag ``0 .. longest``
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
        return True
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


def _majority(classes: Array, period: int) -> Array:
    """Class of each place of the template: the most frequent of the known ones."""
    place = np.arange(len(classes)) % period
    is_known = classes != HOLE
    if not is_known.any():
        return np.full(period, HOLE)
    width = int(classes.max()) + 1
    votes = np.bincount(place[is_known] * width + classes[is_known], minlength=period * width).reshape(period, width)
    return np.where(votes.any(axis=1), votes.argmax(axis=1), HOLE)


_BURST: Final = 1.5
_ALL_ALIKE: Final = 0.95
_LEAST_BURSTS: Final = 1 / 64
_TIED: Final = 0.8
_BRIEF: Final = 0.3
_SCALAR: Final = 64.0
_LONG_BLOCK: Final = 8
_CELLS: Final = 1 << 22
_SHORTEST_HALF: Final = 32


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

    def __len__(self) -> int:
        return len(self.sequence)


def find_cuts(lane: AnchorLane) -> Array:
    """Find where iterations begin on the lane.

    Returns ascending places in the lane: an iteration lies between each and the next. Empty where nothing repeats.
    """
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
        begin = self._follow_back(classes, start, low)
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

    def _follow(self, classes: Array, at: int, high: int) -> int:
        """Follow the template from `at`; return where it is lost."""
        while True:
            past = at + _whole_periods(self._classes[at:high], classes) * len(classes)
            self.cuts.update(range(at, past + 1, len(classes)))
            skipped = _next_match(self._classes[past:high], classes)
            if skipped is None:
                return past
            self._add_block(classes, past, past + skipped)
            at = past + skipped

    def _follow_back(self, classes: Array, at: int, low: int) -> int:
        """Follow the template back from `at`; return from where on it holds."""
        while True:
            first = at - _whole_periods(self._classes[low:at][::-1], classes[::-1]) * len(classes)
            self.cuts.update(range(first, at + 1, len(classes)))
            skipped = _next_match(self._classes[low:first][::-1], classes[::-1])
            if skipped is None:
                return first
            self._add_block(classes, first - skipped, first)
            at = first - skipped

    def _add_block(self, classes: Array, first: int, past: int) -> None:
        """Add a block between iterations: either it holds other iterations, or it belongs to the one before."""
        self.cuts.update((first, past))
        if (past - first) % len(classes) == 0 and self._has_operators(classes, first, past):
            self.cuts.update(range(first, past, len(classes)))
        elif first > len(classes):
            start_ns = self._lane.start_ns
            usual_ns = start_ns[first - 1] - start_ns[first - 1 - len(classes)]
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
            return False
        return not any(side[first:past].sum() == 0 and np.nansum(side[after]) > 0 for side in lane.sides)


def _is_equal(found: Array, wanted: Array) -> Array:
    return (found == wanted) | (found == HOLE) | (wanted == HOLE)


def _whole_periods(classes: Array, template: Array) -> int:
    """How many exact periods the classes begin with."""
    count = len(classes) // len(template)
    is_whole = _is_equal(classes[: count * len(template)].reshape(count, len(template)), template).all(axis=1)
    return count if is_whole.all() else int(is_whole.argmin())


def _next_match(classes: Array, template: Array) -> int | None:
    """Return where the template holds twice in a row, or once at the end; None if it does not nearby."""
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
