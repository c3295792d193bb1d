"""Which device made transfers slow, by what was seen on the lanes beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from irregulars.detectors.blame import transfer_causes
from irregulars.detectors.blame.transfer_causes import (
    CHANCES,
    FABRIC_DEVICE,
    NOBODY,
    THRESHOLDS,
    UNSEEN,
    is_carried,
    observe_lanes,
    rank_devices,
    stands_out,
    typical_excess,
)
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution

MS = 1e6
RANKS = range(8)
ITERATIONS = 5
WORLD, OF_1_AND_2 = Lane("collective", 0), Lane("collective", 1)
MEMBERS = {0: tuple(RANKS), 1: (1, 2), 2: (0, 1, 2, 3)}
APART = Topology(8, {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 4}") for rank in RANKS}, MEMBERS)
"""Eight hosts of one rank, four below each of two switches."""
TOGETHER = Topology(8, {rank: Place(f"h{rank // 2}", rank % 2, f"nic{rank % 2}") for rank in RANKS}, MEMBERS)
"""Four hosts of two ranks, each with a NIC of its own."""


def pair(source: int, target: int) -> Lane:
    return Lane("pair", source, target)


PAIRS = [pair(one, two) for one in RANKS for two in RANKS if one != two]

NORMAL = LaneExcess(0.0, 10 * MS, 0.02 * MS, 1e6, 1.0, 4)
SLOW = LaneExcess(30 * MS, 10 * MS, 0.02 * MS, 1e6, 4.0, 4)
Seen = dict[Lane, LaneExcess]


def small(excess_ns: float, usual_ns: float = 20_000.0) -> LaneExcess:
    """Four messages of 8 bytes, all of them longer by as much: of what slows down a megabyte they show nothing."""
    return LaneExcess(excess_ns, usual_ns, 100.0, 8.0, 4.0, 4)


def times(excess: LaneExcess, by: float) -> LaneExcess:
    """A lane with so much more of everything: bytes, usual time, noise and excess."""
    size = excess._replace(excess_ns=excess.excess_ns * by, usual_ns=excess.usual_ns * by)
    return size._replace(noise_ns=excess.noise_ns * by, size_bytes=excess.size_bytes * by)


def lanes_of(slow: Iterable[Lane], normal: Iterable[Lane]) -> Seen:
    return dict.fromkeys(normal, NORMAL) | dict.fromkeys(slow, SLOW)


def irregular(seen: Seen, count: int = ITERATIONS) -> list[Attribution]:
    return [Attribution(number, {}, {}, seen, {}) for number in range(count)]


def ranked(accused: Lane, seen: Seen, topology: Topology = APART) -> dict[Device, float]:
    """Devices and their probabilities, best first."""
    return dict(rank_devices(accused, irregular(seen), topology)[0])


def first(accused: Lane, seen: Seen, topology: Topology = APART) -> Device:
    return next(iter(ranked(accused, seen, topology)))


def touching(*ranks: int) -> list[Lane]:
    return [one for one in PAIRS if {one.first, one.second} & set(ranks)]


@dataclass(frozen=True)
class Example:
    """What is seen when a device is slow."""

    accused: Lane
    seen: Seen
    device: Device
    topology: Topology = APART


NIC_1, NIC_5 = Device("nic", (1,)), Device("nic", (5,))
LEAF_0 = Device("switch", (0, 1, 2, 3))
OUT_OF_1 = [one for one in PAIRS if one.first == 1]
INTO_1 = [one for one in PAIRS if one.second == 1]
BESIDE_1 = [one for one in PAIRS if 1 not in (one.first, one.second)]
INSIDE = [pair(2 * host, 2 * host + 1) for host in range(4)]

EXAMPLES = {
    "nic": Example(pair(1, 5), lanes_of([*touching(1), WORLD, OF_1_AND_2], PAIRS), NIC_1),
    "nic, sending": Example(pair(1, 5), lanes_of(OUT_OF_1, PAIRS), NIC_1),
    "nic, receiving": Example(pair(5, 1), lanes_of(INTO_1, PAIRS), NIC_1),
    "nic, by the collectives that it is in": Example(
        WORLD, lanes_of([WORLD, OF_1_AND_2, pair(1, 5), pair(6, 1)], BESIDE_1), NIC_1
    ),
    "nic, of one of a host's ranks": Example(
        pair(1, 5), lanes_of([one for one in touching(1) if one not in INSIDE], PAIRS), NIC_1, TOGETHER
    ),
    "nic that also carries what stays inside": Example(pair(1, 5), lanes_of(touching(1), PAIRS), NIC_1, TOGETHER),
    "link": Example(pair(1, 5), lanes_of([pair(1, 5)], [*PAIRS, WORLD]), Device("link", (1, 5))),
    "link, both ways": Example(
        pair(1, 5), lanes_of([pair(1, 5), pair(5, 1)], [*PAIRS, WORLD]), Device("link", (1, 5))
    ),
    "link inside of a host": Example(pair(0, 1), lanes_of([pair(0, 1)], PAIRS), Device("link", (0, 1)), TOGETHER),
    "switch": Example(pair(1, 5), lanes_of([*touching(0, 1, 2, 3), WORLD], PAIRS), LEAF_0),
    "communicator": Example(WORLD, lanes_of([WORLD], PAIRS), Device("communicator", tuple(RANKS))),
    "communicator of two": Example(
        OF_1_AND_2, lanes_of([OF_1_AND_2], [*PAIRS, WORLD]), Device("communicator", (1, 2))
    ),
}


UNLOGGED = replace(APART, unlogged=frozenset([2]))
FOUR_LEAVES = Topology(8, {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 2}") for rank in RANKS}, MEMBERS)
BETWEEN_FOUR = [one for one in PAIRS if one.first // 2 != one.second // 2]
BESIDE_BOTH = [one for one in PAIRS if {one.first, one.second} != {1, 2}]
EXAMPLES |= {
    "switch, its uplink": Example(
        pair(1, 5), lanes_of([one for one in BETWEEN_FOUR if {one.first, one.second} & {0, 1}], PAIRS),
        Device("switch", (0, 1)), FOUR_LEAVES,
    ),
    "what joins the switches": Example(pair(1, 5), lanes_of(BETWEEN_FOUR, PAIRS), FABRIC_DEVICE, FOUR_LEAVES),
    "link, by the group of its two ends": Example(
        OF_1_AND_2, lanes_of([OF_1_AND_2], BESIDE_BOTH), Device("link", (1, 2))
    ),
    "communicator, with a small group that met its queues": Example(
        WORLD, lanes_of([WORLD], PAIRS) | {OF_1_AND_2: small(4 * 70_000.0)}, Device("communicator", tuple(RANKS))
    ),
    "member that logs nothing": Example(OF_1_AND_2, lanes_of([OF_1_AND_2], PAIRS), Device(UNSEEN, (2,)), UNLOGGED),
    "nic, with a member that logs nothing beside it": Example(
        OF_1_AND_2, lanes_of([*touching(1), OF_1_AND_2], PAIRS), NIC_1, UNLOGGED
    ),
}  # fmt: skip


def test_iterations_together_stand_out_of_noise_that_each_of_them_is_within() -> None:
    noisy = SLOW._replace(excess_ns=8 * MS, noise_ns=2.5 * MS, most_ns=9 * MS)
    assert stands_out(WORLD, irregular({WORLD: noisy}, 12))
    assert not stands_out(WORLD, irregular({WORLD: noisy}, 1))
    assert not stands_out(WORLD, irregular({WORLD: NORMAL}))
    assert not stands_out(WORLD, irregular({OF_1_AND_2: SLOW}))


def test_two_ranks_of_one_host_or_of_unknown_ones_have_no_link_of_their_own() -> None:
    inside = Topology(2, {rank: Place("h0", rank, f"nic{rank}") for rank in (0, 1)}, {0: (0, 1)})
    for topology in (inside, Topology(2, {}, {0: (0, 1)})):
        assert "link" not in {device.kind for device in ranked(WORLD, lanes_of([WORLD], []), topology)}


def test_a_group_inside_a_host_accuses_a_nic_only_where_the_nics_are_seen_to_carry_it() -> None:
    host = Topology(4, {rank: Place("h0", rank, f"nic{rank}") for rank in range(4)}, {0: (0, 1, 2, 3)})
    peaks = {rank: (0.5, 0.5) if rank != 2 else (0.3, 0.3) for rank in range(4)}
    swings = tuple(Swing(0, rank, 0.3, 0.3, 1e7, 1e7, 0.3, 0.3) for rank in range(4))
    sampled = Attribution(0, {WORLD: 30 * MS}, {}, {WORLD: SLOW}, {}, rates=peaks, swings=swings)
    assert rank_devices(WORLD, [sampled] * 5, host)[0][0][0] == Device("nic", (2,))
    assert rank_devices(WORLD, [replace(sampled, swings=())] * 5, host)[0][0][0].kind == "communicator"


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_device_is_told_by_the_lanes_that_it_carries(name: str) -> None:
    example = EXAMPLES[name]
    found = ranked(example.accused, example.seen, example.topology)
    assert next(iter(found)) == example.device
    assert found[example.device] > 0.6
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_lanes_that_were_seen_slow_are_returned(name: str) -> None:
    example = EXAMPLES[name]
    _, slow = rank_devices(example.accused, irregular(example.seen), example.topology)
    assert slow == {lane for lane, excess in example.seen.items() if excess is SLOW}


@pytest.mark.parametrize("share", [0.75, 1.25])
@pytest.mark.parametrize("field", [f"THRESHOLDS.{one.name}" for one in fields(THRESHOLDS)]
                         + [f"CHANCES.{one.name}" for one in fields(CHANCES)])  # fmt: skip
def test_no_answer_hangs_on_a_threshold_or_a_chance(
    monkeypatch: pytest.MonkeyPatch, field: str, share: float
) -> None:
    name, one = field.split(".")
    constants = getattr(transfer_causes, name)
    value = share * getattr(constants, one)
    moved = replace(constants, **{one: value if name == "THRESHOLDS" else min(value, 0.99)})
    monkeypatch.setattr(transfer_causes, name, moved)
    for label, example in EXAMPLES.items():
        ranked_now, slow = rank_devices(example.accused, irregular(example.seen), example.topology)
        assert ranked_now[0][0] == example.device, label
        assert slow == {lane for lane, excess in example.seen.items() if excess is SLOW}, label


def test_devices_that_fit_less_come_after_those_that_fit() -> None:
    found = list(rank_devices(pair(1, 5), irregular(EXAMPLES["nic"].seen), APART)[0])
    assert [probability for _, probability in found] == sorted((p for _, p in found), reverse=True)
    assert {device for device, _ in found} >= {NIC_1, NIC_5, LEAF_0, NOBODY}


def test_renaming_ranks_renames_the_devices() -> None:
    order = [3, 6, 0, 5, 1, 7, 2, 4]
    topology = Topology(
        8,
        {order[rank]: place for rank, place in APART.places.items()},
        {code: tuple(order[rank] for rank in members) for code, members in MEMBERS.items()},
    )

    def rename(lane: Lane) -> Lane:
        return lane if lane.kind == "collective" else pair(order[lane.first], order[lane.second])

    for name in ("nic", "nic, sending", "link", "switch"):
        one = EXAMPLES[name]
        seen = {rename(lane): excess for lane, excess in one.seen.items()}
        device = first(rename(one.accused), seen, topology)
        expected = tuple(order[rank] for rank in one.device.ranks)
        assert device.kind == one.device.kind
        assert device.ranks == (expected if one.device.kind == "link" else tuple(sorted(expected)))


# --- what counts ----------------------------------------------------------------------------------------------------


def test_a_lane_counts_by_how_surely_it_is_slow_and_not_by_what_it_costs() -> None:
    """A NIC at a seventh of its speed shows in sends that take a thousandth of the time as in all others."""
    seven = LaneExcess(60 * MS, 10 * MS, 0.02 * MS, 1e6, 4.0, 4)
    small = {lane: times(seven, 1e-3) for lane in (pair(1, 0), pair(1, 2), pair(1, 3), pair(1, 6))}
    beside = {pair(5, 0): NORMAL, pair(0, 5): NORMAL, pair(2, 5): NORMAL, OF_1_AND_2: NORMAL}
    seen = {pair(1, 5): seven} | beside
    assert first(pair(1, 5), seen) == Device("link", (1, 5))
    assert first(pair(1, 5), seen | small) == NIC_1
    assert all(observe_lanes(pair(1, 5), irregular(seen | small))[lane] for lane in small)


def test_small_lanes_that_are_as_always_acquit_as_well() -> None:
    small = {pair(1, to): times(NORMAL, 1e-3) for to in (0, 2, 3, 6)}
    seen = observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW} | small))
    assert [seen[lane] for lane in small] == [False] * 4
    beside = {pair(5, 0): NORMAL, pair(0, 5): NORMAL, pair(2, 5): NORMAL}
    assert first(pair(1, 5), {pair(1, 5): SLOW} | beside) == NIC_1
    assert first(pair(1, 5), {pair(1, 5): SLOW} | beside | small) == Device("link", (1, 5))


def test_a_normal_collective_of_the_nic_acquits_the_nic() -> None:
    alone = ranked(pair(1, 5), {pair(1, 5): SLOW})
    beside = ranked(pair(1, 5), {pair(1, 5): SLOW, OF_1_AND_2: NORMAL})
    assert next(iter(alone)) == NIC_1
    assert next(iter(beside)) != NIC_1
    assert beside[NIC_1] < alone[NIC_1] / 2
    assert beside[Device("link", (1, 5))] > alone[Device("link", (1, 5))]
    assert beside[NIC_5] > beside[NIC_1]


def test_a_slow_collective_of_the_nic_accuses_it() -> None:
    alone = ranked(pair(1, 5), {pair(1, 5): SLOW})
    beside = ranked(pair(1, 5), {pair(1, 5): SLOW, OF_1_AND_2: SLOW})
    assert beside[NIC_1] > alone[NIC_1]
    assert beside[NIC_5] < alone[NIC_5]


def test_a_collective_with_other_ranks_of_the_nics_host_acquits_it_less() -> None:
    """Its ring may enter and leave the host by the other NIC."""
    whole_host, one_of_it = Lane("collective", 2), OF_1_AND_2
    found = {}
    for lane in (whole_host, one_of_it):
        found[lane] = ranked(pair(1, 5), {pair(1, 5): SLOW, lane: NORMAL}, TOGETHER)[NIC_1]
    assert found[whole_host] > found[one_of_it]


def test_what_would_not_stand_out_says_nothing_by_looking_normal() -> None:
    noisy = NORMAL._replace(noise_ns=100 * MS)
    assert observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): noisy})) == {pair(1, 5): True}


def test_a_lane_that_is_less_slow_than_the_accused_one_lets_expect_is_not_slow() -> None:
    """It met the fault's traffic in the fabric; it did not cross the device."""
    met = NORMAL._replace(excess_ns=0.1 * SLOW.excess_ns, slow_transfers=4.0)
    crossed = NORMAL._replace(excess_ns=0.3 * SLOW.excess_ns, slow_transfers=4.0)
    seen = observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 2): met, pair(1, 3): crossed}))
    assert seen == {pair(1, 5): True, pair(1, 2): False, pair(1, 3): True}


