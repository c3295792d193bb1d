"""Find the process group of a gloo collective, which its annotation does not name.

Nobody leaves a collective before all have entered it. So the n-th call of a kind (operator and size) can only have
run in a group whose members were all inside their n-th call at the same time. Of the groups that pass, the largest is
taken: a part of a group passes as well. A send ran in the group whose other end received as often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.messages.records import P2P, RECV, ROOTED, SEND
from irregulars.producers.foreign_files.groups import Group
from irregulars.producers.importers.kineto.kineto_trace import Call, Capture

_PASSING: Final = 0.95
"""Of the calls: profilers place some events a little off."""


class Kind(NamedTuple):
    """What calls of one kind have in common."""

    operator: int
    size_bytes: float
    peer: int


def find_groups(captures: Mapping[int, Capture]) -> dict[tuple[int, Kind], Group]:
    """Find the group of each rank's gloo calls of each kind; those that nothing tells are absent.

    Parameters
    ----------
    captures
        By rank; their clocks are one.
    """
    calls = {rank: _by_kind(capture.calls) for rank, capture in captures.items()}
    found: dict[tuple[int, Kind], Group] = {}
    for rank, kinds in calls.items():
        groups = sorted(captures[rank].groups, key=lambda group: (-len(group.ranks), group))
        for kind in kinds:
            is_fit = _is_pair if kind.operator in P2P else _is_shared
            fitting = [group for group in groups if rank in group.ranks and is_fit(rank, kind, group, calls)]
            if fitting:
                found[rank, kind] = fitting[-1] if kind.operator in P2P else fitting[0]
    return found


def kind_of_call(call: Call) -> Kind:
    """Say of which kind a call is."""
    return Kind(call.operator, -1.0 if np.isnan(call.size_bytes) else call.size_bytes, call.peer)


def _by_kind(calls: Sequence[Call]) -> dict[Kind, list[Call]]:
    kinds: dict[Kind, list[Call]] = {}
    for call in calls:
        if call.lane == "gloo":
            kinds.setdefault(kind_of_call(call), []).append(call)
    return kinds


def _is_shared(rank: int, kind: Kind, group: Group, calls: Mapping[int, Mapping[Kind, list[Call]]]) -> bool:
    members = [member for member in group.ranks if member in calls]
    own = [calls[member].get(kind, []) for member in members]
    if any(len(one) != len(calls[rank][kind]) for one in own):
        return False
    starts = np.array([[call.start_ns for call in one] for one in own])
    ends = starts + np.array([[call.elapsed_ns for call in one] for one in own])
    if kind.operator in ROOTED:
        return True
    return bool(np.mean(starts.max(axis=0) <= ends.min(axis=0)) >= _PASSING)


def _is_pair(rank: int, kind: Kind, group: Group, calls: Mapping[int, Mapping[Kind, list[Call]]]) -> bool:
    if kind.peer >= len(group.ranks) or group.ranks[kind.peer] == rank:
        return False
    peer = group.ranks[kind.peer]
    mirrored = Kind(SEND if kind.operator == RECV else RECV, kind.size_bytes, group.ranks.index(rank))
    return peer in calls and len(calls[peer].get(mirrored, ())) == len(calls[rank][kind])
