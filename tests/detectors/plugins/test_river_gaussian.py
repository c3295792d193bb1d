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


def test_deviation_from_ones_own_past() -> None:
    # Each rank is compared with its own past
    usual, slow = taught().score(frame(r0=1e8, r1=4.5e8))
    assert abs(usual) < 1
    assert slow > 5
    # A cold rank has no opinion where rivers scorer says regular
    assert np.isnan(taught().score(frame(r7=1e9))).all()
    assert np.isnan(RiverGaussian().score(frame(r0=1e9))).all()
    # A series without spread does not make its usual value strange
    detector = RiverGaussian()
    for _ in range(40):
        detector.learn(frame(r0=1e8))
    assert abs(detector.score(frame(r0=1e8))[0]) < 1e-6
    assert detector.score(frame(r0=2e8))[0] > 10
    # The score stays open to the top
    slow, slower = (taught().score(frame(r0=value))[0] for value in (1e9, 1e11))
    assert slower > slow + 10
    # What is not known is not learned
    detector = taught()
    before = detector.score(frame(r0=1.1e8))[0]
    for value in (np.nan, np.inf, -1.0):
        detector.learn(frame(r0=value))
    assert detector.score(frame(r0=1.1e8))[0] == before
    # A rank that left is forgotten
    detector = taught()
    for _ in range(60):
        detector.learn(frame(r0=1e8))
    assert np.isnan(detector.score(frame(r1=3e8))).all()