def test_a_lane_of_which_one_transfer_hung_is_not_slow() -> None:
    stray = SLOW._replace(slow_transfers=1.0)
    seen = observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): stray}))
    assert seen[pair(1, 3)] is False


def test_what_drifts_by_a_few_percent_is_not_slow() -> None:
    drifts = NORMAL._replace(excess_ns=0.09 * NORMAL.usual_ns, noise_ns=0.0, slow_transfers=4.0)
    assert observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): drifts}))[pair(1, 3)] is False


def test_more_iterations_tell_more() -> None:
    noisy = NORMAL._replace(excess_ns=10 * MS, noise_ns=3.5 * MS, slow_transfers=4.0)
    seen = {pair(1, 5): SLOW, pair(1, 3): noisy}
    assert pair(1, 3) not in {lane for lane, slow in observe_lanes(pair(1, 5), irregular(seen, 1)).items() if slow}
    assert observe_lanes(pair(1, 5), irregular(seen, 20))[pair(1, 3)] is True


def test_one_odd_iteration_of_several_moves_no_lane() -> None:
    seen = {pair(1, 5): SLOW, pair(1, 3): NORMAL}
    odd = irregular(seen)[:-1] + irregular(seen | {pair(1, 3): SLOW}, 1)
    assert observe_lanes(pair(1, 5), odd)[pair(1, 3)] is False


