"""Whose rate is capped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.peak_caps import capped_ends, log_odds, relative_peaks, usual_peaks

RANKS = (0, 1, 2, 3)
APART = Topology(4, {rank: Place(f"h{rank}", 0, "eth0", "s") for rank in RANKS}, {0: RANKS}, ("world",))
CAPPED = {0: (0.25, 0.13), 1: (0.13, 0.25), 2: (0.33, 0.42), 3: (0.41, 0.27)}
"""Ratios to the usual as in a ring whose rank 1 sends slowly to rank 0."""

NIC = [Device("nic", (rank,)) for rank in RANKS]


def favourite(rates: dict[int, tuple[float, float]], *others: Device) -> Device:
    low = capped_ends(RANKS, [rates] * 3, APART)
    return max([*NIC, *others], key=lambda device: log_odds(device, low))


def test_the_nic_that_sends_at_the_lowest_peak_is_likelier_than_the_one_that_receives_from_it() -> None:
    assert favourite(CAPPED) == NIC[1]


def test_a_nic_that_is_slow_both_ways_is_told_from_its_neighbours() -> None:
    rates = {0: (0.4, 0.13), 1: (0.13, 0.13), 2: (0.13, 0.4), 3: (0.4, 0.4)}
    assert favourite(rates) == NIC[1]


def test_neither_a_switch_nor_the_communicator_is_likelier_than_a_nic_that_is_capped_alone() -> None:
    assert favourite(CAPPED, Device("switch", RANKS), Device("communicator", RANKS)) == NIC[1]


@pytest.mark.parametrize(
    "rates",
    [
        dict.fromkeys(RANKS, (0.3, 0.3)),  # too coarse to show bursts: all fall alike
        {0: (1.0, 0.9), 1: (0.85, 1.1), 2: (1.0, 1.0), 3: (0.95, 1.0)},  # nobody is capped
        {rank: CAPPED[rank] for rank in (0, 1, 2)},  # one NIC is not sampled
        {},
    ],
)
def test_where_samples_say_nothing_no_device_is_likelier(rates: dict[int, tuple[float, float]]) -> None:
    low = capped_ends(RANKS, [rates], APART)
    assert low == {}
    assert {log_odds(device, low) for device in NIC} == {0.0}


def test_a_nic_that_ranks_share_is_one_device_and_any_of_them_may_sample_it() -> None:
    places = {rank: Place(f"h{rank // 2}", rank % 2, "eth0") for rank in RANKS}
    shared = Topology(4, places, {0: RANKS}, ("world",))
    low = capped_ends(RANKS, [{0: (0.2, 0.9), 3: (0.9, 0.9)}], shared)
    assert low == {
        (Device("nic", (0, 1)), 0): True,
        (Device("nic", (0, 1)), 1): False,
        (Device("nic", (2, 3)), 0): False,
        (Device("nic", (2, 3)), 1): False,
    }


def test_peaks_are_divided_by_the_usual_and_what_is_unknown_is_left_out() -> None:
    rank, tx, rx = np.array([0, 1, 2, 3]), np.array([5.0, np.nan, 4.0, 1.0]), np.array([6.0, 1.0, 2.0, 1.0])
    usual = {0: (10.0, 3.0), 1: (1.0, 1.0), 2: (0.0, 1.0)}
    assert relative_peaks(rank, tx, rx, usual) == {0: (0.5, 2.0)}


def test_the_usual_peak_is_the_median_of_those_that_are_known() -> None:
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
