"""Which rank works longer than it and everybody else always do, by the evidence of all ranks alone.

An iteration's time holds the noise of everything that stands on its critical path. What a rank is late against its
stage does not, so that a fault shows there which the iteration's time alone would leave in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from detectors.medians import MAD_TO_SIGMA

MIN_HISTORY: Final = 10
"""Nothing is said before so many iterations."""

LATE_SIGMAS: Final = 6.0
"""A rank stands out if it is so much later than the latest ranks usually are."""

MOST_HISTORY: Final = 20
"""So many iterations, the newest ones, show how late ranks are by chance."""

_LEAST_SIGMA: Final = 0.05  # of the typical lateness of the latest rank: a few iterations may agree by chance

Late = Mapping[int, float]


class Latest(NamedTuple):
    """The rank that stands out most.

    Parameters
    ----------
    over_ns
        By how much it is later than it usually is, ns.
    sigmas
        How far that lies above what the latest rank of an iteration usually is late, in standard deviations.
    """

    rank: int
    over_ns: float
    sigmas: float

    @property
    def stands_out(self) -> bool:
        """Whether that is no chance."""
        return self.sigmas >= LATE_SIGMAS


def find_latest(late_ns: Late, history: Sequence[Late]) -> Latest | None:
    """Find the rank that is most over its usual lateness; None while there is too little history.

    Parameters
    ----------
    late_ns
        By how much ranks work longer than their stage in one iteration, ns; the latest ones suffice.
    history
        The same of iterations before, oldest first.
    """
    history = history[-MOST_HISTORY:]
    if len(history) < MIN_HISTORY or not late_ns:
        return None
    usual_ns = {rank: median(one.get(rank, 0.0) for one in history) for rank in {*late_ns, *_ranks(history)}}
    rank = max(sorted(late_ns), key=lambda one: late_ns[one] - usual_ns[one])
    past = [max((ns - usual_ns[one] for one, ns in late.items()), default=0.0) for late in history]
    typical_ns = median(past)
    sigma_ns = MAD_TO_SIGMA * median(abs(ns - typical_ns) for ns in past)
    over_ns = late_ns[rank] - usual_ns[rank]
    return Latest(rank, over_ns, (over_ns - typical_ns) / max(sigma_ns, _LEAST_SIGMA * typical_ns, 1.0))


def _ranks(history: Sequence[Late]) -> set[int]:
    return {rank for late in history for rank in late}
