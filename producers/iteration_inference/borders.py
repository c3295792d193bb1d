"""From the operators of one lane to the borders of iterations: where each ends on that lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.producers.iteration_inference.period import HOLE, REPEATS, Template, find_template

Array = np.ndarray

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
    """Reductions of one communicator in order of sequence; arrays of equal length.

    Parameters
    ----------
    sequence
        Of each operator.
    classes
        Operators that are equal in all that the sequence shows; `HOLE` where nobody's rows show the operator.
    operators
        Coarser classes, without sizes.
    size_bytes
        float64, NaN where unknown.
    is_scalar
        Whether it carries single numbers.
    start_ns
        float64, of some member.
    sides
        As `find_template` wants them.
    """

    sequence: Array
    classes: Array
    operators: Array
    size_bytes: Array
    is_scalar: Array
    start_ns: Array
    sides: Sequence[Array]

    def __len__(self) -> int:
        return len(self.sequence)


def find_cuts(lane: AnchorLane) -> Array:
    """Find where iterations begin on the lane.

    Returns
    -------
    Ascending places in the lane: an iteration lies between each and the next. Empty where nothing repeats.
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
    """Learn a template, follow it as far as it holds, and begin anew on what lies before and after."""

    def __init__(self, lane: AnchorLane, classes: Array) -> None:
        self._lane, self._classes = lane, classes
        self.cuts: set[int] = set()

    def segment(self, low: int, high: int) -> bool:
        """Find the cuts in ``[low, high)``; tell whether anything repeats there."""
        if high - low < REPEATS:
            return False
        lane = self._lane
        sides = [side[low:high] for side in lane.sides]
        template = find_template(self._classes[low:high], sides, lane.is_scalar[low:high])
        if template is None:
            return self._halves(low, high)
        classes, start = self._rotated(template, low)
        self.cuts.add(start)
        end = self._follow(classes, start, high)
        begin = self._follow_back(classes, start, low)
        period = len(classes)  # what is shorter than one iteration holds no others
        if begin - low <= period or not self.segment(low, begin):
            self._warm_up(classes, low, begin)
        if high - end > period and self.segment(end, high):
            self._mend(end, len(classes))
        return True

    def _mend(self, end: int, period: int) -> None:
        """Move iterations that looked like the former job to the job as it goes on."""
        later = sorted(cut for cut in self.cuts if cut > end)[:2]
        if len(later) < 2:
            return
        begin = 2 * later[0] - later[1]
        if end - _LONG_BLOCK // 2 * period <= begin < end and begin in self.cuts:
            self.cuts.difference_update(range(begin + 1, later[0]))

    def _halves(self, low: int, high: int) -> bool:
        """Search each half: a repetition there may be too short to show in the whole."""
        if high - low < _SHORTEST_HALF:
            return False
        middle = (low + high) // 2
        found = [self.segment(low, middle), self.segment(middle, high)]
        return any(found)

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
        """Take in a block between iterations: either it holds other iterations, or it belongs to the one before."""
        self.cuts.update((first, past))
        if (past - first) % len(classes) == 0 and self._has_operators(classes, first, past):
            self.cuts.update(range(first, past, len(classes)))
        elif self._is_brief(first, past, len(classes)):
            self.cuts.discard(first)

    def _is_brief(self, first: int, past: int, period: int) -> bool:
        """Whether the operators come together, behind an iteration, in little time."""
        start_ns = self._lane.start_ns
        if first <= period:
            return False
        usual_ns = start_ns[first - 1] - start_ns[first - 1 - period]
        return bool(start_ns[past - 1] - start_ns[first - 1] < _BRIEF * usual_ns)

    def _has_operators(self, classes: Array, first: int, past: int) -> bool:
        """Whether a block calls what the template calls, with other sizes."""
        coarse = dict(zip(self._classes.tolist(), self._lane.operators.tolist(), strict=True))
        wanted = np.array([coarse[name] for name in classes.tolist()])
        return bool(_is_equal(self._lane.operators[first:past].reshape(-1, len(classes)), wanted).all())

    def _warm_up(self, classes: Array, low: int, begin: int) -> None:
        """Count the iterations before the template held, whose operators had other sizes."""
        period = len(classes)
        while begin - period >= low and self._is_warm_up(classes, begin - period, begin):
            begin -= period
            self.cuts.add(begin)

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
