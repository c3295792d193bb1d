"""Which device made transfers slow, by what was seen on the lanes beside them."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame import slow_lanes, suspects, transfer_causes
from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.blame.likelihoods import LIKELIHOODS, Likelihoods
from irregulars.detectors.blame.slow_lanes import SeenLanes, observe_lanes, stands_out, typical_excess
from irregulars.detectors.blame.suspects import FABRIC, NOBODY, UNLOGGED
from irregulars.detectors.blame.thresholds import BLAME, BlameThresholds
from irregulars.detectors.blame.transfer_causes import Ranked
from irregulars.detectors.job.fabric import spines_of
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution
from tests.detectors.lost_time import APART as SIX_APART
from tests.detectors.lost_time import TWO_EACH, named
from tests.detectors.lost_time import WORLD as SIX
from tests.detectors.lost_time import seen as iteration
from tests.detectors.transfers import (
    APART,
    MEMBERS,
    MS,
    NORMAL,
    OF_1_AND_2,
    PAIRS,
    RANKS,
    SLOW,
    TOGETHER,
    WORLD,
    Seen,
    irregular,
    lanes_of,
    pair,
    small,
    times,
    touching,
)  # fmt: skip

OF_LANES: Final = ("model_error",)
CHANCES: Final = ("accused", "crosses", "shares_host", "inside", "untouched", "nobody", "may_cross")


def rank_devices(lane: Lane, attributions: Sequence[Attribution], topology: Topology) -> tuple[Ranked, set[Lane]]:
    """Devices with the probability of each, best first, and the lanes that were seen slow."""
    times_slow = observe_lanes(lane, attributions)
    slow = {one for one, times in times_slow.items() if times}
    return transfer_causes.rank_devices(lane, attributions, topology, times_slow), slow


def ranked(accused: Lane, seen: Seen, topology: Topology = APART) -> dict[Device, float]:
    """Devices and their probabilities, best first."""
    return dict(rank_devices(accused, irregular(seen), topology)[0])


def first(accused: Lane, seen: Seen, topology: Topology = APART) -> Device:
    return next(iter(ranked(accused, seen, topology)))


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


SILENT = replace(APART, unlogged=frozenset([2]))
FOUR_LEAVES = Topology(8, {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 2}") for rank in RANKS}, MEMBERS)
BETWEEN_FOUR = [one for one in PAIRS if one.first // 2 != one.second // 2]
BESIDE_BOTH = [one for one in PAIRS if {one.first, one.second} != {1, 2}]
EXAMPLES |= {
    "switch, its uplink": Example(
        pair(1, 5), lanes_of([one for one in BETWEEN_FOUR if {one.first, one.second} & {0, 1}], PAIRS),
        Device("switch", (0, 1)), FOUR_LEAVES,
    ),
    "what joins the switches": Example(pair(1, 5), lanes_of(BETWEEN_FOUR, PAIRS), FABRIC, FOUR_LEAVES),
    "link, by the group of its two ends": Example(
        OF_1_AND_2, lanes_of([OF_1_AND_2], BESIDE_BOTH), Device("link", (1, 2))
    ),
    "communicator, with a small group that met its queues": Example(
        WORLD, lanes_of([WORLD], PAIRS) | {OF_1_AND_2: small(4 * 70_000.0)}, Device("communicator", tuple(RANKS))
    ),
    "member that logs nothing": Example(OF_1_AND_2, lanes_of([OF_1_AND_2], PAIRS), Device(UNLOGGED, (2,)), SILENT),
    "nic, with a member that logs nothing beside it": Example(
        OF_1_AND_2, lanes_of([*touching(1), OF_1_AND_2], PAIRS), NIC_1, SILENT
    ),
}  # fmt: skip


def test_devices_between_two_ranks() -> None:
    # Two ranks of one host or of unknown ones have no link of their own
    inside = Topology(2, {rank: Place("h0", rank, f"nic{rank}") for rank in (0, 1)}, {0: (0, 1)})
    for topology in (inside, Topology(2, {}, {0: (0, 1)})):
        assert "link" not in {device.kind for device in ranked(WORLD, lanes_of([WORLD], []), topology)}
    # A group inside a host accuses a nic only where the nics are seen to carry it
    host = Topology(4, {rank: Place("h0", rank, f"nic{rank}") for rank in range(4)}, {0: (0, 1, 2, 3)})
    peaks = {rank: (0.5, 0.5) if rank != 2 else (0.3, 0.3) for rank in range(4)}
    swings = tuple(Swing(0, rank, 0.3, 0.3, 1e7, 1e7, 0.3, 0.3) for rank in range(4))
    sampled = Attribution(0, {WORLD: 30 * MS}, {}, {WORLD: SLOW}, {}, rates=peaks, swings=swings)
    assert rank_devices(WORLD, [sampled] * 5, host)[0][0][0] == Device("nic", (2,))
    assert rank_devices(WORLD, [replace(sampled, swings=())] * 5, host)[0][0][0].kind == "communicator"


def test_nics_of_all_slow_collectives_tell_the_switch_together() -> None:
    """Four leaves with four NICs each; each collective has one below each leaf, which tells little."""
    leaves = Topology(
        16,
        {rank: Place(f"h{rank}", 0, "eth0", f"leaf{rank // 4}") for rank in range(16)},
        {code: tuple(range(code, 16, 4)) for code in range(4)},
    )
    worlds = [Lane("collective", code) for code in range(4)]
    for slow_nics, probable in (((8, 9, 10, 11), True), ((8, 1, 6, 15), False)):
        rates = {rank: (0.2 if rank in slow_nics else 1.0, 1.0) for rank in range(16)}
        one = Attribution(0, dict.fromkeys(worlds, 9 * MS), {}, dict.fromkeys(worlds, SLOW), {}, rates=rates)
        found = dict(rank_devices(worlds[1], [one] * 5, leaves)[0])
        assert (found[Device("switch", (8, 9, 10, 11))] > 0.9) == probable, found


def test_lanes_whose_peers_all_pass_a_switch_do_not_acquit_it() -> None:
    """Each pair between two switches passes the slow one: by peers all of them are as usual."""
    below = [one for one in PAIRS if max(one.first, one.second) < 4]
    other = [one for one in PAIRS if min(one.first, one.second) >= 4]
    between = [one for one in PAIRS if one not in (*below, *other)]
    seen = lanes_of(below, other) | dict.fromkeys(between, NORMAL._replace(usual_ns=NORMAL.usual_ns + 1))
    # By their past they would be slow, and held against pairs inside the other switch as well.
    for lanes, is_by_peers, device in (
        (seen, False, NOBODY),
        (seen, True, Device("switch", (0, 1, 2, 3))),
        (lanes_of(below, [*other, *between]), True, NOBODY),
    ):
        some = [replace(one, is_by_peers=is_by_peers) for one in irregular(lanes)]
        assert rank_devices(below[0], some, APART)[0][0][0] == device


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_device_is_told_by_the_lanes_that_it_carries(name: str) -> None:
    example = EXAMPLES[name]
    devices, slow = rank_devices(example.accused, irregular(example.seen), example.topology)
    found = dict(devices)
    assert next(iter(found)) == example.device
    assert found[example.device] > 0.6
    assert sum(found.values()) == pytest.approx(1)
    assert slow == {lane for lane, excess in example.seen.items() if excess is SLOW}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.75, 1.25])
@pytest.mark.parametrize(
    ("numbers", "field"), [(BLAME, one) for one in OF_LANES] + [(LIKELIHOODS, one) for one in CHANCES]
)
def test_no_clear_answer_hangs_on_a_threshold_or_a_chance(
    monkeypatch: pytest.MonkeyPatch, numbers: BlameThresholds | Likelihoods, field: str, share: float
) -> None:
    value = share * getattr(numbers, field)
    moved = replace(numbers, **{field: value if numbers is BLAME else min(value, 0.99)})
    for module in (slow_lanes, suspects, transfer_causes):
        if numbers is getattr(module, type(numbers).__name__.removesuffix("Thresholds").upper(), None):
            monkeypatch.setattr(module, type(numbers).__name__.removesuffix("Thresholds").upper(), moved)
    for label, example in EXAMPLES.items():
        ranked_now, slow = rank_devices(example.accused, irregular(example.seen), example.topology)
        assert ranked_now[0][0] == example.device, label
        assert slow == {lane for lane, excess in example.seen.items() if excess is SLOW}, label


# --- how probable ---------------------------------------------------------------------------------------------------


def weighed(**weights: float) -> list[float]:
    """Probabilities of weights that are prior times likelihood."""
    return [weight / sum(weights.values()) for weight in weights.values()]


def test_a_slow_pair_of_which_nothing_else_is_known() -> None:
    """Prior times chance that the pair is seen slow, each way of a device by its share."""
    found = ranked(pair(1, 5), {pair(1, 5): SLOW})
    leaf_1, link = Device("switch", (4, 5, 6, 7)), Device("link", (1, 5))
    expected = weighed(
        sender=1.0 * (0.5 * 0.9 + 0.3 * 0.9 + 0.2 * 0.05),
        receiver=1.0 * (0.5 * 0.9 + 0.3 * 0.05 + 0.2 * 0.9),
        link=0.5 * (0.5 * 0.95 + 0.25 * 0.95 + 0.25 * 0.05),
        leaf_0=0.3 * 0.9, leaf_1=0.3 * 0.9, fabric=0.1 * 0.9, nobody=0.05 * 0.15,
    )  # fmt: skip
    devices = [NIC_1, NIC_5, link, LEAF_0, leaf_1, FABRIC, NOBODY]
    assert [found[device] for device in devices] == pytest.approx(expected)


def test_a_slow_group_of_which_a_member_logs_nothing() -> None:
    """What it waits for is unknown: slow in one of one, it is so in three of four cases whoever is to blame."""
    found = ranked(OF_1_AND_2, {OF_1_AND_2: SLOW}, SILENT)
    expected = weighed(
        unlogged=1.0 * 0.95, nic_1=0.9, nic_2=0.9, communicator=0.3 * 0.95, link=0.5 * 0.95,
        leaf=0.3 * 0.5 * (0.9 + 0.75), nobody=0.05 * 0.75,
    )  # fmt: skip
    devices = [Device(UNLOGGED, (2,)), NIC_1, Device("nic", (2,)), Device("communicator", (1, 2)),
               Device("link", (1, 2)), LEAF_0, NOBODY]  # fmt: skip
    assert [found[device] for device in devices] == pytest.approx(expected)


def odds(seen: Seen, one: Device, other: Device, topology: Topology = APART) -> float:
    found = ranked(pair(1, 5), {pair(1, 5): SLOW} | seen, topology)
    return found[one] / found[other]


def test_uplinks_and_larger_groups() -> None:
    # A switch whose uplink alone is slow leaves what stays below it: below it a normal pair has 0.95 if the uplink is
    # slow and 0.1 if all ports are; elsewhere it has 0.95.
    below = odds({pair(0, 2): NORMAL}, LEAF_0, NIC_5) / odds({}, LEAF_0, NIC_5)
    assert below == pytest.approx((0.5 * 0.1 + 0.5 * 0.95) / 0.95)
    # A larger group with both ends of a link speaks half for it, and the less for chance the slower it was: by 30 ms,
    # of which a sixteenth would be noticed.
    link = Device("link", (1, 5))
    assert observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, WORLD: SLOW}))[WORLD] == 16
    assert odds({WORLD: SLOW}, link, NOBODY) / odds({}, link, NOBODY) == pytest.approx(16 * 0.5 / 0.15)


@pytest.mark.parametrize(("lane", "chance"), [(Lane("collective", 2), 0.8), (OF_1_AND_2, 0.9), (pair(0, 1), 0.2)])
def test_what_a_normal_lane_says_of_a_nic_beside_others_of_its_host(lane: Lane, chance: float) -> None:
    """Against the link, which touches none of these: a group of both ranks of the host, of one, and a pair inside."""
    link = Device("link", (1, 5))
    change = odds({lane: NORMAL}, NIC_1, link, TOGETHER) / odds({}, NIC_1, link, TOGETHER)
    assert change == pytest.approx((1 - chance) / 0.95)


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


def test_lanes_of_a_nic_accuse_or_acquit_it() -> None:
    # A lane counts by how surely it is slow and not by what it costs: a NIC at a seventh of its speed shows in sends
    # that take a thousandth of the time as in all others.
    seven = LaneExcess(60 * MS, 10 * MS, 0.02 * MS, 1e6, 4.0, 4)
    small = {lane: times(seven, 1e-3) for lane in (pair(1, 0), pair(1, 2), pair(1, 3), pair(1, 6))}
    beside = {pair(5, 0): NORMAL, pair(0, 5): NORMAL, pair(2, 5): NORMAL, OF_1_AND_2: NORMAL}
    seen = {pair(1, 5): seven} | beside
    assert first(pair(1, 5), seen) == Device("link", (1, 5))
    assert first(pair(1, 5), seen | small) == NIC_1
    assert all(observe_lanes(pair(1, 5), irregular(seen | small))[lane] for lane in small)
    # Small lanes that are as always acquit as well
    small = {pair(1, to): times(NORMAL, 1e-3) for to in (0, 2, 3, 6)}
    seen = observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW} | small))
    assert [seen[lane] for lane in small] == [False] * 4
    beside = {pair(5, 0): NORMAL, pair(0, 5): NORMAL, pair(2, 5): NORMAL}
    assert first(pair(1, 5), {pair(1, 5): SLOW} | beside) == NIC_1
    assert first(pair(1, 5), {pair(1, 5): SLOW} | beside | small) == Device("link", (1, 5))
    # A normal collective of the nic acquits the nic
    alone = ranked(pair(1, 5), {pair(1, 5): SLOW})
    beside = ranked(pair(1, 5), {pair(1, 5): SLOW, OF_1_AND_2: NORMAL})
    assert next(iter(alone)) == NIC_1
    assert next(iter(beside)) != NIC_1
    assert beside[NIC_1] < alone[NIC_1] / 2
    assert beside[Device("link", (1, 5))] > alone[Device("link", (1, 5))]
    assert beside[NIC_5] > beside[NIC_1]
    # A slow collective of the nic accuses it
    alone = ranked(pair(1, 5), {pair(1, 5): SLOW})
    beside = ranked(pair(1, 5), {pair(1, 5): SLOW, OF_1_AND_2: SLOW})
    assert beside[NIC_1] > alone[NIC_1]
    assert beside[NIC_5] < alone[NIC_5]


def test_lanes_that_tell_less_of_a_nic() -> None:
    # A collective with other ranks of the nics host acquits it less: its ring may enter and leave the host by the
    # other NIC.
    whole_host, one_of_it = Lane("collective", 2), OF_1_AND_2
    found = {}
    for lane in (whole_host, one_of_it):
        found[lane] = ranked(pair(1, 5), {pair(1, 5): SLOW, lane: NORMAL}, TOGETHER)[NIC_1]
    assert found[whole_host] > found[one_of_it]
    # The accused lane is slow also where nothing is known of it
    assert observe_lanes(pair(1, 5), irregular({})) == {pair(1, 5): True}
    assert first(pair(1, 5), {}).kind in ("nic", "link")
    # Lanes of unknown size are compared by their times
    seen = {lane: excess._replace(size_bytes=np.nan) for lane, excess in EXAMPLES["nic"].seen.items()}
    assert first(pair(1, 5), seen) == NIC_1


# --- small messages beside a slow communicator ----------------------------------------------------------------------


def test_no_nic_is_blamed_for_the_queues_that_its_small_messages_met() -> None:
    met = {one: small(4 * 60_000.0) for one in touching(1)}
    assert ranked(WORLD, {WORLD: SLOW} | met) == ranked(WORLD, {WORLD: SLOW})
    assert first(WORLD, {WORLD: SLOW} | {one: small(4 * 200_000.0) for one in met}) == NIC_1


# --- inside of a host -----------------------------------------------------------------------------------------------


def test_lanes_inside_a_host() -> None:
    # What stays inside a host accuses no nic and no switch
    kinds = {device.kind for device in ranked(pair(0, 1), {pair(0, 1): SLOW}, TOGETHER)}
    assert kinds == {"none", "link"}
    # What stays inside may be the nic where what leaves the host is slow too: gloo, and NCCL without P2P, send over
    # the NIC what NVLink would carry.
    assert first(pair(0, 1), lanes_of(touching(1), PAIRS), TOGETHER) == NIC_1
    # Normal lanes inside acquit a nic hardly
    slow = {pair(1, 5): SLOW, pair(1, 3): SLOW}
    without, with_it = ranked(pair(1, 5), slow, TOGETHER), ranked(pair(1, 5), slow | {pair(0, 1): NORMAL}, TOGETHER)
    assert next(iter(with_it)) == NIC_1
    assert with_it[NIC_1] > 0.9 * without[NIC_1]


# --- ranks without a log --------------------------------------------------------------------------------------------


def test_a_slow_collective_with_a_member_that_logs_nothing_speaks_hardly_for_the_nic_of_another() -> None:
    """It may have waited for the rank without a log; a collective that all log did not."""

    def odds(seen: Seen, topology: Topology) -> float:
        found = ranked(pair(1, 5), seen, topology)
        return found[NIC_1] / found[NIC_5]

    both = {pair(1, 5): SLOW, OF_1_AND_2: SLOW}
    assert odds(both, APART) > 5 * odds({pair(1, 5): SLOW}, APART)
    assert odds(both, SILENT) < 2 * odds({pair(1, 5): SLOW}, APART)


def test_a_normal_collective_acquits_a_nic_also_where_a_member_logs_nothing() -> None:
    alone, beside = (ranked(pair(1, 5), seen, SILENT)[NIC_1]
                     for seen in ({pair(1, 5): SLOW}, {pair(1, 5): SLOW, OF_1_AND_2: NORMAL}))  # fmt: skip
    assert beside < alone / 2


def test_lanes_in_which_ranks_without_a_log_are_late_anyway_accuse_no_switch() -> None:
    """Whatever ranks 2 and 3 log nothing of is slow, on both sides of the switches."""
    late = dict.fromkeys([one for one in PAIRS if len({one.first, one.second} & {2, 3}) == 1], SLOW)

    def odds(topology: Topology) -> float:
        found = [ranked(pair(1, 5), {pair(1, 5): SLOW} | seen, topology) for seen in (late, {})]
        return found[0][LEAF_0] / found[1][LEAF_0]

    assert odds(APART) > 5 * odds(replace(APART, unlogged=frozenset([2, 3])))


@pytest.mark.parametrize(("known_ms", "is_named"), [(30.0, True), (16.0, True), (14.0, False)])
def test_a_transfer_that_is_known_whole_is_what_a_rank_without_a_log_waited_for(
    known_ms: float, is_named: bool
) -> None:
    """The path ends at rank 2, whose message came 30 ms late; half as much longer took one from 5 to 6."""
    lanes = dict.fromkeys(PAIRS, NORMAL) | {pair(2, 1): SLOW, pair(5, 6): SLOW._replace(excess_ns=known_ms * MS)}
    some = [replace(one, path_excess_ns={pair(2, 1): 30 * MS}) for one in irregular(lanes)]
    found = [(one.suspects[0][0], one.explained_ns[0]) for one in find_causes(some, SILENT)]
    assert found == ([(Device("link", (5, 6)), 30 * MS)] if is_named else [])


# --- whom slow transfers accuse -------------------------------------------------------------------------------------


def starving(
    late: Mapping[int, Sequence[float]], noise: Sequence[float] = (0.3, -0.2, 0.4, -0.5)
) -> list[Attribution]:
    """A slow world collective, and in each of four iterations what ranks' work takes longer, ms."""
    return [
        iteration(n, {SIX: 100.0}, {SIX: 100.0},
                  {rank: late[rank][n] if rank in late else noise[(n + rank) % 4] for rank in range(6)})
        for n in range(4)
    ]  # fmt: skip


