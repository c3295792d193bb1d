"""Intervals and calibration. Knows no detector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_Z_95: Final = 1.959963984540054


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a share by Wilson's score; of nothing the share may be anything.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    >>> [round(end, 4) for end in wilson(10, 10)]
    [0.7225, 1.0]
    """
    if not 0 <= hits <= total:
        raise ValueError(f"hits must be 0 to total = {total}; got {hits!r}")
    if total == 0:
        return 0.0, 1.0
    share, spread = hits / total, _Z_95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = _Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(middle - half, 0.0) if hits else 0.0, min(middle + half, 1.0) if hits < total else 1.0


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers whose probability lies in ``[low, high)``: how many, what they promised, and what share was right."""

    low: float
    high: float
    count: int
    promised: float
    right: float


def reliability(probabilities: Sequence[float], is_right: Sequence[bool], bins: int = 10) -> list[Bin]:
    """Compare what was promised with what came true, in bins of equal width; empty ones are left out.

    >>> [(b.low, b.count, b.right) for b in reliability([0.95, 1.0, 0.12], [True, False, False])]
    [(0.1, 1, 0.0), (0.9, 2, 0.5)]
    """
    promised, right = np.asarray(probabilities, dtype=np.float64), np.asarray(is_right, dtype=np.bool_)
    if len(promised) != len(right):
        raise ValueError(f"there must be one answer for each probability; got {len(right)} for {len(promised)}")
    if np.any((promised < 0) | (promised > 1)):
        raise ValueError(f"probabilities must be 0 to 1; got {promised.min():g} to {promised.max():g}")
    place = np.minimum((promised * bins).astype(np.int64), bins - 1)
    return [
        Bin(one / bins, (one + 1) / bins, int(own.sum()), float(promised[own].mean()), float(right[own].mean()))
        for one in np.unique(place).tolist()
        for own in [place == one]
    ]


def calibration_error(found: Sequence[Bin]) -> float:
    """Expected calibration error: mean of |promised - right| over all answers; NaN without any.

    M. P. Naeini, G. Cooper, M. Hauskrecht, Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    """
    total = sum(one.count for one in found)
    return sum(one.count * abs(one.promised - one.right) for one in found) / total if total else math.nan


def brier(probabilities: Sequence[float], is_right: Sequence[bool]) -> float:
    """Mean square of what was promised and did not come true; NaN without any answer."""
    if not probabilities:
        return math.nan
    return float(np.mean((np.asarray(probabilities) - np.asarray(is_right, dtype=np.float64)) ** 2))
