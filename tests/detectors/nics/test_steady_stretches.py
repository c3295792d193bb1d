"""Where one NIC was steady and capped, in a recording without iterations."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.steady_stretches import Stretch, Traffic, steady_stretches
from irregulars.detectors.nics.thresholds import NICS

RANKS = (0, 1, 2, 3)
APART = Topology(4, {rank: Place(f"h{rank}", 0, "eth0") for rank in RANKS}, {}, ())
MS = 1_000_000
FAST, SLOW = 1e8, 1e7


def traffic(steady: dict[int, tuple[int, int]], count: int = 600, shift_ns: int = 0) -> dict[int, Traffic]:
    """Ranks that burst in every fourth sample of 10 ms, and those that move steadily between two samples."""
    begin = shift_ns + np.arange(count) * 10 * MS
    found = {}
    for rank in RANKS:
        tx = np.where(np.arange(count) % 4 == rank, FAST, 0.01 * FAST)
        first, past = steady.get(rank, (0, 0))
        tx[first:past] = SLOW
        found[rank] = Traffic(begin, begin + 10 * MS, tx, np.where(np.arange(count) % 4 == 0, FAST, 0.02 * FAST))
    return found


@pytest.mark.parametrize("shift_ns", [0, 10**18])
def test_a_stretch_has_its_nic_its_time_and_its_rate(shift_ns: int) -> None:
    (found,) = steady_stretches(traffic({2: (200, 400)}, shift_ns=shift_ns), APART)
    assert found == Stretch((Device("nic", (2,)), 0), 2.0, 4.0, SLOW, 0.0)


def test_two_stretches_of_one_nic_are_two() -> None:
    apart = traffic({1: (0, 200)})
    apart[1].tx[400:] = SLOW
    assert [(one.begin_s, one.past_s) for one in steady_stretches(apart, APART)] == [(0.0, 2.0), (4.0, 6.0)]


def test_a_moment_is_no_stretch() -> None:
    assert steady_stretches(traffic({2: (200, 200 + (NICS.min_windows - 1) * NICS.window_samples)}), APART) == []


def test_a_nic_that_is_steady_at_its_peak_is_none() -> None:
    full = traffic({})
    full[2].tx[200:400] = FAST
    assert steady_stretches(full, APART) == []


def test_where_all_burst_or_few_are_sampled_nothing_is_found() -> None:
    assert steady_stretches(traffic({}), APART) == []
    assert steady_stretches({rank: own for rank, own in traffic({1: (0, 600)}).items() if rank < 2}, APART) == []
    assert steady_stretches({}, APART) == []
    unknown = traffic({1: (0, 600)})
    unknown[0].tx[:] = np.nan
    assert steady_stretches(unknown, APART) == []
    assert steady_stretches({0: Traffic(*(np.empty(0) for _ in range(4)))}, APART) == []


@pytest.mark.parametrize(("samples", "expected"), [(100, []), (150, [(2.0, 3.5)]), (250, [(2.0, 4.5)])])
def test_three_windows_of_fifty_samples_are_a_stretch(samples: int, expected: list[tuple[float, float]]) -> None:
    found = steady_stretches(traffic({2: (200, 200 + samples)}), APART)
    assert [(one.begin_s, one.past_s) for one in found] == expected
