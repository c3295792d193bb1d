"""Times as levels on a logarithmic scale: two bytes a cell where the console keeps them, one where it sends them.

A level is monotone in the value, so the largest level of some cells is the level of the largest value: bins may be
made of levels, and what a bin shows is still an extreme. Level 0: nothing is stored, which is not the same as quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from irregulars.dtypes import Floats

Levels: TypeAlias = NDArray[np.uint16]
"""Values as levels; 0: not stored."""

Codes: TypeAlias = NDArray[np.uint8]
"""Levels as the browser gets them; 0: not stored, 1: at or below the scale's `low`, 255: at or above its `high`."""

Values: TypeAlias = NDArray[np.float32]
"""Values of cells; NaN: not stored."""

MISSING: Final = 0
LEAST_NS: Final = 1e3
"""Smallest time that is told apart, ns. Times are logged to the microsecond."""

LEAST_SCORE: Final = 1e-3
"""Smallest score that is told apart; 1 is where strange begins."""

_DECADES: Final = 10
_TOP: Final = 0xFFFF
_PER_E: Final = (_TOP - 1) / (_DECADES * np.log(10.0))  # levels in a factor of e: 0.035 % each
_CODES: Final = 254  # codes for values: 1 to 254 steps above MISSING


def levels_of(values: Values, least: float) -> Levels:
    """Return the level of each value.

    Parameters
    ----------
    values
        NaN where nothing is stored. Negative ones (quicker than usual) get the lowest level.
    least
        What has level 1, in the unit of `values`.
    """
    clipped = np.fmax(values, np.float32(least))  # fmax: NaN becomes `least`, and is set to MISSING below
    scaled = np.log(clipped * np.float32(1 / least)) * np.float32(_PER_E) + np.float32(1.5)
    levels: Levels = np.minimum(scaled, np.float32(_TOP)).astype(np.uint16)
    levels[np.isnan(values)] = MISSING
    return levels


def values_of(levels: Levels, least: float) -> Floats:
    """Return the value of each level; NaN where nothing is stored.

    >>> values_of(levels_of(np.array([2.5e6, np.nan], dtype=np.float32), LEAST_NS), LEAST_NS).round(-3).tolist()
    [2500000.0, nan]
    """
    values = least * np.exp((levels.astype(np.float64) - 1) / _PER_E)
    return np.where(levels == MISSING, np.nan, values)


@dataclass(frozen=True, slots=True)
class Scale:
    """From which level to which colours run.

    Parameters
    ----------
    low, high
        Levels; `high` is above `low`.
    least
        What level 1 stands for, ns or score.
    """

    low: int
    high: int
    least: float

    @property
    def low_value(self) -> float:
        """The value of `low`, in ns or as a score."""
        return float(values_of(np.array([self.low], dtype=np.uint16), self.least)[0])

    @property
    def high_value(self) -> float:
        """The value of `high`, in ns or as a score."""
        return float(values_of(np.array([self.high], dtype=np.uint16), self.least)[0])

    def codes_of(self, levels: Levels) -> Codes:
        """Return the code of each level: higher levels have codes that are as high or higher."""
        steps = np.arange(_TOP + 1, dtype=np.float64) - self.low
        table = np.clip(np.ceil(steps * (_CODES / (self.high - self.low))), 0, _CODES) + 1
        table[MISSING] = 0
        codes: Codes = table.astype(np.uint8)[levels]
        return codes


def scale_of(levels: Levels, low: float, least: float) -> Scale:
    """Return a scale from the value `low` to the largest level there is, at least a factor of 1.1 above.

    Where nothing is above `low` the scale spans a factor of ten, so that noise does not get the strongest colours.
    """
    at = max(1, int(levels_of(np.array([low], dtype=np.float32), least)[0]))
    at = min(at, _TOP - 1)
    most = int(levels.max(initial=0))
    high = most if most > at else at + int(_PER_E * np.log(10.0))
    return Scale(at, min(_TOP, max(high, at + int(_PER_E * np.log(1.1)))), least)
