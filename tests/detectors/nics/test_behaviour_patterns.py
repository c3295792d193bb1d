"""Behaviour patterns: share of the iteration, mean and deviation of the NIC's rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.behaviour_patterns import (
    Executions,
    Intervals,
    Statistics,
    busy_part,
    merge_executions,
    shares,
    statistics,
)
from irregulars.detectors.nics.pattern_distances import (
    MOST_COMPARED,
    Patterns,
    differential_distances,
    expected_ranges,
    judge_patterns,
)

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


@pytest.mark.parametrize(("rates", "expected"), [
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
])  # fmt: skip
def test_the_busy_part_takes_as_few_idle_samples_in_a_row_as_it_must(rates: list[float], expected: list[int]) -> None:
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
        assert sum(own[at] for at in chosen) >= JOB.nearly_all * sum(own) - 1e-9
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
        if sum(rates[first:past]) >= JOB.nearly_all * sum(rates)
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


NOBODY = Patterns(*(np.empty(0, np.int64) for _ in range(3)), *(np.empty(0) for _ in range(5)))


def patterns(
    deviation: Any, *, share: Any = 0.5, mean: Any = 10.0, communicator: Any = 0, rank: Any = None
) -> Patterns:
    """Of one operator, as many as there are deviations; what is received is as what is sent."""
    size = len(deviation)
    ranks = np.arange(size) if rank is None else np.array(rank)
    share, mean, deviation = (np.broadcast_to(np.array(one, dtype=float), size) for one in (share, mean, deviation))
    codes = np.broadcast_to(np.array(communicator, dtype=np.int64), size)
    return Patterns(ranks, codes, np.zeros(size, np.int64), share, mean, deviation, mean, deviation)


def abnormal(own: Patterns, regular: Patterns = NOBODY) -> list[int]:
    return own.rank[judge_patterns(own, regular).is_abnormal].tolist()


def test_distances_between_workers() -> None:
    # One worker that behaves unlike all others is abnormal
    own = patterns([4.0, 4.1, 0.1, 3.9, 4.0, 4.2, 4.1, 4.0])
    judged = judge_patterns(own, NOBODY)
    assert abnormal(own) == [2]
    assert judged.differential.tolist() == pytest.approx([1 / 7, 1 / 7, 1.0, *[1 / 7] * 5])
    assert np.isnan(judged.unexpected).all()
    # What befalls all workers alike shows against what is expected
    regular = patterns([4.0, 4.1, 3.9, 4.0] * 3, rank=[0, 1, 2, 3] * 3)
    own = patterns([0.1] * 4)
    assert abnormal(own) == []
    assert abnormal(own, regular) == [0, 1, 2, 3]
    assert judge_patterns(own, regular).unexpected.tolist() == pytest.approx([(3.5 - 0.1) / 4.1] * 4, rel=0.05)
    assert abnormal(patterns([4.0, 3.8, 4.3, 4.1]), regular) == []
    # Classes are apart and a worker alone in its class is held against nobody
    own = patterns([4.0, 4.0, 4.0, 0.1], communicator=[0, 0, 0, 1])
    assert abnormal(own) == []
    np.testing.assert_array_equal(np.isnan(judge_patterns(own, NOBODY).differential), [False, False, False, True])
    # Two workers that differ do not say who is odd
    assert abnormal(patterns([4.0, 0.1])) == []
    # An unknown rate gives no distance and is no zero
    own = patterns([4.0, 4.0, 4.0, np.nan])
    judged = judge_patterns(own, patterns([4.0] * 5))
    assert judged.differential[:3].tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(judged.differential[3])
    assert np.isnan(judged.unexpected[3])
    assert not judged.is_abnormal.any()


def test_directions_and_ranges_of_patterns() -> None:
    # One direction is enough
    own = patterns([4.0] * 6)
    one_way = own._replace(rx_deviation=np.array([4.0, 4.0, 4.0, 4.0, 0.1, 4.0]))
    assert abnormal(one_way) == [4]
    # Of many workers some are compared and the odd one is still found
    deviation = np.full(3 * MOST_COMPARED + 1, 4.0)
    deviation[7] = 0.1
    assert abnormal(patterns(deviation)) == [7]
    # A range holds what gave it and is unknown where nothing did
    triples = np.array([[0.5, 1.0, 0.4], [0.52, 0.9, 0.5], [0.5, 1.0, 0.45], [0.1, np.nan, 0.1]])
    low, high = expected_ranges(np.array([0, 0, 0, 2]), triples, 3)
    assert np.all((low[0] <= triples[:3]) & (triples[:3] <= high[0]))
    assert np.isnan(low[1:]).all()
    # Nothing in nothing out
    assert judge_patterns(NOBODY, NOBODY).is_abnormal.tolist() == []
    assert judge_patterns(NOBODY, patterns([1.0, 2.0])).is_abnormal.tolist() == []


@given(
    values=st.lists(st.tuples(*(st.floats(0, 1),) * 3), min_size=2, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_other_names_and_orders_move_distances_too(values: list[tuple[float, float, float]], order: object) -> None:
    triples, rank = np.array(values), np.arange(len(values))
    found = differential_distances(np.zeros(len(values), np.int64), triples, rank)
    at = list(range(len(values)))
    order.shuffle(at)  # type: ignore[attr-defined]
    moved = differential_distances(np.zeros(len(values), np.int64), triples[at], rank[::-1].copy())
    np.testing.assert_allclose(moved, found[at])
    assert np.all((found >= 0) & (found <= 1))


# --- near the thresholds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "expected"), [(0.009, []), (0.012, [2])])
def test_a_class_that_ran_for_a_hundredth_of_the_iteration_may_be_abnormal(share: float, expected: list[int]) -> None:
    assert abnormal(patterns([4.0, 4.0, 0.1, 4.0], share=share)) == expected


@pytest.mark.parametrize(("distance", "is_far"), [(0.35, 0.0), (0.45, 1.0)])
def test_two_workers_at_a_distance_of_two_fifths_differ(distance: float, is_far: float) -> None:
    triples = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.1 + distance]])
    assert differential_distances(np.zeros(2, np.int64), triples, np.arange(2)).tolist() == [is_far, is_far]


def test_a_range_reaches_five_median_deviations_and_a_tenth_at_least() -> None:
    triples = np.array([[0.5, 0.45, 0.5], [0.5, 0.50, 0.5], [0.5, 0.55, 0.5]])
    low, high = expected_ranges(np.zeros(3, np.int64), triples, 1)
    np.testing.assert_allclose(low[0], [0.4, 0.25, 0.4])
    np.testing.assert_allclose(high[0], [0.6, 0.75, 0.6])
