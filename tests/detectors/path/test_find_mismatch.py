"""Ranks that call different collectives under one number: which differ, where first, and what is none."""

from __future__ import annotations

import numpy as np

from irregulars.detectors.path.find_mismatch import Mismatch, find_mismatch
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from tests.present import present

ALL_REDUCE, ALL_GATHER = OPERATOR_CODES["all_reduce"], OPERATOR_CODES["all_gather"]
ALL_TO_ALL, REDUCE_SCATTER = OPERATOR_CODES["all_to_all"], OPERATOR_CODES["reduce_scatter"]
Call = tuple[int, float]
"""Operator and size in bytes."""


def mismatch(*ranks: list[Call], is_open: bool = True) -> Mismatch | None:
    """Look for one in the calls of each rank on one communicator, the last of which are open or not."""
    rows = [(rank, number, *call) for rank, calls in enumerate(ranks) for number, call in enumerate(calls)]
    last = {rank: len(calls) - 1 for rank, calls in enumerate(ranks)}
    return find_mismatch({
        "rank": np.array([row[0] for row in rows]), "communicator": np.zeros(len(rows), np.int64),
        "sequence": np.array([row[1] for row in rows]), "operator": np.array([row[2] for row in rows], np.uint8),
        "size_bytes": np.array([row[3] for row in rows], float), "start_ns": np.full(len(rows), UNKNOWN),
        "elapsed_ns": np.array([np.nan if is_open and last[row[0]] == row[1] else 1.0 for row in rows]),
    })  # fmt: skip


USUAL: list[Call] = [(ALL_REDUCE, 64.0)] * 3


def test_the_rank_that_calls_another_operator_or_size_is_the_odd_one() -> None:
    for other in ((ALL_GATHER, 16.0), (ALL_REDUCE, 32.0)):
        found = present(mismatch([*USUAL, (ALL_REDUCE, 16.0)], [*USUAL, (ALL_REDUCE, 16.0)], [*USUAL, other]))
        assert (found.sequence, found.odd, found.agreed, found.is_open) == (3, (2,), 3, True)
        assert [side.ranks for side in found.sides] == [(0, 1), (2,)]
    # A rank that logs no size is on neither side
    found = present(mismatch(*([*USUAL, (ALL_REDUCE, size)] for size in (16.0, 16.0, np.nan, 32.0))))
    assert (found.odd, [side.ranks for side in found.sides]) == ((3,), [(0, 1), (3,)])
    # Of two sides of one size none is odd
    found = present(mismatch([*USUAL, (ALL_REDUCE, 16.0)], [*USUAL, (ALL_GATHER, 16.0)]))
    assert found.odd == ()


def test_a_call_more_shifts_all_that_follow_and_two_in_another_order_do_not() -> None:
    one, two, three = (ALL_REDUCE, 8.0), (ALL_GATHER, 8.0), (ALL_REDUCE, 9.0)
    found = present(mismatch([*USUAL, two, one, three, one], [*USUAL, one, three, one]))
    assert (found.sequence, present(found.extra).ranks, found.is_swapped) == (3, (0,), False)
    # Calls that are equal by chance after the shift change nothing
    found = present(mismatch([*USUAL, two, one, one, one, three], [*USUAL, one, one, one, three]))
    assert (found.sequence, present(found.extra).ranks) == (3, (0,))
    found = present(mismatch([*USUAL, one, two], [*USUAL, two, one]))
    assert (found.sequence, found.extra, found.is_swapped) == (3, None, True)


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    uneven: list[list[Call]] = [[(ALL_GATHER, 8.0 + rank + call) for call in range(4)] for rank in range(3)]
    assert mismatch(*uneven) is None  # shards of different sizes, as most of its calls have
    experts: list[list[Call]] = [[*USUAL, (ALL_TO_ALL, 8.0 + rank)] for rank in range(3)]
    assert mismatch(*experts) is None
    unknown: list[list[Call]] = [[*USUAL, (ALL_REDUCE, size)] for size in (8.0, np.nan, 8.0)]
    assert mismatch(*unknown) is None
    assert mismatch(USUAL, USUAL, USUAL[:2]) is None  # a rank that is behind calls nothing else


def test_sizes_that_differ_where_nothing_hangs_are_found_too() -> None:
    found = present(mismatch([*USUAL, (ALL_REDUCE, 8.0), *USUAL], [*USUAL, (ALL_REDUCE, 9.0), *USUAL], is_open=False))
    assert (found.sequence, found.is_open) == (3, False)
    # Nothing is believed of a log whose calls mostly differ: it numbers them otherwise
    turns: list[Call] = [(ALL_REDUCE, 8.0), (REDUCE_SCATTER, 8.0)] * 4
    assert mismatch(turns, turns[1:], is_open=False) is None


def test_a_difference_that_all_came_out_of_is_not_why_they_hang() -> None:
    calls: list[Call] = [*USUAL, (ALL_REDUCE, 8.0), *USUAL]
    other: list[Call] = [*USUAL, (ALL_REDUCE, 9.0), *USUAL]
    found = present(mismatch(calls, other))
    assert not found.is_open
