"""A model's scores on a scale where 1 is strange: by how many of its own past scores were as high."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from irregulars.dtypes import Floats

_CONSTANT: Final = 5  # equal scores that no warm model gives to different rows


class PastScores:
    """The newest scores that a model gave to what it learned.

    Scores of models have no common scale: `HalfSpaceTrees` says 0.9 of nearly everything, an isolation forest -0.4.
    So a score is told by the share of past scores that were as high: ``log(share) / log(strange_share)``, which is 0
    for the lowest score, and 1 where it is `strange_share` (one of twenty). What is above all that is kept counts as
    one of them more, so the scale ends at 2.1 for 500 scores and 0.05.

    Parameters
    ----------
    kept
        Scores kept.
    strange_share
        Share of past scores that are as high as one that is strange, 0 to 1.
    """

    LEAST = 50  # scores before anything is said: of fewer, one of ten is not known

    def __init__(self, *, kept: int, strange_share: float) -> None:
        self._scores: Floats = np.full(kept, np.nan)  # round and round
        self._count = 0
        self._strange_share = strange_share

    def add(self, score: float) -> None:
        """Take a score; a model that says the same of all is cold, and what it said does not count."""
        if not math.isfinite(score):
            return
        if self._is_constant and score != self._scores[0]:
            self._count = 0
        self._scores[self._count % len(self._scores)] = score
        self._count += 1

    @property
    def _past(self) -> Floats:
        return self._scores[: min(self._count, len(self._scores))]

    @property
    def _is_constant(self) -> bool:
        past = self._past
        return len(past) >= _CONSTANT and past[0] == past[-1] and bool((past == past[0]).all())

    def scaled(self, scores: Floats) -> Floats:
        """Return scores on the scale; NaN while there are too few, or all the same."""
        if len(self._past) < self.LEAST or self._is_constant:
            return np.full(len(scores), np.nan)
        past = np.sort(self._past)
        as_high = len(past) - np.searchsorted(past, scores, side="left")
        share = (as_high + 1) / (len(past) + 1)
        return np.where(np.isfinite(scores), np.log(share) / math.log(self._strange_share), np.nan)
