from __future__ import annotations

import numpy as np

from irregulars.detectors.plugins.river_gaussian import RiverGaussian


def frame(**work_ns: float) -> dict[str, np.ndarray]:
    ranks = np.array([int(name[1:]) for name in work_ns], dtype=np.int64)
    return {"rank": ranks, "work_ns": np.array(list(work_ns.values()))}


def taught() -> RiverGaussian:
    detector = RiverGaussian()
    rng = np.random.default_rng(2)
    for factor in rng.lognormal(0, 0.05, 60):
        detector.learn(frame(r0=1e8 * factor, r1=3e8 * factor))
    return detector


def test_each_rank_is_compared_with_its_own_past() -> None:
    usual, slow = taught().score(frame(r0=1e8, r1=4.5e8))
    assert abs(usual) < 1
    assert slow > 5


def test_a_cold_rank_has_no_opinion_where_rivers_scorer_says_regular() -> None:
    assert np.isnan(taught().score(frame(r7=1e9))).all()
    assert np.isnan(RiverGaussian().score(frame(r0=1e9))).all()


def test_a_series_without_spread_does_not_make_its_usual_value_strange() -> None:
    detector = RiverGaussian()
    for _ in range(40):
        detector.learn(frame(r0=1e8))
    assert abs(detector.score(frame(r0=1e8))[0]) < 1e-6
    assert detector.score(frame(r0=2e8))[0] > 10


def test_the_score_stays_open_to_the_top() -> None:
    slow, slower = (taught().score(frame(r0=value))[0] for value in (1e9, 1e11))
    assert slower > slow + 10


def test_what_is_not_known_is_not_learned() -> None:
    detector = taught()
    before = detector.score(frame(r0=1.1e8))[0]
    for value in (np.nan, np.inf, -1.0):
        detector.learn(frame(r0=value))
    assert detector.score(frame(r0=1.1e8))[0] == before


def test_a_rank_that_left_is_forgotten() -> None:
    detector = taught()
    for _ in range(60):
        detector.learn(frame(r0=1e8))
    assert np.isnan(detector.score(frame(r1=3e8))).all()
