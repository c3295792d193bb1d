"""The kinds of devices that may slow a transfer: which come into question, which lanes and ends of NICs each slows.

Each kind is a class, and its rows of the table name in one word how a lane is related to a device. How likely a lane
in that relation is seen slow is the field of the same name of `LIKELIHOODS`; for `untouched` and `nobody` it is less
the slower the lane is (`transfer_causes._chance`):

| kind | a lane that | is |
|---|---|---|
| `none` | is any | `nobody` |
| `communicator` | is the accused one | `accused` |
| `nic` | is a pair that passes it, in the slow direction, or a group with a member on it | `crosses` |
| | is a group with other members on the NIC's host | `shares_host` |
| | stays inside the host | `inside` |
| `switch` | passes it; its uplink, if that alone is slow | `crosses` |
| | stays inside a host below it | `inside` |
| `spine` | passes it, or may pass it | `crosses`, `may_cross` |
| `fabric` | passes from one switch to another, and no spine was announced | `crosses` |
| `link` | is its pair of ranks, in the slow direction, or the group of these two | `accused` |
| | is a larger group with both of them | `may_cross` |
| `unseen` | is the accused one, or any other collective | `accused` |
| each | is any other, or is held against peers that it would slow as well | `untouched` |

**A new kind of suspect** is one more class in `TRANSFER_SUSPECTS`, with its prior in `likelihoods.py` and its rows
here. The kind of verdict that accuses it is its `accusation`; `messages.kinds` lists both. In reviews of large jobs
the lanes beside NICs and switches alone are known (`judging.review_candidates`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import ClassVar, Final, Literal

from irregulars.detectors.blame.likelihoods import LIKELIHOODS
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.peak_caps import End
from irregulars.detectors.nics.thresholds import NICS
from irregulars.messages.kinds import SWITCH

Relation = Literal["accused", "crosses", "may_cross", "shares_host", "inside", "untouched", "nobody"]
"""How a lane is related to a device that is to blame: the name of a field of `LIKELIHOODS`."""

Relations = tuple[Relation, ...]  # how a lane is related to a device in each of the ways in which that may be slow
Way = Literal["both", "out", "in", "uplink"]  # which part of a slow device is slow
NOBODY: Final = Device("none", ())
FABRIC: Final = Device("fabric", ())
UNLOGGED: Final = "unseen"
"""Kind of a device that stands for ranks without a log, one of which may have come late to a collective."""


@dataclass(frozen=True)
class Scene:
    """The observations around a slow lane."""

    accused: Lane  # the slow lane, for which a device is sought
    # How slow each lane was that is evidence (`slow_lanes.observe_lanes`), the accused one included
    times_slow: Mapping[Lane, float]
    topology: Topology
    # Whether samples show that the lane's bytes pass the NICs of its members, also if all live on one host
    has_moving_nics: bool = False
    # Of lanes that are held against peers a number that these share, and no others
    peers: Mapping[Lane, float] = field(default_factory=dict)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks at the ends of the accused lane."""
        return self.topology.lane_ranks(self.accused)

    @cached_property
    def slow_lanes(self) -> list[Lane]:
        """The accused lane, and then the other slow ones."""
        return [self.accused, *sorted(lane for lane, times in self.times_slow.items() if times)]

    @cached_property
    def crossing(self) -> list[Lane]:
        """Slow lanes that leave a host: the accused one, or if it does not, those that may show which NIC it passes.

        Gloo, and NCCL without P2P, send traffic inside a host over the NIC as well.
        """
        if self.has_moving_nics or self.topology.crosses_network(self.accused):
            return [self.accused]
        return [lane for lane in self.slow_lanes if self.topology.crosses_network(lane)]

    @cached_property
    def by_rank(self) -> Mapping[int, list[Lane]]:
        """For each rank the lanes that it takes part in."""
        found: defaultdict[int, list[Lane]] = defaultdict(list)
        for lane in self.times_slow:
            for rank in self.topology.lane_ranks(lane):
                found[rank].append(lane)
        return dict(found)

    @cached_property
    def number_of_peers(self) -> Mapping[float, int]:
        """How many lanes have each number of `peers`."""
        return Counter(self.peers.values())

    def touching(self, ranks: Iterable[int]) -> Collection[Lane]:
        """Return the lanes that any of these ranks takes part in, each once, in a fixed order."""
        # No set: strings hash differently in each process, and sums of floats depend on their order.
        return dict.fromkeys(chain.from_iterable(self.by_rank.get(rank, ()) for rank in ranks))


