"""The part of the contract's rows that is the same in each iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from irregulars.messages.records import OPERATOR_CODES, SEND, UNKNOWN
from irregulars.producers.simulator.job.groups import AXES
from irregulars.producers.simulator.job.topology import Ints, Topology
from irregulars.producers.simulator.program.calls import P2P, Call

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """Columns of the rows of one iteration, in order of seat and program.

    ``series`` names what the rows are counted in: a communicator, of p2p with the ordered pair. ``ordinal`` counts
    from 1 in each series of an iteration, of which ``per_iteration`` is the length. ``is_scaled``: sizes grow with
    the sequences. ``first`` (per seat, and one more) is where the rows of a seat begin.
    """

    step: Ints
    communicator: Ints
    local_communicator: NDArray[np.uint16]
    operator: NDArray[np.uint8]
    peer: Ints
    size_bytes: Floats
    is_scaled: NDArray[np.bool_]
    series: Ints
    ordinal: Ints
    per_iteration: Ints
    first: Ints

    def of_seat(self, seat: int) -> slice:
        """Where the rows of a seat are."""
        return slice(int(self.first[seat]), int(self.first[seat + 1]))


def operator_rows(topology: Topology, programs: Sequence[Sequence[Call]], start: Ints) -> OperatorRows:
    """Cut the logged calls of all ranks into operators.

    Parameters
    ----------
    start
        Per seat: its first step, the marker.
    """
    codes = topology.groups.local_codes()
    blocks = [_stage_rows(topology, codes, stage, program, start) for stage, program in enumerate(programs)]
    step, communicator, local, operator, peer, size, is_scaled, ordinal, per_iteration = (
        np.concatenate([block[column].ravel() for block in blocks]) for column in range(9)
    )
    counts = np.concatenate([np.full(topology.stage_ranks, block[0].shape[1]) for block in blocks])
    rank = np.repeat(topology.rank_of_seat, counts)
    return OperatorRows(
        step=step,
        communicator=communicator,
        local_communicator=local.astype(np.uint16),
        operator=operator.astype(np.uint8),
        peer=peer,
        size_bytes=size.astype(np.float64),
        is_scaled=is_scaled.astype(np.bool_),
        series=_series(communicator, operator, rank, peer, topology.world_size),
        ordinal=ordinal,
        per_iteration=per_iteration,
        first=np.concatenate([[0], np.cumsum(counts)]),
    )


def _series(communicator: Ints, operator: Ints, rank: Ints, peer: Ints, world_size: int) -> Ints:
    """One number for a communicator, or for an ordered pair on it."""
    is_p2p, is_send = peer != UNKNOWN, operator == SEND
    source = np.where(is_p2p, np.where(is_send, rank, peer), -1)
    target = np.where(is_p2p, np.where(is_send, peer, rank), -1)
    return (communicator * (world_size + 1) + source + 1) * (world_size + 1) + target + 1


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
    """Rank at the other end, for each rank of a stage."""
    if call.group == P2P:
        return topology.grid[peer].ravel()
    if call.ring:
        return np.roll(topology.grid[stage], -peer, axis=AXES.index("cp") - 1).ravel()
    return np.full(topology.stage_ranks, UNKNOWN)


def _count(series: Sequence[tuple[object, ...]]) -> tuple[list[int], list[int]]:
    """Number the members of each series from 1, and say how many it has."""
    seen: dict[tuple[object, ...], int] = {}
    ordinal = []
    for name in series:
        seen[name] = seen.get(name, 0) + 1
        ordinal.append(seen[name])
    return ordinal, [seen[name] for name in series]
