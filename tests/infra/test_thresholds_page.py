"""infra/docs/thresholds.md lists the thresholds of all rooms as they are."""

from __future__ import annotations

import pytest

from tests.benchmarks.thresholds_page import PAGE, render
from tests.room_thresholds import Room, rooms


def test_the_page_is_as_the_rooms_say() -> None:
    assert PAGE.read_text() == render(), "run: python -m tests.benchmarks.thresholds_page"


def test_rooms_are_found_by_themselves() -> None:
    found = {room.folder for room in rooms()}
    assert {"detectors/irregular", "detectors/judging", "detectors/judging/reading"} <= found


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.folder)
def test_each_threshold_says_what_it_counts_what_it_means_and_where_it_comes_from(room: Room) -> None:
    for one in room.thresholds:
        assert one.unit, f"{one.name}: unit must not be empty"
        for name, text in (("meaning", one.meaning), ("source", one.source)):
            assert len(text.split()) >= 2, f"{one.name}: {name} must be told in words; got {text!r}"
