"""Ranks that lack processor time: their own work is slow beside their transfers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.starved_ranks import are_in_step, starved_ranks
from irregulars.detectors.path.critical_path import Attribution

MS = 1e6
RANKS = range(8)
ITERATIONS = 8


def work(late: dict[int, float], seed: int = 1, bursts: float = 0.0) -> list[dict[int, float]]:
    """Work over the usual, ns: noise of 2 ms, and of some ranks so many ms more, give or take `bursts`."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 2.0, (ITERATIONS, len(RANKS)))
    for rank, ms in late.items():
        noise[:, rank] += ms + rng.uniform(-bursts, bursts, ITERATIONS)
    return [dict(zip(RANKS, (row * MS).tolist(), strict=True)) for row in noise]


def spent(works: list[dict[int, float]]) -> list[Attribution]:
    """Iterations in which ranks worked so much longer."""
    return [Attribution(number, {}, {}, {}, one) for number, one in enumerate(works)]


def starved(works: list[dict[int, float]], least_ns: float) -> set[int]:
    return starved_ranks(spent(works), least_ns)


def in_step(works: list[dict[int, float]], ranks: set[int]) -> bool:
    return are_in_step(spent(works), ranks)


def test_a_rank_whose_work_grows_beyond_the_noise_is_starved() -> None:
    assert starved(work({6: 20.0}), MS) == {6}
    assert starved(work({4: 20.0, 5: 16.0}), MS) == {4, 5}
    assert starved(work({}), MS) == set()


def test_what_lost_less_than_is_worth_asking_is_not_starved() -> None:
    assert starved(work({6: 20.0}), 25 * MS) == set()


def test_work_that_is_as_much_quicker_elsewhere_is_no_evidence() -> None:
    assert starved(work({6: 20.0, 1: -15.0}), MS) == set()


def test_where_most_ranks_are_late_the_job_changed() -> None:
    assert starved(work(dict.fromkeys(range(5), 30.0)), MS) == set()


def test_too_few_iterations_or_ranks_that_are_hardly_known_say_nothing() -> None:
    late = work({6: 20.0})
    assert starved(late[:3], MS) == set()
    assert starved([], MS) == set()
    assert starved([*late, *({9: 0.0} for _ in range(3))], MS) == set()


def test_an_iteration_in_which_the_others_are_not_known_says_as_much_of_those_that_are() -> None:
    """What is not known of one rank in one iteration moves no other rank, in whichever order ranks are told."""
    works = work({6: 20.0})
    one = {rank: works[0][rank] for rank in (7, 6)}
    assert starved([one, *works[1:]], MS) == starved([works[0], *works[1:]], MS) == {6}
    assert starved([dict(reversed(one.items())) for one in works], MS) == {6}


def test_ranks_that_wait_for_the_same_transfer_are_in_step_and_throttled_ones_are_not() -> None:
    assert in_step(work({2: 30.0, 3: 30.0}), {2, 3})
    assert not in_step(work({2: 30.0, 3: 30.0}, bursts=25.0), {2, 3})
    assert not in_step(work({2: 30.0}), {2})


@given(order=st.permutations(RANKS))
def test_renaming_ranks_renames_the_starved(order: list[int]) -> None:
    renamed = [{order[rank]: ns for rank, ns in one.items()} for one in work({6: 20.0})]
    assert starved(renamed, MS) == {order[6]}


# --- on either side of each threshold -------------------------------------------------------------------------------


def even(late_ms: dict[int, float], count: int = 4, ranks: int = 6, noise_ms: float = 0.0) -> list[dict[int, float]]:
    """Work over the usual, ns: of these ranks so much, of the others next to nothing, all with an even noise."""
    sway = [noise_ms * (1 if n % 2 else -1) for n in range(count)]
    return [{r: (late_ms.get(r, 0.0) + sway[n]) * MS for r in range(ranks)} for n in range(count)]


@pytest.mark.parametrize(("late_ms", "is_starved"), [(5.0, False), (6.2, True)])
def test_starved_work_stands_six_standard_errors_out(late_ms: float, is_starved: bool) -> None:
    """Of a noise of 1 ms the median of four iterations has a standard error of 1.2533 × 1.4826 / 2 = 0.93 ms."""
    assert (starved(even({3: late_ms}, noise_ms=1.0), 0.0) == {3}) == is_starved


@pytest.mark.parametrize(("late_ms", "is_starved"), [(9.0, False), (11.0, True)])
def test_starved_work_is_twice_as_far_out_as_the_quickest_rank(late_ms: float, is_starved: bool) -> None:
    assert (starved(even({3: late_ms, 1: -5.0}), 0.0) == {3}) == is_starved


@pytest.mark.parametrize(("iterations", "is_starved"), [(3, False), (4, True)])
def test_three_iterations_say_nothing_of_processor_time(iterations: int, is_starved: bool) -> None:
    assert (starved(even({3: 20.0}, iterations), 0.0) == {3}) == is_starved


@pytest.mark.parametrize(("late_ms", "found"), [(9.0, {3}), (11.0, {3, 4})])
def test_ranks_are_starved_as_the_latest_from_half_of_it_on(late_ms: float, found: set[int]) -> None:
    assert starved(even({3: 20.0, 4: late_ms}), 0.0) == found


@pytest.mark.parametrize(("late", "is_starved"), [(4, True), (5, False)])
def test_of_nine_ranks_four_may_be_starved_and_five_are_the_job(late: int, is_starved: bool) -> None:
    """The others' median tells what all are late, so that with five late it is the four that seem quick."""
    found = starved(even(dict.fromkeys(range(late), 20.0), ranks=9), 0.0)
    assert (found == set(range(late))) == is_starved


@pytest.mark.parametrize(("apart_ms", "is_in_step"), [(1.8, True), (2.2, False)])
def test_ranks_in_step_differ_by_less_than_twice_the_noise(apart_ms: float, is_in_step: bool) -> None:
    """Two ranks that differ by as many times the noise of the others, 1.4826 / 2 ms."""
    noise = [dict.fromkeys((2, 3, 4, 5), 0.5 * MS if n % 2 else -0.5 * MS) for n in range(4)]
    half = apart_ms * 0.7413 * MS / math.sqrt(2)
    late = [{0: 30 * MS + half, 1: 30 * MS - half} for _ in range(4)]
    assert in_step([one | two for one, two in zip(noise, late, strict=True)], {0, 1}) == is_in_step
