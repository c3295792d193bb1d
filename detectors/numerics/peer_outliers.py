"""A rank whose loss or gradient norm leaves its usual place among its peers.

Before gradients are reduced, ranks hold different data, so that their norms and losses differ, each by its own share:
one works on longer sequences, another on another part of the model. So a rank has a usual place, in logarithms, among
its peers, and is held against that and against how far the median rank is from its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import FAR_SIGMAS
from irregulars.detectors.numerics.resolution import least_sigma
from irregulars.detectors.numerics.thresholds import NUMERIC
from irregulars.dtypes import Flags, Floats, Ints

_GROSS = math.log(8.0)
_LEAST_RANKS = 3  # of two that part, nobody knows which one left


@dataclass(slots=True)
class PeerState:
    """The state learned of one column."""

    ranks: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # ascending
    usual: np.ndarray = field(default_factory=lambda: np.empty(0))  # mean of each rank's distance from the median
    sigma: float = 0.0
    seen: int = 0
    furthest: list[float] = field(default_factory=list)  # of the newest iterations, in sigmas
    taught: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # iterations that compared each


@dataclass(frozen=True, slots=True)
class Outlier:
    """One rank that stands out."""

    rank: int
    times: float  # its value over the one that its peers' let expect
    sigmas: float


class PeerOutliers:
    """Learns the place of each rank among its peers in one column, and finds ranks that leave theirs."""

    def __init__(self, state: PeerState | None = None) -> None:
        self.state = state or PeerState()

    def observe(self, rank: Ints, values: Floats, *, is_settled: bool = True, step: float = 0.0) -> list[Outlier]:
        """Take in one iteration; return the ranks that stand out, most first.

        `rank`: ascending. `values`: positive and finite ones are compared; the others are left out.
        `is_settled`: else only gross deviations stand out. `step`: to multiples of which values are rounded.
        """
        is_comparable: Flags = np.isfinite(values) & (values > 0)
        rank, logs = rank[is_comparable], np.log(values[is_comparable])
        if len(rank) < _LEAST_RANKS:
            return []  # nor is anything learned of them
        own = self.state
        at = self._places(rank)
        # Of what places leave, so that it stays where it is when ranks on one side of it are missing.
        middle = float(np.median(logs - own.usual[at]))
        left = logs - middle - own.usual[at]
        sigma = max(own.sigma, least_sigma(step, math.exp(float(np.median(logs)))))
        sigmas = np.abs(left) / sigma
        limit = max(FAR_SIGMAS, NUMERIC.peer_times * max(own.furthest, default=0.0))
        # How far tails reach is learned after the usual places are; until then only gross deviations stand out.
        # A rank that came later than others has still to learn its own place.
        taught = own.taught[at]
        is_placed = taught >= IRREGULAR.level_iterations
        is_gross = (np.abs(left) > _GROSS) & is_placed
        # Logarithms part widely near zero, as of a loss that changes its sign, and there values themselves do not.
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.abs(values[is_comparable] - np.exp(middle + own.usual[at]))
            is_apart = apart > FAR_SIGMAS * MAD_TO_SIGMA * np.median(apart)
        is_far = is_gross | (is_settled & (taught >= 2 * IRREGULAR.level_iterations))
        is_out: Flags = (sigmas > limit) & is_apart & is_far
        if 2 * int(is_out.sum()) > int(is_placed.sum()):  # then they are not the ones that stand out
            is_out = np.zeros(len(rank), dtype=np.bool_)
        self._learn(at, left, sigmas, is_out)
        order = np.argsort(-sigmas[is_out], kind="stable")
        found = np.flatnonzero(is_out)[order]
        # exp(710) is more than a float64 can hold.
        return [Outlier(int(rank[i]), float(np.exp(min(left[i], 700.0))), float(sigmas[i])) for i in found.tolist()]

    def _places(self, rank: Ints) -> Ints:
        """Return the indices of ranks in the state; new ones begin at the median."""
        own = self.state
        if not np.isin(rank, own.ranks).all():
            every = np.union1d(own.ranks, rank)
            usual, taught = np.zeros(len(every)), np.zeros(len(every), dtype=np.int64)
            known = np.searchsorted(every, own.ranks)
            usual[known], taught[known] = own.usual, own.taught
            own.ranks, own.usual, own.taught = every, usual, taught
        return np.searchsorted(own.ranks, rank)

    def _learn(self, at: Ints, left: Floats, sigmas: Floats, is_out: Flags) -> None:
        own = self.state
        taught = own.taught[at]
        bounded = np.clip(left, *(np.array([-1, 1]) * FAR_SIGMAS * max(own.sigma, least_sigma())))
        step = np.where(taught < IRREGULAR.level_iterations, left, bounded)
        # An outlier teaches nothing: a fault that lasts must not become the rank's usual place.
        own.usual[at] += np.where(is_out, 0.0, step) * (1 / np.minimum(taught + 1, NUMERIC.memory))
        own.usual -= np.median(own.usual)  # else all of them would drift together where noise has one long tail
        own.taught[at] += 1
        # The way of a late rank to its place is no noise; where all are on theirs, nothing else is known.
        is_usual = taught >= min(own.seen, IRREGULAR.level_iterations)
        is_usual = is_usual if is_usual.any() else ~is_usual
        scale = MAD_TO_SIGMA * float(np.median(np.abs(left[is_usual])))
        own.sigma += (scale - own.sigma) * (1 / min(own.seen + 1, NUMERIC.memory))
        own.seen += 1
        if own.seen > IRREGULAR.level_iterations:
            furthest = float(np.max(sigmas[is_usual & ~is_out], initial=0.0))
            own.furthest = [*own.furthest, furthest][-4 * NUMERIC.memory :]
