"""Each series of a frame has a past, however many the frame has."""

from __future__ import annotations

import numpy as np

from irregulars.detectors.plugins.adapters.series import MOST_SERIES, SeriesPast


def values_of(keys: np.ndarray, frame: int) -> np.ndarray:
    return np.random.default_rng(frame).normal(0.0, 1.0, (len(keys), 1))


def test_all_ranks_of_a_job_become_warm_however_many_there_are() -> None:
    past, ranks = SeriesPast(1, warm_up=4, kept=4), np.arange(MOST_SERIES + 1000)
    for frame in range(4):
        past.learn(ranks, values_of(ranks, frame))
    assert np.isfinite(past.deviations(ranks, values_of(ranks, 4))).all()


def test_series_that_are_gone_make_room_once_there_are_too_many() -> None:
    past, old, new = SeriesPast(1, warm_up=4, kept=4), np.arange(3000), np.arange(3000, 6000)
    for frame in range(8):
        keys = old if frame < 4 else new
        past.learn(keys, values_of(keys, frame))
    assert np.isfinite(past.deviations(new, values_of(new, 8))).all()
    assert np.isfinite(past.deviations(old, values_of(old, 8))).sum() == MOST_SERIES - 3000
