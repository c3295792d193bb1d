"""Join the traces of a job's ranks: groups become communicators, calls get numbers, steps become iterations.

Find the process group of a gloo collective, which its annotation does not name.

No rank leaves a collective before all have entered it. So the n-th call of a kind (operator and size) can only have
run in a group whose members were all inside their n-th call at the same time. Of the groups that pass, the largest is
taken: a part of a group passes as well. A send ran in the group whose other end received as often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import P2P, RECV, ROOTED, SEND, UNKNOWN
from irregulars.producers.importers.groups import ProcessGroup, communicators_of
from irregulars.producers.importers.imported import ImportedJob, RankRows
from irregulars.producers.importers.kineto_trace import Call, Capture, SpansByThread
from irregulars.producers.trace.job_file import RankLocation

_PASSING: Final = 0.95  # of the calls: profilers place some events a little off


class Kind(NamedTuple):
    """Operator, size and peer that the calls of one kind have in common."""

    operator: int
    size_bytes: float
    peer: int


def find_groups(captures: Mapping[int, Capture]) -> dict[tuple[int, Kind], ProcessGroup]:
    """Find the group of each rank's gloo calls of each kind; calls for which no group fits are absent.

    `captures`: by rank; their clocks are one.
    """
    calls: dict[int, dict[Kind, list[Call]]] = {}
    for rank, capture in captures.items():
        own = calls[rank] = {}
        for call in capture.calls:
            if call.lane == "gloo":
                own.setdefault(kind_of_call(call), []).append(call)
    found: dict[tuple[int, Kind], ProcessGroup] = {}
    for rank, kinds in calls.items():
        groups = sorted(captures[rank].groups, key=lambda group: (-len(group.ranks), group))
        for kind in kinds:
            is_fit = _is_pair if kind.operator in P2P else _is_shared
            fitting = [group for group in groups if rank in group.ranks and is_fit(rank, kind, group, calls)]
            if fitting:
                found[rank, kind] = fitting[-1] if kind.operator in P2P else fitting[0]
    return found


def kind_of_call(call: Call) -> Kind:
    """Return the kind of a call."""
    return Kind(call.operator, -1.0 if np.isnan(call.size_bytes) else call.size_bytes, call.peer)


def _is_shared(rank: int, kind: Kind, group: ProcessGroup, calls: Mapping[int, Mapping[Kind, list[Call]]]) -> bool:
    members = [member for member in group.ranks if member in calls]
    own = [calls[member].get(kind, []) for member in members]
    if any(len(one) != len(calls[rank][kind]) for one in own):
        return False
    starts = np.array([[call.start_ns for call in one] for one in own])
    ends = starts + np.array([[call.elapsed_ns for call in one] for one in own])
    if kind.operator in ROOTED:
        return True
    return bool(np.mean(starts.max(axis=0) <= ends.min(axis=0)) >= _PASSING)


def _is_pair(rank: int, kind: Kind, group: ProcessGroup, calls: Mapping[int, Mapping[Kind, list[Call]]]) -> bool:
    if kind.peer >= len(group.ranks) or group.ranks[kind.peer] == rank:
        return False
    peer = group.ranks[kind.peer]
    mirrored = Kind(SEND if kind.operator == RECV else RECV, kind.size_bytes, group.ranks.index(rank))
    return peer in calls and len(calls[peer].get(mirrored, ())) == len(calls[rank][kind])


# Traces number no collectives, and begin at different points. So the n-th call of a communicator in an iteration gets
# a number made of both, the same on all ranks whatever else they captured: of 65,536 iterations, with as many calls
# in each.
_NUMBER_BITS: Final = 16
_OUTSIDE: Final = (1 << _NUMBER_BITS) - 1
_SHARED_NS: Final = 100_000
_SHARED_SHARE: Final = 0.9
NOTE_NUMBERS: Final = "Kineto traces do not number collectives: their order inside of each step pairs them"
NOTE_NO_STEPS: Final = (
    "no ProfilerStep# annotation was found, so operators have no iteration: call profiler.step() in the training loop"
)
NOTE_STREAMS: Final = (
    "the traces do not name process groups: each CUDA stream counts as one communicator, "
    "its members are the ranks seen"
)


def job_of_captures(captures: Iterable[Capture], job: str, *, is_whole: bool = True) -> ImportedJob:
    """Join traces of a job, of all ranks or (not `is_whole`) of some; several of one rank are parts of it.

    Raises InputError if there is no trace, or none holds a collective.
    """
    by_rank: dict[int, Capture] = {}
    for one in captures:
        known = by_rank.setdefault(one.rank, one)
        if known is not one:
            known.steps += one.steps
            known.calls = sorted([*known.calls, *one.calls], key=lambda call: (call.start_ns, call.issued_ns))
            known.groups = tuple(dict.fromkeys((*known.groups, *one.groups)))
            known.skipped = dict(Counter(known.skipped) + Counter(one.skipped))
    if not by_rank:
        raise InputError("traces must be at least one; got none")
    told = [capture.world_size for capture in by_rank.values() if capture.world_size is not None]
    world_size = max(
        [1 + max(by_rank), *told, *(1 + rank for c in by_rank.values() for g in c.groups for rank in g.ranks)]
    )
    skipped = Counter[str]()
    for capture in by_rank.values():
        skipped.update(capture.skipped)
    by_rank = _with_groups(by_rank, world_size, skipped)
    groups = {group for capture in by_rank.values() for group in capture.groups}
    groups |= {call.group for capture in by_rank.values() for call in capture.calls if call.group is not None}
    communicators = communicators_of(groups, world_size, is_whole=is_whole)
    ranks = {rank: _rows(capture, communicators) for rank, capture in by_rank.items()}
    if not any(len(rows) for rows in ranks.values()):
        left_out = [*skipped.items(), ("with impossible values", sum(rows.unusable for rows in ranks.values()))]
        found = ", ".join(f"{count} x {reason}" for reason, count in left_out if count)
        raise InputError(
            f"traces must hold collectives: NCCL kernels, or gloo:* annotations; got {found or 'none of them'}"
        )
    notes = [NOTE_NUMBERS]
    if not any(capture.steps for capture in by_rank.values()):
        notes.append(NOTE_NO_STEPS)
    if any(group.name.startswith("stream ") for group in communicators):
        notes.append(NOTE_STREAMS)
    return ImportedJob(
        job=job, world_size=world_size, clock=_clock(by_rank),
        communicators={one.id: one for one in communicators.values()}, ranks=ranks,
        places={rank: RankLocation(host=capture.host) for rank, capture in by_rank.items()}, notes=notes,
        skipped=dict(skipped),
    )  # fmt: skip


def _with_groups(by_rank: Mapping[int, Capture], world_size: int, skipped: Counter[str]) -> dict[int, Capture]:
    """Give a group to each call that has none; gloo calls whose group can't be found are left out."""
    gloo = find_groups(by_rank)
    lanes: dict[str, set[int]] = {}
    for rank, capture in by_rank.items():
        for call in capture.calls:
            if call.group is None and call.lane != "gloo":
                lanes.setdefault(call.lane, set()).add(rank)
    world = ProcessGroup("world", "default_pg", tuple(range(world_size)))
    streams = {lane: ProcessGroup(lane, lane, tuple(sorted(ranks))) for lane, ranks in lanes.items()}
    if len(lanes) == 1:
        streams = dict.fromkeys(lanes, world)
    found: dict[int, Capture] = {}
    for rank, capture in by_rank.items():
        calls: list[Call] = []
        for call in capture.calls:
            group = call.group
            if group is None:
                group = gloo.get((rank, kind_of_call(call))) if call.lane == "gloo" else streams[call.lane]
            if group is None or rank not in group.ranks or (call.operator in P2P and call.peer >= len(group.ranks)):
                skipped["collectives whose process group nothing tells"] += 1
            else:
                calls.append(call._replace(group=group))
        found[rank] = replace(capture, calls=calls)
    return found