class SuspectKind(ABC):
    """One kind of device that may be to blame; see the table above."""

    name: ClassVar[str]  # `Device.kind`
    accusation: ClassVar[str | None] = None
    """Kind of the verdict that accuses such a device; None if it has no name that anybody could look at."""
    is_in_network: ClassVar[bool] = True  # whether it may hold down the rates of NICs
    shows: ClassVar[float] = 1.0  # probability that its `ends` show it at all
    must_lead: ClassVar[bool] = False  # whether it is accused of a group only where it stands out of its like
    prior: ClassVar[float] = 1.0  # how often such a device is to blame, against a NIC

    @abstractmethod
    def candidates(self, scene: Scene) -> list[Device]:
        """Return the devices of this kind that could have slowed the accused lane."""

    @abstractmethod
    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        """Return how a lane is related to a device that slowed the accused lane, and is slow in this way."""

    def relations(
        self, device: Device, lanes: Collection[Lane], accused: Lane, topology: Topology
    ) -> list[Relations]:
        """Return the `relation` of each lane in all of the `ways`, in their order."""
        ways = tuple(self.ways())
        return [tuple(self.relation(device, lane, accused, topology, way) for way in ways) for lane in lanes]

    def ways(self) -> Mapping[Way, float]:
        """Return in which ways such a device may be slow, with the share of each."""
        return {"both": 1.0}

    def prior_of(self, device: Device) -> float:
        """Return the prior of one device."""
        return self.prior

    def ends(self, device: Device, seen: Collection[End]) -> Mapping[End, float]:
        """Return the ends that the device holds down, of those seen, and how likely each then stands out."""
        return {}

    def telling(self, device: Device, scene: Scene) -> Collection[Lane]:
        """Return the lanes whose chance to be slow depends on whether this device is to blame."""
        return scene.touching(device.ranks)


class _Nobody(SuspectKind):
    """No device: many lanes are slow at once, each by chance."""

    name, is_in_network, prior = NOBODY.kind, False, LIKELIHOODS.prior_none

    def candidates(self, scene: Scene) -> list[Device]:
        return [NOBODY]

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        return "nobody"

    def relations(
        self, device: Device, lanes: Collection[Lane], accused: Lane, topology: Topology
    ) -> list[Relations]:
        return [("nobody",)] * len(lanes)

    def telling(self, device: Device, scene: Scene) -> Collection[Lane]:
        return scene.times_slow.keys()


class _Communicator(SuspectKind):
    """The communication as such: its settings, its algorithm, or a member of which nothing stands out."""

    name, is_in_network, prior = "communicator", False, LIKELIHOODS.prior_switch

    def candidates(self, scene: Scene) -> list[Device]:
        return [Device(self.name, scene.ranks)] if scene.accused.kind == "collective" else []

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        return "accused" if lane == accused else "untouched"

    def telling(self, device: Device, scene: Scene) -> Collection[Lane]:
        return [scene.accused]  # it slows no other, of which a large job has thousands


_SENDS: Final[Relations] = ("crosses", "crosses", "untouched")  # both ways, out, in
_RECEIVES: Final[Relations] = ("crosses", "untouched", "crosses")


