"""The score of the Numenta Anomaly Benchmark, profile ``standard``.

Written from its published rules (Lavin and Ahmad 2015, "Evaluating Real-time Anomaly Detection Algorithms: the
Numenta Anomaly Benchmark", arXiv:1510.03336, section II), with the positions and the probationary period as its
program has them:

* The first 15 % of a series, 750 values at most, do not count.
* A window that people labelled counts once, by its earliest detection: 1 at its left edge, nearly 0 at its right
  edge, -1 if there is none.
* Each detection outside costs up to 0.11: little just behind a window, all of it from three windows on, or before the
  first.
* 0 is a detector that never detects anything, 100 one that detects each window at its left edge and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Flags, Floats

FALSE_WEIGHT: Final = 0.11
MISSED_WEIGHT: Final = 1.0
FAR: Final = 3.0  # windows behind one, from where on a detection costs all


@dataclass(frozen=True, slots=True)
class Series:
    """A series and its windows, as first and last index."""

    name: str
    values: Floats
    windows: tuple[tuple[int, int], ...]

    @property
    def probation(self) -> int:
        """Values at the start that do not count."""
        return min(math.floor(0.15 * len(self.values)), 750)


def worth(position: float) -> float:
    """Return what a detection is worth: nearly 1 at -1, the left edge, 0 at the right edge, and -1 far behind.

    >>> round(worth(-1.0), 5), worth(0.0), round(worth(1.0), 5), worth(3.0)
    (0.98661, 0.0, -0.98661, -1.0)
    """
    return -1.0 if position >= FAR else 2.0 / (1.0 + math.exp(5.0 * position)) - 1.0


def raw_score(series: Series, is_detected: Flags) -> float:
    """Return the sum over windows and false detections."""
    counted = is_detected.copy()
    counted[: series.probation] = False
    total = 0.0
    is_inside = np.zeros(len(counted), dtype=np.bool_)
    for first, last in counted_windows(series):
        is_inside[first : last + 1] = True
        hits = np.flatnonzero(counted[first : last + 1])
        total += _hit(int(hits[0]), last - first + 1) if len(hits) else -MISSED_WEIGHT
    return total + sum(_false(int(at), series.windows) for at in np.flatnonzero(counted & ~is_inside))


def normalized(raw: float, windows: int) -> float:
    """Put a sum on the scale from 0 (no detection at all) to 100 (perfect)."""
    nothing = -MISSED_WEIGHT * windows
    return 100.0 * (raw - nothing) / (windows - nothing)


def counted_windows(series: Series) -> list[tuple[int, int]]:
    """Return the windows that do not lie in the probationary period as a whole."""
    return [(first, last) for first, last in series.windows if last >= series.probation]


def best_threshold(all_series: Sequence[Series], scores: Sequence[Floats]) -> tuple[float, float]:
    """Return the threshold with the highest score over some series, and that score: as NAB does for each detector."""
    known = np.concatenate([one[np.isfinite(one)] for one in scores])
    tried = np.unique(np.quantile(known, 1 - np.geomspace(1e-5, 0.2, 60))) if len(known) else np.array([1.0])
    found = [(corpus_score(all_series, scores, float(one)), float(one)) for one in tried]
    score, threshold = max(found)
    return threshold, score


def corpus_score(all_series: Sequence[Series], scores: Sequence[Floats], threshold: float) -> float:
    """Return the normalized score over some series at one threshold; NaN is no detection."""
    raw = sum(
        raw_score(one, np.nan_to_num(own, nan=-np.inf) >= threshold)
        for one, own in zip(all_series, scores, strict=True)
    )
    return normalized(raw, sum(len(counted_windows(one)) for one in all_series))


def _hit(place: int, width: int) -> float:
    """Return what the detection at a place in a window, from 0, is worth: 1 at the first."""
    return worth(-(width - place) / width) / worth(-1.0)


def _false(at: int, windows: Sequence[tuple[int, int]]) -> float:
    """Return what a detection outside of windows costs, below 0."""
    before = [(first, last) for first, last in windows if last < at]
    if not before:
        return FALSE_WEIGHT * worth(FAR)
    first, last = before[-1]
    return FALSE_WEIGHT * worth((at - last) / max(last - first, 1))
