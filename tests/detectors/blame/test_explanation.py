"""What is left to explain of some iterations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.detectors.blame.explanation import Unexplained
from tests.detectors.lost_time import APART, MS, WORK, pair, seen

PAIR = pair(1, 3)


def test_what_is_left_to_explain() -> None:
    # What was quicker than usual is no excess
    left = Unexplained.of([seen(0, {WORK[1]: 50.0, WORK[2]: -20.0})], APART)
    assert left.path_excess_ns == [{WORK[1]: 50 * MS}]
    # What a cause explains is taken from path and lanes
    left = Unexplained.of([seen(0, {WORK[1]: 50.0, PAIR: 30.0}, {PAIR: 30.0, pair(0, 2): 5.0})], APART)
    rest = left.without(frozenset([PAIR]))
    assert rest.path_excess_ns == [{WORK[1]: 50 * MS}]
    assert rest.seen.observe(pair(0, 2), rest.explained).keys() == {pair(0, 2)}
    assert left.seen.observe(pair(0, 2), left.explained).keys() == {pair(0, 2), PAIR}
    assert rest.own_ns([WORK[1], PAIR]) == [50 * MS]


@pytest.mark.parametrize(("excess_ms", "share"), [(None, 0.4), (60.0, 0.5), (20.0, 1.0), (500.0, 0.4)])
def test_a_cause_is_held_against_the_iteration_s_own_excess_where_that_is_less_than_its_parts(
    excess_ms: float | None, share: float
) -> None:
    """30 of the 75 ms of all parts, which may have been waited for in part."""
    one = seen(0, {WORK[1]: 30.0, WORK[2]: 45.0})
    one = replace(one, excess_ns=None if excess_ms is None else excess_ms * MS)
    assert Unexplained.of([one], APART).share(frozenset([WORK[1]])) == pytest.approx(share)


def test_iterations_in_which_lanes_lost_nothing_have_no_say_in_their_share() -> None:
    some = [seen(0, {WORK[1]: 30.0, WORK[2]: 10.0}), seen(1, {WORK[2]: 500.0})]
    assert Unexplained.of(some, APART).share(frozenset([WORK[1]])) == pytest.approx(0.75)