class _Nic(SuspectKind):
    """A NIC, with all ranks that share it."""

    name, accusation = "nic", "slow_nic"

    def ways(self) -> Mapping[Way, float]:
        both, out = LIKELIHOODS.may_cross, LIKELIHOODS.nic_out
        return {"both": both, "out": out, "in": 1 - both - out}

    def candidates(self, scene: Scene) -> list[Device]:
        return sorted({scene.topology.nic(rank) for rank in scene.ranks}) if scene.crossing else []

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        ranks = topology.lane_set(lane)
        own = ranks.intersection(device.ranks)
        if not own:
            return "untouched"
        if not topology.crosses_network(lane):
            return "inside"
        if lane.kind == "pair":
            return "untouched" if way == ("in" if lane.first in own else "out") else "crosses"
        host = topology.host(device.ranks[0])
        has_others = host is not None and len(ranks.intersection(host.ranks)) > len(own)
        return "shares_host" if has_others else "crosses"

    def relations(
        self, device: Device, lanes: Collection[Lane], accused: Lane, topology: Topology
    ) -> list[Relations]:
        own = device.ranks
        found: list[Relations] = []
        for lane in lanes:
            # The way matters to pairs alone, of which those that send pass the NIC outwards.
            if lane.kind == "pair" and (lane.first in own or lane.second in own) and topology.crosses_network(lane):
                found.append(_SENDS if lane.first in own else _RECEIVES)
            else:
                one = self.relation(device, lane, accused, topology, "both")
                found.append((one, one, one))
        return found

    def ends(self, device: Device, seen: Collection[End]) -> Mapping[End, float]:
        # Asked by name: of thousands of NICs each has its own two.
        own = {(device, 0): JOB.nearly_all, (device, 1): NICS.low_if_nic_receives}
        return {end: chance for end, chance in own.items() if end in seen}


_INSIDE: Final[Relations] = ("inside", "inside")  # both ways, uplink
_BY_ENDS_BELOW: Final[tuple[Relations, ...]] = (
    ("untouched", "untouched"), ("crosses", "crosses"), ("crosses", "untouched"),
)  # fmt: skip


class _Switch(SuspectKind):
    """A switch, with all ranks whose NICs are plugged into it."""

    name, accusation, must_lead = SWITCH, "slow_communicator", True
    prior, shows = LIKELIHOODS.prior_switch, LIKELIHOODS.may_cross

    def ways(self) -> Mapping[Way, float]:
        return {"both": LIKELIHOODS.may_cross, "uplink": 1 - LIKELIHOODS.may_cross}

    def candidates(self, scene: Scene) -> list[Device]:
        return sorted(scene.topology.switches(scene.ranks)) if scene.crossing else []

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        ranks = topology.lane_set(lane)
        own = ranks.intersection(device.ranks)
        if not own:
            return "untouched"
        if not topology.crosses_network(lane):
            return "inside"
        is_below_it = len(own) == len(ranks)
        return "untouched" if way == "uplink" and is_below_it else "crosses"

    def relations(
        self, device: Device, lanes: Collection[Lane], accused: Lane, topology: Topology
    ) -> list[Relations]:
        own = frozenset(device.ranks)
        found: list[Relations] = []
        for lane in lanes:
            if lane.kind == "pair":  # most are
                below = (lane.first in own) + (lane.second in own)
                crosses = topology.crosses_network(lane) if below else False
                found.append(_BY_ENDS_BELOW[below] if crosses or not below else _INSIDE)
            else:
                one = self.relation(device, lane, accused, topology, "both")
                # The way matters only to lanes that stay below the switch: its uplink carries none of them.
                is_below_it = one == "crosses" and own.issuperset(topology.lane_set(lane))
                found.append((one, "untouched" if is_below_it else one))
        return found

    def ends(self, device: Device, seen: Collection[End]) -> Mapping[End, float]:
        own = frozenset(device.ranks)
        return {(nic, way): LIKELIHOODS.may_cross for nic, way in seen if not own.isdisjoint(nic.ranks)}


class _Spine(SuspectKind):
    """A switch above others, with all ranks below it; or several that join the same ones, of which any may be it."""

    name, accusation, prior = "spine", "slow_communicator", LIKELIHOODS.prior_fabric

    def candidates(self, scene: Scene) -> list[Device]:
        spines = scene.topology.spines
        passed = [one for one in spines if any(scene.topology.is_carried_by(one, lane) for lane in scene.crossing)]
        return [Device(self.name, one.ranks) for one in passed]

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        spine = topology.spine(device)
        if spine is None or not topology.is_carried_by(spine, lane):
            return "untouched"
        return "crosses" if len(spine.names) == 1 else "may_cross"