def test_the_accused_lane_is_slow_also_where_nothing_is_known_of_it() -> None:
    assert observe_lanes(pair(1, 5), irregular({})) == {pair(1, 5): True}
    assert first(pair(1, 5), {}).kind in ("nic", "link")


def test_lanes_of_unknown_size_are_compared_by_their_times() -> None:
    seen = {lane: excess._replace(size_bytes=np.nan) for lane, excess in EXAMPLES["nic"].seen.items()}
    assert first(pair(1, 5), seen) == NIC_1


# --- small messages beside a slow communicator ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "is_seen"),
    [
        (small(4 * 0.7 * THRESHOLDS.queue_ns), False),
        (small(4 * 1.4 * THRESHOLDS.queue_ns), True),
        (small(1 * MS, usual_ns=5 * MS), False),  # of 15 ms that it would have if it were slow by as much
        (small(3 * MS, usual_ns=5 * MS), True),
    ],
)
def test_small_messages_that_met_the_queues_of_a_slow_communicator_are_no_evidence(
    lane: LaneExcess, is_seen: bool
) -> None:
    seen = observe_lanes(WORLD, irregular({WORLD: SLOW, pair(1, 5): lane}))
    assert seen == {WORLD: True} | ({pair(1, 5): True} if is_seen else {})


