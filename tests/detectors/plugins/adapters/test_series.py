from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.plugins.adapters.series import SeriesPast
from irregulars.errors import PluginError


def taught(frames: int, ranks: int = 3) -> SeriesPast:
    past, rng = SeriesPast(1, warm_up=20), np.random.default_rng(1)
    for _ in range(frames):
        past.learn(np.arange(ranks), rng.normal(5.0, 0.1, (ranks, 1)))
    return past


def test_deviations_of_series() -> None:
    # Deviations are in spreads of the series own past
    found = taught(60).deviations(np.array([1]), np.array([[6.0]]))[0, 0]
    assert 7 < found < 14, "1.0 above a median of 5, with a spread of about 0.1"
    # Median and spread are those of numpy however many values there are
    rng = np.random.default_rng(3)
    for count in (2, 3, 5, 64, 90):
        past, values = SeriesPast(1, warm_up=2, floor=0.0), rng.normal(5.0, 1.0, count)
        for value in values.tolist():
            past.learn(np.array([4]), np.array([[value]]))
        newest = values[-64:]
        middle = np.median(newest)
        assert past.usual(4) == pytest.approx((middle, 1.4826 * np.median(np.abs(newest - middle))), rel=1e-4)
    # A cold series and one never seen have no opinion
    assert np.isnan(taught(19).deviations(np.array([1]), np.array([[6.0]]))).all()
    assert np.isnan(taught(60).deviations(np.array([9]), np.array([[6.0]]))).all()
    # Unknown values are neither taught nor judged
    past = taught(60)
    before = past.deviations(np.array([0]), np.array([[6.0]]))
    past.learn(np.array([0]), np.array([[np.nan]]))
    assert past.deviations(np.array([0]), np.array([[6.0]])).tolist() == before.tolist()
    assert np.isnan(past.deviations(np.array([0]), np.array([[np.nan]]))).all()
    # A series that is gone is forgotten
    past = taught(60)
    for _ in range(101):
        past.learn(np.array([0]), np.array([[5.0]]))
    assert np.isnan(past.deviations(np.array([1]), np.array([[6.0]]))).all()


def test_rows_and_warm_up_of_a_series() -> None:
    # Several rows of a series teach one after the other
    past = SeriesPast(1, warm_up=2, kept=4)
    for _ in range(4):
        past.learn(np.zeros(4, dtype=np.int64), np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert past.usual(0)[0] == pytest.approx(2.5)
    # A warm up beyond what is kept is refused
    with pytest.raises(PluginError, match=r"warm_up must be 2 to 64"):
        SeriesPast(1, warm_up=65)
