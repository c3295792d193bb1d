"""Whose rate is steady."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.nics.steadiness import (
    WHOLE,
    Stretch,
    Swing,
    Traffic,
    steady_ends,
    steady_stretches,
    steady_text,
    swings_of,
)
from irregulars.detectors.nics.thresholds import NICS

RANKS = (0, 1, 2, 3)
APART = Topology(4, {rank: Place(f"h{rank}", 0, "eth0", "s") for rank in RANKS}, {5: RANKS}, ("world",) * 6)
NIC = [Device("nic", (rank,)) for rank in RANKS]
BURSTS = {0: (0.45, 0.3), 1: (0.01, 0.5), 2: (0.3, 0.6), 3: (0.5, 0.45)}
"""Deviation over mean, sent and received, as in `gloo-slow-nic` while the world's all_reduce runs."""


def swings(found: dict[int, tuple[float, float]], communicator: int = 5, ratio: float = math.nan) -> list[Swing]:
    return [Swing(communicator, rank, tx, rx, 1e7, 2e7, ratio, ratio) for rank, (tx, rx) in found.items()]


def steady(found: dict[int, tuple[float, float]], ratio: float = math.nan) -> list[tuple[int, int]]:
    ends = steady_ends(5, RANKS, [swings(found, ratio=ratio)] * 4, APART)
    return [(nic.ranks[0], way) for (nic, way), is_steady in ends.items() if is_steady]


def test_steady_nics() -> None:
    # The nic that moves steadily while the others burst stands out
    assert steady(BURSTS) == [(1, 0)]
    # A rate that is steady at its usual peak is not capped
    assert steady(BURSTS, ratio=0.97) == []
    assert steady(BURSTS, ratio=0.13) == [(1, 0)]


@pytest.mark.parametrize(
    "found",
    [
        dict.fromkeys(RANKS, (0.02, 0.02)) | {1: (0.001, 0.02)},  # all is smooth: samples are too coarse
        dict.fromkeys(RANKS, (0.5, 0.4)),  # nobody is steady
        {0: (0.01, 0.5), 1: (0.01, 0.01), 2: (0.5, 0.01), 3: (0.01, 0.6)},  # most are steady
        {rank: BURSTS[rank] for rank in (0, 1, 2)},  # one was not sampled
        BURSTS | {2: (math.nan, 0.6)},
        {},
    ],
)
def test_where_patterns_say_nothing_nobody_stands_out(found: dict[int, tuple[float, float]]) -> None:
    assert steady(found) == []


def test_steady_nics_need_comparable_patterns() -> None:
    # One iteration in which a pattern is missing is left out
    whole, part = swings(BURSTS), swings({rank: BURSTS[rank] for rank in (0, 1)})
    ends = steady_ends(5, RANKS, [whole, part, whole], APART)
    assert [end for end, is_steady in ends.items() if is_steady] == [(NIC[1], 0)]
    # Two nics can not tell which of them is unlike the other
    assert steady_ends(5, (0, 1), [swings({0: (0.5, 0.5), 1: (0.01, 0.01)})], APART) == {}
    # Patterns of other communicators say nothing
    assert steady_ends(5, RANKS, [swings(BURSTS, communicator=4)], APART) == {}
    # A nic that ranks share is one device whoever samples it
    ranks = tuple(range(6))
    shared = Topology(6, {rank: Place(f"h{rank // 2}", rank % 2, "eth0") for rank in ranks}, {5: ranks}, ())
    found = swings({1: (0.5, 0.4), 2: (0.01, 0.5), 5: (0.6, 0.5)})
    ends = steady_ends(5, ranks, [found], shared)
    assert [end for end, is_steady in ends.items() if is_steady] == [(Device("nic", (2, 3)), 0)]
    # All ranks are held against each other by the longest operator of a communicator: rank 1 spent more in another
    # one: in a ring, that one may go round the other way.
    rank, communicator, operator = np.array([0, 0, 1, 1]), np.array([5, 5, 5, 5]), np.array([0, 1, 0, 1])
    share, deviation = np.array([0.2, 0.6, 0.4, 0.3]), np.array([1.0, 2.0, 3.0, 4.0])
    patterns = Patterns(rank, communicator, operator, share, np.full(4, 10.0), deviation, np.full(4, 10.0), deviation)
    assert [(one.rank, one.tx) for one in swings_of(patterns, {5}, {})] == [(0, 0.2), (1, 0.4)]


