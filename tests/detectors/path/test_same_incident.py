"""An iteration judged by what was read of another one."""

from __future__ import annotations

import pytest

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.path.same_incident import carry_over

LANE, OTHER = Lane("pair", 1, 2), Lane("pair", 3, 4)
READ = Attribution(
    10,
    {Lane("work", 5): 100.0},
    {},
    {LANE: LaneExcess(40.0, 10.0, 1.0, 64.0), OTHER: LaneExcess(-2.0, 10.0, 1.0, 64.0)},
    {5: 100.0, 6: 1.0},
)


def test_the_same_fault_is_carried_over_at_its_own_size() -> None:
    carried = carry_over(READ, 100.0, 11, 80.0, {5: 79.0, 6: -3.0})
    assert carried is not None
    assert carried.iteration == 11
    assert carried.path_excess_ns == pytest.approx({Lane("work", 5): 80.0})
    assert carried.lanes[LANE].excess_ns == pytest.approx(32.0)
    assert carried.lanes[OTHER].excess_ns == -2.0
    assert carried.work_excess_ns == {5: 79.0, 6: -3.0}


@pytest.mark.parametrize(
    ("excess", "work"),
    [(20.0, {5: 20.0}), (300.0, {5: 300.0}), (-5.0, {5: 0.0}), (100.0, {5: 2.0}), (100.0, {5: 100.0, 6: 90.0})],
    ids=["smaller", "larger", "none", "another cause", "one more"],
)
def test_what_looks_different_must_be_read(excess: float, work: dict[int, float]) -> None:
    assert carry_over(READ, 100.0, 11, excess, work) is None


@pytest.mark.parametrize(("excess", "is_like"), [(63.0, True), (57.0, False), (160.0, True), (175.0, False)])
def test_excesses_are_alike_up_to_three_fifths(excess: float, is_like: bool) -> None:
    assert (carry_over(READ, 100.0, 11, excess, {5: excess}) is not None) is is_like


@pytest.mark.parametrize(("own", "is_late"), [(45.0, False), (55.0, True)])
def test_a_rank_is_late_with_half_of_the_excess(own: float, is_late: bool) -> None:
    """Rank 6 was not late in the iteration that was read."""
    assert (carry_over(READ, 100.0, 11, 100.0, {5: 100.0, 6: own}) is None) is is_late
