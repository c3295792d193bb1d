"""Ranks that lack processor time: their own work is slow beside their transfers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.starved_ranks import are_in_step, starved_ranks

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


def test_a_rank_whose_work_grows_beyond_the_noise_is_starved() -> None:
    assert starved_ranks(work({6: 20.0}), MS) == {6}
    assert starved_ranks(work({4: 20.0, 5: 16.0}), MS) == {4, 5}
    assert starved_ranks(work({}), MS) == set()


def test_what_lost_less_than_is_worth_asking_is_not_starved() -> None:
    assert starved_ranks(work({6: 20.0}), 25 * MS) == set()


def test_work_that_is_as_much_quicker_elsewhere_is_no_evidence() -> None:
    assert starved_ranks(work({6: 20.0, 1: -15.0}), MS) == set()


def test_where_most_ranks_are_late_the_job_changed() -> None:
    assert starved_ranks(work(dict.fromkeys(range(5), 30.0)), MS) == set()


def test_too_few_iterations_or_ranks_that_are_hardly_known_say_nothing() -> None:
    late = work({6: 20.0})
    assert starved_ranks(late[:3], MS) == set()
    assert starved_ranks([], MS) == set()
    assert starved_ranks([*late, *({9: 0.0} for _ in range(3))], MS) == set()


def test_ranks_that_wait_for_the_same_transfer_are_in_step_and_throttled_ones_are_not() -> None:
    assert are_in_step(work({2: 30.0, 3: 30.0}), {2, 3})
    assert not are_in_step(work({2: 30.0, 3: 30.0}, bursts=25.0), {2, 3})
    assert not are_in_step(work({2: 30.0}), {2})


@given(order=st.permutations(RANKS))
def test_renaming_ranks_renames_the_starved(order: list[int]) -> None:
    renamed = [{order[rank]: ns for rank, ns in one.items()} for one in work({6: 20.0})]
    assert starved_ranks(renamed, MS) == {order[6]}
