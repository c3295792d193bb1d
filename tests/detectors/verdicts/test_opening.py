"""When a cause was seen often enough to accuse: each rule, and what is just not enough for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.thresholds import LATE_SIGMAS
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.verdicts.opening import Evidence, carries_lane, is_same, stands_alone
from irregulars.detectors.verdicts.suspicions import Suspicions
from tests.detectors.observed_iterations import MS, PAIR, TOPOLOGY, late, observation, work

WORLD = Lane("collective", 0)


def rank_cause(*iterations: int) -> Cause:
    return Cause(
        "slow_rank", ((Device("gpu", (1,)), 1.0),), frozenset([work(1)]), None, dict.fromkeys(iterations, 50 * MS)
    )


def nic_cause(*iterations: int, probability: float = 0.95) -> Cause:
    suspects = ((Device("nic", (1,)), probability),)
    return Cause("slow_nic", suspects, frozenset([PAIR]), None, dict.fromkeys(iterations, 50 * MS))


def evidence(*recent: Observation, before: Sequence[Observation] = (), is_uneven: bool = False) -> Evidence:
    """What was looked into; `before`: suspect iterations that came earlier, or lie between."""
    suspicions = Suspicions()
    for one in sorted({o.iteration: o for o in (*before, *recent)}.values(), key=lambda o: o.iteration):
        if one.attribution is not None:
            suspicions.note(one, TOPOLOGY)
    return Evidence(recent, suspicions, is_uneven, TOPOLOGY)


def slow(number: int) -> Observation:
    return observation(number, {PAIR: 50.0})


def standing_out(number: int, rank: int = 1) -> Observation:
    return replace(observation(number, late(rank)), latest=Latest(rank, 50 * MS, LATE_SIGMAS))


@pytest.mark.parametrize(("seen", "is_enough"), [(2, False), (3, True)])
def test_a_late_rank_is_seen_three_times(seen: int, is_enough: bool) -> None:
    some = [observation(n, late(1)) for n in range(seen)]
    assert evidence(*some).is_seen_enough(rank_cause(*range(seen))) == is_enough


@pytest.mark.parametrize(("others", "is_enough"), [(2, True), (3, False)])
def test_a_late_rank_is_seen_twice_as_often_as_others(others: int, is_enough: bool) -> None:
    some = [*(observation(n, late(1)) for n in range(4)), *(observation(4 + n, late(2)) for n in range(others))]
    assert evidence(*some).is_seen_enough(rank_cause(0, 1, 2, 3)) == is_enough


@pytest.mark.parametrize(("seen", "others", "is_enough"), [(5, 1, True), (4, 2, False), (4, 1, False)])
def test_while_data_are_uneven_a_late_rank_is_seen_in_five_of_six(seen: int, others: int, is_enough: bool) -> None:
    some = [observation(n, late(1 if n < seen else 2)) for n in range(seen + others)]
    assert evidence(*some, is_uneven=True).is_seen_enough(rank_cause(*range(seen))) == is_enough


@pytest.mark.parametrize(("hosts", "seen", "is_enough"), [(2, 5, False), (2, 6, True), (4, 5, True)])
def test_with_uneven_data_a_host_is_seen_more_often_than_by_chance(hosts: int, seen: int, is_enough: bool) -> None:
    """Of six draws five or more fall on the same one of two hosts in 22 %, on the same one of four in 2 %."""
    share = 16 // hosts
    places = {rank: Place(f"h{rank // share}", rank % share, "eth0") for rank in range(16)}
    topology = Topology(16, places, {0: tuple(range(16))})
    some = [observation(n, late(1 if n < seen else 15)) for n in range(6)]
    cause = replace(rank_cause(*range(seen)), suspects=((Device("host", tuple(range(share))), 1.0),))
    assert replace(evidence(*some, is_uneven=True), topology=topology).is_seen_enough(cause) == is_enough


@pytest.mark.parametrize(
    ("iterations", "is_enough"), [((0, 2, 4), False), ((0, 1), False), ((0, 1, 2), True), ((0, 2, 3, 5), True)]
)
def test_slow_transfers_are_seen_4_times_or_3_times_in_a_row(iterations: tuple[int, ...], is_enough: bool) -> None:
    assert evidence(*map(slow, iterations)).is_seen_enough(nic_cause(*iterations)) == is_enough


@pytest.mark.parametrize(("probability", "is_enough"), [(0.75, False), (0.85, True)])
def test_of_three_in_a_row_it_is_clear_whose_they_are(probability: float, is_enough: bool) -> None:
    some = [slow(n) for n in range(3)]
    assert evidence(*some).is_seen_enough(nic_cause(0, 1, 2, probability=probability)) == is_enough


@pytest.mark.parametrize(("seen", "is_enough"), [(1, False), (2, True)])
def test_a_rank_that_stands_out_in_two_long_iterations_is_accused(seen: int, is_enough: bool) -> None:
    some = [standing_out(3 * n) for n in range(seen)]
    assert evidence(*some).is_seen_enough(rank_cause(*(3 * n for n in range(seen)))) == is_enough


def test_a_rank_that_stands_out_twice_is_doubted_where_another_was_as_late() -> None:
    some = [standing_out(0), standing_out(3)]
    assert not evidence(*some, before=[standing_out(1, rank=2)]).is_seen_enough(rank_cause(0, 3))
    assert evidence(*some, before=[slow(1)]).is_seen_enough(rank_cause(0, 3))


def weak(number: int) -> Observation:
    return replace(slow(number), is_long=False, is_shifted=True)


@pytest.mark.parametrize(("count", "probability", "is_enough"), [(6, 0.93, True), (6, 0.85, False), (5, 0.93, False)])
def test_where_none_is_long_all_six_show_a_sure_cause(count: int, probability: float, is_enough: bool) -> None:
    cause = nic_cause(*range(count), probability=probability)
    assert evidence(*map(weak, range(count))).is_seen_enough(cause) == is_enough


def test_rules_of_opening() -> None:
    # Uneven data are seen enough when they are news
    imbalance = Cause("imbalance", (), frozenset(), None, {3: 50 * MS})
    shown = evidence(observation(3, late(1)))
    assert shown.is_seen_enough(imbalance)
    assert {cause.kind for cause in shown.find([imbalance])} == {"imbalance", "slow_rank"}
    # Other lanes of a device do not keep it from standing alone
    for beside, is_alone in ((WORLD, True), (Lane("pair", 0, 2), False)):
        suspicions = evidence(observation(0, {beside: 50.0})).suspicions
        assert stands_alone(nic_cause(4), [slow(4)], suspicions, TOPOLOGY) is is_alone


def cause(kind: str, device: Device | None, *lanes: Lane, probability: float = 0.8) -> Cause:
    suspects = () if device is None else ((device, probability),)
    return Cause(kind, suspects, frozenset(lanes), None, {4: 50 * MS})


def nic(rank: int, *lanes: Lane, probability: float = 0.8) -> Cause:
    return cause("slow_nic", Device("nic", (rank,)), *lanes, probability=probability)


SLOW_WORLD = cause("slow_communicator", None, WORLD)
SLOW_RANK = cause("slow_rank", Device("gpu", (1,)), work(1))
SLOW_STAGE = cause("slow_stage", Device("stage", (0, 1)), work(0), work(1))
IMBALANCE = cause("imbalance", None)


def test_one_incident_or_two() -> None:
    # Causes that share lanes are the same
    assert is_same(nic(1, PAIR), cause("slow_link", Device("link", (1, 3)), PAIR))
    assert is_same(SLOW_RANK, cause("slow_rank", Device("host", (0, 1)), work(0), work(1)))
    assert not is_same(nic(1, PAIR), nic(2, Lane("pair", 2, 0)))
    assert not is_same(SLOW_RANK, nic(1, PAIR))
    # A slow rank of a heavy stage is another matter
    assert not is_same(SLOW_RANK, SLOW_STAGE)
    assert is_same(SLOW_STAGE, replace(SLOW_STAGE, lanes=frozenset([work(0)])))


@pytest.mark.parametrize("of_work", [SLOW_RANK, SLOW_STAGE, cause("slow_rank", Device("host", (0, 1)), work(0))])
def test_ranks_hosts_and_stages_carry_no_transfers(of_work: Cause) -> None:
    assert not any(carries_lane(of_work, lane, TOPOLOGY) for lane in (WORLD, PAIR, work(1)))


def test_what_has_no_lanes_is_told_by_its_kind() -> None:
    assert is_same(IMBALANCE, replace(IMBALANCE, explained_ns={9: 1.0}))
    assert not is_same(IMBALANCE, cause("slow_stage", Device("stage", (0, 1))))


@pytest.mark.parametrize(("probability", "are_one"), [(0.85, True), (0.93, False)])
def test_two_nics_that_are_sure_are_two_causes_though_in_one_group(probability: float, are_one: bool) -> None:
    one, other = nic(1, WORLD, PAIR, probability=probability), nic(2, WORLD, Lane("pair", 2, 0), probability=0.95)
    assert is_same(one, other) == are_one
    assert is_same(one, replace(other, lanes=frozenset([PAIR])))  # the same pair is not


def test_a_cause_carries_the_transfers_that_pass_its_first_suspect() -> None:
    assert carries_lane(nic(1, PAIR), WORLD, TOPOLOGY)
    assert not carries_lane(nic(1, PAIR), Lane("pair", 0, 2), TOPOLOGY)
    assert not carries_lane(nic(1, PAIR), work(1), TOPOLOGY)
    assert not carries_lane(SLOW_RANK, PAIR, TOPOLOGY)
    assert not carries_lane(SLOW_WORLD, PAIR, TOPOLOGY)
