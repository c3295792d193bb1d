"""Whose rate is capped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.nic_ends import log_odds
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics import steadiness
from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.nics.peak_caps import (
    End,
    _peaks,
    as_low,
    capped_ends,
    peak_if_capped,
    relative_peaks,
    usual_peaks,
)
from irregulars.detectors.nics.steadiness import (
    WHOLE,
    Stretch,
    Swing,
    Traffic,
    _swings,
    steady_ends,
    steady_stretches,
    steady_text,
    swings_of,
)

RANKS = (0, 1, 2, 3)
APART = Topology(4, {rank: Place(f"h{rank}", 0, "eth0", "s") for rank in RANKS}, {0: RANKS}, ("world",))
CAPPED = {0: (0.25, 0.13), 1: (0.13, 0.25), 2: (0.33, 0.42), 3: (0.41, 0.27)}
"""Ratios to the usual as in a ring whose rank 1 sends slowly to rank 0."""

NIC = [Device("nic", (rank,)) for rank in RANKS]


def favourite(rates: dict[int, tuple[float, float]], *others: Device) -> Device:
    low = capped_ends(RANKS, [rates] * 3, APART)
    return max([*NIC, *others], key=lambda device: log_odds(device, low))


def test_peaks_tell_the_capped_nic() -> None:
    # The nic that sends at the lowest peak is likelier than the one that receives from it
    assert favourite(CAPPED) == NIC[1]
    # A nic that is slow both ways is told from its neighbours
    rates = {0: (0.4, 0.13), 1: (0.13, 0.13), 2: (0.13, 0.4), 3: (0.4, 0.4)}
    assert favourite(rates) == NIC[1]
    # Neither a switch nor the communicator is likelier than a nic that is capped alone
    assert favourite(CAPPED, Device("switch", RANKS), Device("communicator", RANKS)) == NIC[1]


SHARED = Topology(5, {rank: Place("h", rank, f"eth{max(rank - 2, 0)}", "s") for rank in range(5)}, {}, ())
"""Ranks 0, 1 and 2 share a NIC."""

SAMPLED = st.dictionaries(st.integers(0, 5), st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.0)))


@given(st.lists(SAMPLED, max_size=4))
def test_the_peak_of_a_nic_is_the_lowest_that_any_of_its_ranks_sampled(
    rates: list[dict[int, tuple[float, float]]],
) -> None:
    nics = [SHARED.nic(0), SHARED.nic(3), SHARED.nic(4)]
    assert [len(nic.ranks) for nic in nics] == [3, 1, 1]
    expected = [
        [min((one[rank][way] for rank in nic.ranks if rank in one), default=math.nan) for one in rates]
        for nic in nics
        for way in (0, 1)
    ]
    np.testing.assert_array_equal(_peaks(nics, rates), np.array(expected).reshape(6 if rates else 0, len(rates)))


@pytest.mark.parametrize(
    "rates",
    [
        dict.fromkeys(RANKS, (0.3, 0.3)),  # too coarse to show bursts: all fall alike
        {0: (1.0, 0.9), 1: (0.85, 1.1), 2: (1.0, 1.0), 3: (0.95, 1.0)},  # nobody is capped
        {rank: CAPPED[rank] for rank in (0, 1)},  # half of the NICs are not sampled
        {},
    ],
)
def test_where_samples_say_nothing_no_device_is_likelier(rates: dict[int, tuple[float, float]]) -> None:
    low = capped_ends(RANKS, [rates], APART)
    assert low == {}
    assert {log_odds(device, low) for device in NIC} == {0.0}


def test_a_nic_that_is_not_sampled_silences_no_other() -> None:
    every, low = (capped_ends(RANKS, [{rank: CAPPED[rank] for rank in ranks}], APART) for ranks in (RANKS, (0, 1, 2)))
    assert any(low.values())
    assert low == {end: is_low for end, is_low in every.items() if end[0].ranks != (3,)}


def test_peaks_over_the_usual_ones() -> None:
    # A nic that ranks share is one device and any of them may sample it
    places = {rank: Place(f"h{rank // 2}", rank % 2, "eth0") for rank in RANKS}
    shared = Topology(4, places, {0: RANKS}, ("world",))
    low = capped_ends(RANKS, [{0: (0.2, 0.9), 3: (0.9, 0.9)}], shared)
    assert low == {
        (Device("nic", (0, 1)), 0): True,
        (Device("nic", (0, 1)), 1): False,
        (Device("nic", (2, 3)), 0): False,
        (Device("nic", (2, 3)), 1): False,
    }
    # Peaks are divided by the usual and what is unknown is left out
    rank, tx, rx = np.array([0, 1, 2, 3]), np.array([5.0, np.nan, 4.0, 1.0]), np.array([6.0, 1.0, 2.0, 1.0])
    usual = {0: (10.0, 3.0), 1: (1.0, 1.0), 2: (0.0, 1.0)}
    assert relative_peaks(rank, tx, rx, usual) == {0: (0.5, 2.0)}
    # The usual peak is the median of those that are known
    group = np.array([7, 7, 7, 7, 9])
    tx, rx = np.array([1.0, 2.0, 30.0, np.nan, np.nan]), np.array([1.0, 1.0, 1.0, 9.0, 9.0])
    assert usual_peaks(group, tx, rx) == {7: (2.0, 1.0)}
    assert usual_peaks(np.empty(0, np.int64), np.empty(0), np.empty(0)) == {}


def test_a_neighbour_whose_peak_is_a_little_higher_in_all_iterations_is_not_as_low() -> None:
    """One iteration in itself can't tell rank 0, which passes on what rank 1 was slow to send, from rank 1."""
    rng = np.random.default_rng(2)
    peaks = {0: (0.48, 0.40), 1: (0.40, 0.70), 2: (0.8, 0.9), 3: (0.9, 0.7)}
    level = rng.uniform(0.8, 1.2, 12)  # of the iteration, which all share
    noise = rng.normal(1.0, 0.02, (12, 4, 2))
    rates = [
        {
            rank: (tx * level[n] * noise[n, rank, 0], rx * level[n] * noise[n, rank, 1])
            for rank, (tx, rx) in peaks.items()
        }
        for n in range(12)
    ]
    found = {n: {(nic.ranks[0], way) for (nic, way), is_low in capped_ends(RANKS, rates[:n], APART).items() if is_low}
             for n in (1, 12)}  # fmt: skip
    assert (0, 0) in found[1]
    assert found[12] == {(1, 0), (0, 1)}


