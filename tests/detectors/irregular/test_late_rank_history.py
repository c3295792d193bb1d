"""Which rank stands out again and again, and what is usual while a verdict is open."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.irregular.late_rank import find_lasting
from irregulars.detectors.irregular.late_rank_history import LatenessWatch, latest_ranks
from irregulars.detectors.irregular.thresholds import IRREGULAR
from tests.stored_states import stored

MS = 1e6
RANKS = (0, 1, 2, 4, 5)
USUAL = [{RANKS[n % 5]: (2.0 + n % 3) * MS, RANKS[(n + 1) % 5]: 1.0 * MS} for n in range(IRREGULAR.level_iterations)]
"""Somebody is always a little late, each in turn."""


def watched(late_ms: list[float], *, has_open: bool = False) -> tuple[LatenessWatch, list[bool]]:
    """Rank 3 is so late in the iterations after the usual ones; whether it was said to be so again and again."""
    watch = LatenessWatch()
    for number, late_ns in enumerate(USUAL):
        watch.learn(number, late_ns, has_open=False)
    lasts = []
    for number, ms in enumerate(late_ms, start=len(USUAL)):
        late_ns = {3: ms * MS, (number + 1) % 3: 3.0 * MS}
        latest = watch.look(late_ns)
        lasts.append(latest is not None and latest.lasts and latest.rank == 3)
        watch.learn(number, late_ns, has_open=has_open and lasts[-1])
    return watch, lasts


def test_a_rank_stands_out_that_is_late_in_three_of_six_iterations() -> None:
    assert (IRREGULAR.lasting_seen, IRREGULAR.lasting_window) == (3, 6)
    assert watched([9.0, 0.0, 9.0, 0.0, 9.0])[1] == [False, False, False, False, True]
    assert not any(watched([9.0, 0.0, 0.0, 9.0, 0.0, 0.0, 9.0])[1])


def test_an_iteration_in_which_it_is_not_late_shows_nothing() -> None:
    assert watched([9.0, 9.0, 9.0, 0.0, 9.0])[1] == [False, False, True, False, True]


@pytest.mark.parametrize(("late_ms", "is_there"), [(4.0, False), (4.4, False), (4.7, True), (5.2, True)])
def test_half_of_its_lasting_lateness_shows_a_rank_in_an_iteration(late_ms: float, is_there: bool) -> None:
    assert watched([9.0, 9.0, 9.0, late_ms])[1][-1] == is_there


def test_a_rank_that_is_late_in_turn_with_others_does_not_stand_out() -> None:
    assert not any(watched([9.0, 0.0, 0.0, 0.0, 0.0] * 3)[1])


def test_a_long_fault_is_what_is_usual_in_the_end_unless_a_verdict_is_open() -> None:
    late = [9.0] * 3 * IRREGULAR.level_iterations
    assert not watched(late)[1][-1]
    assert watched(late, has_open=True)[1][-1]


def test_a_rank_of_which_it_is_not_known_counts_as_none_of_the_latest() -> None:
    late_ns = latest_ranks(np.array([3, 4]), np.array([9.0 * MS, 1.0 * MS]), np.array([3, 4, 7]))
    assert late_ns.keys() == {3, 4, 7}
    assert math.isnan(late_ns[7])
    one, other = watched([])[0], watched([])[0]
    for watch, unknown in ((one, {}), (other, {0: math.nan, 7: math.nan})):
        watch.learn(len(USUAL), {3: 9.0 * MS} | unknown, has_open=False)
    assert one.look({3: 9.0 * MS}) == other.look(late_ns)
    assert LatenessWatch.from_state(stored(other.state())).look(late_ns) == other.look(late_ns)


def test_little_history_says_nothing() -> None:
    late = [{3: 9.0 * MS}] * IRREGULAR.lasting_window
    assert find_lasting(late, USUAL[: IRREGULAR.min_iterations - 1]) is None
    assert find_lasting(late[1:], USUAL) is None
    assert find_lasting([{}] * IRREGULAR.lasting_window, [{}] * IRREGULAR.min_iterations) is None


@given(st.lists(st.sampled_from([0.0, 5.0, 9.0, 30.0]), max_size=12), st.booleans())
def test_a_snapshot_forgets_nothing(late_ms: list[float], has_open: bool) -> None:
    watch, _ = watched(late_ms, has_open=has_open)
    restored = LatenessWatch.from_state(stored(watch.state()))
    assert restored.state() == watch.state()
    assert restored.look({3: 9.0 * MS}) == watch.look({3: 9.0 * MS})


@given(st.lists(st.integers(-3, 3), max_size=60), st.randoms())
def test_the_latest_ranks_are_kept(late_ns: list[int], random: Random) -> None:
    """Of equally late ones those with the lower numbers, so that the order of rows changes nothing."""
    rank = random.sample(range(100), len(late_ns))
    kept = latest_ranks(np.array(rank, dtype=np.int64), np.array(late_ns, dtype=np.float64), np.arange(100))
    wanted = sorted(zip(rank, late_ns, strict=True), key=lambda pair: (-pair[1], pair[0]))[: IRREGULAR.latest_ranks]
    assert list(kept.items())[: len(wanted)] == wanted
    assert [one for one, ns in kept.items() if math.isnan(ns)] == [one for one in range(100) if one not in rank]
    assert len(kept) == len(wanted) + 100 - len(rank)