def test_what_is_shown_of_steady_nics() -> None:
    # The longest operator stands for a communicator
    rank, communicator, operator = np.array([0, 0, 0, 1]), np.array([5, 5, WHOLE, 5]), np.array([0, 1, -1, 1])
    share, mean = np.array([0.2, 0.6, 1.0, 0.3]), np.full(4, 10.0)
    deviation = np.array([1.0, 2.0, 3.0, np.nan])
    patterns = Patterns(rank, communicator, operator, share, mean, deviation, 2 * mean, deviation)
    found = swings_of(patterns, {5}, {0: (40.0, 25.0)})
    assert found[0] == Swing(5, 0, 0.2, 0.1, 10.0, 20.0, 0.25, 0.8)
    assert [(one.communicator, one.rank) for one in found] == [(5, 0), (5, 1)]
    assert math.isnan(found[1].tx_ratio)
    assert [one.tx for one in swings_of(patterns, {WHOLE}, {})] == [0.3]
    assert swings_of(patterns, set(), {}) == ()
    # People read the rate and how steady it is beside the others
    text = steady_text(NIC[1], 5, [swings(BURSTS)] * 3)
    assert text == "rank 1 sent 80 Mbit/s meanwhile, ± 1% (others ± 45%)"
    assert steady_text(Device("link", (1, 0)), 5, [swings(BURSTS)]) is not None
    assert steady_text(NIC[1], 4, [swings(BURSTS)]) is None
    assert steady_text(NIC[1], 5, []) is None


@given(order=st.permutations(RANKS))
def test_renaming_ranks_renames_who_is_steady(order: list[int]) -> None:
    assert steady({order[rank]: own for rank, own in BURSTS.items()}) == [(order[1], 0)]


# --- near the thresholds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("swing", "is_steady"), [(0.15, True), (0.18, False)])
def test_who_swings_a_third_as_much_as_the_middle_is_steady(swing: float, is_steady: bool) -> None:
    assert steady(dict.fromkeys(RANKS, (0.5, 0.5)) | {1: (swing, 0.5)}) == [(1, 0)] * is_steady


@pytest.mark.parametrize(("swing", "says_something"), [(0.18, False), (0.22, True)])
def test_where_the_middle_swings_by_a_fifth_at_most_nobody_bursts(swing: float, says_something: bool) -> None:
    assert bool(steady(dict.fromkeys(RANKS, (swing, swing)) | {1: (0.01, swing)})) is says_something


@pytest.mark.parametrize(("ratio", "is_capped"), [(0.75, True), (0.85, False)])
def test_a_steady_rate_of_four_fifths_of_the_peak_is_capped(ratio: float, is_capped: bool) -> None:
    assert steady(BURSTS, ratio=ratio) == [(1, 0)] * is_capped


def test_half_of_the_ends_may_be_steady() -> None:
    assert len(steady(dict.fromkeys(RANKS, (0.01, 0.5)))) == 4


@pytest.mark.parametrize(("ranks", "says_something"), [((0, 1), False), ((0, 1, 2), True)])
def test_three_nics_tell_which_of_them_is_unlike_the_others(ranks: tuple[int, ...], says_something: bool) -> None:
    found = swings(dict.fromkeys(ranks, (0.5, 0.5)) | {1: (0.01, 0.5)})
    assert bool(steady_ends(5, ranks, [found], APART)) is says_something


HOSTS = Topology(4, {rank: Place(f"h{rank}", 0, "eth0") for rank in RANKS}, {}, ())
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
    (found,) = steady_stretches(traffic({2: (200, 400)}, shift_ns=shift_ns), HOSTS)
    assert found == Stretch((Device("nic", (2,)), 0), 2.0, 4.0, SLOW, 0.0)


def test_stretches() -> None:
    # Two stretches of one nic are two
    apart = traffic({1: (0, 200)})
    apart[1].tx[400:] = SLOW
    assert [(one.begin_s, one.past_s) for one in steady_stretches(apart, HOSTS)] == [(0.0, 2.0), (4.0, 6.0)]
    # A moment is no stretch
    assert steady_stretches(traffic({2: (200, 200 + (NICS.min_windows - 1) * NICS.window_samples)}), HOSTS) == []
    # A nic that is steady at its peak is none
    full = traffic({})
    full[2].tx[200:400] = FAST
    assert steady_stretches(full, HOSTS) == []
    # Where all burst or few are sampled nothing is found
    assert steady_stretches(traffic({}), HOSTS) == []
    assert steady_stretches({rank: own for rank, own in traffic({1: (0, 600)}).items() if rank < 2}, HOSTS) == []
    assert steady_stretches({}, HOSTS) == []
    unknown = traffic({1: (0, 600)})
    unknown[0].tx[:] = np.nan
    assert steady_stretches(unknown, HOSTS) == []
    assert steady_stretches({0: Traffic(*(np.empty(0) for _ in range(4)))}, HOSTS) == []


@pytest.mark.parametrize(("samples", "expected"), [(100, []), (150, [(2.0, 3.5)]), (250, [(2.0, 4.5)])])
def test_three_windows_of_fifty_samples_are_a_stretch(samples: int, expected: list[tuple[float, float]]) -> None:
    found = steady_stretches(traffic({2: (200, 200 + samples)}), HOSTS)
    assert [(one.begin_s, one.past_s) for one in found] == expected
