"""One iteration of the whole job as flat arrays: each rank's calls, the work before them, and which calls meet.

A *step* is one call of one rank (and, first of each rank, a marker for the start of the iteration); steps are
numbered seat by seat (`producers.simulator.topology`) in program order. A *transfer* is one meeting: the ranks
that must be there before it begins. A *flow* is one direction of it: a batched send and recv has two.

The part of the contract's rows that is the same in each iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.dtypes import Flags, Floats, Ints
from irregulars.messages.records import OPERATOR_CODES, SEND, UNKNOWN
from irregulars.producers.simulator.calls import LEADER_WORK, P2P, POINT, Call, has_expert_work
from irregulars.producers.simulator.network import nowhere_path, ring_path, wire_factor
from irregulars.producers.simulator.schedule import (
    TRAIN,
    Links,
    Meeting,
    predecessors,
    ring_pairs,
    stage_programs,
    waves,
)
from irregulars.producers.simulator.topology import AXES, Topology, along


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """Columns of the rows of one iteration, in order of seat and program.

    ``series`` is the sequence that counts a row: a communicator, of p2p with the ordered pair. ``ordinal`` counts
    from 1 in each series of an iteration, of which ``per_iteration`` is the length. ``is_scaled``: sizes grow with
    the sequences. ``first`` (per seat, and one more) is where the rows of a seat begin.
    """

    step: Ints
    communicator: Ints
    local_communicator: NDArray[np.uint16]
    operator: NDArray[np.uint8]
    peer: Ints
    size_bytes: Floats
    is_scaled: Flags
    series: Ints
    ordinal: Ints
    per_iteration: Ints
    first: Ints

    def of_seat(self, seat: int) -> slice:
        """Where the rows of a seat are."""
        return slice(int(self.first[seat]), int(self.first[seat + 1]))


def operator_rows(topology: Topology, programs: Sequence[Sequence[Call]], start: Ints) -> OperatorRows:
    """Cut the logged calls of all ranks into operators. `start`: per seat: its first step, the marker."""
    codes = topology.groups.local_codes()
    blocks = [_stage_rows(topology, codes, stage, program, start) for stage, program in enumerate(programs)]
    step, communicator, local, operator, peer, size, is_scaled, ordinal, per_iteration = (
        np.concatenate([block[column].ravel() for block in blocks]) for column in range(9)
    )
    counts = np.concatenate([np.full(topology.stage_ranks, block[0].shape[1]) for block in blocks])
    rank = np.repeat(topology.rank_of_seat, counts)
    # A series is one number with the digits communicator, source + 1 and target + 1, to the base `ends`.
    is_p2p, is_send, ends = peer != UNKNOWN, operator == SEND, topology.world_size + 1
    source = np.where(is_p2p, np.where(is_send, rank, peer), -1)
    target = np.where(is_p2p, np.where(is_send, peer, rank), -1)
    return OperatorRows(
        step=step, communicator=communicator, local_communicator=local.astype(np.uint16),
        operator=operator.astype(np.uint8), peer=peer, size_bytes=size.astype(np.float64),
        is_scaled=is_scaled.astype(np.bool_), series=(communicator * ends + source + 1) * ends + target + 1,
        ordinal=ordinal, per_iteration=per_iteration, first=np.concatenate([[0], np.cumsum(counts)]),
    )  # fmt: skip


def _stage_rows(
    topology: Topology, codes: dict[str, Ints], stage: int, program: Sequence[Call], start: Ints
) -> list[Ints]:
    """Columns of one stage, of shape ``(ranks, operators)``."""
    flat = [
        (place, call, operator, peer)
        for place, call in enumerate(program) if call.is_logged
        for operator, peer in zip(call.operators, call.peers or (stage,) * len(call.operators), strict=True)
    ]  # fmt: skip
    ranks = topology.grid[stage].ravel()
    groups = [call.group for _, call, _, _ in flat]
    shape = (len(ranks), len(flat))
    numbers, local = ([by_group[group][ranks] for group in groups] for by_group in (topology.groups.numbers, codes))
    peers = [_peers(topology, stage, call, peer) for _, call, _, peer in flat]
    # 1 behind the marker, which is each seat's first step.
    first_step = start[stage * topology.stage_ranks : (stage + 1) * topology.stage_ranks] + 1
    rows = [
        np.broadcast_to(np.array(values), shape)
        for values in (
            [OPERATOR_CODES[operator] for _, _, operator, _ in flat],
            [call.size_bytes for _, call, _, _ in flat],
            [call.is_scaled for _, call, _, _ in flat],
            *_count([(call.group, peer, operator) if call.peers else (call.group,)
                     for _, call, operator, peer in flat]),
        )
    ]  # fmt: skip
    operator, size, is_scaled, ordinal, per_iteration = rows
    step = first_step[:, None] + np.array([place for place, *_ in flat])
    return [step, np.stack(numbers, axis=1), np.stack(local, axis=1), operator, np.stack(peers, axis=1), size,
            is_scaled, ordinal, per_iteration]  # fmt: skip


def _peers(topology: Topology, stage: int, call: Call, peer: int) -> Ints:
    if call.group == P2P:
        return topology.grid[peer].ravel()
    if call.ring:
        return np.roll(topology.grid[stage], -peer, axis=AXES.index("cp") - 1).ravel()
    return np.full(topology.stage_ranks, UNKNOWN)


def _count(series: Sequence[tuple[object, ...]]) -> tuple[list[int], list[int]]:
    """Number the members of each series from 1; return these numbers, and each series' length."""
    seen: dict[tuple[object, ...], int] = {}
    ordinal = []
    for name in series:
        seen[name] = seen.get(name, 0) + 1
        ordinal.append(seen[name])
    return ordinal, [seen[name] for name in series]