def test_a_communicator_that_is_slow_as_such_hardly_caps_a_nic() -> None:
    communicator = Device("communicator", RANKS)
    assert log_odds(communicator, capped_ends(RANKS, [CAPPED] * 3, APART)) < 0
    assert log_odds(communicator, {}) == 0


@given(order=st.permutations(RANKS))
def test_renaming_ranks_renames_the_odds(order: list[int]) -> None:
    low = capped_ends(RANKS, [CAPPED], APART)
    renamed = capped_ends(RANKS, [{order[rank]: own for rank, own in CAPPED.items()}], APART)
    for rank in RANKS:
        assert math.isclose(log_odds(NIC[rank], low), log_odds(NIC[order[rank]], renamed))


# --- near the thresholds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slowdown", "at_most"), [(1.0, 0.8), (3.75, 0.8), (5.0, 0.6), (30.0, 1 / 3)])
def test_the_slower_a_transfer_the_lower_is_the_peak_of_a_nic_that_is_its_cause(
    slowdown: float, at_most: float
) -> None:
    assert peak_if_capped(slowdown) == pytest.approx(at_most)


@pytest.mark.parametrize(("lowest", "is_cap"), [(0.75, True), (0.85, False)])
def test_a_peak_of_four_fifths_may_be_a_cap(lowest: float, is_cap: bool) -> None:
    rates = dict.fromkeys(RANKS, (1.0, 1.2)) | {1: (lowest, 1.2)}
    assert bool(capped_ends(RANKS, [rates], APART)) is is_cap


@pytest.mark.parametrize(("low", "says_something"), [(4, True), (5, False)])
def test_if_more_than_half_of_the_ends_are_as_low_they_say_nothing(low: int, says_something: bool) -> None:
    peaks = [0.2] * low + [0.9] * (8 - low)
    rates = {rank: (peaks[2 * rank], peaks[2 * rank + 1]) for rank in RANKS}
    assert bool(capped_ends(RANKS, [rates], APART)) is says_something


NOISE = np.array([-1.5, -1, -1, -0.5, 0, 0.5, 1, 1, 1.5])
"""Whose median deviation is 1, and whose median has a standard error of 0.62."""


def is_low(*times: float) -> bool:
    """Whether an end whose peak is so many times the lowest one, in each iteration, is one of the lowest."""
    peaks = np.array([np.full(len(times), 0.4), 0.4 * np.array(times)])
    return bool(as_low(peaks, np.median(peaks, axis=1))[1])


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([1.2], True, id="near"),
        pytest.param([1.3], False, id="too high"),
        pytest.param([1.08] * 6, True, id="alike"),
        pytest.param([1.15] * 6, False, id="surely higher"),
        pytest.param([1.15] * 3, True, id="in too few iterations"),
        pytest.param([1.15] * 4, False, id="in enough iterations"),
        pytest.param(np.exp(0.15 + 0.086 * NOISE), True, id="2.9 errors"),
        pytest.param(np.exp(0.15 + 0.077 * NOISE), False, id="3.2 errors"),
    ],
)
def test_which_peaks_are_as_low_as_the_lowest(times: Sequence[float], expected: bool) -> None:
    assert is_low(*times) is expected


