"""A rank's operators against their own past: a robust baseline per class of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, medians
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Floats, Ints
from irregulars.messages.records import OPERATORS

Codes: TypeAlias = NDArray[np.uint64]
"""Codes of classes, series or slots: scrambled, so that two differ but for a chance of 1 in 2^64."""

_KEPT: Final = ("frames", "classes", "median", "spread", "taught", "seen")
_UNSIZED: Final = 64  # bucket of operators without a size; sized ones have 0 to 63


class RobustBaseline:
    """Robust z-score of log elapsed per class: communicator, operator, peer, and size to a factor of two.

    Median and median absolute deviation of each class are tracked by signs (Ma, Muthukrishnan and Sandler 2013,
    "Frugal streaming for estimating quantiles", with steps that shrink to a share of the spread): each frame moves
    them by the share of its values above less the share below. That is two numbers per class, needs no buffer, and
    no value, however large, moves them by more than a step.

    Parameters
    ----------
    warm_up
        Values that a class must have taught before it has an opinion. 20: the median of as many is known to about a
        third of their spread.
    rate
        Step of one frame, in spreads, once warm. 0.1 forgets in some tens of iterations.
    floor_ratio
        Least spread that counts as noise, as a ratio of elapsed. 0.02: on a quiet host gloo's own noise is 0.04.
    most_classes
        Bound of the state, in classes; the classes that were not seen for longest go first.

    Notes
    -----
    A row is strange from 6 robust standard deviations on (``strange_from``). Chosen: a row three times as slow scores
    27 where the noise is 0.04, and of 100 healthy frames of 48 rows at most 5 reach it (`plugins.checks`).

    >>> from irregulars.detectors.plugins.sample_frames import sample_frame
    >>> detector = RobustBaseline()
    >>> for iteration in range(50):
    ...     detector.learn(sample_frame("operator", iteration))
    >>> slow = sample_frame("operator", 50, is_faulty=True)
    >>> set(slow["communicator"][detector.score(slow) > 6].tolist())
    {2}
    """

    level: ClassVar[Level] = "operator"
    against: ClassVar[Against] = "past"
    reads: ClassVar[tuple[str, ...]] = ("communicator", "operator", "peer", "size_bytes", "elapsed_ns")
    strange_from: ClassVar[float] = 6.0

    def __init__(
        self, *, warm_up: int = 20, rate: float = 0.1, floor_ratio: float = 0.02, most_classes: int = 4096
    ) -> None:
        self.warm_up = warm_up
        self.rate = rate
        self.floor_ratio = floor_ratio
        self.most_classes = most_classes
        self._frames = 0
        self._classes = np.zeros(0, dtype=np.uint64)  # sorted; the arrays below run beside it
        self._median = np.zeros(0)
        self._spread = np.zeros(0)
        self._taught = np.zeros(0, dtype=np.int64)
        self._seen = np.zeros(0, dtype=np.int64)

    def score(self, frame: Frame) -> Scores:
        """Score each operator; positive: slower than usual, NaN: its class is cold, or it did not end."""
        values = log_elapsed(frame["elapsed_ns"])
        if not len(self._classes) or not len(values):
            return np.full(len(values), np.nan)
        classes = pack_classes(frame)
        # A class beyond the last one gets the last index, whose code differs: it is not warm.
        found = np.minimum(np.searchsorted(self._classes, classes), len(self._classes) - 1)
        is_warm = (self._classes[found] == classes) & (self._taught[found] >= self.warm_up)
        spread = np.maximum(MAD_TO_SIGMA * self._spread[found], self.floor_ratio)
        return np.where(is_warm, (values - self._median[found]) / spread, np.nan)

    def learn(self, frame: Frame) -> None:
        """Move the baselines of the classes in the frame by one step."""
        values = log_elapsed(frame["elapsed_ns"])
        is_known = ~np.isnan(values)
        if not is_known.any():
            return
        self._frames += 1
        classes, group = np.unique(pack_classes(frame)[is_known], return_inverse=True)
        self._admit(classes, medians(group, values[is_known]))
        self._step(classes, group, values[is_known])
        if len(self._classes) <= self.most_classes:
            return
        kept = np.sort(np.argsort(-self._seen, kind="stable")[: self.most_classes])
        for name in ("_classes", "_median", "_spread", "_taught", "_seen"):
            setattr(self, name, getattr(self, name)[kept])

    def explain(self, frame: Frame, row: int) -> str:
        """Name the operator and its time."""
        operator = OPERATORS[int(frame["operator"][row])]
        return f"{operator} took {frame['elapsed_ns'][row] / 1e6:.3g} ms"

    def state(self) -> dict[str, Any]:
        """Return the classes with their numbers."""
        return {name: getattr(self, f"_{name}") for name in _KEPT}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name in _KEPT:
            setattr(self, f"_{name}", state[name])

    def _admit(self, classes: Codes, middles: Floats) -> None:
        """Make room for new classes, which start at their first median with a spread of a tenth."""
        is_new = ~np.isin(classes, self._classes)
        if not is_new.any():
            return
        at = np.searchsorted(self._classes, classes[is_new])
        self._classes = np.insert(self._classes, at, classes[is_new])
        self._median = np.insert(self._median, at, middles[is_new])
        self._spread = np.insert(self._spread, at, 0.1)
        self._taught = np.insert(self._taught, at, 0)
        self._seen = np.insert(self._seen, at, self._frames)

    def _step(self, classes: Codes, group: Ints, values: Floats) -> None:
        at, counts = np.searchsorted(self._classes, classes), np.bincount(group)
        # While young a class takes larger steps, of the order of 1/n, as a mean would.
        rate = np.maximum(self.rate, 2.0 / (2.0 + self._taught[at] / counts))
        distances = values - self._median[at][group]
        above = np.bincount(group, np.sign(distances)) / counts
        wider = np.bincount(group, np.sign(np.abs(distances) - self._spread[at][group])) / counts
        self._median[at] += rate * self._spread[at] * above
        self._spread[at] = np.clip(self._spread[at] * np.exp(rate * wider), self.floor_ratio / 4, 4.0)
        self._taught[at] += counts
        self._seen[at] = self._frames


def log_elapsed(elapsed_ns: Floats) -> Floats:
    """Natural logarithm, NaN where elapsed is not known; less than one nanosecond counts as one."""
    is_usable = np.isfinite(elapsed_ns) & (elapsed_ns >= 0)
    return np.where(is_usable, np.log(np.where(is_usable, np.maximum(elapsed_ns, 1.0), 1.0)), np.nan)


def pack_classes(frame: Frame) -> Codes:
    """One 64-bit code per class (SplitMix64's finalizer): two classes share one with a chance of 1 in 2^64."""
    size_bytes = frame["size_bytes"]
    is_sized = np.isfinite(size_bytes) & (size_bytes >= 0)
    exponent = np.frexp(np.where(is_sized, size_bytes, 0.0))[1]
    bucket = np.where(is_sized, np.clip(exponent, 0, _UNSIZED - 1), _UNSIZED).astype(np.uint64)
    small = (bucket << np.uint64(8)) | frame["operator"].astype(np.uint64)
    mixed = mix_codes(mix_codes(small) + frame["communicator"].astype(np.int64).view(np.uint64))
    return mix_codes(mixed + frame["peer"].astype(np.int64).view(np.uint64))


def mix_codes(codes: Codes) -> Codes:
    """Scramble 64-bit codes, one to one (SplitMix64's finalizer)."""
    # Products of arrays of integers wrap around without a warning, as the finalizer needs it.
    codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(codes ^ (codes >> np.uint64(31)))
