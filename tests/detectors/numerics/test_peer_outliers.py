"""Ranks that come late have a place of their own, and are held against that."""

from __future__ import annotations

import numpy as np

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.numerics.peer_outliers import Outlier, PeerOutliers

LATE, COMES, RANKS = 15, 60, 16


def watched(watch: PeerOutliers, iterations: range, fault_from: int = 1_000) -> list[tuple[int, Outlier]]:
    """Let 16 ranks train, of which the last comes late with a place of its own; `fault_from`: it works wrongly."""
    found: list[tuple[int, Outlier]] = []
    for number in iterations:
        random = np.random.default_rng(number)
        values = np.exp(random.normal(0, 0.05, RANKS))
        values[LATE] *= 12 if number >= fault_from else 3
        ranks = np.arange(RANKS if number >= COMES else LATE)
        found += [(number, one) for one in watch.observe(ranks, values[ranks])]
    return found


def test_a_rank_that_comes_late_is_not_accused_of_its_own_place() -> None:
    assert watched(PeerOutliers(), range(200)) == []


def test_a_rank_that_comes_late_is_accused_when_it_leaves_its_own_place() -> None:
    found = watched(PeerOutliers(), range(200), fault_from=150)
    assert [(number, one.rank) for number, one in found] == [(number, LATE) for number in range(150, 200)]
    assert all(3 < one.times < 5 for _, one in found)


def test_the_way_of_a_late_rank_to_its_place_is_no_noise_of_the_others() -> None:
    late, without = PeerOutliers(), PeerOutliers()
    watched(late, range(COMES + IRREGULAR.level_iterations))
    watched(without, range(COMES))
    assert late.state.sigma < 1.2 * without.state.sigma
    assert max(late.state.furthest) < 1.5 * max(without.state.furthest)


def test_a_rank_that_misses_an_iteration_moves_no_other_out_of_its_place() -> None:
    """As of two stages of a pipeline, of which one has norms many times those of the other."""
    places, ranks, watch, found = np.repeat([0.0, 4.0], 4), np.arange(8), PeerOutliers(), []
    for number in range(120):
        values = np.exp(places + np.random.default_rng(number).normal(0, 0.05, 8))
        values[6] *= 12 if number >= 110 else 1
        there = ranks[1:] if number in (60, 61) else ranks
        found += [(number, one.rank) for one in watch.observe(there, values[there])]
    assert found == [(number, 6) for number in range(110, 120)]
