from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.plugins.adapters.outliers import PastScores


def filled(scores: np.ndarray, kept: int = 500) -> PastScores:
    past = PastScores(kept=kept, strange_share=0.05)
    for score in scores.tolist():
        past.add(score)
    return past


def test_the_scale_of_past_scores() -> None:
    # One is where the strange share of past scores was as high
    past = filled(np.arange(999.0), kept=999)
    assert past.scaled(np.array([950.0]))[0] == pytest.approx(1.0)
    assert past.scaled(np.array([-1.0]))[0] == pytest.approx(0.0)
    assert past.scaled(np.array([1e9]))[0] == pytest.approx(np.log(1000) / np.log(20))
    # The scale does not depend on the models own
    scores, asked = np.random.default_rng(1).normal(size=300), np.array([0.0, 1.0, 2.0])
    assert filled(scores).scaled(asked).tolist() == filled(7 * scores - 100).scaled(7 * asked - 100).tolist()
    # Of few scores nothing is said
    assert np.isnan(filled(np.arange(49.0)).scaled(np.array([100.0]))).all()
    # What a cold model says of all does not count: `HalfSpaceTrees` says 0 until its first window is full; against
    # those its first scores would be strange.
    past = filled(np.zeros(250))
    assert np.isnan(past.scaled(np.array([0.7]))).all()
    for score in np.random.default_rng(2).uniform(0.6, 0.9, 60).tolist():
        past.add(score)
    assert past.scaled(np.array([0.7]))[0] < 0.5
    # Scores that are no numbers are left out
    past = filled(np.array([np.nan, np.inf, *range(60)]))
    assert np.isfinite(past.scaled(np.array([3.0]))).all()
    assert np.isnan(past.scaled(np.array([np.nan]))).all()
    # Old scores are forgotten
    past = filled(np.concatenate([np.full(500, 9.0) + np.arange(500), np.arange(100.0) / 100]), kept=100)
    assert past.scaled(np.array([5.0]))[0] > 1
