"""A ring all_reduce, chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.bench_ring import Ring

FAST, SLOW, MB = 1e9, 0.25e9, 1e6


def ring(loops: int = 1, latency_ns: float = 0.0) -> Ring:
    return Ring((FAST, SLOW, FAST, FAST), 4 * 8 * MB, MB, loops, latency_ns)


def test_nobody_sends_what_has_not_arrived_nor_two_chunks_at_once() -> None:
    own = ring(latency_ns=1000.0)
    begin, end = own.sends()
    step = own.chunks_per_step
    assert step == 8
    assert np.all(begin[:, 1:] >= end[:, :-1])
    assert np.all(begin[:, step:] >= np.roll(end, 1, axis=0)[:, :-step] + 1000.0)


@pytest.mark.parametrize(("period_ns", "loops"), [(1e5, 1), (5e7, 4)])
def test_samples_hold_all_bytes_and_the_slowest_link_decides_the_time(period_ns: float, loops: int) -> None:
    own, all_bytes = ring(loops), 2 * 3 * 8 * MB  # 2 (n - 1) steps of an n-th each
    times, tx, rx = own.samples(period_ns)
    assert own.sends()[1].max() == pytest.approx(all_bytes / SLOW * 1e9, rel=0.01)
    assert times[-1] >= own.sends()[1].max()
    assert tx.sum(axis=1) * period_ns / 1e9 == pytest.approx([all_bytes] * 4)
    np.testing.assert_array_equal(rx, tx[[3, 0, 1, 2]])
    assert tx[1].max() <= SLOW * (1 + 1e-9)
