"""Which behaviour patterns are abnormal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.nics.pattern_distances import (
    MOST_COMPARED,
    Patterns,
    differential_distances,
    expected_ranges,
    judge_patterns,
)

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
    # What takes a hundredth of the iteration is never abnormal
    assert abnormal(patterns([4.0, 4.0, 0.1, 4.0], share=[0.5, 0.5, 0.01, 0.5])) == []
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
def test_renaming_and_reordering_workers_moves_their_distances_with_them(
    values: list[tuple[float, float, float]], order: object
) -> None:
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