@pytest.mark.parametrize(
    ("device", "end", "times"),
    [
        pytest.param(NIC[0], (NIC[0], 0), 8.0, id="the NIC that sends"),
        pytest.param(NIC[0], (NIC[0], 1), 6.0, id="the NIC that receives"),
        pytest.param(NIC[0], (NIC[1], 0), 1.0, id="another NIC"),
        pytest.param(Device("link", (0, 1)), (NIC[0], 0), 3.0, id="the link's sender"),
        pytest.param(Device("link", (0, 1)), (NIC[0], 1), 1.0, id="what the link's sender receives"),
        pytest.param(Device("switch", RANKS), (NIC[2], 1), 0.5 * 5.0 + 0.5, id="the switch"),
        pytest.param(Device("communicator", RANKS), (NIC[2], 1), 0.1, id="a communicator"),
    ],
)
def test_how_many_times_likelier_one_lowest_peak_makes_a_device(device: Device, end: End, times: float) -> None:
    assert math.exp(log_odds(device, {end: True})) == pytest.approx(times)


def test_of_many_ends_the_one_that_stands_out_alone_does_so_by_rarer_chance() -> None:
    ends = {(Device("nic", (rank,)), way): False for rank in range(128) for way in (0, 1)}
    alone = math.exp(log_odds(NIC[0], ends | {(NIC[0], 0): True}))
    assert alone > 10 * math.exp(log_odds(NIC[0], {(NIC[0], 0): True, (NIC[0], 1): False}))
    among_others = ends | {(Device("nic", (rank,)), 0): True for rank in range(40)}
    assert math.exp(log_odds(NIC[0], among_others)) == pytest.approx(8.0 * 0.4 / 0.9)


def test_a_peak_that_is_not_the_lowest_speaks_against_its_nic() -> None:
    assert math.exp(log_odds(NIC[0], {(NIC[0], 0): False})) == pytest.approx(0.2 / 0.9)


ON_SWITCH = Topology(4, {rank: Place(f"h{rank}", 0, "eth0", "s") for rank in RANKS}, {5: RANKS}, ("world",) * 6)
BURSTS = {0: (0.45, 0.3), 1: (0.01, 0.5), 2: (0.3, 0.6), 3: (0.5, 0.45)}
"""Deviation over mean, sent and received, as in `gloo-slow-nic` while the world's all_reduce runs."""


def swings(found: dict[int, tuple[float, float]], communicator: int = 5, ratio: float = math.nan) -> list[Swing]:
    return [Swing(communicator, rank, tx, rx, 1e7, 2e7, ratio, ratio) for rank, (tx, rx) in found.items()]


def steady(found: dict[int, tuple[float, float]], ratio: float = math.nan) -> list[tuple[int, int]]:
    ends = steady_ends(5, RANKS, [swings(found, ratio=ratio)] * 4, ON_SWITCH)
    return [(nic.ranks[0], way) for (nic, way), is_steady in ends.items() if is_steady]


def test_steady_nics() -> None:
    # The nic that moves steadily while the others burst stands out
    assert steady(BURSTS) == [(1, 0)]


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
    ends = steady_ends(5, RANKS, [whole, part, whole], ON_SWITCH)
    assert [end for end, is_steady in ends.items() if is_steady] == [(NIC[1], 0)]
    # Patterns of other communicators say nothing
    assert steady_ends(5, RANKS, [swings(BURSTS, communicator=4)], ON_SWITCH) == {}
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
    assert bool(steady_ends(5, ranks, [found], ON_SWITCH)) is says_something


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


def test_a_long_recording_of_many_ranks_is_cut_into_fewer_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def swings_of_windows(known: dict[int, Traffic], edges: np.ndarray) -> list[list[Swing]]:
        asked.append(len(edges) - 1)
        return _swings(known, edges)

    monkeypatch.setattr(steadiness, "_swings", swings_of_windows)
    long = traffic({2: (2_000, 6_000)}, count=8_000)
    (found,) = steady_stretches(long, HOSTS)
    assert (found.begin_s, found.past_s) == (20.0, 60.0)
    monkeypatch.setattr(steadiness, "_MOST_SWINGS", 400)
    (found,) = steady_stretches(long, HOSTS)
    assert (found.begin_s, found.past_s) == pytest.approx((20.0, 60.0), abs=1.0)
    assert asked == [160, 100]


@pytest.mark.parametrize(("samples", "expected"), [(100, []), (150, [(2.0, 3.5)]), (250, [(2.0, 4.5)])])
def test_three_windows_of_fifty_samples_are_a_stretch(samples: int, expected: list[tuple[float, float]]) -> None:
    found = steady_stretches(traffic({2: (200, 200 + samples)}), HOSTS)
    assert [(one.begin_s, one.past_s) for one in found] == expected
