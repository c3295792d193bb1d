from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.plugins.baseline import RobustBaseline
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
