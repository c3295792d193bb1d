"""The period of a sequence of classes: autocorrelation proposes, an exact repeated template confirms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

Array = np.ndarray

HOLE: Final = -1
"""Class of an operator that nobody's rows show: it may be any."""

REPEATS: Final = 3
"""So often in a row must a template be seen, exactly."""

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

    Parameters
    ----------
    classes
        Class of each operator of one lane in order of sequence; `HOLE` where unknown.
    sides
        Of each kind of training communication beside the lane, how many there were before each operator of the lane
        since the one before (float64, NaN where not known).
    is_scalar
        Whether each operator carries single numbers: a loss or a norm, which comes when people want to see it.

    Notes
    -----
    A period is accepted if exact repeats (`REPEATS` in a row) cover a good part of the lane, and if it holds every
    kind of training communication: a kind that comes in few of the supposed periods, but at least once in 32, shows
    that they are parts (micro-batches, buckets of gradients). What comes less often is an evaluation or a checkpoint.
    """
    longest = len(classes) // REPEATS
    marks = _marks(classes, is_scalar)
    for period in _candidates(classes, longest).tolist():
        runs = _exact_runs(classes, period)
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


def autocorrelation(classes: Array, longest: int) -> Array:
    """Share of equal pairs among the known pairs of each lag ``0 .. longest``."""
    size = 1 << int(np.ceil(np.log2(max(2 * len(classes), 2))))
    is_known = classes != HOLE
    names, counts = np.unique(classes[is_known], return_counts=True)
    equal = np.zeros(size)
    for name in names[np.argsort(-counts, kind="stable")][:_CLASSES]:
        equal += _correlate((classes == name).astype(np.float64), size)
    pairs = _correlate(is_known.astype(np.float64), size)
    return equal[: longest + 1] / np.maximum(pairs[: longest + 1], 1.0)


def _correlate(values: Array, size: int) -> Array:
    spectrum = np.fft.rfft(values, size)
    return np.fft.irfft(spectrum * np.conj(spectrum), size)


def _candidates(classes: Array, longest: int) -> Array:
    """Lags that may be periods, ascending."""
    if longest < 1:
        return np.empty(0, dtype=np.int64)
    share = autocorrelation(classes, longest)
    lags = np.arange(1, longest + 1)
    lags = lags[share[1:] >= _CORRELATED]
    if len(lags) > _MOST_TRIES:
        best = np.argsort(-share[lags], kind="stable")[:_MOST_TRIES]
        lags = np.sort(lags[best])
    return lags


def _exact_runs(classes: Array, period: int) -> list[tuple[int, int]]:
    """Stretches ``[first, past)`` in which at least `REPEATS` periods are equal."""
    early, late = classes[:-period], classes[period:]
    is_same = (early == late) | (early == HOLE) | (late == HOLE)
    edges = np.flatnonzero(np.diff(is_same.astype(np.int8), prepend=0, append=0))
    firsts, pasts = edges[::2], edges[1::2]
    is_long = pasts - firsts >= (REPEATS - 1) * period
    return list(zip(firsts[is_long].tolist(), (pasts[is_long] + period).tolist(), strict=True))


def _is_whole(side: Array, period: int, runs: Sequence[tuple[int, int]]) -> bool:
    """Tell whether a kind of communication, by its numbers, comes anew in each period."""
    blocks = np.concatenate([_blocks(side[first:past], period) for first, past in runs])
    blocks = blocks[~np.isnan(blocks).any(axis=1)]
    if len(blocks) < REPEATS or not blocks.any():
        return True
    if not _is_in_each(blocks):
        return False
    # Less than usual is an evaluation; more than usual, at every so many, shows where the true period begins.
    blocks = np.maximum(blocks, np.percentile(blocks, 50, axis=0, method="lower"))
    alike = _alike(blocks, 1)
    longest = min(len(blocks) // REPEATS, _RARE)
    return alike >= _ALIKE and all(_alike(blocks, lag) <= alike + _UNEVEN for lag in range(2, longest + 1))


def _marks(classes: Array, is_scalar: Array | None) -> list[Array]:
    """Return where each class of the lane stands, except holes and single numbers."""
    names, counts = np.unique(classes, return_counts=True)
    marks = [(classes == name).astype(np.float64) for name in names[(names != HOLE) & (counts >= REPEATS)][:_CLASSES]]
    return [mark for mark in marks if is_scalar is None or not is_scalar[mark > 0].all()]


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