def test_no_nic_is_blamed_for_the_queues_that_its_small_messages_met() -> None:
    met = {one: small(4 * 60_000.0) for one in touching(1)}
    assert ranked(WORLD, {WORLD: SLOW} | met) == ranked(WORLD, {WORLD: SLOW})
    assert first(WORLD, {WORLD: SLOW} | {one: small(4 * 200_000.0) for one in met}) == NIC_1


# --- inside of a host -----------------------------------------------------------------------------------------------


def test_what_stays_inside_a_host_accuses_no_nic_and_no_switch() -> None:
    kinds = {device.kind for device in ranked(pair(0, 1), {pair(0, 1): SLOW}, TOGETHER)}
    assert kinds == {"none", "link"}


def test_what_stays_inside_may_be_the_nic_where_what_leaves_the_host_is_slow_too() -> None:
    """Gloo, and NCCL without P2P, send over the NIC what NVLink would carry."""
    assert first(pair(0, 1), lanes_of(touching(1), PAIRS), TOGETHER) == NIC_1


def test_normal_lanes_inside_acquit_a_nic_hardly() -> None:
    slow = {pair(1, 5): SLOW, pair(1, 3): SLOW}
    without, with_it = ranked(pair(1, 5), slow, TOGETHER), ranked(pair(1, 5), slow | {pair(0, 1): NORMAL}, TOGETHER)
    assert next(iter(with_it)) == NIC_1
    assert with_it[NIC_1] > 0.9 * without[NIC_1]