def _rows(capture: Capture, communicators: Mapping[ProcessGroup, Communicator]) -> RankRows:
    rows = RankRows()
    for step in capture.steps:
        rows.add_iteration(step.peer, step.start_ns, step.end_ns - step.start_ns)
    steps = SpansByThread(
        step._replace(thread=None) for step in capture.steps
    )  # on whichever thread they were marked
    counted = Counter[tuple[str, int, int, int]]()
    for call in capture.calls:
        assert call.group is not None
        around = steps.around(call.issued_ns, None)
        iteration = UNKNOWN if around is None else around.peer
        peer = call.group.ranks[call.peer] if call.operator in P2P else UNKNOWN
        communicator = communicators[call.group].id
        direction = call.operator if call.operator in P2P else -1
        key = communicator, direction, peer, iteration
        number, counted[key] = counted[key], counted[key] + 1
        if number >> _NUMBER_BITS:
            rows.unusable += 1
            continue
        sequence = (_OUTSIDE if iteration == UNKNOWN else iteration % _OUTSIDE) << _NUMBER_BITS | number
        times = call.start_ns, call.elapsed_ns
        rows.add(communicator, call.operator, sequence, peer, *times, call.size_bytes, iteration)
    return rows


def _clock(by_rank: Mapping[int, Capture]) -> str:
    """Return ``shared`` if all ranks are on one host, or leave collectives at the same time by their clocks."""
    hosts = {capture.host for capture in by_rank.values()}
    if len(hosts) == 1 and None not in hosts:
        return "shared"
    ends: dict[ProcessGroup, dict[int, list[float]]] = {}
    for rank, capture in by_rank.items():
        for call in capture.calls:
            if call.group is not None and call.operator not in P2P:
                own = ends.setdefault(call.group, {}).setdefault(rank, [])
                own.append(call.start_ns + call.elapsed_ns)
    apart = [np.empty(0)]  # by how much the ends of each collective differ between its ranks, ns
    for by_rank_ends in (list(own.values()) for own in ends.values() if len(own) > 1):
        if len({len(one) for one in by_rank_ends}) > 1:  # ranks that saw different calls: nothing pairs them
            apart.append(np.full(1, np.inf))
        else:
            apart.append(np.ptp(np.array(by_rank_ends), axis=0))
    apart_ns = np.concatenate(apart)
    is_shared = len(apart_ns) > 0 and np.mean(apart_ns < _SHARED_NS) >= _SHARED_SHARE
    return "shared" if is_shared else "per_host"