def test_ranks_that_lack_processor_time() -> None:
    # A rank that works longer while its collectives are slow lacks processor time
    (cause,) = find_causes(starving({3: (12.0, 30.0, 9.0, 40.0)}), SIX_APART)
    assert (cause.kind, cause.suspects[0][0].ranks, cause.explained_ns[1]) == ("slow_rank", (3,), 100 * MS)
    # A host whose ranks stall each at its own moments lacks processor time
    bursts = {2: (12.0, 30.0, 20.0, 40.0), 3: (40.0, 10.0, 35.0, 15.0)}
    assert named(starving(bursts), TWO_EACH) == [("slow_rank", "host", (2, 3))]
    # Ranks that are late by the same time waited for the slow transfer
    waiting = {2: (20.1, 30.2, 20.0, 40.1), 3: (20.0, 30.0, 20.3, 40.0)}
    assert named(starving(waiting), TWO_EACH) == []
    # A starved rank is nearly certain
    (cause,) = find_causes(starving({3: (12.0, 30.0, 9.0, 40.0)}), SIX_APART)
    assert cause.suspects[0][1] == pytest.approx(0.9)


@pytest.mark.parametrize(("late_ms", "kind"), [(4.5, "slow_communicator"), (5.5, "slow_rank")])
def test_work_that_lost_less_than_a_twentieth_of_the_transfers_is_not_starved(late_ms: float, kind: str) -> None:
    quiet = (0.01, -0.01, 0.02, -0.02)
    (cause,) = find_causes(starving({3: (late_ms,) * 4}, noise=quiet), SIX_APART)
    assert cause.kind == kind


