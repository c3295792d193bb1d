"""Values that differ by little get one number."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.arrays.alike_values import alike_codes


def test_no_values_have_no_numbers() -> None:
    assert alike_codes(np.array([]), 0.1).tolist() == []


def test_what_is_not_known_counts_as_nothing() -> None:
    assert alike_codes(np.array([np.nan, 5.0, 0.0]), 0.1).tolist() == [0, 1, 0]


def test_values_below_0_and_without_bound_have_numbers_too() -> None:
    """They once kept the loop, and with it a worker, for ever."""
    assert alike_codes(np.array([-5.0, -1e308, np.inf, 100.0, 104.0, -5.0]), 0.1).tolist() == [1, 0, 3, 2, 2, 1]


@pytest.mark.parametrize("seed", range(5))
def test_all_with_one_number_are_alike_and_numbers_rise_with_values(seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(10, 1, 200)
    codes = alike_codes(values, 0.1)
    for code in np.unique(codes):
        own = values[codes == code]
        assert own.max() <= own.min() * 1.1 * (1 + 1e-12)
    assert (np.diff(codes[np.argsort(values)]) >= 0).all()
