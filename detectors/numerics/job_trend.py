"""The job's own loss and gradient norm over time: the value expected next, and values that jump above it.

In logarithms, the median of the newest values is expected: one spike does not move it, and a level that holds after
a jump is soon the new one (other data, another phase of the schedule). It trails a loss that falls, and then expects
more than comes. Noise is measured between values that follow each other, the reach of tails by its errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import FAR_SIGMAS
from irregulars.detectors.numerics.resolution import least_sigma
from irregulars.detectors.numerics.thresholds import NUMERIC

_TO_SIGMA = 0.8862  # from the mean absolute difference of neighbours, of a normal distribution
_GROWTH = math.log(1.1)  # a tenth: a loss that trains on falls, or stays
_GROWTH_DEVIATIONS = 10.0  # of the mean: its lowest of long is three or four below
_MOST_LOG = 700.0  # of a float64, nearly
_BOUND = 3.0  # sigmas within which values are of one level


@dataclass(slots=True)
class TrendState:
    """The state learned of one series."""

    recent: list[float] = field(default_factory=list)  # logarithms of the newest values; their median is expected
    errors: list[float] = field(default_factory=list)  # how far the newest were above the expected ones, bounded
    mean: float = math.nan  # over about `NUMERIC.memory` values
    # The lowest that the mean was since the level jumped, and how many values ago
    lowest: float = math.nan
    risen: int = 0
    seen: int = 0
    beyond: int = 0  # newest values in a row that lie beyond the expected one, on one side (the sign)


@dataclass(frozen=True, slots=True)
class Jump:
    """How far a value lies from the expected one."""

    times: float  # the value over the expected one
    is_far: bool  # further than the noise explains, and than all that was seen of late
    expected: float


class JobTrend:
    """Follows one positive series."""

    def __init__(self, state: TrendState | None = None) -> None:
        self.state = state or TrendState()

    def look(self, value: float, step: float = 0.0) -> Jump | None:
        """Return how far a value lies from the expected one; None while none is, or for one without a logarithm.

        `step`: to multiples of which values are rounded.
        """
        own = self.state
        if len(own.errors) < IRREGULAR.level_iterations or not (math.isfinite(value) and value > 0):
            return None
        expected = median(own.recent)
        error, sigma = math.log(value) - expected, max(self._sigma(), least_sigma(step, _exp(expected)))
        is_far = error > max(FAR_SIGMAS * sigma, NUMERIC.peer_times * max(own.errors))
        return Jump(_exp(error), is_far, _exp(expected))

    def growth(self) -> float | None:
        """Return by which factor the series has grown since it was lowest; None: not for long, or by little."""
        own = self.state
        if own.risen < 2 * NUMERIC.memory:
            return None
        noise = max(self._sigma(), least_sigma()) / math.sqrt(2 * NUMERIC.memory)  # of an exponential mean
        is_growth = own.mean - own.lowest > max(_GROWTH, _GROWTH_DEVIATIONS * noise)
        return _exp(own.mean - own.lowest) if is_growth else None

    def learn(self, value: float) -> None:
        """Take in a value, also one that jumped."""
        if not (math.isfinite(value) and value > 0):
            return
        own, log = self.state, math.log(value)
        if own.recent:
            error, sigma = log - median(own.recent), max(self._sigma(), least_sigma())
            if len(own.errors) >= IRREGULAR.level_iterations:
                side = (error > _BOUND * sigma) - (error < -_BOUND * sigma)
                own.beyond = side * (abs(own.beyond) * (own.beyond * side > 0) + 1)
                if abs(own.beyond) >= IRREGULAR.min_iterations:  # it has another level from here on
                    own.mean, own.lowest, own.risen, own.beyond = log, log, 0, 0
                    own.recent = own.recent[1 - IRREGULAR.min_iterations :]
                usual, most = median(own.errors[-IRREGULAR.level_iterations :]), FAR_SIGMAS * sigma
                error = min(max(error, usual - most), usual + most)  # so that a spike makes no noise of it
            # A run changes fast at first: of that the newer half counts.
            kept = min(max(own.seen // 2, 2 * IRREGULAR.level_iterations), 4 * NUMERIC.memory)
            own.errors = [*own.errors, error][-kept:]
        own.recent = [*own.recent, log][-IRREGULAR.level_iterations :]
        # The plain mean until the memory is full, then one that fades.
        own.mean = own.mean + (log - own.mean) / min(own.seen + 1, NUMERIC.memory) if own.seen else log
        own.risen += 1
        # Before the memory is full the mean is not settled, and no growth is counted.
        if own.seen < NUMERIC.memory or own.mean < own.lowest:
            own.lowest, own.risen = own.mean, 0
        own.seen += 1

    def _sigma(self) -> float:
        """Return the standard deviation of the noise, which a slow trend does not add to."""
        errors = self.state.errors[-NUMERIC.memory :]
        return _TO_SIGMA * fmean(abs(two - one) for one, two in pairwise(errors)) if len(errors) > 1 else 0.0


def _exp(log: float) -> float:
    return math.exp(min(log, _MOST_LOG))
