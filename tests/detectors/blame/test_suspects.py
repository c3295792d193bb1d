"""Which devices come into question, and how lanes are related to them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest

from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.blame.likelihoods import LIKELIHOODS, calibrated
from irregulars.detectors.blame.suspects import (
    FABRIC,
    NOBODY,
    TRANSFER_SUSPECTS,
    UNLOGGED,
    Relation,
    Scene,
    SuspectKind,
    Way,
    is_carried,
)  # fmt: skip
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.messages.kinds import DEVICE_KINDS, VERDICT_KINDS
from tests.detectors.transfers import (
    APART,
    MEMBERS,
    MS,
    OF_1_AND_2,
    PAIRS,
    TOGETHER,
    WORLD,
    irregular,
    lanes_of,
    pair,
    touching,
)  # fmt: skip

NIC_1, NIC_5, LINK = Device("nic", (1,)), Device("nic", (5,)), Device("link", (1, 5))
LEAF_0 = Device("switch", (0, 1, 2, 3))
OF_HOSTS_0_AND_1 = Lane("collective", 2)


def test_each_relation_has_its_chance() -> None:
    assert set(get_args(Relation)) <= {one.name for one in fields(LIKELIHOODS)}


@pytest.mark.parametrize("kind", TRANSFER_SUSPECTS.values(), ids=TRANSFER_SUSPECTS)
def test_the_ways_in_which_a_device_is_slow_are_all_that_there_are(kind: SuspectKind) -> None:
    assert sum(kind.ways().values()) == pytest.approx(1)


def test_what_is_accused_is_what_verdicts_know() -> None:
    accused = {kind.name: kind.accusation for kind in TRANSFER_SUSPECTS.values() if kind.accusation is not None}
    assert accused.keys() - {"spine"} <= DEVICE_KINDS.keys()  # a verdict calls a spine a switch
    assert set(accused.values()) <= set(VERDICT_KINDS)


DEVICES_OF_KINDS = [
    NOBODY, FABRIC, Device("communicator", tuple(range(8))), Device(UNLOGGED, (3, 4)), Device("link", (1, 5)),
    *(Device("nic", ranks) for ranks in ((1,), (2, 3), (0, 1, 2, 3))),
    *(Device("switch", ranks) for ranks in ((0, 1), (0, 1, 2, 3), tuple(range(8)))),
]  # fmt: skip
PARTLY_KNOWN = replace(TOGETHER, places={0: Place("h0", 0, "nic0", "leaf-0"), 1: Place("h0", 1, "nic1"), 2: Place()})


@pytest.mark.parametrize("topology", [APART, TOGETHER, PARTLY_KNOWN], ids=["apart", "together", "partly known"])
@pytest.mark.parametrize("device", DEVICES_OF_KINDS, ids=str)
def test_many_lanes_are_related_to_a_device_as_each_of_them_is(device: Device, topology: Topology) -> None:
    kind, lanes = TRANSFER_SUSPECTS[device.kind], [WORLD, OF_1_AND_2, OF_HOSTS_0_AND_1, *PAIRS]
    each = [tuple(kind.relation(device, lane, WORLD, topology, way) for way in kind.ways()) for lane in lanes]
    assert kind.relations(device, lanes, WORLD, topology) == each


class Bridge(SuspectKind):
    """What joins the NICs of a host to its processor: a new kind of suspect, as the module's text says."""

    name, accusation = "bridge", "slow_bridge"

    @property
    def prior(self) -> float:
        return 0.3

    def candidates(self, scene: Scene) -> list[Device]:
        hosts = {scene.topology.host(rank) for rank in scene.ranks} if scene.crossing else set()
        return sorted(Device(self.name, host.ranks) for host in hosts if host is not None)

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        is_touched = not topology.lane_set(lane).isdisjoint(device.ranks)
        return "crosses" if is_touched and topology.crosses_network(lane) else "untouched"


