"""Behaviour patterns: share of the iteration, mean and deviation of the NIC's rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.nics.behaviour_patterns import (
    Executions,
    Intervals,
    Statistics,
    busy_part,
    merge_executions,
    shares,
    statistics,
)
from irregulars.detectors.nics.thresholds import NICS

MS = 1_000_000


def executions(*rows: tuple[int, int, int]) -> Executions:
    """Group, begin and end in ms."""
    group, begin, end = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return merge_executions(Executions(group, begin * MS, end * MS))


def each_ms(rates: list[float], period_ms: int = 1) -> Intervals:
    """Samples that follow each other from 0 on."""
    begin = np.arange(len(rates)) * period_ms * MS
    return Intervals(begin, begin + period_ms * MS, np.array(rates, dtype=float))


def kept(rates: list[float]) -> list[int]:
    values = np.array(rates, dtype=float)
    return np.flatnonzero(busy_part(np.zeros(len(rates), dtype=np.int64), values, values)).tolist()


def test_statistics_of_executions() -> None:
    # Executions that overlap or touch are one and groups stay apart
    merged = executions((1, 0, 4), (0, 5, 9), (0, 0, 3), (0, 1, 2), (0, 3, 4), (1, 2, 6))
    assert merged.group.tolist() == [0, 0, 1]
    assert (merged.begin_ns // MS).tolist() == [0, 5, 0]
    assert (merged.end_ns // MS).tolist() == [4, 9, 6]
    # The share is what the executions cover and counts no time twice
    merged = executions((0, 0, 6), (0, 4, 8), (1, 0, 5))
    np.testing.assert_allclose(shares(merged, np.array([10.0, 20.0, 0.0]) * MS), [0.8, 0.25, np.nan])
    # Mean and deviation are weighed by overlap
    found = statistics(executions((0, 5, 65)), each_ms([4.0, 8.0, 4.0, 8.0, 4.0, 8.0, 4.0], 10), 1)
    # half of the first and of the last sample: 6 samples' worth, of 4 three times
    assert found.samples.tolist() == pytest.approx([6.0])
    assert found.mean.tolist() == pytest.approx([6.0])
    assert found.deviation.tolist() == pytest.approx([2.0])
    # Under five samples nothing is known
    found = statistics(executions((0, 0, 4), (1, 0, 5), (2, 0, 0)), each_ms([3.0] * 9), 4)
    np.testing.assert_array_equal(np.isnan(found.mean), [True, False, True, True])
    np.testing.assert_array_equal(np.isnan(found.deviation), [True, False, True, True])
    assert found.samples.tolist() == [0.0, 5.0, 0.0, 0.0]
    # Waiting before the bytes move is no fluctuation
    found = statistics(executions((0, 0, 20)), each_ms([0.0] * 12 + [7.0] * 8), 1)
    assert (found.mean.item(), found.deviation.item()) == pytest.approx((7.0, 0.0))
    # An operator that idles between bursts keeps its idling
    found = statistics(executions((0, 0, 12)), each_ms([0, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0]), 1)
    assert found.samples.item() == pytest.approx(9.0)  # from the first burst to the last one
    assert found.deviation.item() > 0.5 * found.mean.item()


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0, 0, 5, 5, 5, 0], [2, 3, 4]),
        ([1, 0, 0, 9, 9, 0, 0, 1], [3, 4]),  # a tenth at each end lies beyond what has to be held
        ([5, 0, 5, 0, 0, 0, 1], [0, 1, 2]),
        ([5, 0, 0, 5], [0, 1, 2, 3]),  # neither half holds enough: the gap is bridged
        ([5, 0.01, 5], [0, 1, 2]),
        ([0, 0, 0], [0, 1, 2]),
        ([7], [0]),
        ([9, np.nan, 1], [0]),
        ([17, 0, 3], [0]),  # 85 % are enough
        ([7, 0, 3], [0, 1, 2]),  # 70 % are not
        ([100, 0.9, 20], [0]),
        ([100, 1.1, 20], [0, 1, 2]),  # more than a hundredth of the highest rate is no idling
    ],
)
def test_the_busy_part_tolerates_as_few_idle_samples_in_a_row_as_it_must(
    rates: list[float], expected: list[int]
) -> None:
    assert kept(rates) == expected


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, 9.0]), min_size=1, max_size=12), min_size=1, max_size=4)
)
def test_the_busy_part_is_one_interval_that_holds_enough_with_the_least_gaps(rates: list[list[float]]) -> None:
    owner = np.repeat(np.arange(len(rates)), [len(own) for own in rates])
    values = np.concatenate([np.array(own) for own in rates])
    is_kept = busy_part(owner, values, values)
    for number, own in enumerate(rates):
        chosen = np.flatnonzero(is_kept[owner == number])
        assert chosen.tolist() == list(range(chosen[0], chosen[-1] + 1))
        assert sum(own[at] for at in chosen) >= NICS.kept_ratio * sum(own) - 1e-9
        assert sum(own) == 0 or longest_gap([own[at] for at in chosen]) == least_gap(own)


def longest_gap(rates: list[float]) -> int:
    longest = run = 0
    for rate in rates:
        run = run + 1 if rate == 0 else 0
        longest = max(longest, run)
    return longest


def least_gap(rates: list[float]) -> int:
    """By trying every interval."""
    enough = [
        rates[first:past]
        for first in range(len(rates))
        for past in range(first + 1, len(rates) + 1)
        if sum(rates[first:past]) >= NICS.kept_ratio * sum(rates)
    ]
    return min(map(longest_gap, enough))


@given(
    rates=st.lists(st.floats(0, 1e9), min_size=5, max_size=30),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 10)), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_no_order_of_the_operators_shows_and_a_shift_in_time_changes_nothing(
    rates: list[float], rows: list[tuple[int, int, int]], order: object
) -> None:
    spans = [(group, begin, begin + length) for group, begin, length in rows]
    shuffled = list(spans)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    samples = each_ms(rates)
    expected = statistics(executions(*spans), samples, 3)
    assert_same(statistics(executions(*shuffled), samples, 3), expected)
    later = [(group, begin + 1_000, end + 1_000) for group, begin, end in spans]
    moved = Intervals(samples.begin_ns + 1_000 * MS, samples.end_ns + 1_000 * MS, samples.rate)
    assert_same(statistics(executions(*later), moved, 3), expected)


def assert_same(one: Statistics, other: Statistics) -> None:
    for own, others in zip(one, other, strict=True):
        np.testing.assert_allclose(own, others, rtol=1e-9, atol=1e-6)


def test_nothing_in_nothing_out() -> None:
    nothing = Executions(*(np.empty(0, np.int64) for _ in range(3)))
    found = statistics(merge_executions(nothing), Intervals(*(np.empty(0) for _ in range(3))), 0)
    assert [len(column) for column in found] == [0, 0, 0]
