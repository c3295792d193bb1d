from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import IterationWindow
from tests.benchmarks.bench_sensitivity import moves
from tests.room_thresholds import moved, moved_value, rooms


def test_each_threshold_of_a_room_is_moved_down_and_up() -> None:
    of_room = moves(["irregular"])
    assert [one.name for one in of_room[::2]] == list(IRREGULAR.__dataclass_fields__)
    assert {str(one) for one in of_room} >= {"irregular.noise_sigmas", "irregular.min_iterations"}
    for down, up in zip(of_room[::2], of_room[1::2], strict=True):
        assert down.after < down.before == up.before < up.after


def test_all_rooms_are_moved() -> None:
    assert {one.room.folder for one in moves()} == {room.folder for room in rooms()}


def test_a_move_is_seen_where_the_threshold_is_used_and_ends() -> None:
    with moved(IRREGULAR, "min_iterations", 60), pytest.raises(ValueError, match="window must be at least 60"):
        IterationWindow(window=50)
    IterationWindow(window=50)
    with pytest.raises(FrozenInstanceError):
        IRREGULAR.min_iterations = 60  # type: ignore[misc]  # that it can't be set is what is tested


def test_a_move_ends_after_an_error() -> None:
    before = IRREGULAR.noise_sigmas
    with pytest.raises(RuntimeError), moved(IRREGULAR, "noise_sigmas", 9.0):
        raise RuntimeError
    assert before == IRREGULAR.noise_sigmas


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [(4.0, 3.0, 5.0), (0.4, 0.3, 0.5), (0.95, 0.7125, 0.975), (4, 3, 5), (2, 1, 3), (50, 38, 62)],
)
def test_a_value_moves_by_a_quarter_within_its_range(value: float, down: float, up: float) -> None:
    assert (moved_value(value, -1), moved_value(value, 1)) == (pytest.approx(down), pytest.approx(up))
