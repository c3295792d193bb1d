"""To how many digits a source writes its numbers: below those, values that differ may be the same."""

from __future__ import annotations

import math

import numpy as np

from irregulars.dtypes import Floats

_LEAST_SIGMA = 1e-3
"""In logarithms: 0.1 %. Values that differ less are alike, and the last digits say nothing."""


def decimal_step(values: Floats) -> float:
    """Return the power of ten to multiples of which the values are rounded; 0: none that matters; inf: none is known.

    >>> decimal_step(np.array([2.31, 2.3, 0.05])), decimal_step(np.array([2.3134278, 2.3]))
    (0.01, 0.0)
    """
    known = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(known):
        return math.inf
    least = float(known.min())
    first = math.floor(math.log10(least))
    # Three digits of the least value: from the fourth on a step is within `_LEAST_SIGMA`, and makes no difference.
    for power in range(first, first - 4, -1):
        step = 10.0**power
        # Beside a tiny value the largest ones overflow, and infinity is no multiple.
        with np.errstate(all="ignore"):
            multiples = known / step
            if step > _LEAST_SIGMA * least and np.all(np.abs(multiples - np.rint(multiples)) < 1e-6):
                return step
    return 0.0


def least_sigma(step: float = 0.0, value: float = 1.0) -> float:
    """Return the standard deviation, in logarithms, below which values like this one are alike.

    `step`: of `decimal_step`. Noise of a quarter of it leaves most values rounded to the same.
    """
    return max(_LEAST_SIGMA, min(step / 4 / value, 1.0) if value > 0 and step < math.inf else 0.0)