@pytest.mark.parametrize(("members", "kind"), [(3, "slow_nic"), (4, "slow_communicator")])
def test_of_four_equal_members_of_a_group_none_stands_out(members: int, kind: str) -> None:
    """Of three each has 0.9 / (3 × 0.9 + 0.285 for the communicator and 0.0075 for nobody) = 0.30, of four 0.23."""
    topology = Topology(8, {rank: Place(f"h{rank}", 0, "nic0") for rank in RANKS}, {0: tuple(range(members))})
    some = [replace(one, path_excess_ns={WORLD: 30 * MS}) for one in irregular({WORLD: SLOW})]
    assert find_causes(some, topology)[0].kind == kind


@pytest.mark.parametrize(("normal", "is_named"), [([pair(3, 4)], True), ([pair(2, 5), pair(3, 5)], False)])
def test_an_alternative_of_less_than_a_twentieth_is_not_named(normal: list[Lane], is_named: bool) -> None:
    """What rank 5 receives of others is normal: its NIC has less than 0.05 left."""
    some = [
        replace(one, path_excess_ns={pair(1, 5): 30 * MS})
        for one in irregular({pair(1, 5): SLOW, **dict.fromkeys(normal, NORMAL)})
    ]
    (cause,) = find_causes(some, APART)
    assert (NIC_5 in [device for device, _ in cause.suspects]) == is_named


