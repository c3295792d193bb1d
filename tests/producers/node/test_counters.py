from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.producers.node.counters import UNREADABLE, CounterTrack, increments

MS = 1_000_000
CAPACITY = 50e9  # 400 Gb/s


def moved(counts: int, before: int, limit: float = 2.0**31) -> float:
    return float(increments(np.array([counts], np.uint64), np.array([before], np.uint64), np.array([limit]))[0])


@pytest.mark.parametrize(("before", "counts", "expected"), [
    (10, 25, 15),
    (10, 10, 0),
    (2**40, 2**40 + 7, 7),
    (2**32 - 10, 5, 15),  # wrapped at 32 bits
    (2**64 - 20, 5, 25),  # wrapped at 64 bits
    (2**31 - 9, 5, np.nan),  # more than half of the way: rather a reset than a wrap
    (2**40, 5, np.nan),  # a 64-bit counter was reset
    (500, 499, np.nan),
    (10, UNREADABLE, np.nan),
    (UNREADABLE, 10, np.nan),
    (2**32 - 1, 2**32 - 1, np.nan),  # saturated
    (5, 2**32 - 1, np.nan),
])  # fmt: skip
def test_a_difference_means_what_the_counter_can_have_done(before: int, counts: int, expected: float) -> None:
    np.testing.assert_equal(moved(counts, before), expected)


@given(st.integers(0, 2**64 - 2), st.integers(0, 2**30), st.sampled_from([32, 64]))
def test_small_steps_survive_every_wrap(start: int, step: int, bits: int) -> None:
    before = start % 2**bits
    counts = (before + step) % 2**bits
    if UNREADABLE not in (before, counts) and counts != 2**32 - 1:
        assert moved(counts, before) == step


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(1, 49))
def test_windows_do_not_change_the_rates(steps: list[int], cut: int) -> None:
    times_ns = np.arange(1, len(steps) + 1) * 10 * MS
    counts = np.cumsum(np.array([steps, steps[::-1]], np.uint64), axis=1).T
    whole = CounterTrack("d", 4, CAPACITY).rates(times_ns, counts)
    track = CounterTrack("d", 4, CAPACITY)
    parts = [track.rates(times_ns[part], counts[part]) for part in (slice(0, cut), slice(cut, None))]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), whole[0])
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), whole[1])


@pytest.mark.parametrize(("unit_bytes", "times_ms", "counts", "ends_ms", "expected"), [
    (4, [0, 10, 40], [[0, 0], [1_000, 500], [4_000, 500]], [10, 40], [[400_000, 200_000], [400_000, 0]]),
    # A reset: one interval is not known.
    (1, [0, 10, 20], [[2**40, 9], [50, 9], [150, 9]], [10, 20], [[np.nan, 0], [10_000, 0]]),
    # A clock that was set back: no samples until it has caught up.
    (1, [0, 10, 5, 9, 20], [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], [10, 20], [[200, 200], [600, 600]]),
])  # fmt: skip
def test_rates_are_means_over_the_interval_in_bytes(
    unit_bytes: int, times_ms: list[int], counts: list[list[int]], ends_ms: list[int], expected: list[list[float]]
) -> None:
    track = CounterTrack("d", unit_bytes, CAPACITY)
    times_ns, rates = track.rates(np.array(times_ms) * MS, np.array(counts, np.uint64))
    assert times_ns.tolist() == [one * MS for one in ends_ms]
    np.testing.assert_allclose(rates, expected)


def lazy_counts(ticks: int, refresh: int, per_tick: int) -> np.ndarray:
    """Counts that grow steadily, and show it once in `refresh` ticks."""
    shown = np.arange(ticks) // refresh * refresh * per_tick
    return np.stack([shown, shown], axis=1).astype(np.uint64)


def test_a_counter_refreshed_lazily_gives_true_rates_over_longer_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    track = CounterTrack("eth0", 1, 1e9)
    per_tick = 5_000_000  # half of what the link carries
    counts = lazy_counts(400, 25, per_tick)
    parts = [track.rates(np.arange(at, at + 100) * 10 * MS, counts[at : at + 100]) for at in range(0, 400, 100)]
    times_ns = np.concatenate([part[0] for part in parts])
    rates = np.concatenate([part[1] for part in parts])[:, 0]
    assert np.all(np.diff(times_ns) == 250 * MS)
    np.testing.assert_allclose(rates, per_tick * 100)
    assert len([text for text in caplog.messages if text.startswith("event=lazy_counter device=eth0 ")]) == 1


def test_a_lazy_counter_that_stands_still_says_so_in_the_end_and_bursts_make_none_lazy() -> None:
    track = CounterTrack("eth0", 1, 1e9)
    track.rates(np.arange(100) * 10 * MS, lazy_counts(100, 25, 5_000_000))
    still = np.full((300, 2), 75 * 5_000_000, np.uint64)
    times_ns, rates = track.rates(np.arange(100, 400) * 10 * MS, still)
    assert times_ns.tolist() == [3_990 * MS]
    assert rates.tolist() == [[0.0, 0.0]]
    track = CounterTrack("eth0", 1, 1e9)
    counts = np.cumsum(np.tile([0, 0, 9_000_000, 0], 25)).astype(np.uint64)
    times_ns, _ = track.rates(np.arange(100) * 10 * MS, np.stack([counts, counts], axis=1))
    assert (len(times_ns), track.is_lazy) == (99, False)
