from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.detectors.plugins.river_gaussian import RiverGaussian
from irregulars.detectors.plugins.sample_frames import copy_frame, sample_frame
from irregulars.messages.records import UNKNOWN


def one_class(elapsed_ns: np.ndarray, **others: float) -> dict[str, np.ndarray]:
    rows = len(elapsed_ns)
    return {
        "communicator": np.zeros(rows, dtype=np.int64),
        "operator": np.zeros(rows, dtype=np.uint8),
        "peer": np.full(rows, int(others.get("peer", UNKNOWN)), dtype=np.int64),
        "size_bytes": np.full(rows, others.get("size_bytes", 1e6)),
        "elapsed_ns": np.asarray(elapsed_ns, dtype=np.float64),
    }


def taught(frames: int = 200, seed: int = 1, sigma: float = 0.1, per_frame: int = 4) -> RobustBaseline:
    rng = np.random.default_rng(seed)
    detector = RobustBaseline()
    for _ in range(frames):
        detector.learn(one_class(1e6 * rng.lognormal(0, sigma, per_frame)))
    return detector


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.4])
def test_the_score_is_about_a_z_score_of_log_elapsed(sigma: float) -> None:
    values = 1e6 * np.random.default_rng(9).lognormal(0, sigma, 2000)
    scores = taught(frames=400, sigma=sigma).score(one_class(values))
    assert abs(np.median(scores)) < 0.4
    assert 0.6 < np.std(scores) < 1.6


def test_scores_of_the_baseline() -> None:
    # The usual scores about zero and the quick below
    slow, usual, quick = taught().score(one_class(np.array([2e6, 1e6, 5e5])))
    assert slow > 4 > 0.5 > abs(usual)
    assert quick < -4
    # A class has no opinion before its warm up
    detector = RobustBaseline(warm_up=3)
    frame = one_class(np.array([1e6]))
    for _ in range(3):
        assert np.isnan(detector.score(frame)).all()
        detector.learn(frame)
    assert detector.score(frame).tolist() == [0.0]
    # An operator that did not end has no score and teaches nothing
    detector = taught()
    assert np.isnan(detector.score(one_class(np.array([np.nan, np.inf, -1.0])))).all()
    before = detector.score(one_class(np.array([1.2e6])))
    detector.learn(one_class(np.array([np.nan, np.nan])))
    assert detector.score(one_class(np.array([1.2e6]))) == before
    # Sizes and peers are classes of their own
    detector = taught()
    assert np.isfinite(detector.score(one_class(np.array([1e6])))).all()
    assert np.isnan(detector.score(one_class(np.array([1e6]), size_bytes=9e6))).all()
    assert np.isnan(detector.score(one_class(np.array([1e6]), size_bytes=np.nan))).all()
    assert np.isnan(detector.score(one_class(np.array([1e6]), peer=3))).all()
    # One value however large moves the baseline by a step
    detector = taught()
    usual = one_class(np.array([1e6]))
    before = detector.score(usual)[0]
    detector.learn(one_class(np.array([1e15])))
    assert abs(detector.score(usual)[0] - before) < 0.3


def test_the_baseline_follows_and_is_bounded() -> None:
    # A lasting change becomes the usual
    detector = taught()
    rng = np.random.default_rng(4)
    for _ in range(200):
        detector.learn(one_class(2e6 * rng.lognormal(0, 0.1, 4)))
    assert abs(detector.score(one_class(np.array([2e6])))[0]) < 1
    # The state is bounded and keeps what was seen last
    detector = RobustBaseline(most_classes=10, warm_up=1)
    for peer in range(30):
        detector.learn(one_class(np.array([1e6]), peer=peer))
    scores = [detector.score(one_class(np.array([1e6]), peer=peer))[0] for peer in range(30)]
    assert np.isfinite(scores).tolist() == [False] * 20 + [True] * 10


