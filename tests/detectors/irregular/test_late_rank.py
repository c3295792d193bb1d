"""The rank that stands out by its own work."""

from __future__ import annotations

import pytest

from irregulars.detectors.irregular.late_rank import (
    LATE_SIGMAS,
    LATEST_RANKS,
    MIN_HISTORY,
    Late,
    find_lasting,
    find_latest,
)

MS = 1e6
HISTORY = [{n % 4: (1.0 + n % 3) * MS, (n + 1) % 4: 0.5 * MS} for n in range(20)]
"""Somebody is always a little late, each in turn."""


def test_nothing_is_said_before_there_is_a_history() -> None:
    assert find_latest({1: 50 * MS}, HISTORY[: MIN_HISTORY - 1]) is None
    assert find_latest({}, HISTORY) is None


def test_a_rank_that_is_far_later_than_anybody_was_stands_out() -> None:
    found = find_latest({1: 50 * MS, 2: 2 * MS}, HISTORY)
    assert found is not None
    assert (found.rank, found.over_ns) == (1, pytest.approx(50 * MS, rel=0.01))
    assert found.sigmas > LATE_SIGMAS


def test_a_rank_that_is_as_late_as_somebody_always_is_does_not() -> None:
    found = find_latest({3: 3 * MS}, HISTORY)
    assert found is not None
    assert found.sigmas < LATE_SIGMAS


def test_a_rank_that_is_always_late_is_held_against_its_own_past() -> None:
    history = [{0: 30 * MS + n % 3 * MS, 1 + n % 3: 1.0 * MS} for n in range(20)]
    always = find_latest({0: 32 * MS, 2: 5 * MS}, history)
    assert always is not None
    assert always.rank == 2
    more = find_latest({0: 90 * MS, 2: 5 * MS}, history)
    assert more is not None
    assert (more.rank, more.over_ns) == (0, pytest.approx(59 * MS))


def test_no_order_of_the_ranks_changes_who_it_is() -> None:
    assert find_latest({2: 9 * MS, 1: 9 * MS}, HISTORY) == find_latest({1: 9 * MS, 2: 9 * MS}, HISTORY)


def latest_of_a_thousand(iteration: int, *, late_ns: float | None = None) -> Late:
    """Ranks that are among the latest for once, from 20 ms on; rank 0 is as late as is said."""
    first = 1 + iteration * LATEST_RANKS
    own = {} if late_ns is None else {0: late_ns}
    return {**own, **{first + n: (20.0 + n / 2) * MS for n in range(LATEST_RANKS - len(own))}}


@pytest.mark.parametrize(("late_ms", "stands_out"), [(22.0, False), (28.0, False), (60.0, True)])
def test_among_the_latest_of_a_thousand_three_times_is_chance_unless_it_is_late(
    late_ms: float, stands_out: bool
) -> None:
    """Of the ranks that nearly were among them nothing is known but that they were hardly less late."""
    before = [latest_of_a_thousand(n) for n in range(20)]
    newest = [latest_of_a_thousand(20 + n, late_ns=late_ms * MS if n % 2 else None) for n in range(6)]
    found = find_lasting(newest, before)
    assert found is not None
    assert found.rank == 0
    assert found.stands_out == stands_out