# --- ranks without a log --------------------------------------------------------------------------------------------


def test_a_member_that_logs_nothing_is_as_likely_late_as_a_nic_slow() -> None:
    found = ranked(OF_1_AND_2, {OF_1_AND_2: SLOW}, UNLOGGED)
    assert found[Device(UNSEEN, (2,))] >= found[NIC_1]
    assert not any(device.kind == UNSEEN for device in ranked(pair(1, 2), {pair(1, 2): SLOW}, UNLOGGED))
    assert not any(device.kind == UNSEEN for device in ranked(OF_1_AND_2, {OF_1_AND_2: SLOW}))


def test_a_slow_collective_with_a_member_that_logs_nothing_speaks_hardly_for_the_nic_of_another() -> None:
    """It may have waited for the rank without a log; a collective that all log did not."""

    def odds(seen: Seen, topology: Topology) -> float:
        found = ranked(pair(1, 5), seen, topology)
        return found[NIC_1] / found[NIC_5]

    both = {pair(1, 5): SLOW, OF_1_AND_2: SLOW}
    assert odds(both, APART) > 5 * odds({pair(1, 5): SLOW}, APART)
    assert odds(both, UNLOGGED) < 2 * odds({pair(1, 5): SLOW}, APART)


def test_a_normal_collective_acquits_a_nic_also_where_a_member_logs_nothing() -> None:
    alone, beside = (ranked(pair(1, 5), seen, UNLOGGED)[NIC_1]
                     for seen in ({pair(1, 5): SLOW}, {pair(1, 5): SLOW, OF_1_AND_2: NORMAL}))  # fmt: skip
    assert beside < alone / 2


# --- what a device carries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "lane", "carried"), [
    (NIC_1, pair(1, 3), True), (NIC_1, pair(3, 1), True), (NIC_1, pair(3, 4), False),
    (NIC_1, WORLD, True), (NIC_5, OF_1_AND_2, False),
    (Device("link", (1, 5)), pair(5, 1), True), (Device("link", (1, 5)), pair(1, 3), False),
    (Device("link", (1, 5)), WORLD, True), (Device("link", (1, 5)), OF_1_AND_2, False),
    (LEAF_0, pair(0, 3), True), (LEAF_0, pair(4, 5), False), (LEAF_0, WORLD, True),
    (NOBODY, pair(1, 5), False), (Device("communicator", (1, 2)), OF_1_AND_2, False),
])  # fmt: skip
def test_which_lanes_a_device_is_expected_to_slow(device: Device, lane: Lane, carried: bool) -> None:
    assert is_carried(device, lane, pair(1, 5), APART) is carried


def test_a_communicator_is_expected_to_slow_itself_alone() -> None:
    device = Device("communicator", MEMBERS[0])
    assert is_carried(device, WORLD, WORLD, APART)
    assert not is_carried(device, OF_1_AND_2, WORLD, APART)


def test_what_is_typical_of_a_lane_are_its_medians() -> None:
    some = [
        Attribution(number, {}, {}, {WORLD: NORMAL._replace(excess_ns=ns)}, {})
        for number, ns in enumerate((1.0, 9.0, 2.0))
    ]
    assert typical_excess(WORLD, some) == NORMAL._replace(excess_ns=2.0)
    assert typical_excess(WORLD, some[:1]) == NORMAL._replace(excess_ns=1.0)
    assert typical_excess(pair(1, 5), some) is None