@settings(max_examples=25)
@given(st.integers(0, 2**31))
def test_the_order_of_rows_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain, shuffled = RobustBaseline(), RobustBaseline()
    for iteration in range(30):
        frame = sample_frame("operator", iteration, rows=30)
        order = rng.permutation(30)
        np.testing.assert_allclose(
            plain.score(frame)[order], shuffled.score({n: c[order] for n, c in copy_frame(frame).items()})
        )
        plain.learn(frame)
        shuffled.learn({name: column[order] for name, column in frame.items()})


def frame(work_ns: list[float], stage: list[int] | None = None) -> dict[str, np.ndarray]:
    stages = stage or [0] * len(work_ns)
    return {"work_ns": np.array(work_ns), "stage": np.array(stages, dtype=np.int64)}


def test_deviation_from_peers() -> None:
    # The rank that works longer is strange from the first frame
    scores = PeerDeviation().score(frame([100.0, 102.0, 98.0, 150.0]))
    assert scores.argmax() == 3
    assert scores[3] > 6
    assert np.abs(scores[:3]).max() < 2
    # A stage that works more is not strange
    scores = PeerDeviation().score(frame([100.0, 101.0, 99.0, 300.0, 303.0, 297.0], [0, 0, 0, 1, 1, 1]))
    assert np.abs(scores).max() < 2
    # One that has no peers gets no opinion
    scores = PeerDeviation().score(frame([100.0, 100.0, 500.0, 1.0, np.nan], [0, 0, UNKNOWN, 1, 0]))
    assert np.isnan(scores).all()
    # A rank without a known work is left out
    scores = PeerDeviation().score(frame([100.0, np.nan, 101.0, 99.0, np.inf]))
    assert np.isnan(scores).tolist() == [False, True, False, False, True]
    # Peers that agree exactly make nobody infinite
    assert PeerDeviation().score(frame([100.0, 100.0, 100.0, 101.0]))[3] == pytest.approx(0.5, abs=0.01)
    # Common slowness changes no score
    work_ns = [100.0, 103.0, 97.0, 140.0]
    slower = [3 * value for value in work_ns]
    np.testing.assert_allclose(PeerDeviation().score(frame(work_ns)), PeerDeviation().score(frame(slower)))


def work_frame(**work_ns: float) -> dict[str, np.ndarray]:
    ranks = np.array([int(name[1:]) for name in work_ns], dtype=np.int64)
    return {"rank": ranks, "work_ns": np.array(list(work_ns.values()))}


def taught_river() -> RiverGaussian:
    detector = RiverGaussian()
    rng = np.random.default_rng(2)
    for factor in rng.lognormal(0, 0.05, 60):
        detector.learn(work_frame(r0=1e8 * factor, r1=3e8 * factor))
    return detector


def test_deviation_from_ones_own_past() -> None:
    # Each rank is compared with its own past
    usual, slow = taught_river().score(work_frame(r0=1e8, r1=4.5e8))
    assert abs(usual) < 1
    assert slow > 5
    # A cold rank has no opinion where rivers scorer says regular
    assert np.isnan(taught_river().score(work_frame(r7=1e9))).all()
    assert np.isnan(RiverGaussian().score(work_frame(r0=1e9))).all()
    # A series without spread does not make its usual value strange
    detector = RiverGaussian()
    for _ in range(40):
        detector.learn(work_frame(r0=1e8))
    assert abs(detector.score(work_frame(r0=1e8))[0]) < 1e-6
    assert detector.score(work_frame(r0=2e8))[0] > 10
    # The score stays open to the top
    slow, slower = (taught_river().score(work_frame(r0=value))[0] for value in (1e9, 1e11))
    assert slower > slow + 10
    # What is not known is not learned
    detector = taught_river()
    before = detector.score(work_frame(r0=1.1e8))[0]
    for value in (np.nan, np.inf, -1.0):
        detector.learn(work_frame(r0=value))
    assert detector.score(work_frame(r0=1.1e8))[0] == before
    # A rank that left is forgotten
    detector = taught_river()
    for _ in range(60):
        detector.learn(work_frame(r0=1e8))
    assert np.isnan(detector.score(work_frame(r1=3e8))).all()
