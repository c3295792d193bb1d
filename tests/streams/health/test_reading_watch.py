from __future__ import annotations

from irregulars.streams.health.reading_watch import ReadingWatch


class Looks:
    """A watch whose looks are a second apart."""

    def __init__(self, stall_s: float) -> None:
        self.now_s = 0.0
        self.watch: ReadingWatch[str] = ReadingWatch(stall_s, lambda: self.now_s)

    def look(self, positions: dict[str, int], ends: dict[str, int], is_idle: bool = True) -> list[str]:
        self.now_s += 1.0
        return self.watch.look(positions, ends, is_idle=is_idle)


def test_a_partition_that_is_left_out_is_told_once_and_lost_in_the_end() -> None:
    looks = Looks(stall_s=5.0)
    said = [looks.look({"a": 3, "b": number}, {"a": 9 + number, "b": number + 1}) for number in range(12)]
    assert [number for number, stalled in enumerate(said) if stalled == ["a"]] == [5]
    assert looks.watch.lost() == ["a"]


def test_a_message_that_comes_ends_a_stall() -> None:
    looks = Looks(stall_s=5.0)
    assert not any(looks.look({"a": number // 4}, {"a": 99}) for number in range(40))
    assert looks.watch.lost() == []


def test_nothing_to_read_is_no_stall() -> None:
    looks = Looks(stall_s=5.0)
    assert not any(looks.look({"a": 9}, {"a": 9}) for _ in range(20))


def test_a_worker_that_waits_for_its_database_stalls_nothing() -> None:
    looks = Looks(stall_s=5.0)
    assert not any(looks.look({"a": 3}, {"a": 9}, is_idle=False) for _ in range(50))


def test_another_assignment_begins_anew() -> None:
    looks = Looks(stall_s=5.0)
    for _ in range(5):
        looks.look({"a": 3}, {"a": 9})
    looks.watch.forget()
    assert not any(looks.look({"a": 3}, {"a": 9}) for _ in range(5))
