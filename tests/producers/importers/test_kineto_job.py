"""Calls of ranks are paired by their ends, whatever clocks say and wherever captures begin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.producers.importers.kineto_job import Series, find_shifts

CALLS = 120


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 30), min_size=2, max_size=4), st.integers(-(10**12), 10**12))
def test_captures_that_begin_apart_are_paired(seed: int, begins: list[int], clock_ns: int) -> None:
    random = np.random.default_rng(seed)
    end_ns = 10**18 + np.cumsum(random.normal(10e6, 0.1e6, CALLS)).astype(np.int64)
    series = {
        rank: Series(
            end_ns[first:] + rank * clock_ns + random.integers(0, 8_000, CALLS - first), np.zeros(CALLS - first)
        )
        for rank, first in enumerate(begins)
    }
    assert find_shifts(series) == {rank: first - min(begins) for rank, first in enumerate(begins)}


def test_calls_that_differ_are_not_paired_and_without_a_better_place_the_first_are() -> None:
    end_ns = np.arange(CALLS) * 10_000_000  # each iteration takes the same time: nothing but the kinds tells
    kind = np.arange(CALLS) % 3
    assert find_shifts({0: Series(end_ns, kind), 1: Series(end_ns[:-4] + 7, kind[4:])}) == {0: 0, 1: 1}
    assert find_shifts({0: Series(end_ns, kind * 0), 1: Series(end_ns[4:], kind[4:] * 0)}) == {0: 0, 1: 0}
    assert find_shifts({0: Series(end_ns, kind), 1: Series(end_ns[:0], kind[:0])}) == {0: 0, 1: 0}
