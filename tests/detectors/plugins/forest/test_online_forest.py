from __future__ import annotations

import pickle

import numpy as np

from irregulars.detectors.plugins.forest.online_forest import OnlineForest
from irregulars.detectors.plugins.sample_frames import sample_frame


def taught(**options: int) -> OnlineForest:
    detector = OnlineForest(**options)  # type: ignore[arg-type]
    for iteration in range(40):
        detector.learn(sample_frame("operator", iteration))
    return detector


def told(detector: OnlineForest, label_of_slow: float, frames: int = 30) -> OnlineForest:
    """Tell it of frames in which both communicators 1 and 2 are slow: the one of 2 is as labelled, the other not."""
    for iteration in range(100, 100 + frames):
        frame = both_slow(iteration)
        labels = np.where(frame["communicator"] == 2, label_of_slow, 1.0 - label_of_slow)
        detector.feedback(frame, labels)
    return detector


def both_slow(iteration: int) -> dict[str, np.ndarray]:
    frame = sample_frame("operator", iteration, is_faulty=True)
    frame["elapsed_ns"] = np.where(frame["communicator"] == 1, 3.0, 1.0) * frame["elapsed_ns"]
    return frame


def test_a_rule_stands_in_until_somebody_says_something() -> None:
    frame = sample_frame("operator", 70, is_faulty=True)
    scores = taught().score(frame)
    assert scores[frame["communicator"] == 2].min() > 0.5
    assert np.median(scores[frame["communicator"] != 2]) == 0


def test_it_learns_what_it_is_told_either_way() -> None:
    for label in (1.0, 0.0):
        frame = both_slow(500)
        called = told(taught(), label).score(frame) > 0.5
        slow = np.isin(frame["communicator"], (1, 2))
        wanted = (frame["communicator"] == 2) == (label == 1.0)
        assert (called == wanted)[slow].mean() > 0.9


def test_rows_nobody_spoke_of_teach_nothing() -> None:
    detector, before = taught(), taught()
    detector.feedback(both_slow(100), np.full(48, np.nan))
    frame = both_slow(101)
    np.testing.assert_array_equal(detector.score(frame), before.score(frame))


def test_what_is_learned_and_asked_in_one_frame_is_limited() -> None:
    detector = taught(most_learned=5, most_scored=7)
    told(detector, 1.0, frames=3)
    assert sum(detector._model._labels) == 15
    assert (detector.score(both_slow(200)) > 0).sum() == 7


def test_what_was_learned_survives_a_pickle() -> None:
    detector = told(taught(), 1.0)
    restored = pickle.loads(pickle.dumps(detector))
    frame = both_slow(300)
    np.testing.assert_array_equal(restored.score(frame), detector.score(frame))