# --- spines ---------------------------------------------------------------------------------------------------------

ACROSS_LEAFS = [Lane("collective", code) for code in range(2)]


def leafs_below(*spines: str) -> Topology:
    """Four leafs of two ranks, with two rings over all of them and one group below each."""
    places = {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 2}") for rank in RANKS}
    rings, below = [(0, 2, 4, 6), (1, 3, 5, 7)], [(rank, rank + 1) for rank in (0, 2, 4, 6)]
    fabric = {f"leaf-{number}": spines for number in range(4)} if spines else {}
    leaf_of = {rank: f"leaf-{rank // 2}" for rank in RANKS}
    return Topology(8, places, dict(enumerate([*rings, *below])), spines=spines_of(leaf_of, fabric))


@pytest.mark.parametrize(("first", "spines", "accused"), [
    pytest.param((0, 2, 4, 6), ("s",), Device("spine", (*RANKS,)), id="another leaves first each time: all ways"),
    pytest.param((0,), ("s",), Device("switch", (4, 5)), id="who is furthest from one leaf leaves first"),
    pytest.param((0, 2, 4, 6), (), None, id="no spine was announced"),
])  # fmt: skip
def test_who_leaves_first_tells_leaf_and_spine(
    first: tuple[int, ...], spines: tuple[str, ...], accused: Device | None
) -> None:
    topology = leafs_below(*spines)
    normal = dict.fromkeys([Lane("collective", code) for code in range(2, 6)], NORMAL)
    seen = irregular({**dict.fromkeys(ACROSS_LEAFS, SLOW), **normal})
    left_first = tuple((code, rank + code) for rank in first for code in (0, 1))
    some = [replace(one, path_excess_ns={ACROSS_LEAFS[0]: 30 * MS}, left_first=left_first) for one in seen]
    (cause,) = find_causes(some, topology)
    assert cause.kind == "slow_communicator"
    assert next((device for device, _ in cause.suspects), None) == accused


