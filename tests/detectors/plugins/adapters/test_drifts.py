from __future__ import annotations

import numpy as np

from irregulars.detectors.plugins.loading import load_detector
from irregulars.detectors.plugins.protocol import Detector
from irregulars.detectors.plugins.sample_frames import sample_frame


def warm(text: str = "river:drift.ADWIN(delta=0.01)", frames: int = 60) -> Detector:
    detector = load_detector(text, is_checked=False)()
    for iteration in range(frames):
        detector.learn(sample_frame("rank", iteration, 16))
    return detector


def test_a_row_that_would_be_a_drift_if_it_stayed_is_strange() -> None:
    scores = warm().score(sample_frame("rank", 100, 16, is_faulty=True))
    assert np.flatnonzero(scores >= 1).tolist() == [1]


def test_a_slow_drift_that_no_row_shows_is_strange_when_the_detector_tells_of_it() -> None:
    detector, strange = warm(), []
    for step in range(120):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 1.0 + 0.004 * step  # 0.4 % an iteration: never five spreads at once
        strange += [step] * int(detector.score(frame)[3] >= 1)
        detector.learn(frame)
    assert strange
    assert strange[0] < 80


def test_a_drift_downwards_is_nobodys_fault() -> None:
    detector = warm()
    for step in range(60):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 0.7
        assert not (detector.score(frame)[3] >= 1)
        detector.learn(frame)


def test_a_drift_is_held_for_some_frames_and_then_over() -> None:
    detector = warm("river:drift.ADWIN(delta=0.01) with hold=4")
    for step in range(200):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 2.0
        detector.learn(frame)
    assert detector.score(frame)[3] == 0.0, "twice the work has long been usual"
