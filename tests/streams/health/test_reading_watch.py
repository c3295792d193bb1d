from __future__ import annotations

import pytest

from irregulars.streams.health.reading_watch import ReadingWatch


class Looks:
    """A watch whose looks are a second of waiting apart, if `waits_s` says no other time."""

    def __init__(self, stall_s: float, waits_s: float = 1.0) -> None:
        self.waited_s = 0.0
        self.waits_s = waits_s
        self.watch: ReadingWatch[str] = ReadingWatch(stall_s)

    def look(self, positions: dict[str, int], ends: dict[str, int], is_idle: bool = True) -> list[str]:
        self.waited_s += self.waits_s
        return self.watch.look(positions, ends, self.waited_s, is_idle=is_idle)


def test_a_partition_that_is_left_out_is_told_once_and_lost_in_the_end() -> None:
    looks = Looks(stall_s=5.0)
    said = [looks.look({"a": 3, "b": number}, {"a": 9 + number, "b": number + 1}) for number in range(12)]
    assert [number for number, stalled in enumerate(said) if stalled == ["a"]] == [5]
    assert looks.watch.lost() == ["a"]


def test_a_message_that_comes_ends_a_stall() -> None:
    looks = Looks(stall_s=5.0)
    assert not any(looks.look({"a": number // 4}, {"a": 99}) for number in range(40))
    assert looks.watch.lost() == []


@pytest.mark.parametrize(("at", "is_idle"), [(9, True), (3, False)])
def test_where_nothing_is_to_be_read_or_a_worker_waits_for_its_database_is_no_stall(at: int, is_idle: bool) -> None:
    looks = Looks(stall_s=5.0)
    assert not any(looks.look({"a": at}, {"a": 9}, is_idle=is_idle) for _ in range(50))


def test_a_consumer_that_still_hands_over_what_it_fetched_stalls_nothing() -> None:
    looks = Looks(stall_s=5.0, waits_s=0.0)
    assert not any(looks.look({"heartbeats": number, "a": 3}, {"heartbeats": 99, "a": 9}) for number in range(50))


def test_of_a_busy_worker_the_seconds_of_waiting_count() -> None:
    looks = Looks(stall_s=5.0, waits_s=0.25)
    said = [looks.look({"a": 3}, {"a": 9}) for _ in range(40)]
    assert [number for number, stalled in enumerate(said) if stalled] == [20]


def test_a_process_that_could_not_look_gives_seeking_its_time_too() -> None:
    """A busy machine: between two looks four and a half of five seconds pass, and then nine."""
    looks = Looks(stall_s=5.0, waits_s=4.5)
    said = [looks.look({"a": 3}, {"a": 9}) for _ in range(3)]
    assert said == [[], [], ["a"]]
    looks.waits_s = 9.0
    looks.look({"a": 3}, {"a": 9})
    assert looks.watch.lost() == []
    looks.look({"a": 3}, {"a": 9})
    assert looks.watch.lost() == ["a"]


def test_another_assignment_begins_anew() -> None:
    looks = Looks(stall_s=5.0)
    for _ in range(5):
        looks.look({"a": 3}, {"a": 9})
    looks.watch.forget()
    assert not any(looks.look({"a": 3}, {"a": 9}) for _ in range(5))
