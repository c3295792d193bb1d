"""A ring all_reduce, chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.bench_ring import Ring

FAST, SLOW = 1e9, 0.25e9
MB = 1e6


def ring(members: int = 4, slow: int | None = 1, loops: int = 1, latency_ns: float = 0.0) -> Ring:
    rates = [SLOW if member == slow else FAST for member in range(members)]
    return Ring(tuple(rates), members * 8 * MB, MB, loops, latency_ns)


@pytest.mark.parametrize("loops", [1, 4])
def test_the_whole_takes_as_long_as_its_slowest_link_needs_for_its_bytes(loops: int) -> None:
    own = ring(loops=loops)
    _, end = own.sends()
    bytes_over_a_link = 2 * 3 * 8 * MB  # 2 (n - 1) steps of a n-th each
    assert end.max() == pytest.approx(bytes_over_a_link / SLOW * 1e9, rel=0.01)
    assert ring(slow=None).sends()[1].max() == pytest.approx(bytes_over_a_link / FAST * 1e9, rel=0.01)


def test_nobody_sends_what_has_not_arrived_nor_two_chunks_at_once() -> None:
    own = ring(latency_ns=1000.0)
    begin, end = own.sends()
    step = own.chunks_per_step
    assert step == 8
    assert np.all(begin[:, 1:] >= end[:, :-1])
    assert np.all(begin[:, step:] >= np.roll(end, 1, axis=0)[:, :-step] + 1000.0)


def test_who_sends_over_the_slow_link_never_rests_and_the_others_do() -> None:
    begin, end = ring().sends()
    busy = (end - begin).sum(axis=1) / (end.max(axis=1) - begin.min(axis=1))
    assert busy[1] == pytest.approx(1.0)
    assert np.all(busy[[0, 2, 3]] < 0.6)


@pytest.mark.parametrize("period_ns", [1e5, 1e6, 5e7])
def test_samples_hold_all_bytes_and_what_one_sends_its_neighbour_receives(period_ns: float) -> None:
    own = ring()
    times, tx, rx = own.samples(period_ns)
    assert times[-1] >= own.sends()[1].max()
    assert tx.sum(axis=1) * period_ns / 1e9 == pytest.approx([2 * 3 * 8 * MB] * 4)
    np.testing.assert_array_equal(rx, tx[[3, 0, 1, 2]])
    assert tx[1].max() <= SLOW * (1 + 1e-9)
    assert tx.max() <= FAST * (1 + 1e-9)