# A share waits for all members; for all, unless its bytes are copied before; for the transfer's root; for none.
ALL, COPIED, ROOT, NOBODY = range(4)
_FROM_ROOT, _TO_ROOT = (ROOT, ROOT), (ALL, NOBODY)  # the root, the others
_ROOTED: Final = {"broadcast": _FROM_ROOT, "scatter": _FROM_ROOT, "reduce": _TO_ROOT, "gather": _TO_ROOT}


@dataclass(frozen=True, slots=True)
class Wave:
    """Transfers that depend on earlier waves only. No step takes part twice."""

    # first, past: Numbers of its transfers, half-open
    first: int
    past: int
    shares: Ints  # steps that take part, transfer by transfer; the root of a rooted operator comes first
    offsets: Ints  # where the shares of each transfer begin
    owner: Ints  # transfer of each share, counted from `first`
    before: Ints  # for each share the step after which its own work begins
    others: tuple[Ints, ...]  # arrays like `before`, of further steps that must be over, or the same again
    # For each share: it only waits for `others` in the queue of its stream, and its own work goes on meanwhile; None:
    # all shares begin their work when `others` are over too
    is_queued: Flags | None
    roles: Ints | None  # for each share its role, one of `ALL` to `NOBODY`; None: all wait for all
    is_merging: bool  # some steps have parts in other waves: each leaves with its last part


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows by number; those of index below the number of transfers are the transfers' first ones.

    ``transfer``, ``path`` (see `producers.simulator.network`), ``wire_bytes``: bytes that one member sends, and
    ``is_scaled``: whether these grow with the length of sequences.
    """

    transfer: Ints
    path: Ints
    wire_bytes: Floats
    is_scaled: Flags


@dataclass(frozen=True, slots=True)
class Plan:
    """An iteration before it runs."""

    topology: Topology
    # start_step, last_step, first_forward_step: Per rank: its marker, its last call, and the call before which it did
    # its first forward
    start_step: Ints
    last_step: Ints
    first_forward_step: Ints
    # step_rank, is_call: Per step: its rank, and whether it is a call (not a marker, nor a point on a stream)
    step_rank: Ints
    is_call: Flags
    # Per stage an array ``(steps of a rank, micro-batches + 2)`` of nanoseconds; the last two columns are
    # `LEADER_WORK` and `OWN_WORK`. Where experts have work of their own, its columns follow the micro-batches'.
    stage_work: tuple[Floats, ...]
    waves: tuple[Wave, ...]
    flows: Flows
    rows: OperatorRows

    @property
    def transfers(self) -> int:
        """Number of transfers of an iteration."""
        return self.waves[-1].past

    def work_ns(self, load: Floats | float = 1.0, expert_load: Floats | None = None) -> Floats:
        """Nominal work before each step.

        `load`: array ``(replicas, micro-batches)``, or one number: how heavy each micro-batch is, 1 as planned.
        `expert_load`: per rank of a stage: how many tokens its experts get, 1 as planned.
        """
        settings = self.topology.settings
        weights = np.ones((settings.stage_ranks, self.stage_work[0].shape[1]))
        per_replica = np.broadcast_to(load, (settings.replicas, settings.micro_batches))
        by_batch = np.repeat(per_replica, settings.cp * settings.tp, axis=0)
        weights[:, : settings.micro_batches] = by_batch
        if weights.shape[1] > settings.micro_batches + 2:
            own = by_batch if expert_load is None else by_batch * expert_load[:, None]
            weights[:, settings.micro_batches : LEADER_WORK] = own
        # Ranks of one tensor parallel group follow each other: its first one is the leader.
        weights[:, LEADER_WORK] = np.arange(settings.stage_ranks) % settings.tp == 0
        return np.concatenate([(weights @ work.T).ravel() for work in self.stage_work])


def make_plan(topology: Topology, turn: str = TRAIN) -> Plan:
    """Lay out one iteration of a job; `turn` is one of `producers.simulator.schedule`."""
    programs = stage_programs(topology.settings, turn)
    lengths = [len(program) + 1 for program in programs]
    per_seat = np.repeat(lengths, topology.stage_ranks)
    start = np.cumsum(per_seat) - per_seat
    layout = _Layout(topology, programs, start)
    layout.add_waves()
    columns = topology.settings.micro_batches * (1 + has_expert_work(topology.settings)) + 2
    work, first_forwards = [], []
    for program in programs:
        own = np.zeros((len(program) + 1, columns))
        for place, call in enumerate(program, start=1):
            for micro_batch, work_ns in call.work:
                own[place, micro_batch] += work_ns  # LEADER_WORK and OWN_WORK are negative: the last two columns
        has_forward = own[:, :LEADER_WORK].any(axis=1)
        first_forwards.append(int(np.argmax(has_forward)) if has_forward.any() else len(program))
        work.append(own)
    first_forward = np.repeat(first_forwards, topology.stage_ranks)
    seat = topology.seat
    are_calls = ([False, *(call.group != POINT for call in program)] for program in programs)
    return Plan(
        topology=topology, start_step=start[seat], last_step=(start + per_seat - 1)[seat],
        first_forward_step=(start + first_forward)[seat], step_rank=np.repeat(topology.rank_of_seat, per_seat),
        is_call=np.concatenate([np.tile(one, topology.stage_ranks) for one in are_calls]),
        stage_work=tuple(work), waves=tuple(layout.waves), flows=layout.flows(),
        rows=operator_rows(topology, programs, start),
    )  # fmt: skip


_Flow = tuple[Ints, Ints, float, bool]


@dataclass(slots=True)
class _Layout:
    """Spreads the meetings of stages over their ranks."""

    topology: Topology
    programs: list[list[Call]]
    start: Ints
    waves: list[Wave] = field(default_factory=list)
    _count: int = 0
    # First and second flow of the transfers: their transfers, paths, bytes of one member, and `Call.is_scaled`
    _flows: tuple[list[_Flow], list[_Flow]] = field(default_factory=lambda: ([], []))

    def add_waves(self) -> None:
        seats = np.arange(self.topology.world_size).reshape(self.topology.grid.shape)
        links = [predecessors(program) for program in self.programs]
        found = waves(self.programs)
        meetings_of: dict[tuple[int, int], int] = {}
        for meeting in (meeting for wave in found for meeting in wave):
            for member in meeting.members:
                meetings_of[member] = meetings_of.get(member, 0) + 1
        for wave in found:
            is_merging = any(meetings_of[member] > 1 for meeting in wave for member in meeting.members)
            self.waves.append(self._wave(wave, seats, links, is_merging))

    def flows(self) -> Flows:
        transfer, path, wire_bytes, is_scaled = zip(*self._flows[0], *self._flows[1], strict=True)
        counts = list(map(len, path))
        of_calls = np.repeat(wire_bytes, counts), np.repeat(is_scaled, counts)
        return Flows(np.concatenate(transfer), np.concatenate(path), *of_calls)

    def _wave(self, wave: list[Meeting], seats: Ints, links: list[list[Links]], is_merging: bool) -> Wave:
        first = self._count
        depth = max(len(links[stage][place][1]) for meeting in wave for stage, place in meeting.members)
        parts: list[list[Ints]] = [[] for _ in range(4 + depth)]
        widths = []
        for meeting in wave:
            members = self._members(meeting, seats)
            for part, values in zip(parts, self._steps(meeting, members, links, depth), strict=True):
                part.append(values.ravel())
            widths.append(np.full(len(members), members.shape[1]))
            call = self._call_of(meeting)
            factor = wire_factor(call.operators[0], members.shape[1]) if call.operators else 0.0
            transfer = self._count + np.arange(len(members))
            for flows, path in zip(self._flows, self._paths(meeting, call, members), strict=False):
                flows.append((transfer, path, factor * call.size_bytes, call.is_scaled))
            self._count += len(members)
        width = np.concatenate(widths)
        shares, roles, is_queued, before, *others = (np.concatenate(part) for part in parts)
        return Wave(
            first=first, past=self._count, shares=shares, offsets=np.cumsum(width) - width,
            owner=np.repeat(np.arange(len(width)), width), before=before,
            # A list that repeats `before` adds no dependency, and costs a pass over all shares.
            others=tuple(other for other in others if not np.array_equal(other, before)),
            is_queued=is_queued.astype(np.bool_) if others and is_queued.any() else None,
            roles=roles if roles.any() else None, is_merging=is_merging,
        )  # fmt: skip

    def _call_of(self, meeting: Meeting) -> Call:
        stage, place = meeting.members[0]
        return self.programs[stage][place]

    def _members(self, meeting: Meeting, seats: Ints) -> Ints:
        """Seats of each transfer of a meeting: one row a transfer."""
        call, stage = self._call_of(meeting), meeting.members[0][0]
        group = call.group
        if group == POINT:
            return np.asarray(seats[stage].reshape(-1, 1))
        if group == P2P:
            return np.stack([seats[s].ravel() for s, _ in meeting.members], axis=1)
        if call.ring:
            rings = along(seats[stage : stage + 1], group)
            pairs = ring_pairs(rings.shape[1])[meeting.part]
            return np.concatenate([rings[:, list(pair)] for pair in pairs])
        return along(seats if len(meeting.members) > 1 else seats[stage : stage + 1], group)

    def _steps(self, meeting: Meeting, members: Ints, links: list[list[Links]], depth: int) -> list[Ints]:
        """For each share: its step, its role, whether it is queued, the step before, and `depth` others."""
        places = np.zeros((2 + depth, self.topology.settings.pp), dtype=np.int64)
        is_queued = np.zeros(self.topology.settings.pp, dtype=np.int64)
        for stage, place in meeting.members:
            before, others = links[stage][place]
            # Lists shorter than `depth` are filled with `before`, for which the share waits anyway.
            places[:, stage] = place, before, *others, *[before] * (depth - len(others))
            is_queued[stage] = self.topology.settings.is_launched_ahead and self.programs[stage][place].stream > 0
        stages = members // self.topology.stage_ranks
        step, *earlier = (self.start[members] + 1 + row[stages] for row in places)
        calls = [self.programs[stage][place] for stage, place in meeting.members]
        if calls[0].group == P2P:
            is_buffered = self.topology.settings.is_send_buffered
            roles = [COPIED if is_buffered and set(call.operators) == {"send"} else ALL for call in calls]
        else:
            root, rest = _ROOTED.get("".join(calls[0].operators), (ALL, ALL))
            roles = [root] + [rest] * (members.shape[1] - 1)
        return [step, np.broadcast_to(roles, members.shape), is_queued[stages], *earlier]

    def _paths(self, meeting: Meeting, call: Call, members: Ints) -> list[Ints]:
        """Path of each flow, first all that lead down the pipeline."""
        topology = self.topology
        first = topology.rank_of_seat[members[:, 0]]
        communicators = len(topology.groups.communicators)
        if call.group == POINT:
            return [np.full(len(members), nowhere_path(topology))]
        if call.ring:
            both = [ring_path(topology) + topology.rank_of_seat[members[:, n]] for n in range(2)]
            # A ring of two is one pair, whose one meeting carries both directions.
            return both if call.ring == 2 else both[:1]
        if call.group != P2P:
            return [topology.groups.numbers[call.group][first]]
        down = communicators + first
        return [path for path, is_used in ((down, meeting.is_down), (down + topology.world_size, meeting.is_up))
                if is_used]  # fmt: skip