AGAIN = Lane("collective", 90)  # with the ranks of `WORLD`: the order in one ring alone tells nothing


def with_rings(topology: Topology, *members: int) -> Topology:
    """Let two communicators have these members."""
    return replace(topology, members={**topology.members, WORLD.first: members, AGAIN.first: members})


def test_who_leaves_rings_first_is_far_from_the_slow_nic() -> None:
    def told(lane: Lane, topology: Topology, rings: int = 2) -> list[float]:
        """Return how much likelier NICs become by rank 2 leaving some rings first, held against nobody."""
        odds = []
        for first in ((), ((WORLD.first, 2), (AGAIN.first, 2))[:rings]):
            seen = {lane: SLOW} if lane != WORLD else {WORLD: SLOW, AGAIN: SLOW}
            some = [replace(one, left_first=first) for one in irregular(seen)]
            found = dict(rank_devices(lane, some, topology)[0])
            odds.append([found.get(Device("nic", (rank,)), 0.0) / found[Device("none", ())] for rank in range(8)])
        return [after / before if before else 1.0 for before, after in zip(*odds, strict=True)]

    both, either = np.array([0, 0, 1, 2, 3]) / 9, np.array([0, 0.5, 1.5, 2.5, 3]) / 12
    by_steps = 0.1 + 0.9 * 8 * (both + either) / 2
    twice = with_rings(APART, *RANKS)
    assert told(WORLD, twice) == pytest.approx(by_steps[[2, 1, 0, 1, 2, 3, 4, 3]])
    assert told(WORLD, twice, rings=1) == [1.0] * 8
    # Of groups that were not slow, or of two ranks, which bytes pass both ways, it says nothing.
    assert told(pair(0, 1), twice) == [1.0] * 8
    assert told(WORLD, with_rings(APART, 2, 3)) == [1.0] * 8
    assert told(WORLD, with_rings(APART, 0, 1, 3)) == [1.0] * 8  # rank 2 has left the job since


