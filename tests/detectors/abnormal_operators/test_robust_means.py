"""Statistics of log ratios that a few wild values do not move."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.abnormal_operators.robust_means import (
    huber_means,
    log_ratios,
    share_above_usual,
    shrink_together,
    spread_of_pieces,
)


def test_a_ratio_is_known_where_both_times_are() -> None:
    found = log_ratios(np.array([2.0, 0.0, 3.0, 3.0]), np.array([1.0, 1.0, 0.0, np.nan]))
    np.testing.assert_allclose(found, [np.log(2), np.nan, np.nan, np.nan])


def test_of_a_time_that_is_twice_the_usual_half_is_above_it() -> None:
    np.testing.assert_allclose(share_above_usual(np.log(np.array([2.0, 1.0, 0.5]))), [0.5, 0.0, -1.0])


def test_a_value_far_from_the_median_counts_as_if_it_were_two_deviations_away() -> None:
    found = huber_means(np.zeros(3, dtype=np.int64), np.array([0.0, 0.0, 9.0]), np.ones(3), 1.0)
    np.testing.assert_allclose(found, [2 / 3])


def test_values_that_are_not_known_and_weights_of_nothing_do_not_count() -> None:
    group = np.array([0, 0, 0, 1])
    found = huber_means(group, np.array([1.0, np.nan, 5.0, np.nan]), np.array([2.0, 1.0, 0.0, 1.0]), 1.0)
    np.testing.assert_allclose(found, [1.0, 0.0])


def test_pieces_that_are_always_alike_vary_by_a_percent_at_least() -> None:
    assert spread_of_pieces(np.zeros(3), np.ones(3)) == pytest.approx(0.01)
    assert spread_of_pieces(np.array([-0.2, 0.2, 0.1]), np.ones(3)) == pytest.approx(1.4826 * 0.2)


def test_slow_ones_that_surely_differ_stay_apart() -> None:
    values, sigma = np.array([0.1, 0.9, 0.0]), np.full(3, 0.001)
    found = shrink_together(values, np.array([True, True, False]), sigma)
    np.testing.assert_allclose(found, values, atol=1e-5)


def test_a_slow_one_alone_keeps_its_factor_and_without_one_there_is_none() -> None:
    values, sigma = np.array([0.1, 0.9]), np.full(2, 0.1)
    np.testing.assert_allclose(shrink_together(values, np.array([False, True]), sigma), [0.0, 0.9])
    np.testing.assert_allclose(shrink_together(values, np.array([False, False]), sigma), [0.0, 0.0])
