"""Whether two causes are one incident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device
from irregulars.detectors.verdicts.same_cause import carries_lane, is_explained, is_same
from tests.detectors.observed_iterations import MS, PAIR, TOPOLOGY, work

WORLD = Lane("collective", 0)


def cause(kind: str, device: Device | None, *lanes: Lane, probability: float = 0.8) -> Cause:
    suspects = () if device is None else ((device, probability),)
    return Cause(kind, suspects, frozenset(lanes), None, {4: 50 * MS})


def nic(rank: int, *lanes: Lane, probability: float = 0.8) -> Cause:
    return cause("slow_nic", Device("nic", (rank,)), *lanes, probability=probability)


SLOW_WORLD = cause("slow_communicator", None, WORLD)
SLOW_RANK = cause("slow_rank", Device("gpu", (1,)), work(1))
SLOW_STAGE = cause("slow_stage", Device("stage", (0, 1)), work(0), work(1))
IMBALANCE = cause("imbalance", None)


def test_causes_that_share_lanes_are_the_same() -> None:
    assert is_same(nic(1, PAIR), cause("slow_link", Device("link", (1, 3)), PAIR))
    assert is_same(SLOW_RANK, cause("slow_rank", Device("host", (0, 1)), work(0), work(1)))
    assert not is_same(nic(1, PAIR), nic(2, Lane("pair", 2, 0)))
    assert not is_same(SLOW_RANK, nic(1, PAIR))


def test_a_slow_rank_of_a_heavy_stage_is_another_matter() -> None:
    assert not is_same(SLOW_RANK, SLOW_STAGE)
    assert not is_explained(SLOW_RANK, SLOW_STAGE, TOPOLOGY)
    assert is_same(SLOW_STAGE, replace(SLOW_STAGE, lanes=frozenset([work(0)])))


@pytest.mark.parametrize("of_work", [SLOW_RANK, SLOW_STAGE, cause("slow_rank", Device("host", (0, 1)), work(0))])
def test_ranks_hosts_and_stages_carry_no_transfers(of_work: Cause) -> None:
    assert not any(carries_lane(of_work, lane, TOPOLOGY) for lane in (WORLD, PAIR, work(1)))
    assert not is_explained(SLOW_WORLD, of_work, TOPOLOGY)


def test_what_has_no_lanes_is_told_by_its_kind() -> None:
    assert is_same(IMBALANCE, replace(IMBALANCE, explained_ns={9: 1.0}))
    assert not is_same(IMBALANCE, cause("slow_stage", Device("stage", (0, 1))))
    assert not is_explained(IMBALANCE, IMBALANCE, TOPOLOGY)


@pytest.mark.parametrize(("probability", "are_one"), [(0.85, True), (0.93, False)])
def test_two_nics_that_are_both_sure_are_two_causes_though_both_are_in_one_group(
    probability: float, are_one: bool
) -> None:
    one, other = nic(1, WORLD, PAIR, probability=probability), nic(2, WORLD, Lane("pair", 2, 0), probability=0.95)
    assert is_same(one, other) == are_one
    assert is_same(one, replace(other, lanes=frozenset([PAIR])))  # the same pair is not


@pytest.mark.parametrize(("probability", "are_one"), [(0.85, True), (0.93, False)])
def test_of_two_sure_nics_neither_explains_the_other(probability: float, are_one: bool) -> None:
    one, other = nic(1, WORLD, probability=probability), nic(2, WORLD, probability=0.95)
    assert is_explained(one, other, TOPOLOGY) == are_one


def test_a_nic_explains_its_slow_communicator_whichever_is_seen_first() -> None:
    assert is_explained(nic(1, PAIR), SLOW_WORLD, TOPOLOGY)
    assert is_explained(SLOW_WORLD, nic(1, PAIR), TOPOLOGY)


def test_a_nic_explains_no_pair_of_other_ranks_and_no_work() -> None:
    elsewhere = cause("slow_link", Device("link", (2, 0)), Lane("pair", 2, 0))
    assert not is_explained(nic(1, PAIR), elsewhere, TOPOLOGY)
    assert not is_explained(nic(1, PAIR), SLOW_RANK, TOPOLOGY)


def test_a_cause_carries_the_transfers_that_pass_its_first_suspect() -> None:
    assert carries_lane(nic(1, PAIR), WORLD, TOPOLOGY)
    assert not carries_lane(nic(1, PAIR), Lane("pair", 0, 2), TOPOLOGY)
    assert not carries_lane(nic(1, PAIR), work(1), TOPOLOGY)
    assert not carries_lane(SLOW_RANK, PAIR, TOPOLOGY)
    assert not carries_lane(SLOW_WORLD, PAIR, TOPOLOGY)
