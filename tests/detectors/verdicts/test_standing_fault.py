"""Faults that are older than the recording."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.job.topology import Device
from irregulars.detectors.verdicts.standing_fault import StandingFault, standing_since, typical_lateness_ns
from tests.detectors.observed_iterations import PAIR, work

LATE = Cause("slow_rank", ((Device("gpu", (1,)), 0.9),), frozenset({work(1)}), None, {8: 40.0, 9: 60.0})
SLOW = Cause("slow_link", ((Device("link", (1, 3)), 0.9),), frozenset({PAIR}), 1, {8: 40.0, 9: 60.0})
HISTORY = [(number, {1: 50.0 if number >= 5 else 10.0}) for number in range(10)]


def test_lateness_is_the_median_of_the_reviewed_iterations() -> None:
    assert typical_lateness_ns(LATE, [(7, {1: 9.0}), (8, {1: 40.0}), (9, {1: 60.0})]) == 50.0


@pytest.mark.parametrize(("cause", "history"), [(SLOW, HISTORY), (LATE, []), (LATE, [(8, {}), (9, {})])])
def test_where_lateness_does_not_show_it_is_unknown(
    cause: Cause, history: list[tuple[int, dict[int, float]]]
) -> None:
    assert math.isnan(typical_lateness_ns(cause, history))


def test_a_late_rank_is_so_since_it_was_late_without_a_break() -> None:
    assert standing_since(LATE, 50.0, HISTORY) == 5


def test_what_lateness_does_not_show_is_so_since_the_beginning() -> None:
    assert standing_since(SLOW, math.nan, HISTORY) == 0


def test_a_fault_stands_while_its_rank_is_late_by_half_of_what_it_was() -> None:
    fault = StandingFault(50.0, 50.0)
    assert fault.stands(LATE, {1: 26.0})
    assert not fault.stands(LATE, {1: 24.0, 2: 90.0})
    assert not fault.is_seen_by_review_alone


def test_a_rank_of_which_it_is_not_known_is_not_on_time() -> None:
    fault = StandingFault(50.0, 50.0)
    assert fault.is_unknown(LATE, {1: math.nan, 2: 90.0})
    assert not fault.stands(LATE, {1: math.nan, 2: 90.0})
    assert not fault.is_unknown(LATE, {1: 50.0})
    assert not StandingFault(50.0, math.nan).is_unknown(LATE, {1: math.nan})
    history = [(number, {1: math.nan if number in (0, 3) else 50.0}) for number in range(10)]
    assert standing_since(LATE, 50.0, history) == 0
    assert typical_lateness_ns(LATE, [(7, {1: 9.0}), (8, {1: math.nan}), (9, {1: 60.0})]) == 60.0
    assert math.isnan(typical_lateness_ns(LATE, [(8, {1: math.nan})]))


def test_of_a_host_the_known_ranks_count() -> None:
    host = replace(LATE, suspects=((Device("host", (0, 1, 2)), 0.9),))
    assert not StandingFault(50.0, 50.0).stands(host, {0: math.nan, 1: 60.0, 2: -20.0})
    assert StandingFault(50.0, 50.0).stands(host, {0: math.nan, 1: 60.0, 2: 55.0})


def test_what_only_a_review_can_see_is_believed_until_the_next() -> None:
    fault = StandingFault(50.0, math.nan)
    assert fault.is_seen_by_review_alone
    assert fault.stands(SLOW, {})
