"""As many series as there is room for have a drift detector, and keep it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irregulars.detectors.plugins.adapters import drifts
from irregulars.detectors.plugins.adapters.drifts import DriftAdapter
from irregulars.detectors.plugins.adapters.series import AdapterOptions
from irregulars.detectors.plugins.protocol import Frame

MOST, WARM_UP = 6, 4


class AfterEight:
    """Reports a drift upwards once it has seen eight values, of which the newest is large."""

    def __init__(self) -> None:
        self.fed, self.drift_detected = 0, False

    def update(self, value: float) -> None:
        self.fed += 1
        self.drift_detected = self.fed > 8 and value > 5.0


def frame_of(ranks: range, number: int, slow: int | None = None) -> Frame:
    work_ns = np.random.default_rng(number).normal(1e6, 1e4, len(ranks))
    work_ns[[rank == slow for rank in ranks]] *= 3
    return {"rank": np.array(ranks, dtype=np.int32), "work_ns": work_ns}


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> DriftAdapter:
    monkeypatch.setattr(drifts, "_MOST_SERIES", MOST)
    make: Any = AfterEight
    return DriftAdapter("after-eight", make, AdapterOptions(warm_up=WARM_UP), is_binary=False)


def test_ranks_beyond_the_bound_take_no_detector_from_the_others(adapter: DriftAdapter) -> None:
    ranks = range(MOST + 4)
    for number in range(WARM_UP + 12):
        adapter.learn(frame_of(ranks, number))
    for slow in ranks:
        scores = adapter.score(frame_of(ranks, 99, slow))
        assert np.isnan(scores).sum() == 4  # no opinion on those without a detector
        assert np.isnan(scores[slow]) or scores[slow] > 1
    assert np.isfinite(scores[:MOST]).all()


def test_a_rank_that_comes_later_gets_the_detector_of_one_that_is_gone(adapter: DriftAdapter) -> None:
    for number in range(WARM_UP + 2):
        adapter.learn(frame_of(range(MOST), number))
    later = range(MOST, 2 * MOST)
    for number in range(100, 100 + 50 + WARM_UP):
        adapter.learn(frame_of(later, number))
    assert np.isfinite(adapter.score(frame_of(later, 200))).all()
