from __future__ import annotations

from collections.abc import Iterator

from irregulars.producers.torch_hook.source import measure_offset

OFFSET_NS = 1_700_000_000_000_000_000


class Clock:
    """A clock that is read through two functions; the process is held up before some of the readings."""

    def __init__(self, *held_up_ns: int) -> None:
        self._now_ns = 0
        self._held_up: Iterator[int] = iter(held_up_ns)

    def monotonic_ns(self) -> int:
        self._now_ns += 50 + next(self._held_up, 0)
        return self._now_ns

    def wall_ns(self) -> int:
        return self.monotonic_ns() + OFFSET_NS


def error_ns(clock: Clock) -> int:
    return abs(measure_offset(clock.wall_ns, clock.monotonic_ns).offset_ns - OFFSET_NS)


def test_an_undisturbed_reading_is_taken_at_once() -> None:
    clock = Clock()
    assert error_ns(clock) == 0
    assert clock.monotonic_ns() == 4 * 50


def test_a_process_held_up_between_two_readings_measures_again() -> None:
    assert error_ns(Clock(0, 14_000_000)) == 0
    assert error_ns(Clock(0, 0, 14_000_000, 0, 3_000_000)) == 0


def test_where_every_reading_is_disturbed_the_least_disturbed_counts_and_says_so() -> None:
    held_up = [0, 2_000_000, 0] * 7 + [0, 400_000, 0]
    found = measure_offset((clock := Clock(*held_up)).wall_ns, clock.monotonic_ns)
    assert found.width_ns == 400_100
    assert abs(found.offset_ns - OFFSET_NS) <= found.width_ns / 2
