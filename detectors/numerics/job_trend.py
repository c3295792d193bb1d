"""The job's own loss and gradient norm over time: level, slope and noise, and values that jump above them.

A level and a slope are followed as Holt does (C. C. Holt 1957, double exponential smoothing), in logarithms, with
steps that are bounded as Huber's estimate bounds them: one spike moves neither. A level that holds after a jump is
the new one: other data, another phase of the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from irregulars.detectors.numerics.thresholds import NUMERIC
from irregulars.detectors.verdicts.thresholds import VERDICTS

_TO_SIGMA = 1.2533  # from a mean absolute deviation, of a normal distribution
_LEAST_SIGMA = 1e-3
_GROWTH = math.log(1.1)  # a tenth: a loss that trains on falls, or stays
_GROWTH_DEVIATIONS = 10.0  # of the mean: its lowest of long is three or four below
_MOST_LOG = 700.0  # of a float64, nearly
_BOUND = 3.0  # sigmas that one value moves a level by, at most


@dataclass(slots=True)
class TrendState:
    """What was learned of one series."""

    level: float = math.nan
    slope: float = 0.0
    sigma: float = 0.0
    seen: int = 0
    furthest: list[float] = field(default_factory=list)  # of the newest values, in sigmas
    mean: float = math.nan  # over about `NUMERIC.memory` values
    # The lowest that the mean was since the level jumped, and how many values ago
    lowest: float = math.nan
    risen: int = 0
    beyond: int = 0  # newest values in a row that lie beyond what moves the level, on one side (the sign)


@dataclass(frozen=True, slots=True)
class Jump:
    """How far a value lies from what was expected."""

    times: float  # the value over what was expected
    sigmas: float
    expected: float


class JobTrend:
    """Follows one positive series."""

    def __init__(self, state: TrendState | None = None) -> None:
        self.state = state or TrendState()

    def look(self, value: float) -> Jump | None:
        """Say how far a value lies from what is expected; None while nothing is, or for one that has no logarithm."""
        own = self.state
        if own.seen < NUMERIC.warm_up or not (math.isfinite(value) and value > 0):
            return None
        expected = own.level + own.slope
        sigmas = (math.log(value) - expected) / max(own.sigma, _LEAST_SIGMA)
        return Jump(_exp(math.log(value) - expected), sigmas, _exp(expected))

    def is_beyond(self, jump: Jump | None, deviations: float, times: float) -> bool:
        """Whether a jump is further than the noise explains, and than all that was seen of late."""
        if jump is None:
            return False
        furthest = NUMERIC.peer_times * max(self.state.furthest, default=0.0)
        return jump.sigmas > max(deviations, furthest) and jump.times > times

    def growth(self) -> float | None:
        """Return by which factor the series has grown since it was lowest; None: not for long, or by little."""
        own = self.state
        if own.risen < 2 * NUMERIC.memory:
            return None
        noise = max(own.sigma, _LEAST_SIGMA) / math.sqrt(2 * NUMERIC.memory)  # of an exponential mean
        is_growth = own.mean - own.lowest > max(_GROWTH, _GROWTH_DEVIATIONS * noise)
        return _exp(own.mean - own.lowest) if is_growth else None

    def learn(self, value: float) -> None:
        """Take in a value, also one that jumped."""
        if not (math.isfinite(value) and value > 0):
            return
        own, log = self.state, math.log(value)
        if not own.seen:
            own.level = log
        left = log - (own.level + own.slope)
        sigma = max(own.sigma, _LEAST_SIGMA)
        is_settled = own.seen >= NUMERIC.warm_up
        if is_settled:
            own.furthest = [*own.furthest, min(abs(left) / sigma, NUMERIC.deviations)][-4 * NUMERIC.memory :]
            is_beyond, side = abs(left) > _BOUND * sigma, int(math.copysign(1, left))
            own.beyond = side * (abs(own.beyond) * (own.beyond * side > 0) + 1) if is_beyond else 0
            if abs(own.beyond) >= VERDICTS.close_quiet:  # it has another level from here on
                own.level, own.slope, own.beyond, left = log, 0.0, 0, 0.0
                own.mean, own.lowest, own.risen = log, log, 0
            left = max(-_BOUND * sigma, min(_BOUND * sigma, left))
        own.mean = log if not own.seen else own.mean + (log - own.mean) / min(own.seen + 1, NUMERIC.memory)
        own.risen += 1
        if own.seen < NUMERIC.memory or own.mean < own.lowest:
            own.lowest, own.risen = own.mean, 0
        weight = 1 / min(own.seen + 1, NUMERIC.warm_up)
        before = own.level
        own.level += own.slope + weight * left
        own.slope += weight / 4 * (own.level - before - own.slope) if own.seen else 0.0
        own.sigma += 1 / min(own.seen + 1, NUMERIC.memory) * (_TO_SIGMA * abs(left) - own.sigma)
        own.seen += 1


def _exp(log: float) -> float:
    return math.exp(min(log, _MOST_LOG))