def test_a_ring_with_one_end_of_a_link_says_nothing_of_the_link() -> None:
    seen = {pair(1, 5): SLOW, OF_1_AND_2: NORMAL, WORLD: SLOW, AGAIN: SLOW}
    topology = with_rings(APART, 0, 1, 2, 3)
    odds = []
    for first in ((), ((WORLD.first, 3), (AGAIN.first, 3))):
        found = dict(
            rank_devices(pair(1, 5), [replace(one, left_first=first) for one in irregular(seen)], topology)[0]
        )
        odds.append(found[Device("link", (1, 5))] / found[NOBODY])
    assert odds[0] == pytest.approx(odds[1])


def test_who_leaves_first_is_asked_of_thousands_of_devices_in_little_memory() -> None:
    """A ring of 2,048 ranks below one spine: a table of all by all would take 32 MB for the spine alone."""
    ranks = range(2048)
    places = {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 32}") for rank in ranks}
    leaf_of, fabric = {rank: f"leaf-{rank // 32}" for rank in ranks}, {f"leaf-{one}": ("s",) for one in range(64)}
    topology = with_rings(Topology(2048, places, {}, spines=spines_of(leaf_of, fabric)), *ranks)
    (some,) = irregular({WORLD: SLOW, AGAIN: SLOW}, 1)
    left_first = (WORLD.first, 1040), (AGAIN.first, 1040)
    tracemalloc.start()
    try:
        devices, _ = rank_devices(WORLD, [replace(some, left_first=left_first)], topology)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    leafs = [device for device, _ in devices if device.kind == "switch"]
    assert leafs[0].ranks[0] == 0  # opposite of 1040 are 0 to 31


