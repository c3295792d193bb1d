"""Whether a job stands still, and which rank has not launched the operator in which the others wait.

NCCL counts operators that a rank *launched*, not those that ended: a rank that has launched n + 1 collectives on a
communicator on which another one has launched n can't have left the last of them. While anything moves that proves
nothing, since ranks that run launch a little apart. It counts once nothing has moved for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.importers.ras_answers import Answer, RasCommunicator, Worker

_NAMELESS: Final = OPERATOR_CODES["barrier"]


class Open(NamedTuple):
    """A collective in which a rank waits."""

    rank: int
    communicator: str
    operator: int
    sequence: int
    since_ns: int


@dataclass(slots=True)
class _Position:
    """How far one rank has come on one communicator, and when it was first seen there."""

    total: int
    launched: Mapping[int, int]
    since_ns: int


@dataclass(slots=True)
class _Group:
    """A communicator as it was last seen."""

    size: int
    members: dict[int, int] = field(default_factory=dict)  # global ranks by rank in the communicator
    positions: dict[int, _Position] = field(default_factory=dict)  # by global rank
    gone: set[int] = field(default_factory=set)
    is_settled: bool = False


def find_world(answer: Answer, world_size: int) -> RasCommunicator | None:
    """Return the communicator of all ranks, whose ranks are the global ones; None while there is none.

    Of several the first by id: all have the same order where PyTorch made them.
    """
    of_size = sorted((one for one in answer.communicators if one.size == world_size), key=lambda one: one.id)
    return next((one for one in of_size if len(set(one.workers.values())) == world_size), None)


class StandstillWatch:
    """Compares successive answers about one run of a job.

    `ranks`: global rank of each worker.
    """

    def __init__(self, ranks: Mapping[Worker, int]) -> None:
        self._ranks = dict(ranks)
        self._groups: dict[str, _Group] = {}
        self._moved_ns: int | None = None
        self._seen_ns = 0

    @property
    def moved_ns(self) -> int:
        """Time of the last movement, ns; 0 before the first answer."""
        return self._moved_ns or 0

    @property
    def still_ns(self) -> int:
        """Time without any movement, as far as answers show, ns."""
        return 0 if self._moved_ns is None else self._seen_ns - self._moved_ns

    @property
    def members(self) -> dict[str, tuple[int, ...]]:
        """Global ranks of each communicator of which all members are known, in its order."""
        return {
            name: tuple(group.members[at] for at in range(group.size))
            for name, group in self._groups.items()
            if len(group.members) == group.size
        }

    def compare(self, answer: Answer, now_ns: int) -> None:
        """Compare an answer with those before it.

        On a busy job the service may answer with counts of zero, or older ones, for lack of fresh ones: counts that
        fell are not believed, and such an answer proves no standstill.
        """
        has_moved, is_whole = self._moved_ns is None, True
        known = {one.id: one for one in answer.communicators}
        if self._groups.keys() - known.keys():
            has_moved = True
        self._groups = {name: group for name, group in self._groups.items() if name in known}
        for name, one in known.items():
            has_moved |= name not in self._groups
            moved, fell = _update(self._groups.setdefault(name, _Group(one.size)), one, self._ranks, now_ns)
            has_moved, is_whole = has_moved or moved, is_whole and not fell
        if has_moved:
            self._moved_ns = now_ns
        if has_moved or is_whole:
            self._seen_ns = now_ns

    def find_open(self) -> list[Open]:
        """Return the collectives in which ranks wait for one that has not launched them."""
        found = [one for name, group in self._groups.items() for one in _waiting(name, group)]
        return sorted(found, key=lambda one: (one.since_ns, one.communicator, one.rank))

    def is_over(self, one: Open) -> bool:
        """Whether a collective was launched by all, so that it may have ended, or its communicator is no more."""
        group = self._groups.get(one.communicator)
        if group is None:
            return True
        is_known = not group.gone and len(group.positions) == group.size
        return is_known and all(position.total >= one.sequence for position in group.positions.values())


def _update(group: _Group, one: RasCommunicator, ranks: Mapping[Worker, int], now_ns: int) -> tuple[bool, bool]:
    """Update a communicator by an answer; return whether a count rose, and whether one fell."""
    for at, worker in one.workers.items():
        if worker in ranks:
            group.members[at] = ranks[worker]
    has_moved = has_fallen = False
    group.is_settled = one.is_settled
    group.gone = {group.members[at] for at in one.missing if at in group.members}
    for at, answered in one.answered.items():
        rank = group.members.get(at)
        if rank is None:
            continue
        before = group.positions.get(rank)
        if before is None or answered.total > before.total:
            group.positions[rank] = _Position(answered.total, answered.launched, now_ns)
            has_moved = True
        has_fallen |= before is not None and answered.total < before.total
    return has_moved, has_fallen


def _waiting(name: str, group: _Group) -> Iterator[Open]:
    """Yield the ranks that wait on a communicator, and the collective: the first that a rank has not launched.

    A rank that is gone launches nothing any more. Where it had come as far as the others, they wait for it in their
    last one.
    """
    alive = {rank: position for rank, position in group.positions.items() if rank not in group.gone}
    if not group.is_settled or len(group.members) < group.size or len(alive) + len(group.gone) < group.size:
        return
    newest = max((position.total for position in alive.values()), default=0)
    last_of_gone = [group.positions[rank].total if rank in group.positions else newest for rank in group.gone]
    common = min([position.total for position in alive.values()] + [min(at, newest - 1) for at in last_of_gone])
    if not 0 <= common < newest:
        return
    operator = _next_operator(group, common)
    for rank, position in alive.items():
        if position.total > common:
            yield Open(rank, name, operator, common + 1, position.since_ns)


def _next_operator(group: _Group, common: int) -> int:
    """Return the operator of the collective after the first `common` ones.

    It is read off the counts of the rank least ahead of it. That rank may have launched several more; where these are
    of several kinds, the most frequent one is returned.
    """
    ahead = min((p for p in group.positions.values() if p.total > common), key=lambda p: p.total)
    behind = max((p for p in group.positions.values() if p.total <= common), key=lambda p: p.total, default=None)
    known: Mapping[int, int] = {} if behind is None else behind.launched
    more = {operator: count - known.get(operator, 0) for operator, count in ahead.launched.items()}
    return max(sorted(more), key=lambda operator: more[operator], default=_NAMELESS)
