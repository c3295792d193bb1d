from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.plugins.forest.positions import Places, pack_slots
from irregulars.messages.records import UNKNOWN


def frame(
    iteration: int, first: int, length: int = 6, *, communicator: int = 3, lost: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """One series of operators, some of its rows lost."""
    sequence = np.array([first + n for n in range(length) if n not in lost], dtype=np.int64)
    size = len(sequence)
    return {
        "communicator": np.full(size, communicator, dtype=np.int64),
        "operator": np.full(size, 2, dtype=np.uint8),
        "peer": np.full(size, UNKNOWN, dtype=np.int64),
        "sequence": sequence,
        "size_bytes": np.full(size, 1e6),
        "iteration": np.full(size, iteration, dtype=np.int64),
    }


def taught() -> Places:
    places = Places()
    places.learn(frame(0, 1))
    places.learn(frame(1, 7))
    return places


def test_places_count_from_the_first_of_the_iteration() -> None:
    assert taught().number(frame(5, 31)).tolist() == [0, 1, 2, 3, 4, 5]


@given(st.sets(st.integers(0, 4)))
def test_lost_rows_do_not_move_the_others(lost: set[int]) -> None:
    kept = [n for n in range(6) if n not in lost]
    assert taught().number(frame(4, 25, lost=tuple(lost))).tolist() == kept


def test_an_operator_more_than_usual_starts_the_series_anew() -> None:
    places = taught()
    places.learn(frame(2, 13, 7))
    assert places.number(frame(3, 20)).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_sequence_that_is_not_known_has_no_place_and_moves_nobody() -> None:
    rows = frame(2, 13)
    rows["sequence"][2] = UNKNOWN
    assert taught().number(rows).tolist() == [0, 1, -1, 3, 4, 5]
    rows["sequence"][:] = UNKNOWN
    places = taught()
    places.learn(rows)
    assert places.number(rows).tolist() == [-1] * 6


def test_the_number_of_series_is_bounded() -> None:
    places = Places(most_series=3)
    for number in range(10):
        places.learn(frame(number, 1, communicator=number))
    assert len(places._series) == 3


@pytest.mark.parametrize("change", ["communicator", "operator", "peer", "size_bytes"])
def test_other_operators_have_other_slots_and_classes(change: str) -> None:
    one, other = frame(0, 1), frame(0, 1)
    other[change] = (other[change] if change != "peer" else np.zeros(6, dtype=np.int64)) + (
        np.uint8(1) if change == "operator" else np.int64(5) if change != "size_bytes" else 9e6
    )
    places = np.arange(6)
    first, second = pack_slots(one, places), pack_slots(other, places)
    assert not np.isin(first.slot, second.slot).any()
    assert not np.isin(first.class_, second.class_).any()
    assert len(np.unique(first.slot)) == 6
    assert len(np.unique(first.class_)) == 1
