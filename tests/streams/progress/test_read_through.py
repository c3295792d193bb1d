"""The clock that says until when everything was read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.streams.progress.read_through import MOST_LOOKS, ReadThrough


def test_it_stands_while_reading_lags_and_goes_on_with_it() -> None:
    clock: ReadThrough[str] = ReadThrough()
    for second in range(60):
        clock.look(float(second), {"commops": 100 * second, "jobs": 4})
    assert clock.advance({"commops": 1_050, "jobs": 4}) == 10.0
    assert clock.advance({"commops": 1_050, "jobs": 4}) == 10.0
    assert clock.advance({"commops": 5_900, "jobs": 4}) == 59.0


def test_each_place_must_have_been_read() -> None:
    clock: ReadThrough[str] = ReadThrough()
    clock.look(1.0, {"commops": 5, "jobs": 2})
    assert clock.advance({"commops": 9}) is None
    assert clock.advance({"commops": 9, "jobs": 1}) is None
    assert clock.advance({"commops": 9, "jobs": 2}) == 1.0


def test_where_nothing_is_sent_each_look_moves_it() -> None:
    clock: ReadThrough[str] = ReadThrough()
    for second in (1.0, 2.0, 700.0):
        clock.look(second, {"commops": 5})
    assert clock.advance({"commops": 5}) == 700.0


def test_a_place_that_was_read_before_counts_anew_after_more_was_sent() -> None:
    clock: ReadThrough[str] = ReadThrough()
    clock.look(1.0, {"commops": 5})
    assert clock.advance({"commops": 5}) == 1.0
    clock.look(2.0, {"commops": 6})
    assert clock.advance({"commops": 5}) == 1.0


@pytest.mark.parametrize("looks", [MOST_LOOKS + 1, 20 * MOST_LOOKS])
def test_a_long_lag_takes_bounded_memory_and_never_runs_ahead(looks: int) -> None:
    clock: ReadThrough[str] = ReadThrough()
    for second in range(looks):
        clock.look(float(second), {"commops": second})
    assert len(clock._looks) <= MOST_LOOKS + 1
    half = clock.advance({"commops": looks // 2})
    assert half is not None
    assert looks // 2 - looks / 8 < half <= looks // 2
    assert clock.advance({"commops": looks}) == looks - 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_it_never_says_more_than_was_read(steps: list[tuple[int, int]]) -> None:
    clock: ReadThrough[str] = ReadThrough()
    end = position = 0
    sent_at: list[int] = []  # the second in which each message was sent
    for second, (sent, read) in enumerate(steps):
        sent_at += [second] * sent
        end += sent
        clock.look(second + 0.5, {"commops": end})
        position = min(position + read, end)
        until_s = clock.advance({"commops": position})
        unread = sent_at[position:]
        assert until_s is None or all(until_s < second for second in unread)
