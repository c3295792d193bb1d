"""Loss and gradient norms over the ranks of each iteration: from the database or a recording, for charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Column
from irregulars.messages.evidence import NUMERIC_COLUMNS

# Kinds of verdicts that are about numbers: times of iterations would accuse whoever was slow meanwhile
NUMERIC_KINDS: Final = ("corruption", "loss_spike")

# Quantities that are drawn, with their titles
QUANTITIES: Final[Mapping[str, str]] = {
    "loss": "Loss",
    "grad_norm": "Gradient norm, after the reduction",
    "local_grad_norm": "Gradient norm of each rank, before the reduction",
}

SHOWN: Final = 600  # iterations of a chart at most
ROWS: Final = 1_000_000  # rows of ranks that a chart may read

# Robust standard deviations from the median of an iteration from which on a rank is marked. Chosen: 600 iterations of
# normal noise on 1,000 ranks have none. Charts only point; verdicts are the judge's.
_FAR: Final = 10.0

# Columns are the fields of `Band`
BANDS: Final = """
SELECT quantity, iteration, arrayMin(own.1), middle, arrayMax(own.1),
    arrayReduce('quantileExactHigh(0.5)', apart.1), -arrayMax(apart).2, arrayMax(apart).3
FROM
(
    SELECT value.1 AS quantity, iteration, groupArray((assumeNotNull(value.2), rank)) AS own,
        quantileExactLow(0.5)(assumeNotNull(value.2)) AS middle,
        arrayMap(one -> (if(one.1 = middle, 0, abs(one.1 - middle)), -toInt64(one.2), one.1), own) AS apart
    FROM rank_iterations FINAL
    ARRAY JOIN [('loss', loss), ('grad_norm', grad_norm), ('local_grad_norm', local_grad_norm)] AS value
    WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration IN {wanted:Array(Int64)}
        AND value.2 IS NOT NULL
    GROUP BY quantity, iteration
)
ORDER BY quantity, iteration"""


class Band(NamedTuple):
    """One quantity over the ranks of an iteration; infinite: not finite.

    ``spread`` is the median distance to the median; ``rank`` and ``value`` are of the rank furthest from it.
    """

    quantity: str
    iteration: int
    lowest: float
    middle: float
    highest: float
    spread: float
    rank: int
    value: float

    @property
    def distance_ratio(self) -> float:
        """Distance of the furthest rank from the median, over the median: norms fall by orders while a job learns."""
        return _over(0.0 if self.value == self.middle else abs(self.value - self.middle), self.middle)


def bands_of(columns: Mapping[str, Column], wanted: Sequence[int]) -> list[Band]:
    """Return the bands of some iterations; `columns` are ``rank_iterations`` of `messages.judgements.Judgements`."""
    found = []
    for quantity in sorted(set(QUANTITIES) & set(columns) & set(NUMERIC_COLUMNS)):
        is_known = np.isin(columns["iteration"], wanted) & ~np.isnan(columns[quantity])
        iteration, rank, value = (columns[name][is_known] for name in ("iteration", "rank", quantity))
        for number in np.unique(iteration).tolist():
            own = iteration == number
            ranks, values = rank[own], value[own]
            ordered = np.sort(values)
            # Of two the lower one: between a finite and an infinite one is no mean.
            middle = ordered[(len(values) - 1) // 2]
            apart = np.array([0.0 if one == middle else abs(one - middle) for one in values.tolist()])
            far = np.lexsort((ranks, -apart))[0]
            found.append(Band(
                quantity, number, float(ordered[0]), float(middle), float(ordered[-1]),
                float(np.sort(apart)[len(apart) // 2]), int(ranks[far]), float(values[far]),
            ))  # fmt: skip
    return found


def standing_out(bands: Sequence[Band]) -> list[Band]:
    """Return those of one quantity in which a rank is far outside of the others, by the noise of all of them.

    >>> calm = [Band("loss", at, 1.9, 2.0, 2.1, 0.05, 3, 2.1) for at in range(9)]
    >>> [one.iteration for one in standing_out([*calm, Band("loss", 9, 1.9, 2.0, 9.0, 0.05, 3, 9.0)])]
    [9]
    """
    noise = [_over(one.spread, one.middle) for one in bands if math.isfinite(one.middle + one.spread)]
    least = _FAR * 1.4826 * float(np.median(noise)) if noise else 0.0
    return [one for one in bands if one.lowest != one.highest and one.distance_ratio > least]


def _over(distance: float, middle: float) -> float:
    # A median of 0, or one that is not finite, is no measure: the distance itself counts.
    return distance / abs(middle) if middle and math.isfinite(middle) else distance