def test_equal_spines_share_what_is_probable() -> None:
    lone, equal = (leafs_below(*spines) for spines in (("s",), ("s", "t")))
    crossing = {pair(0, 2): SLOW, pair(2, 4): SLOW, pair(0, 4): SLOW, pair(6, 0): SLOW, pair(0, 1): NORMAL}
    spine = Device("spine", tuple(RANKS))
    shares = [ranked(pair(0, 2), crossing, topology)[spine] for topology in (lone, equal)]
    assert shares[0] > 0.8 > shares[1]  # of equal ones a pair may take another, and is slow at even odds


def test_one_switch_and_two_devices_below_it() -> None:
    # Two of four groups below one switch, by 16 times what would be noticed: one of their 32 NICs would slow one
    places = {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 32}") for rank in range(64)}
    groups = {code: tuple(range(16 * code, 16 * code + 16)) for code in range(4)}
    lanes = [Lane("collective", code) for code in groups]
    seen = irregular(lanes_of(lanes[:2], lanes[2:]))
    assert (
        dict(rank_devices(lanes[0], seen, Topology(64, places, groups))[0])[Device("switch", tuple(range(32)))] > 0.5
    )
    # Two NICs below one switch, each with all of its pairs: the pairs of the two others are as always
    seen = lanes_of([*touching(0), *touching(2)], [one for one in PAIRS if {0, 2}.isdisjoint(one[1:])])
    assert first(pair(0, 5), seen, APART).kind == "nic"


ACCUSED, OTHER = pair(1, 5), pair(1, 3)


def seen_slow(accused: Lane, attributions: Sequence[Attribution]) -> dict[Lane, bool]:
    """Whether each lane is slow beside the accused one; those that tell nothing are left out."""
    return {lane: times > 0 for lane, times in observe_lanes(accused, attributions).items()}


def seen_as(lane: LaneExcess) -> bool | None:
    """Whether a lane is slow beside the accused one, which took 30 ms longer than 10 ms; None: it tells nothing."""
    return seen_slow(ACCUSED, irregular({ACCUSED: SLOW, OTHER: lane})).get(OTHER)


@pytest.mark.parametrize(("excess_ms", "is_slow"), [(27.0, False), (34.0, True)])
def test_a_slow_lane_stands_four_standard_errors_out(excess_ms: float, is_slow: bool) -> None:
    """Of noise of 10 ms the median of five iterations, held against six, has a standard error of 7.6 ms."""
    lane = LaneExcess(excess_ms * MS, 0.1 * MS, 10 * MS, 1e6, 4.0, 4)
    assert stands_out(WORLD, irregular({WORLD: lane}, 5)) == is_slow


@pytest.mark.parametrize(("excess_ms", "is_slow"), [(1.1, False), (1.35, True)])
def test_what_drifts_by_twelve_percent_is_not_slow(excess_ms: float, is_slow: bool) -> None:
    lane = LaneExcess(excess_ms * MS, 10 * MS, 0.0, 1e6, 4.0, 4)
    assert stands_out(WORLD, irregular({WORLD: lane})) == is_slow


@pytest.mark.parametrize(("excess_ms", "noise_ms", "found"), [(0.0, 9.3, False), (0.0, 10.4, None), (5.0, 9.3, None)])
def test_a_lane_acquits_that_surely_lacks_the_predicted_excess(
    excess_ms: float, noise_ms: float, found: bool | None
) -> None:
    """Less than the predicted 30 ms by four standard errors: of 7.1 ms with noise of 9.3 ms, of 7.9 with 10.4."""
    assert seen_as(NORMAL._replace(excess_ns=excess_ms * MS, noise_ns=noise_ms * MS)) is found


@pytest.mark.parametrize(("excess_ms", "counts"), [(2.8, 0.0), (3.2, 1 / 8), (14.0, 1 / 8), (16.0, 8.0)])
def test_a_lane_that_is_less_slow_than_the_accused_one_predicts_counts_little(
    excess_ms: float, counts: float
) -> None:
    """30 ms are predicted: up to a tenth of it is as always, up to half of it may be of waiting for others."""
    lanes = {pair(1, 5): SLOW, pair(1, 3): NORMAL._replace(excess_ns=excess_ms * MS, slow_transfers=4.0)}
    assert observe_lanes(pair(1, 5), irregular(lanes))[pair(1, 3)] == counts