class _Fabric(SuspectKind):
    """All that joins the switches of the job: spines, where nobody announced them."""

    name, prior = FABRIC.kind, LIKELIHOODS.prior_fabric

    def candidates(self, scene: Scene) -> list[Device]:
        if scene.topology.spines:
            return []
        return [FABRIC] if any(scene.topology.crosses_switches(lane) for lane in scene.crossing) else []

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        return "crosses" if topology.crosses_switches(lane) else "untouched"

    def relations(
        self, device: Device, lanes: Collection[Lane], accused: Lane, topology: Topology
    ) -> list[Relations]:
        return [("crosses",) if topology.crosses_switches(lane) else ("untouched",) for lane in lanes]

    def telling(self, device: Device, scene: Scene) -> Collection[Lane]:
        return scene.touching(scene.by_rank)


class _Link(SuspectKind):
    """The way between two ranks, sender and receiver."""

    name, accusation, prior = "link", "slow_link", LIKELIHOODS.prior_link

    def ways(self) -> Mapping[Way, float]:
        both = LIKELIHOODS.may_cross
        return {"both": both, "out": (1 - both) / 2, "in": (1 - both) / 2}

    def candidates(self, scene: Scene) -> list[Device]:
        """Slow pairs between ranks of the lane, and the one path that a group of two takes."""
        ranks = set(scene.ranks)
        pairs = [lane for lane in scene.slow_lanes if lane.kind == "pair"]
        ways = [(lane.first, lane.second) for lane in pairs if {lane.first, lane.second} <= ranks]
        # All bytes of a group of two ranks on two hosts take the one path between them.
        hosts = {scene.topology.place(rank).host for rank in scene.ranks}
        is_pair_of_hosts = len(scene.ranks) == len(hosts) == 2 and None not in hosts
        ways += [(scene.ranks[0], scene.ranks[1])] if scene.accused.kind == "collective" and is_pair_of_hosts else []
        named = {frozenset(way): way for way in reversed(ways)}  # both directions are one device, named by the first
        return [Device(self.name, way) for way in named.values()]

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        if lane.kind == "pair":
            ends = (lane.first, lane.second)
            is_slow = (ends == device.ranks and way != "in") or (ends == device.ranks[::-1] and way != "out")
            return "accused" if is_slow else "untouched"
        members = topology.lane_set(lane)
        if not members.issuperset(device.ranks):
            return "untouched"
        return "accused" if len(members) == 2 else "may_cross"

    def ends(self, device: Device, seen: Collection[End]) -> Mapping[End, float]:
        return {(nic, way): NICS.low_if_link for nic, way in seen if device.ranks[way] in nic.ranks}


class _Unlogged(SuspectKind):
    """Members of a collective that log nothing: its transfer may have waited for one of them."""

    name, is_in_network = UNLOGGED, False

    def prior_of(self, device: Device) -> float:
        return self.prior * len(device.ranks)  # each of them is as likely

    def candidates(self, scene: Scene) -> list[Device]:
        ranks = tuple(rank for rank in scene.ranks if rank in scene.topology.unlogged)
        return [Device(self.name, ranks)] if scene.accused.kind == "collective" and ranks else []

    def relation(self, device: Device, lane: Lane, accused: Lane, topology: Topology, way: Way) -> Relation:
        return "accused" if lane == accused or lane.kind == "collective" else "untouched"

    def telling(self, device: Device, scene: Scene) -> Collection[Lane]:
        # A normal lane is no evidence: now and then such a rank is on time.
        return [lane for lane in scene.touching(device.ranks) if scene.times_slow[lane]]


TRANSFER_SUSPECTS: Final[dict[str, SuspectKind]] = {
    kind.name: kind
    for kind in (_Nobody(), _Communicator(), _Nic(), _Switch(), _Spine(), _Fabric(), _Link(), _Unlogged())
}


def chance_in(relation: Relation) -> float:
    """Return the chance that a lane in this relation to the device that is to blame is seen slow."""
    chance: float = getattr(LIKELIHOODS, relation)
    return chance


def is_slowed(relation: Relation) -> bool:
    """Whether a lane in this relation to the device that is to blame is expected to be slow."""
    return chance_in(relation) > LIKELIHOODS.nobody


def is_carried(device: Device, lane: Lane, accused: Lane, topology: Topology) -> bool:
    """Whether a lane is expected to be slow if this device slowed the accused lane."""
    relation = TRANSFER_SUSPECTS[device.kind].relation(device, lane, accused, topology, "both")
    return is_slowed(relation)
