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


def test_drifts() -> None:
    # A row that would be a drift if it stayed is strange
    scores = warm().score(sample_frame("rank", 100, 16, is_faulty=True))
    assert np.flatnonzero(scores >= 1).tolist() == [1]
    # A slow drift that no row shows is strange when the detector tells of it
    detector, strange = warm(), []
    for step in range(120):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 1.0 + 0.004 * step  # 0.4 % an iteration: never five spreads at once
        strange += [step] * int(detector.score(frame)[3] >= 1)
        detector.learn(frame)
    assert strange
    assert strange[0] < 80
    # A drift downwards is nobodys fault
    detector = warm()
    for step in range(60):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 0.7
        assert not (detector.score(frame)[3] >= 1)
        detector.learn(frame)
    # A drift is held for some frames and then over
    detector = warm("river:drift.ADWIN(delta=0.01) with hold=4")
    for step in range(200):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 2.0
        detector.learn(frame)
    assert detector.score(frame)[3] == 0.0, "twice the work has long been usual"