@pytest.mark.parametrize(("excess_ms", "told"), [(0.0, 0.0), (0.4, None), (30.0, 1.0)])
def test_that_a_lane_was_slow_once_is_no_reason_to_doubt_that_it_is_normal(
    excess_ms: float, told: float | None
) -> None:
    """It usually takes 2 ms, give or take 0.01 ms, and took 30 ms once; with the device it would take 6 ms longer."""
    lanes = {pair(1, 5): LaneExcess(30 * MS, 10 * MS, 0.1 * MS, 1e6)}
    lanes[pair(1, 3)] = LaneExcess(excess_ms * MS, 2 * MS, 0.01 * MS, 1e6, most_ns=28 * MS)
    assert observe_lanes(pair(1, 5), [Attribution(0, {}, {}, lanes, {})] * 5).get(pair(1, 3)) == told


def test_lanes_that_noise_or_drift_explains_are_not_slow() -> None:
    # Iterations together stand out of noise that each of them is within
    noisy = SLOW._replace(excess_ns=8 * MS, noise_ns=2.5 * MS, most_ns=9 * MS)
    assert stands_out(WORLD, irregular({WORLD: noisy}, 12))
    assert not stands_out(WORLD, irregular({WORLD: noisy}, 1))
    assert not stands_out(WORLD, irregular({WORLD: NORMAL}))
    assert not stands_out(WORLD, irregular({OF_1_AND_2: SLOW}))
    # A lane of which one transfer hung is not slow
    stray = SLOW._replace(slow_transfers=1.0)
    seen = seen_slow(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): stray}))
    assert seen[pair(1, 3)] is False
    # More iterations tell more
    noisy = NORMAL._replace(excess_ns=10 * MS, noise_ns=3.5 * MS, slow_transfers=4.0)
    seen = {pair(1, 5): SLOW, pair(1, 3): noisy}
    assert pair(1, 3) not in {lane for lane, slow in seen_slow(pair(1, 5), irregular(seen, 1)).items() if slow}
    assert seen_slow(pair(1, 5), irregular(seen, 20))[pair(1, 3)] is True


def test_one_odd_iteration_of_several_moves_no_lane() -> None:
    seen = {pair(1, 5): SLOW, pair(1, 3): NORMAL}
    odd = irregular(seen)[:-1] + irregular(seen | {pair(1, 3): SLOW}, 1)
    assert seen_slow(pair(1, 5), odd)[pair(1, 3)] is False


@pytest.mark.parametrize(("lane", "is_seen"), [
    (small(4 * 90_000.0), False),
    (small(4 * 110_000.0), True),
    (small(1 * MS, usual_ns=5 * MS), False),  # of 15 ms that it would have if it were slow by as much
    (small(3 * MS, usual_ns=5 * MS), True),
])  # fmt: skip
def test_small_messages_that_met_queues_of_a_slow_communicator_are_none(lane: LaneExcess, is_seen: bool) -> None:
    seen = seen_slow(WORLD, irregular({WORLD: SLOW, pair(1, 5): lane}))
    assert seen == {WORLD: True} | ({pair(1, 5): True} if is_seen else {})


KNOWN = st.dictionaries(
    st.sampled_from([ACCUSED, OTHER, WORLD, OF_1_AND_2, pair(2, 3), pair(5, 1)]),
    st.builds(
        LaneExcess,
        st.floats(-MS, 40 * MS), st.floats(0, 20 * MS), st.floats(0, MS), st.sampled_from([1e6, 8.0, math.nan]),
        st.floats(1, 4), st.sampled_from([1.0, 4.0]), st.floats(0, MS),
    ),
)  # fmt: skip


@given(st.lists(KNOWN, min_size=1, max_size=8), st.frozensets(st.sampled_from([OTHER, WORLD, pair(2, 3)])))
def test_explained_lanes_are_as_if_not_seen(seen: list[dict[Lane, LaneExcess]], explained: frozenset[Lane]) -> None:
    """Each lane is told by its own medians; and in the order in which lanes appear, which sums depend on."""
    some = [Attribution(number, {}, {}, one, {}) for number, one in enumerate(seen)]
    left = [replace(one, lanes={k: v for k, v in one.lanes.items() if k not in explained}) for one in some]
    found = SeenLanes(some).observe(ACCUSED, explained)
    assert list(found.items()) == list(observe_lanes(ACCUSED, left).items())
    order = [ACCUSED, *(lane for one in left for lane in one.lanes if lane != ACCUSED)]
    assert list(found) == [lane for lane in dict.fromkeys(order) if lane in found]


def test_what_is_typical_of_a_lane_are_its_medians() -> None:
    some = [
        Attribution(number, {}, {}, {WORLD: NORMAL._replace(excess_ns=ns)}, {})
        for number, ns in enumerate((1.0, 9.0, 2.0))
    ]
    assert typical_excess(WORLD, some) == NORMAL._replace(excess_ns=2.0)
    assert typical_excess(WORLD, some[:1]) == NORMAL._replace(excess_ns=1.0)
    assert typical_excess(pair(1, 5), some) is None
