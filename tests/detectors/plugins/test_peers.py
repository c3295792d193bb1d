from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.messages.records import UNKNOWN


def frame(work_ns: list[float], stage: list[int] | None = None) -> dict[str, np.ndarray]:
    stages = stage or [0] * len(work_ns)
    return {"work_ns": np.array(work_ns), "stage": np.array(stages, dtype=np.int64)}


def test_the_rank_that_works_longer_is_strange_from_the_first_frame() -> None:
    scores = PeerDeviation().score(frame([100.0, 102.0, 98.0, 150.0]))
    assert scores.argmax() == 3
    assert scores[3] > 6
    assert np.abs(scores[:3]).max() < 2


def test_a_stage_that_works_more_is_not_strange() -> None:
    scores = PeerDeviation().score(frame([100.0, 101.0, 99.0, 300.0, 303.0, 297.0], [0, 0, 0, 1, 1, 1]))
    assert np.abs(scores).max() < 2


def test_one_that_has_no_peers_gets_no_opinion() -> None:
    scores = PeerDeviation().score(frame([100.0, 100.0, 500.0, 1.0, np.nan], [0, 0, UNKNOWN, 1, 0]))
    assert np.isnan(scores).all()


def test_a_rank_without_a_known_work_is_left_out() -> None:
    scores = PeerDeviation().score(frame([100.0, np.nan, 101.0, 99.0, np.inf]))
    assert np.isnan(scores).tolist() == [False, True, False, False, True]


def test_peers_that_agree_exactly_make_nobody_infinite() -> None:
    assert PeerDeviation().score(frame([100.0, 100.0, 100.0, 101.0]))[3] == pytest.approx(0.5, abs=0.01)


def test_common_slowness_changes_no_score() -> None:
    work_ns = [100.0, 103.0, 97.0, 140.0]
    slower = [3 * value for value in work_ns]
    np.testing.assert_allclose(PeerDeviation().score(frame(work_ns)), PeerDeviation().score(frame(slower)))
