from __future__ import annotations

import pytest

from irregulars.detectors.blame import causes, transfer_causes
from irregulars.detectors.blame import standing_causes as review
from tests.benchmarks.bench_sensitivity import Constant, constants, move


def test_numbers_of_modules_and_fields_of_their_dataclasses_are_found() -> None:
    found = {str(one): one.value for one in constants(["blame.causes", "blame.transfer_causes"])}
    assert found["blame.causes.MIN_PROBABILITY"] == causes.MIN_PROBABILITY
    assert found["blame.transfer_causes.CHANCES.accused"] == transfer_causes.CHANCES.accused
    assert "blame.transfer_causes._MEDIAN_ERROR" not in found


def test_a_constant_is_moved_wherever_it_was_imported() -> None:
    constant = next(one for one in constants(["blame.causes"]) if one.name == "MIN_PROBABILITY")
    move(constant, 0.4)
    try:
        assert causes.MIN_PROBABILITY == review.MIN_PROBABILITY == 0.4
    finally:
        move(constant, constant.value)
    assert causes.MIN_PROBABILITY == review.MIN_PROBABILITY == constant.value


def test_a_field_is_moved_alone() -> None:
    before = transfer_causes.THRESHOLDS
    constant = next(one for one in constants(["blame.transfer_causes"]) if one.field == "sigmas")
    move(constant, 3.0)
    try:
        assert (transfer_causes.THRESHOLDS.sigmas, transfer_causes.THRESHOLDS.telling) == (3.0, before.telling)
    finally:
        move(constant, constant.value)
    assert before == transfer_causes.THRESHOLDS


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [(4.0, 3.0, 5.0), (0.4, 0.3, 0.5), (0.95, 0.7125, 0.975), (4, 3, 5), (2, 1, 3), (50, 38, 62)],
)
def test_a_value_moves_by_a_quarter_within_its_range(value: float, down: float, up: float) -> None:
    constant = Constant("causes", "X", "", value)
    assert (constant.moved(-1), constant.moved(1)) == (pytest.approx(down), pytest.approx(up))
