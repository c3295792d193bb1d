from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.messages.records import UNKNOWN


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
