"""Lanes: where time is spent."""

from __future__ import annotations

import pytest

from irregulars.detectors.job.lanes import LaneExcess


@pytest.mark.parametrize(
    ("slow_transfers", "transfers", "is_stray"),
    [(1.0, 8, True), (1.4, 8, True), (1.6, 8, False), (8.0, 8, False), (1.0, 1, False)],
)
def test_one_transfer_of_several_that_has_all_of_the_excess_is_stray(
    slow_transfers: float, transfers: int, is_stray: bool
) -> None:
    assert LaneExcess(9.0, 9.0, 1.0, 0.0, slow_transfers, transfers).is_stray is is_stray
