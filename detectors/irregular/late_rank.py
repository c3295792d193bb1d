"""Which rank works longer than it and everybody else always do, by the evidence of all ranks alone.

An iteration's time holds the noise of everything that stands on its critical path. What a rank is late against its
stage does not, so that a fault shows there which the iteration's time alone would leave in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, robust_sigma

Array = np.ndarray

MIN_HISTORY: Final = 10
"""Nothing is said before so many iterations."""

LATE_SIGMAS: Final = 6.0
"""A rank stands out if it is so much later than the latest ranks usually are."""

MOST_HISTORY: Final = 20
"""So many iterations, the newest ones, show how late ranks are by chance."""

LATEST_RANKS: Final = 16
"""Of so many ranks, the latest ones, it is known how late they were: no other was later than the last of them."""

LASTS: Final = 6
LASTS_SEEN: Final = 3
"""Of a rank that is late again and again, what it exceeds in `LASTS_SEEN` of the newest `LASTS` iterations counts: so
a job whose single iterations are too uneven to tell shows it too."""

_LEAST_SIGMA: Final = 0.05  # of the typical lateness of the latest rank: a few iterations may agree by chance
_LEAST_SIGMA_LASTING: Final = 1 / 6  # ... and few windows, which overlap, even more so

Late = Mapping[int, float]


class Latest(NamedTuple):
    """The rank that stands out most.

    Parameters
    ----------
    over_ns
        By how much it is later than it usually is, ns.
    sigmas
        How far that lies above what the latest rank of an iteration usually is late, in standard deviations.
    lasts
        Whether it is so again and again, rather than in this iteration alone.
    """

    rank: int
    over_ns: float
    sigmas: float
    lasts: bool = False

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


def find_lasting(recent: Sequence[Late], before: Sequence[Late]) -> Latest | None:
    """Find the rank that is most over its usual lateness again and again; None while there is too little history.

    Parameters
    ----------
    recent
        By how much ranks work longer than their stage in the newest iterations, ns, oldest first.
    before
        The same of iterations before any fault that is known, oldest first; they may reach into the newest.
    """
    before = before[-MOST_HISTORY:]
    if len(recent) < LASTS or len(before) < MIN_HISTORY:
        return None
    ranks = sorted({*_ranks(before), *_ranks(recent[-LASTS:])})
    if not ranks:
        return None
    past, now = _table(before, ranks), _table(recent[-LASTS:], ranks)
    usual_ns = np.median(past, axis=1, keepdims=True)
    over_ns = _again_and_again(now - usual_ns)[:, 0]
    # Of a thousand ranks hardly one is among the latest three times, and many are nearly: those have to count.
    at_most = np.array([[_least_known(late) for late in before]])
    usually = np.maximum(_again_and_again(past - usual_ns).max(axis=0), _again_and_again(at_most)[0])
    typical_ns = float(np.median(usually))
    sigma_ns = max(robust_sigma(usually - typical_ns), _LEAST_SIGMA_LASTING * typical_ns, 1.0)
    at = int(np.argmax(over_ns))
    return Latest(ranks[at], float(over_ns[at]), (float(over_ns[at]) - typical_ns) / sigma_ns, lasts=True)


def _table(iterations: Sequence[Late], ranks: Sequence[int]) -> Array:
    return np.array([[late.get(rank, 0.0) for late in iterations] for rank in ranks])


def _least_known(late_ns: Late) -> float:
    """Return how late the others may have been of whom it is not known; 0 where it is known of all."""
    return max(min(late_ns.values()), 0.0) if len(late_ns) >= LATEST_RANKS else 0.0


def _again_and_again(over_ns: Array) -> Array:
    """For each rank and window of `LASTS` iterations what is exceeded in `LASTS_SEEN` of them."""
    windows = np.lib.stride_tricks.sliding_window_view(over_ns, LASTS, axis=1)
    return np.sort(windows, axis=-1)[..., LASTS - LASTS_SEEN]


def _ranks(history: Sequence[Late]) -> set[int]:
    return {rank for late in history for rank in late}
