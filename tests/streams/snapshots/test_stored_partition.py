"""Which records of a snapshot partition count: the newest of the highest epoch, and none that can't be read."""

from __future__ import annotations

from irregulars.streams.snapshots.records import (
    PIECE_BYTES,
    POSITION_KEY,
    MonitorRecord,
    PositionRecord,
    cut,
    encode_record,
)
from irregulars.streams.snapshots.stored_partition import StoredPartition, newest_records
from tests.streams.snapshots.memory_topic import Line


def monitor(key: bytes, epoch: int, state: bytes = b"s") -> Line:
    return Line(key, encode_record(MonitorRecord(epoch, {"commops": epoch}, state)))


def position(epoch: int, offset: int) -> Line:
    return Line(POSITION_KEY, encode_record(PositionRecord(epoch, {"commops": offset})))


def read(*lines: Line) -> StoredPartition:
    return newest_records(lines, "snapshots/0")


def test_a_record_of_a_former_owner_that_comes_late_does_not_count() -> None:
    found = read(monitor(b"a", 2, b"mine"), position(2, 9), monitor(b"a", 1, b"late"), position(1, 3))
    assert (found.monitors[b"a"].state.root, found.position.positions, found.epoch) == (b"mine", {"commops": 9}, 2)


def test_a_tombstone_ends_a_state_and_what_could_not_be_read_of_it() -> None:
    found = read(monitor(b"a", 1), Line(b"b", b"?"), Line(b"a", None), Line(b"b", None))
    assert (found.monitors, found.refused, found.epoch) == ({}, {}, 1)


def test_a_record_that_can_t_be_read_is_told_with_its_place_and_hides_those_before_it() -> None:
    """The position may be that of the damaged one: from an older state on, messages would be missing."""
    found = read(monitor(b"b", 4), monitor(b"a", 4), Line(b"a", monitor(b"a", 5).content[:-1], at=12))  # type: ignore[index]
    assert found.monitors.keys() == {b"b"}
    assert found.refused.keys() == {b"a"}
    assert "checksum" in found.refused[b"a"]
    assert "(snapshots/0 offset 12, key b'a')" in found.refused[b"a"]
    assert found.epoch == 4


def test_what_follows_a_position_of_a_higher_epoch_does_not_count_even_if_it_is_the_first_of_its_key() -> None:
    assert read(position(2, 9), monitor(b"a", 1, b"late")).monitors == {}


LONG = bytes(range(256)) * (PIECE_BYTES // 256) + b"and some more"


def in_pieces(epoch: int = 1) -> tuple[list[Line], Line]:
    """Pieces of a state of two messages, and its record."""
    pieces = [Line(key, value) for key, value in cut(LONG, b"a", epoch)]
    return pieces, Line(b"a", encode_record(MonitorRecord(epoch, {}, b"", tuple(one.name for one in pieces))))


def test_a_state_of_which_a_piece_is_missing_does_not_count() -> None:
    pieces, record = in_pieces()
    found = read(pieces[0], record)
    assert found.monitors == {}
    assert "must have all of its pieces; got 1 of 2" in found.refused[b"a"]
    assert found.strays == {pieces[0].name}


def test_a_piece_that_is_damaged_spoils_its_state_alone() -> None:
    (first, second), record = in_pieces()
    found = read(first, Line(second.name, second.content[:-1]), record, monitor(b"b", 1))  # type: ignore[index]
    assert found.monitors.keys() == {b"b"}
    assert "checksum" in found.refused[b"a"]


def test_a_piece_that_a_former_owner_has_deleted_late_is_still_there() -> None:
    """As long as the broker has not compacted it away; the next owner writes its own."""
    pieces, record = in_pieces()
    found = read(*pieces, record, position(2, 5), Line(pieces[0].name, None))
    assert found.monitors[b"a"].state.root == LONG


def test_pieces_without_a_record_are_strays() -> None:
    """A worker ended before it had written the record."""
    pieces, _ = in_pieces()
    assert read(*pieces).strays == {one.name for one in pieces}
    assert read(*pieces, *(Line(one.name, None) for one in pieces)).strays == frozenset()


def test_a_newer_record_takes_the_place_of_one_that_can_t_be_read() -> None:
    found = read(Line(b"a", b"?"), Line(POSITION_KEY, b"?"), monitor(b"a", 1), position(1, 2))
    assert (found.monitors.keys(), found.refused, found.position.positions) == ({b"a"}, {}, {"commops": 2})
