"""The thresholds of all rooms are found, and described."""

from __future__ import annotations

import pytest

from irregulars.infra.docs_site.made_parts import Room, rooms, thresholds


def test_every_room_has_a_table_of_its_thresholds() -> None:
    assert [line[3:] for line in thresholds().splitlines() if line.startswith("## ")] == [
        one.folder for one in rooms()
    ]
    assert thresholds().count("\n| `") == sum(len(one.thresholds) for one in rooms()) > 100


def test_rooms_are_found_by_themselves() -> None:
    found = {room.folder for room in rooms()}
    assert {"detectors/irregular", "detectors/judging"} <= found


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.folder)
def test_each_threshold_says_what_it_counts_what_it_means_and_where_it_comes_from(room: Room) -> None:
    for one in room.thresholds:
        assert one.unit, f"{one.name}: unit must not be empty"
        for name, text in (("meaning", one.meaning), ("source", one.source)):
            assert len(text.split()) >= 2, f"{one.name}: {name} must be told in words; got {text!r}"
