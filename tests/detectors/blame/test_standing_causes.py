"""How late ranks are against those that do the same work."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.blame.standing_causes import late_against_stage
from irregulars.detectors.job.topology import Topology

RANKS = np.arange(8)
TOPOLOGY = Topology(8, {}, {}, stage_of={rank: rank // 4 for rank in range(8)})


def late(work: list[float], operators: list[int], most: list[int] | None = None) -> dict[int, float]:
    known = None if most is None else np.array(most)
    return late_against_stage(RANKS, np.array(work), np.array(operators), TOPOLOGY, known)


def test_ranks_are_late_against_their_stage() -> None:
    found = late([10, 10, 14, 11, 30, 30, 31, 39], [20] * 4 + [24] * 4)
    assert found == {0: 0, 1: 0, 2: 4, 3: 1, 4: 0, 5: 0, 6: 1, 7: 9}


def test_a_rank_without_company_is_held_against_nothing() -> None:
    assert late([10, 10, 14, 11, 30, 30, 31, 39], [20] * 4 + [24, 24, 24, 25]).keys() == set(range(7))


def test_slow_ranks_stay_late_where_each_of_the_others_lost_a_row() -> None:
    work = [10.0, 11, 40, 41, 10, 10, 10, 10]
    assert late(work, [20] * 8) == pytest.approx({0: -1, 1: 0, 2: 29, 3: 30, 4: 0, 5: 0, 6: 0, 7: 0})
    lost = [19, 18, 20, 20, 20, 20, 20, 20]
    assert late(work, lost, [20] * 8) == pytest.approx({2: 29, 3: 30, 4: 0, 5: 0, 6: 0, 7: 0})
    assert late(work, lost)[3] == 1.0  # held against each other alone


def test_a_rank_with_fewer_rows_than_most_is_neither_late_nor_on_time() -> None:
    assert 2 not in late([10, 10, 40, 11, 10, 10, 10, 10], [20, 20, 19, 20, 20, 20, 20, 20], [20] * 8)


def test_an_iteration_in_which_all_run_less_is_held_against_itself() -> None:
    assert late([5, 5, 9, 5, 5, 5, 5, 5], [7] * 8, [20] * 8)[2] == 4.0