@pytest.mark.parametrize("is_known", [False, True])
def test_a_new_kind_of_suspect_is_one_more_class(monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    """All that leaves the host of ranks 0 and 1 is slow: two NICs, or one device that both pass."""
    if is_known:
        monkeypatch.setitem(TRANSFER_SUSPECTS, "bridge", Bridge())
    leaving = [one for one in touching(0, 1) if TOGETHER.crosses_network(one)]
    seen = irregular(lanes_of(leaving, PAIRS))
    some = [replace(one, path_excess_ns={pair(1, 5): 30 * MS}) for one in seen]
    (cause,) = find_causes(some, TOGETHER)
    expected = ("slow_bridge", Device("bridge", (0, 1))) if is_known else ("slow_nic", NIC_1)
    assert (cause.kind, cause.suspects[0][0]) == expected


@pytest.mark.parametrize(("device", "lane", "way", "relation", "topology"), [
    (NOBODY, pair(3, 4), "both", "nobody", APART),
    (Device("communicator", (1, 2)), pair(1, 5), "both", "accused", APART),
    (Device("communicator", (1, 2)), OF_1_AND_2, "both", "untouched", APART),
    (NIC_1, pair(1, 3), "both", "crosses", APART), (NIC_1, pair(3, 1), "both", "crosses", APART),
    (NIC_1, pair(1, 3), "out", "crosses", APART), (NIC_1, pair(1, 3), "in", "untouched", APART),
    (NIC_1, pair(3, 1), "in", "crosses", APART), (NIC_1, pair(3, 1), "out", "untouched", APART),
    (NIC_1, pair(3, 4), "both", "untouched", APART), (NIC_1, OF_1_AND_2, "in", "crosses", APART),
    (NIC_1, OF_HOSTS_0_AND_1, "both", "shares_host", TOGETHER), (NIC_1, OF_1_AND_2, "both", "crosses", TOGETHER),
    (NIC_1, pair(0, 1), "both", "inside", TOGETHER),
    (LEAF_0, pair(0, 3), "both", "crosses", APART), (LEAF_0, pair(0, 3), "uplink", "untouched", APART),
    (LEAF_0, pair(0, 5), "uplink", "crosses", APART), (LEAF_0, pair(4, 5), "both", "untouched", APART),
    (Device("switch", (0, 1)), pair(0, 1), "both", "inside", TOGETHER),
    (FABRIC, pair(0, 4), "both", "crosses", APART), (FABRIC, pair(0, 3), "both", "untouched", APART),
    (LINK, pair(1, 5), "both", "accused", APART), (LINK, pair(5, 1), "both", "accused", APART),
    (LINK, pair(1, 5), "in", "untouched", APART), (LINK, pair(5, 1), "out", "untouched", APART),
    (LINK, pair(1, 5), "out", "accused", APART), (LINK, pair(5, 1), "in", "accused", APART),
    (LINK, WORLD, "both", "may_cross", APART), (LINK, OF_1_AND_2, "both", "untouched", APART),
    (Device("link", (2, 1)), OF_1_AND_2, "both", "accused", APART),
    (Device(UNLOGGED, (2,)), WORLD, "both", "accused", APART),
    (Device(UNLOGGED, (2,)), pair(2, 3), "both", "untouched", APART),
])  # fmt: skip
def test_a_lane_s_relation_to_a_device_that_slowed_the_pair_from_1_to_5(
    device: Device, lane: Lane, way: Way, relation: Relation, topology: Topology
) -> None:
    assert TRANSFER_SUSPECTS[device.kind].relation(device, lane, pair(1, 5), topology, way) == relation


def candidates(scene: Scene) -> set[Device]:
    return {device for kind in TRANSFER_SUSPECTS.values() for device in kind.candidates(scene)}


def test_candidates_of_a_slow_lane() -> None:
    # Of a slow pair both ends what they are plugged into and the way between come into question
    found = candidates(Scene(pair(1, 5), {pair(1, 5): True, pair(1, 2): True}, APART))
    assert found == {NOBODY, NIC_1, NIC_5, LEAF_0, Device("switch", (4, 5, 6, 7)), FABRIC, LINK}
    # Inside a host nothing but the way comes into question
    assert candidates(Scene(pair(0, 1), {pair(0, 1): True}, TOGETHER)) == {NOBODY, Device("link", (0, 1))}
    # Inside a host its nics do where slow lanes leave it or samples show them moving
    leaving = candidates(Scene(pair(0, 1), {pair(0, 1): True, pair(1, 5): True}, TOGETHER))
    moving = candidates(Scene(pair(0, 1), {pair(0, 1): True}, TOGETHER, has_moving_nics=True))
    assert NIC_1 in leaving & moving
    # Members that log nothing come into question for collectives alone
    silent = replace(APART, unlogged=frozenset([2]))
    assert Device(UNLOGGED, (2,)) in candidates(Scene(OF_1_AND_2, {OF_1_AND_2: True}, silent))
    assert Device(UNLOGGED, (2,)) not in candidates(Scene(pair(1, 2), {pair(1, 2): True}, silent))


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


@pytest.mark.parametrize("raw", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_calibration_keeps_the_order_and_never_promises_more_than_everything(raw: float) -> None:
    suspects = [(Device("nic", (0,)), raw), (Device("link", (0, 1)), (1 - raw) * 0.6), (Device("nic", (1,)), 0.0)]
    said = [probability for _, probability in calibrated(suspects)]
    assert said[0] >= raw
    assert sum(said) <= 1 + 1e-9
    assert (said[0] == raw) == (raw in (0.0, 1.0))


def test_nobody_to_calibrate() -> None:
    assert calibrated([]) == ()


@pytest.mark.parametrize(("raw", "promised"), [(0.5, 3 / 4), (0.9, 27 / 28), (0.25, 1 / 2)])
def test_the_first_suspect_s_odds_are_tripled(raw: float, promised: float) -> None:
    assert calibrated([(Device("nic", (0,)), raw)])[0][1] == pytest.approx(promised)
