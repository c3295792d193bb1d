"""EROICA's ring with a throttled link: lowest deviation and lowest peak name who drives it, the mean nobody."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.bench_ring import CULPRIT, FAST, RINGS, SLOW, ring_of, steady_senders, watch

OFTEN = (0.1, 0.3, 1.0)


@pytest.mark.parametrize("period", OFTEN)
@pytest.mark.parametrize(("members", "loops"), RINGS)
def test_who_drives_the_slow_link_has_the_lowest_deviation_and_peak(members: int, loops: int, period: float) -> None:
    ring = ring_of(members, loops)
    seen = watch(ring, period * ring.step_ns)
    others = np.delete(np.arange(members), CULPRIT)
    assert seen.swing[CULPRIT] < 0.1 < 0.5 * np.median(seen.swing[others])
    assert np.argmin(seen.swing) == np.argmin(seen.peak) == CULPRIT
    assert seen.peak[CULPRIT] == pytest.approx(SLOW)
    assert np.median(seen.peak[others]) > 1.5 * SLOW
    assert steady_senders(seen) == [CULPRIT]


@pytest.mark.parametrize(("members", "loops"), RINGS)
def test_the_mean_names_nobody(members: int, loops: int) -> None:
    ring = ring_of(members, loops)
    seen = watch(ring, 0.1 * ring.step_ns)
    assert seen.mean == pytest.approx(seen.mean[0])


@pytest.mark.parametrize(("members", "loops"), RINGS[1:])
def test_counters_that_are_read_too_seldom_show_no_bursts_and_name_nobody(members: int, loops: int) -> None:
    ring = ring_of(members, loops)
    assert steady_senders(watch(ring, 10 * ring.step_ns)) == []


@pytest.mark.parametrize("period", OFTEN)
@pytest.mark.parametrize(("members", "loops"), RINGS)
def test_a_ring_without_a_slow_link_names_nobody(members: int, loops: int, period: float) -> None:
    ring = ring_of(members, loops, culprit=None)
    seen = watch(ring, period * ring.step_ns)
    assert seen.peak == pytest.approx([FAST] * members)
    assert steady_senders(seen) == []
