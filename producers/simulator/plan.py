"""One iteration of the whole job as flat arrays: who calls what after how much work, and who meets whom.

A *step* is one call of one rank (and, first of each rank, a marker for the start of the iteration); steps are
numbered rank by rank in program order, so that the step before is ``step - 1``. A *transfer* is one meeting: the
ranks that must all be there before it begins. A *flow* is one direction of it: a batched send and recv has two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.simulator.network import wire_factor
from producers.simulator.schedule import OWN_WORK, Call, Meeting, stage_programs, waves
from producers.simulator.topology import Ints, Topology
from streams.records import OPERATOR_CODES, UNKNOWN

Floats = NDArray[np.float64]
KIND_PLACES: Final = {"world": 0, "tp": 1, "dp": 2, "pp": 3}


@dataclass(frozen=True, slots=True)
class Wave:
    """Transfers that depend on earlier waves only.

    Attributes
    ----------
    first, past
        Numbers of its transfers, half-open.
    shares
        Steps that take part, transfer by transfer.
    offsets
        Where the shares of each transfer begin.
    owner
        Transfer of each share, counted from `first`.
    waits
        False for shares that do not wait for the others; None: all wait.
    """

    first: int
    past: int
    shares: Ints
    offsets: Ints
    owner: Ints
    waits: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows by number; those of index below the number of transfers are the transfers' first ones.

    ``transfer``, ``path`` (see `producers.simulator.network`) and ``wire_bytes``: what one member sends.
    """

    transfer: Ints
    path: Ints
    wire_bytes: Floats


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """Columns of the contract's rows that are the same in each iteration, in order of rank and program.

    ``ordinal`` counts from 1 in each series of an iteration, of which ``per_iteration`` is the length;
    ``first`` (per rank, and one more) is where the rows of a rank begin.
    """

    step: Ints
    communicator: Ints
    local_communicator: NDArray[np.uint16]
    operator: NDArray[np.uint8]
    peer: Ints
    size_bytes: Floats
    ordinal: Ints
    per_iteration: Ints
    first: Ints


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known of an iteration before it runs.

    Attributes
    ----------
    start_step, last_step, first_forward_step
        Per rank: its marker, its last call, and the call before which it did its first forward.
    step_rank
        Per step.
    stage_work
        Per stage an array ``(steps of a rank, micro-batches + 1)`` of nanoseconds; the last column is work that
        belongs to no micro-batch.
    """

    topology: Topology
    start_step: Ints
    last_step: Ints
    first_forward_step: Ints
    step_rank: Ints
    stage_work: tuple[Floats, ...]
    waves: tuple[Wave, ...]
    flows: Flows
    rows: OperatorRows

    @property
    def transfers(self) -> int:
        """Number of transfers of an iteration."""
        return self.waves[-1].past

    def work_ns(self, load: Floats | None = None) -> Floats:
        """Nominal work before each step.

        Parameters
        ----------
        load
            Array ``(dp, micro-batches)``: how heavy each micro-batch is, 1 as planned.
        """
        dp, tp = self.topology.settings.dp, self.topology.settings.tp
        weights = np.ones((dp, self.stage_work[0].shape[1]))
        if load is not None:
            weights[:, :-1] = load
        return np.concatenate([np.repeat(weights @ work.T, tp, axis=0).ravel() for work in self.stage_work])


def make_plan(topology: Topology) -> Plan:
    """Lay out one iteration of a job."""
    programs = stage_programs(topology.settings)
    lengths = [len(program) + 1 for program in programs]
    per_rank = np.repeat(lengths, topology.stage_ranks)
    start = np.cumsum(per_rank) - per_rank
    made_waves, flows = _meet(topology, programs, start)
    work = tuple(_stage_work(program, topology.settings.micro_batches) for program in programs)
    first_forward = np.repeat([_first_forward(w) for w in work], topology.stage_ranks)
    return Plan(
        topology=topology,
        start_step=start,
        last_step=start + per_rank - 1,
        first_forward_step=start + first_forward,
        step_rank=np.repeat(np.arange(topology.world_size), per_rank),
        stage_work=work,
        waves=tuple(made_waves),
        flows=flows,
        rows=_operator_rows(topology, programs, start),
    )


def _stage_work(program: list[Call], micro_batches: int) -> Floats:
    work = np.zeros((len(program) + 1, micro_batches + 1))
    for place, call in enumerate(program, start=1):
        for micro_batch, work_ns in call.work:
            work[place, micro_batch] += work_ns  # OWN_WORK is -1: the last column
    return work


def _first_forward(work: Floats) -> int:
    has_forward = work[:, :OWN_WORK].any(axis=1)
    return int(np.argmax(has_forward)) if has_forward.any() else len(work) - 1


def _meet(topology: Topology, programs: list[list[Call]], start: Ints) -> tuple[list[Wave], Flows]:
    result: list[Wave] = []
    first_flows: list[tuple[Ints, float]] = []
    second_flows: list[tuple[Ints, Ints, float]] = []
    count = 0
    for meetings in waves(programs):
        parts, waits, first = [], [], count
        for meeting in meetings:
            members = _members(topology, programs, meeting)
            call = _call(programs, meeting[0])
            parts.append(start[members] + 1 + _places(meeting, members, topology))
            waits.append(np.broadcast_to(_waits(topology, programs, meeting), members.shape))
            paths, factor = _paths(topology, call, members), wire_factor(call.operators[0], members.shape[1])
            first_flows.append((paths[0], factor * call.size_bytes))
            if len(call.operators) > 1:
                second_flows.append((count + np.arange(len(members)), paths[1], factor * call.size_bytes))
            count += len(members)
        result.append(_wave(first, count, parts, waits))
    return result, _flows(first_flows, second_flows)


def _wave(first: int, past: int, parts: list[Ints], waits: list[NDArray[np.bool_]]) -> Wave:
    widths = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
    waiting = np.concatenate([w.ravel() for w in waits])
    return Wave(
        first=first,
        past=past,
        shares=np.concatenate([part.ravel() for part in parts]),
        offsets=np.cumsum(widths) - widths,
        owner=np.repeat(np.arange(past - first), widths),
        waits=None if waiting.all() else waiting,
    )


def _flows(first: list[tuple[Ints, float]], second: list[tuple[Ints, Ints, float]]) -> Flows:
    paths = [path for path, _ in first] + [path for _, path, _ in second]
    wire = [np.full(len(path), wire_bytes) for path, wire_bytes in first]
    wire += [np.full(len(path), wire_bytes) for _, path, wire_bytes in second]
    transfers = np.arange(sum(len(path) for path, _ in first))
    return Flows(
        transfer=np.concatenate([transfers, *(transfer for transfer, _, _ in second)]),
        path=np.concatenate(paths),
        wire_bytes=np.concatenate(wire),
    )


def _call(programs: list[list[Call]], member: tuple[int, int]) -> Call:
    stage, place = member
    return programs[stage][place]


def _members(topology: Topology, programs: list[list[Call]], meeting: Meeting) -> Ints:
    """Ranks of each transfer of a meeting: one row a transfer."""
    stage, grid = meeting[0][0], topology.grid
    match _call(programs, meeting[0]).group:
        case "world":
            return grid.reshape(1, -1)
        case "tp":
            return grid[stage]
        case "dp":
            return grid[stage].T
        case _:
            return np.stack([grid[s].ravel() for s, _ in meeting], axis=1)


def _places(meeting: Meeting, members: Ints, topology: Topology) -> Ints:
    by_stage = np.zeros(topology.settings.pp, dtype=np.int64)
    for stage, place in meeting:
        by_stage[stage] = place
    return by_stage[members // topology.stage_ranks]


def _waits(topology: Topology, programs: list[list[Call]], meeting: Meeting) -> NDArray[np.bool_]:
    is_pair = _call(programs, meeting[0]).group == "pp"
    if not (is_pair and topology.settings.is_send_buffered):
        return np.ones(1, dtype=np.bool_)
    return np.array([_call(programs, member).operators != ("send",) for member in meeting])


def _paths(topology: Topology, call: Call, members: Ints) -> tuple[Ints, ...]:
    """Path of each flow; those of p2p follow the communicators, first all that lead down the pipeline."""
    if call.group != "pp":
        return (getattr(topology.groups, call.group)[members[:, 0]],)
    down = len(topology.groups.communicators) + members[:, 0]
    up = down + topology.world_size
    # members[:, 0] is the lower stage, and `call` its own: alone, its send leads down, its recv comes up
    return (up,) if call.operators == ("recv",) else (down, up)


def _operator_rows(topology: Topology, programs: list[list[Call]], start: Ints) -> OperatorRows:
    blocks = [_stage_rows(topology, stage, program, start) for stage, program in enumerate(programs)]
    step, communicator, local, operator, peer, size, ordinal, per_iteration = (
        np.concatenate([block[column] for block in blocks]) for column in range(8)
    )
    counts = np.concatenate([np.full(topology.stage_ranks, len(b[0]) // topology.stage_ranks) for b in blocks])
    return OperatorRows(
        step=step,
        communicator=communicator,
        local_communicator=local.astype(np.uint16),
        operator=operator.astype(np.uint8),
        peer=peer,
        size_bytes=size.astype(np.float64),
        ordinal=ordinal,
        per_iteration=per_iteration,
        first=np.concatenate([[0], np.cumsum(counts)]),
    )


def _stage_rows(topology: Topology, stage: int, program: list[Call], start: Ints) -> list[Ints]:
    ranks, groups = topology.grid[stage].ravel(), topology.groups
    numbers = np.stack([groups.world, groups.tp, groups.dp, groups.pp])[:, ranks]
    local = groups.local_codes()[:, ranks]
    kinds, places, operators, offsets, sizes, series = _flat_calls(program, stage, topology)
    peer = np.where(offsets == 0, UNKNOWN, ranks[:, None] + offsets)
    shape = (len(ranks), len(kinds))
    columns = [
        start[ranks][:, None] + 1 + places, numbers[kinds].T, local[kinds].T, np.broadcast_to(operators, shape), peer,
        np.broadcast_to(sizes, shape), *(np.broadcast_to(values, shape) for values in _count(series)),
    ]  # fmt: skip
    return [column.ravel() for column in columns]


def _flat_calls(
    program: list[Call], stage: int, topology: Topology
) -> tuple[Ints, Ints, Ints, Ints, Ints, list[tuple[object, ...]]]:
    """Cut calls into operators: kind, place, code, distance to the peer, size, and the series that counts it."""
    flat = [(place, call, operator) for place, call in enumerate(program) for operator in call.operators]
    kinds = np.array([KIND_PLACES[call.group] for _, call, _ in flat])
    places = np.array([place for place, _, _ in flat])
    operators = np.array([OPERATOR_CODES[operator] for _, _, operator in flat])
    distances = [0 if c.peer_stage is None else (c.peer_stage - stage) * topology.stage_ranks for _, c, _ in flat]
    sizes = np.array([call.size_bytes for _, call, _ in flat])
    series = [(call.group, *_direction(call, operator)) for _, call, operator in flat]
    return kinds, places, operators, np.array(distances), sizes, series


def _direction(call: Call, operator: str) -> Iterator[object]:
    """What makes a series of its own on a communicator: p2p counts per ordered pair, collectives together."""
    if call.peer_stage is not None:
        yield call.peer_stage
        yield operator


def _count(series: list[tuple[object, ...]]) -> tuple[Ints, Ints]:
    seen: dict[tuple[object, ...], int] = {}
    ordinal = []
    for name in series:
        seen[name] = seen.get(name, 0) + 1
        ordinal.append(seen[name])
    return np.array(ordinal), np.array([seen[name] for name in series])
