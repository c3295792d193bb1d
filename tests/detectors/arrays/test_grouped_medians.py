"""Medians of groups are those that numpy finds of each group by itself, whatever the values."""

from __future__ import annotations

from random import Random
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from irregulars.detectors.arrays.grouped_medians import (
    alike_codes,
    column_medians,
    lower_median,
    lower_medians,
    median,
    medians,
    nan_medians,
    robust_sigma,
    row_medians,
    weighted_medians,
)

INTS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(-8e307, 8e307)  # the sum of two fits: numpy's own median of larger ones is infinite
WHOLE = st.integers(-(1 << 53), 1 << 53).map(float)


@st.composite
def groups(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Rows of groups that are numbered without holes, in any order."""
    kind = draw(st.sampled_from([INTS, FLOATS, WHOLE]))
    values = draw(st.lists(st.lists(kind, min_size=1, max_size=6), max_size=8))
    rows = draw(st.permutations([(number, value) for number, own in enumerate(values) for value in own]))
    dtype = np.int64 if kind is INTS else np.float64
    return np.array([n for n, _ in rows], dtype=np.int64), np.array([v for _, v in rows], dtype=dtype)


def of_each(group: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    return [values[group == number] for number in range(int(group.max(initial=-1)) + 1)]


@given(groups())
def test_medians_are_those_of_numpy(rows: tuple[np.ndarray, np.ndarray]) -> None:
    expected = [np.median(own) for own in of_each(*rows)]
    np.testing.assert_allclose(medians(*rows), expected, rtol=1e-15, atol=5e-324)


@given(groups(), st.randoms(use_true_random=False))
def test_medians_of_columns_are_those_of_each_column(rows: tuple[np.ndarray, np.ndarray], random: Random) -> None:
    group, values = rows[0], rows[1].astype(np.float64)
    own = values.copy()
    own[[at for at in range(len(own)) if random.random() < 0.3]] = np.nan  # where a size is not known
    table = np.stack([values, own, -values], axis=1)
    found = column_medians(group, table)
    np.testing.assert_array_equal(found, np.stack([medians(group, column) for column in table.T], axis=1))


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=st.floats(-1e300, 1e300)),
    st.randoms(use_true_random=False),
)
def test_medians_of_what_is_known_are_those_of_numpy(table: np.ndarray, random: Random) -> None:
    np.testing.assert_array_equal(nan_medians(table), np.nanmedian(table, axis=1))
    for row in table:
        row[random.sample(range(len(row)), random.randrange(len(row)))] = np.nan
    np.testing.assert_array_equal(nan_medians(table), np.nanmedian(table, axis=1))


@given(groups())
def test_lower_medians_are_values_of_their_group(rows: tuple[np.ndarray, np.ndarray]) -> None:
    found = lower_medians(*rows)
    assert found.dtype == rows[1].dtype
    assert found.tolist() == [median_low(own.tolist()) for own in of_each(*rows)]
    assert found.astype(np.float64).tolist() == [lower_median(own) for own in of_each(*rows)]


@pytest.mark.parametrize("wild", [1.7e18, -1.7e18, 1e300, 0.25])
def test_one_wild_value_moves_no_other_group(wild: float) -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(5_000), 3)
    values = np.floor(rng.uniform(0, 1e6, len(group)))
    values[0] = wild
    np.testing.assert_array_equal(medians(group, values), np.median(values.reshape(-1, 3), axis=1))


def test_medians_at_the_limits() -> None:
    # The middle of the largest values is finite
    largest = np.finfo(np.float64).max
    assert medians(np.zeros(2, dtype=np.int64), np.array([largest, largest])).tolist() == [largest]
    # No rows have no medians
    nothing = np.zeros(0, dtype=np.int64)
    assert len(medians(nothing, nothing)) == len(lower_medians(nothing, nothing.astype(float))) == 0


@given(groups(), st.data())
def test_weighted_medians_are_of_repeated_values(rows: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    group, values = rows[0], rows[1].astype(np.float64)
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(group), max_size=len(group))), dtype=int)
    expected = [
        median_low(np.repeat(own, times).tolist()) if times.any() else 0.0
        for own, times in zip(of_each(group, values), of_each(group, weights), strict=True)
    ]
    assert weighted_medians(group, values, weights.astype(np.float64)).tolist() == expected


def test_weights_and_noise_bear_stray_values() -> None:
    # Values that are not known have no weight
    group, weights = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 5.0, 1.0])
    assert weighted_medians(group, np.array([3.0, 4.0, np.nan, np.nan]), weights).tolist() == [3.0, 0.0]
    # The noise does not follow a stray value
    rng = np.random.default_rng(1)
    noise = rng.normal(0.0, 2.0, 10_000)
    noise[:100] = 1e12
    assert robust_sigma(noise) == pytest.approx(2.0, rel=0.05)


@given(st.lists(st.one_of(st.floats(allow_infinity=False), st.integers(-3, 3).map(float)), min_size=1, max_size=9))
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        assert np.array_equal(median(np.array(values) / 4), np.median(np.array(values) / 4), equal_nan=True)


@pytest.mark.parametrize("columns", [1, 2, 5, 8])
def test_medians_of_rows_are_those_of_numpy(columns: int) -> None:
    table = np.random.default_rng(columns).normal(size=(7, columns))
    assert row_medians(table).tolist() == np.median(table, axis=1).tolist()


def test_alike_codes_of_odd_values() -> None:
    # No values have no numbers
    assert alike_codes(np.array([]), 0.1).tolist() == []
    # What is not known counts as nothing
    assert alike_codes(np.array([np.nan, 5.0, 0.0]), 0.1).tolist() == [0, 1, 0]
    # Values below 0 and without bound have numbers too: they once kept the loop, and with it a worker, for ever.
    assert alike_codes(np.array([-5.0, -1e308, np.inf, 100.0, 104.0, -5.0]), 0.1).tolist() == [1, 0, 3, 2, 2, 1]


@pytest.mark.parametrize("seed", range(5))
def test_all_with_one_number_are_alike_and_numbers_rise_with_values(seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(10, 1, 200)
    codes = alike_codes(values, 0.1)
    for code in np.unique(codes):
        own = values[codes == code]
        assert own.max() <= own.min() * 1.1 * (1 + 1e-12)
    assert (np.diff(codes[np.argsort(values)]) >= 0).all()
