"""Where ranks live and which way their traffic goes, and so which lanes a slow device slows down."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.job.fabric import Spine, spines_of
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.grouping import grouped
from irregulars.messages.announcements import Announcement, ranks_to_runs
from irregulars.messages.kinds import DEVICE_KINDS, GPU, PLACE, STAGE, SWITCH, DeviceKind, device_kind
from irregulars.messages.records import GROUP_KINDS


class Place(NamedTuple):
    """Where one rank lives; None where it was not announced."""

    host: str | None = None
    gpu: int | None = None
    nic: str | None = None
    switch: str | None = None


_NOWHERE: Final = Place()

# Devices that several ranks may share, with the facts of a rank that name its own
_SHARED: Final = {name: kind.identity for name, kind in DEVICE_KINDS.items() if kind.identity and name != GPU}
CARRIERS: Final = tuple(name for name in _SHARED if not DEVICE_KINDS[name].is_worker)  # those that transfers pass


class Device(NamedTuple):
    """A device that may be slow. ``ranks`` are all that it carries; a link's are its sender and its receiver."""

    kind: str
    ranks: tuple[int, ...]

    @property
    def traits(self) -> DeviceKind:
        """Facts that all devices of its kind share."""
        return device_kind(self.kind)


@dataclass(frozen=True, slots=True)
class Topology:
    """A job's ranks and communicators."""

    world_size: int
    places: Mapping[int, Place]  # place of each rank that was announced
    members: Mapping[int, tuple[int, ...]]  # ranks of each communicator, by the job's code
    names: tuple[str, ...] = ()  # ids of the communicators, by code
    stage_of: Mapping[int, int] = field(default_factory=dict)  # place of each rank in its largest ``pp`` communicator
    kinds: Mapping[int, str] = field(default_factory=dict)  # kind of each communicator, by code
    # Ranks that log no operators: those announced so, and members of communicators that nobody announced
    unlogged: frozenset[int] = frozenset()
    # By rank, the first of the ranks that hold the same parameters, as far as that was announced
    replica_set: Mapping[int, int] = field(default_factory=dict)
    spines: tuple[Spine, ...] = ()  # switches that join leafs, as far as that was announced
    _carried: Mapping[tuple[object, ...], tuple[int, ...]] = field(init=False, repr=False)
    # Caches, filled when first asked for
    _sets: dict[Lane, frozenset[int]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _crossing: dict[Lane, bool] = field(init=False, repr=False, compare=False, default_factory=dict)  # asked often
    _stages: dict[int, list[int]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _tables: dict[str, np.ndarray] = field(init=False, repr=False, compare=False, default_factory=dict)
    _above: dict[Lane, bool] = field(init=False, repr=False, compare=False, default_factory=dict)
    _carried_by: dict[tuple[tuple[str, ...], Lane], bool] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _levels: dict[Lane, int] = field(init=False, repr=False, compare=False, default_factory=dict)
    _roles: dict[tuple[Lane, bool], int] = field(init=False, repr=False, compare=False, default_factory=dict)
    _role_codes: dict[tuple[object, ...], int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        carried: dict[tuple[object, ...], list[int]] = {}
        for rank in sorted(self.places):
            for kind in _SHARED:
                carried.setdefault(self._key(kind, rank), []).append(rank)
        carried.pop((), None)
        # The class is frozen: a field that is computed can be set in no other way.
        object.__setattr__(self, "_carried", {key: tuple(ranks) for key, ranks in carried.items()})

    def place(self, rank: int) -> Place:
        """Where a rank lives, as far as it is known."""
        return self.places.get(rank, _NOWHERE)

    def shared(self, kind: str, rank: int) -> Device | None:
        """The device of a kind that a rank uses, with all ranks that do; None if its name was not announced."""
        ranks = self._carried.get(self._key(kind, rank))
        return None if ranks is None else Device(kind, ranks)

    def nic(self, rank: int) -> Device:
        """The NIC that a rank uses, with all ranks that share it; none do where it was not announced."""
        return self.shared("nic", rank) or Device("nic", (rank,))

    def host(self, rank: int) -> Device | None:
        """The host that a rank lives on; None if it was not announced."""
        return self.shared("host", rank)

    def stage(self, rank: int) -> Device | None:
        """The pipeline stage that a rank works in, with all of its ranks; None if there are no stages."""
        if not self._stages:
            for one in sorted(self.stage_of):
                self._stages.setdefault(self.stage_of[one], []).append(one)
        # A single stage would be the whole job.
        if rank not in self.stage_of or len(self._stages) < 2:
            return None
        return Device(STAGE, tuple(self._stages[self.stage_of[rank]]))

    def switches(self, ranks: Iterable[int]) -> set[Device]:
        """The switches that the NICs of these ranks are plugged into, as far as they were announced."""
        return {switch for rank in ranks if (switch := self.shared(SWITCH, rank)) is not None}

    def spine(self, device: Device) -> Spine | None:
        """The switches that a device of kind ``spine`` stands for."""
        return next((one for one in self.spines if device == Device("spine", one.ranks)), None)

    def is_carried_by(self, spine: Spine, lane: Lane) -> bool:
        """Whether the lane's bytes pass one of these switches."""
        key = (spine.names, lane)
        carries = self._carried_by.get(key)
        if carries is None:
            # Ranks of one host may be below several leafs, one a rail: what stays inside passes none.
            carries = self._carried_by[key] = self.crosses_network(lane) and spine.carries(self.lane_ranks(lane))
        return carries

    def lane_ranks(self, lane: Lane) -> tuple[int, ...]:
        """Ranks at the ends of a lane."""
        if lane.kind == "work":
            return (lane.first,)
        return (lane.first, lane.second) if lane.kind == "pair" else self.members.get(lane.first, ())

    def lane_set(self, lane: Lane) -> frozenset[int]:
        """Ranks at the ends of a lane, as a set."""
        ranks = self._sets.get(lane)
        if ranks is None:
            ranks = self._sets[lane] = frozenset(self.lane_ranks(lane))
        return ranks

    def crosses_network(self, lane: Lane) -> bool:
        """Whether the lane's bytes leave a host; ranks without a known host count as apart."""
        crosses = self._crossing.get(lane)
        if crosses is None:
            ranks = self.lane_ranks(lane)
            hosts = {self.place(rank).host for rank in ranks}
            crosses = self._crossing[lane] = len(ranks) > 1 and (None in hosts or len(hosts) > 1)
        return crosses

    @property
    def logged(self) -> frozenset[int]:
        """The announced ranks whose operators come."""
        return frozenset(self.places) - self.unlogged

    def logged_share(self, device: Device) -> float:
        """Return which share of the ranks that log a device has; one that has all can't be told from the job."""
        logged = self.logged
        return len(logged.intersection(device.ranks)) / len(logged) if logged else 1.0

    def hides_late_ranks(self, lane: Lane) -> bool:
        """Whether a slow transfer in this lane looks the same as a rank that was late and logs nothing.

        So it does where most members log nothing, or fewer than two log: nobody is seen to wait for another.
        """
        if not self.unlogged or lane.kind not in ("collective", "pair"):
            return False
        ranks = self.lane_set(lane)
        logged = len(ranks - self.unlogged)
        return logged < 2 or 2 * logged < len(ranks)

    def network_level(self, lane: Lane) -> int:
        """How far the lane's bytes go: 0 within a host, 1 beyond it, 2 from one known switch to another."""
        level = self._levels.get(lane)
        if level is None:
            level = self._levels[lane] = 1 + self.crosses_switches(lane) if self.crosses_network(lane) else 0
        return level

    def crosses_switches(self, lane: Lane) -> bool:
        """Whether the lane's bytes pass from one known switch to another; a rank without one may be below any."""
        crosses = self._above.get(lane)
        if crosses is None:
            switches = {self.place(rank).switch for rank in self.lane_ranks(lane)} - {None}
            crosses = self._above[lane] = len(switches) > 1 and self.crosses_network(lane)
        return crosses

    def share_batch(self, one: int, other: int) -> bool:
        """Whether two ranks hold parts of one model, and so work on the same batch, as far as that was announced."""
        parts = (code for code, kind in self.kinds.items() if kind in ("tp", "cp", "pp"))
        return any({one, other} <= self.lane_set(Lane("collective", code)) for code in parts)

    def stages(self, ranks: np.ndarray) -> np.ndarray:
        """Pipeline stage of each rank: its place in its ``pp`` communicator; ranks of one stage do the same work."""
        table = self._stage_table()
        beyond = int(ranks.max(initial=0)) + 1 - len(table)  # ranks that nobody announced
        return (np.append(table, np.zeros(beyond, dtype=np.int64)) if beyond > 0 else table)[ranks]

    def _stage_table(self) -> np.ndarray:
        """Stage of each rank, at the place of its number."""
        if "stage" not in self._tables:
            table = np.zeros(max(self.stage_of, default=0) + 1, dtype=np.int64)
            table[list(self.stage_of)] = list(self.stage_of.values())
            self._tables["stage"] = table
        return self._tables["stage"]

    def pair_roles(self, source: np.ndarray, destination: np.ndarray) -> list[np.ndarray]:
        """Return columns that agree, all of them, for pairs of ranks whose `lane_role` of one stage is the same."""
        hosts, switches = self._codes("host"), self._codes("switch")
        one, two = ({name: _at(table, rank) for name, table in (("host", hosts), ("switch", switches))}
                    for rank in (source, destination))  # fmt: skip
        crosses = (one["host"] < 0) | (two["host"] < 0) | (one["host"] != two["host"])
        is_above = (one["switch"] >= 0) & (two["switch"] >= 0) & (one["switch"] != two["switch"])
        # The row behind the table: ranks beyond it are of stage 0, as in `stages`.
        stages = (_at(np.append(self._stage_table(), 0), rank) for rank in (source, destination))
        return [*stages, np.where(crosses, 1 + is_above, 0)]

    def switch_codes(self, ranks: np.ndarray) -> np.ndarray:
        """Return a number for the switch that each rank's NIC is plugged into; -1 where it was not announced."""
        return _at(self._codes("switch"), ranks)

    def _codes(self, what: str) -> np.ndarray:
        """Return a number for the host or switch of each rank, at the place of its number; -1: not announced.

        The last one is that of ranks that nobody announced.
        """
        if what not in self._tables:
            codes: dict[str, int] = {}
            table = np.full(max(self.places, default=0) + 2, -1, dtype=np.int64)
            for rank, place in self.places.items():
                name = getattr(place, what)
                if name is not None:
                    table[rank] = codes.setdefault(name, len(codes))
            self._tables[what] = table
        return self._tables[what]

    def way(self, source: int, destination: int) -> int:
        """Which way along the pipeline a send goes: 1 to a later stage, -1 to an earlier one, 0 to the same one.

        Ranks need not be numbered along the pipeline. Their numbers stand in for it where a stage is not known, as
        frameworks number the ranks of later stages higher.
        """
        stages = self.stage_of.get(source), self.stage_of.get(destination)
        begin, end = (source, destination) if stages[0] is None or stages[1] is None else (stages[0], stages[1])
        return (end > begin) - (end < begin)

    def ways(self, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """Return `way` of many sends."""
        last = max(int(source.max(initial=0)), int(destination.max(initial=0)), max(self.stage_of, default=0))
        known = np.zeros(last + 1, dtype=bool)
        known[list(self.stage_of)] = True
        by_stage = np.sign(self.stages(destination) - self.stages(source))
        return np.where(known[source] & known[destination], by_stage, np.sign(destination - source))

    def kind_code(self, communicator: int) -> int:
        """Return a number for kind and size of a communicator: equal for communicators with equal roles."""
        kind, size = self.kinds.get(communicator), len(self.members.get(communicator, ()))
        return GROUP_KINDS.index(kind if kind in GROUP_KINDS else "unknown") + len(GROUP_KINDS) * size

    def lane_role(self, lane: Lane, *, of_any_stage: bool) -> tuple[object, ...]:
        """Return the role of a lane: its kind, its way along the pipeline or stages, and how far its bytes go."""
        kind = self.kind_code(lane.first) if lane.kind == "collective" else -1
        where: object = self.way(lane.first, lane.second) if lane.kind == "pair" else 0
        if not of_any_stage:
            stages = tuple(self.stage_of.get(rank, 0) for rank in self.lane_ranks(lane))
            where = stages if lane.kind == "pair" else tuple(sorted(set(stages)))
        return lane.kind, kind, where, self.network_level(lane)

    def role_codes(self, lanes: Iterable[Lane], *, of_any_stage: bool) -> np.ndarray:
        """Return a number for the role of each lane (`lane_role`)."""
        found = []
        for lane in lanes:
            code = self._roles.get((lane, of_any_stage))
            if code is None:
                role = self.lane_role(lane, of_any_stage=of_any_stage)
                code = self._roles[lane, of_any_stage] = self._role_codes.setdefault(role, len(self._role_codes))
            found.append(code)
        return np.array(found, dtype=np.int64)

    def _key(self, kind: str, rank: int) -> tuple[object, ...]:
        """Return the key of the device of a kind that a rank uses; empty: its name was not announced."""
        place = self.place(rank)
        facts = [getattr(place, name) for name in _SHARED[kind]]
        return () if None in facts else (kind, *facts)


def _at(table: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Look up ranks in a table, whose last row is that of ranks beyond it."""
    unknown = len(table) - 1
    found: np.ndarray = table[np.where((rank >= 0) & (rank < unknown), rank, unknown)]
    return found


_WITHIN_STAGE: Final = frozenset({"tp", "dp", "cp", "ep"})
"""Kinds of communicators whose members all work in one stage of the pipeline."""


def topology_of(announcements: Iterable[Announcement], codes: Mapping[str, int]) -> Topology:
    """Make the topology from the ranks' announcements; ``codes`` are the job's codes of communicator ids."""
    announcements = list(announcements)
    # All members announce a communicator, and its ranks become a tuple once.
    ranks_of = {codes[c.id]: c.ranks for a in announcements for c in a.communicators if c.id in codes}
    groups = {c.id: c.ranks for a in announcements for c in a.communicators}
    known = {rank for ranks in groups.values() for rank in ranks} | {a.rank for a in announcements}
    return Topology(
        world_size=max((a.world_size for a in announcements), default=0),
        places={a.rank: Place(*(getattr(a, name) for name in PLACE)) for a in announcements},
        members={code: tuple(ranks) for code, ranks in ranks_of.items()},
        names=tuple(sorted(codes, key=lambda name: codes[name])),
        stage_of=_stages(announcements),
        kinds={codes[c.id]: c.kind for a in announcements for c in a.communicators if c.id in codes},
        # A job is judged only once all ranks that log were announced: no operators come of the others.
        unlogged=frozenset(known - {a.rank for a in announcements if a.is_logged}),
        # A set without the rank itself contradicts itself, and is left out.
        replica_set={
            a.rank: min(first for first, _, _ in ranks_to_runs(a.replicas))
            for a in announcements
            if a.replicas is not None and a.rank in a.replicas
        },
        spines=spines_of(
            {a.rank: a.switch for a in announcements if a.switch is not None},
            {lower: uppers for a in announcements for lower, uppers in (a.fabric or {}).items()},
        ),
    )


def _stages(announcements: Sequence[Announcement]) -> dict[int, int]:
    """Return the place of each rank in its pipeline, that of ranks which announce nothing included."""
    stages: dict[int, int] = {}
    silent: dict[int, int] = {}
    for announcement in announcements:
        pipelines = [c.ranks for c in announcement.communicators if c.kind == "pp"]
        if pipelines:
            # The first and the last stage may share a shorter group of this kind, for tied embeddings.
            longest = max(map(tuple, pipelines), key=len)
            stages[announcement.rank] = longest.index(announcement.rank) if announcement.rank in longest else 0
            silent |= {rank: stage for stage, rank in enumerate(longest)}
    # The place that a rank announces itself counts more than the one in another rank's list.
    stages = silent | stages
    within = {c.id: c.ranks for a in announcements for c in a.communicators if c.kind in _WITHIN_STAGE}
    return stages | stages_of_silent(stages, within.values())


# --------------------------------------------------------------------------------------------------------------------
# Pipelines that nobody announced, found by who sends to whom.
# In a pipeline neighbours send both ways, activations down and gradients up. Where chunks are interleaved the last
# stage also sends to the first, but less often than neighbours do: that tells it from a ring that turns both ways.


def stages_from_transfers(
    counts: Mapping[tuple[int, int], int], groups: Iterable[Collection[int]] = ()
) -> dict[int, int]:
    """Find the pipeline stage of each rank; {} unless pipelines of equal length explain all messages.

    `counts`: messages of each pair of sender and receiver in one iteration. `groups`: ranks of each communicator. A
    rank of which no message was logged gets the stage of the other ranks of one of its communicators, if those have
    one stage.

    >>> chains = {(0, 2): 4, (2, 4): 4, (2, 0): 4, (4, 2): 4, (1, 3): 4, (3, 5): 4, (3, 1): 4, (5, 3): 4}
    >>> stages_from_transfers(chains)
    {0: 0, 2: 1, 4: 2, 1: 0, 3: 1, 5: 2}
    >>> stages_from_transfers({**chains, (4, 0): 4, (0, 4): 4, (5, 1): 4, (1, 5): 4})
    {}
    """
    if not counts or any((receiver, sender) not in counts for sender, receiver in counts):
        return {}
    pipelines = _connected(counts)
    if len(pipelines) < JOB.another or len({len(one) for one in pipelines}) > 1:
        return {}
    group_of = {rank: group for group, ranks in enumerate(pipelines) for rank in ranks}
    sent: list[dict[tuple[int, int], int]] = [{} for _ in pipelines]
    for pair, count in counts.items():
        sent[group_of[pair[0]]][pair] = count
    if not all(map(_is_pipeline, pipelines, sent)):
        return {}
    stage_of = {rank: stage for one in pipelines for stage, rank in enumerate(one)}
    return stage_of | stages_of_silent(stage_of, groups)


def stages_of_silent(stage_of: Mapping[int, int], groups: Iterable[Collection[int]]) -> dict[int, int]:
    """Return the stages of ranks that are known only by the one stage of all others in one of their groups.

    >>> stages_of_silent({0: 0, 2: 1}, [(0, 1), (2, 3), (0, 2, 4)])
    {1: 0, 3: 1}
    """
    found: dict[int, int] = {}
    for ranks in groups:
        stages = {stage_of[rank] for rank in ranks if rank in stage_of}
        if len(stages) == 1:
            found.update(dict.fromkeys((rank for rank in ranks if rank not in stage_of), *stages))
    return found


def _connected(counts: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Return the connected components of the graph of sends, each sorted, ordered by their smallest rank."""
    beside = grouped(counts)
    groups, left = [], set(beside)
    for first in sorted(beside):
        reached = [first] if first in left else []
        left.discard(first)
        for rank in reached:  # grows as it goes
            new = left.intersection(beside[rank])
            left -= new
            reached += sorted(new)
        if reached:
            groups.append(sorted(reached))
    return groups


def _is_pipeline(ranks: Sequence[int], sent: Mapping[tuple[int, int], int]) -> bool:
    """Return whether connected ranks are a pipeline in ascending order; ``sent`` counts their messages."""
    steps = list(pairwise(ranks))  # from each stage to the next
    if len(ranks) < JOB.repeated or any(step not in sent for step in steps):
        return False
    between = min(sent[step] for step in steps)
    back = sent.keys() - {*steps, *((receiver, sender) for sender, receiver in steps)}
    if not back:
        return True
    # An interleaved pipeline sends also from its last stage to the first, and back, but less often than to the next.
    is_round = back == {(ranks[0], ranks[-1]), (ranks[-1], ranks[0])}
    is_seldom = max(sent[pair] for pair in back) <= (1 - JOB.least_share) * between
    return is_round and is_seldom and between >= JOB.another
