"""One run of a job as RAS sees it, in the records of the pipeline, and a job made of saved RAS answers.

Each look at the job becomes an iteration of the phase ``observed``: it shows that the job lives, and holds nothing to
judge. When the job stands still and a rank has not launched an operator in which others wait, that operator is
published as entered and not ended, as any hook would; if the job moves again, as ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.announcements import Announcement, Communicator, Heartbeat, SourceProgress
from irregulars.messages.records import (
    COMMOPS,
    OPERATOR_CODES,
    PHASES,
    UNKNOWN,
    UNTOLD_CALLS,
    Batch,
    Header,
    iteration_columns,
)
from irregulars.producers.importers.imported import ENDED_NS, ITERATION, SEQUENCES, ImportedJob, RankRows
from irregulars.producers.importers.ras_answers import UNKNOWN_HOST, Answer, RasCommunicator, Worker, unknown_worker
from irregulars.producers.publishing.sources import Record
from irregulars.producers.trace.job_file import RankLocation

OBSERVED: Final = PHASES.index("observed")
SOURCES: Final = ("commops", "iterations")


@dataclass(slots=True)
class JobRun:
    """One run of a job, and the state of its publication."""

    # job, attempt: Name and start number
    job: str
    attempt: int
    workers: Mapping[int, Worker]  # by global rank
    members: Mapping[str, tuple[int, ...]]  # communicators that are announced: global ranks in their order
    began_ns: int  # when it was first seen
    world: str = ""  # name of its communicator of all ranks: a later run has another one
    observed: int = 0  # how many iterations were published
    observed_ns: int = 0  # when the last of them ended
    operators: dict[int, int] = field(default_factory=dict)  # rows of operators published of each rank
    # told, told_ns: Operators that were published as entered, and not yet as ended; when any were published last
    told: list[Open] = field(default_factory=list)
    told_ns: int = 0

    def __post_init__(self) -> None:
        self.observed_ns = max(self.observed_ns, self.began_ns)

    def encode(self) -> bytes:
        """Return the run as JSON, from which the next agent goes on; RAS tells that one its processes again."""
        return msgspec.json.encode(replace(self, workers={}))

    def announce(self) -> Iterator[Announcement]:
        """Announce each rank; all times are of one clock, that of this agent."""
        world_size = len(self.workers)
        communicators = communicators_of(self.members, world_size)
        own = grouped((rank, one) for one in communicators for rank in dict.fromkeys(one.ranks))
        for rank, worker in sorted(self.workers.items()):
            yield Announcement(
                job=self.job, attempt=self.attempt, rank=rank, world_size=world_size, logged_ranks=world_size,
                communicators=tuple(own.get(rank, ())), sources=SOURCES,
                clock="shared", host=worker.host or None, gpu=worker.local_gpu, lost_rows=0,
            )  # fmt: skip

    def observe(self, now_ns: int) -> Iterator[Record]:
        """Yield records which show that the job lived until now; none if no time has passed."""
        if now_ns <= self.observed_ns:
            return
        times_ns = np.array([self.observed_ns]), np.array([float(now_ns - self.observed_ns)])
        columns = iteration_columns(np.array([self.observed]), *times_ns, np.array([OBSERVED], np.uint8))
        for rank in sorted(self.workers):
            header = Header("iterations", self.job, self.attempt, rank, self.observed, now_ns)
            yield Batch(header, columns)
        self.observed, self.observed_ns = self.observed + 1, now_ns
        for rank in sorted(self.workers):
            progress = SourceProgress(self.operators.get(rank, 0), now_ns)
            yield Heartbeat(self.job, self.attempt, rank, {"commops": progress})

    def enter(self, found: Sequence[Open], now_ns: int) -> Iterator[Record]:
        """Yield operators that ranks entered and did not leave; they belong to the last iteration, still open."""
        self.told, self.told_ns = list(dict.fromkeys([*self.told, *found])), now_ns
        yield from self._rows(found, np.nan)

    def leave(self, ended: Sequence[Open]) -> Iterator[Record]:
        """Yield the end of some of those operators."""
        over = set(ended)
        self.told = [one for one in self.told if one not in over]
        yield from self._rows(ended, ENDED_NS)

    def end(self, reason: str) -> Iterator[Record]:
        """Yield the end of all ranks."""
        for rank in sorted(self.workers):
            yield Heartbeat(self.job, self.attempt, rank, state="ended", reason=reason)

    def _rows(self, found: Iterable[Open], elapsed_ns: float) -> Iterator[Record]:
        for rank, own in sorted(grouped((one.rank, one) for one in found).items()):
            rows = self.operators.get(rank, 0)
            names = tuple(dict.fromkeys(one.communicator for one in own))
            header = Header("commops", self.job, self.attempt, rank, rows, None, names)
            self.operators[rank] = rows + len(own)
            iteration = max(self.observed - 1, 0)
            values = [
                (names.index(one.communicator), one.operator, one.sequence % SEQUENCES, UNKNOWN, one.since_ns,
                 elapsed_ns, np.nan, iteration) for one in own
            ]  # fmt: skip
            columns = zip(COMMOPS.names, zip(*values, strict=True), _TYPES, strict=True)
            yield Batch(header, {name: np.array(column, kind) for name, column, kind in columns})


def communicators_of(members: Mapping[str, tuple[int, ...]], world_size: int) -> list[Communicator]:
    """Make communicators of their members. RAS does not know their kinds, but for that of all ranks."""
    kinds = {name: "world" if len(ranks) == world_size else "unknown" for name, ranks in members.items()}
    return [Communicator(name, kinds[name], ranks) for name, ranks in sorted(members.items())]


NOTE_COUNTS: Final = "RAS counts collectives that were launched, and no sends and recvs: use it for hangs alone"
NOTE_MOVING: Final = "between the last two answers the job went on: nobody stands still"


def job_of_answers(answers: Sequence[Answer], job: str) -> ImportedJob:
    """Compare answers about one run of a job, in the order of their times.

    Raises InputError if they are fewer than two and none calls a process dead or in error, or none tells of ranks.
    """
    ordered = sorted(answers, key=lambda answer: answer.told)
    if len(ordered) < 2 and not any(answer.has_dead for answer in ordered):
        raise InputError(
            f"RAS answers must be at least two, some seconds apart; got {len(ordered)} "
            "(one alone can't tell a rank that is a moment late from one that never comes)"
        )
    told = [one for answer in ordered for one in answer.communicators]
    world_size = max((one.size for one in told), default=max(answer.world_size for answer in ordered))
    ordered = [_with_all_workers(answer, world_size) for answer in ordered]
    world = next((one for answer in ordered if (one := find_world(answer, world_size)) is not None), None)
    if world is None and told:
        text = f"got none of {world_size} ranks whose processes are known"
        raise InputError(f"RAS answers must tell of a communicator of all ranks; {text}")
    workers = {rank: unknown_worker(rank) for rank in range(world_size)} if world is None else world.workers
    watch = StandstillWatch({worker: rank for rank, worker in workers.items()})
    # Numbers in place of times: saved answers may lack them, and their order is all that is needed.
    for second, answer in enumerate(ordered, 1):
        watch.compare(answer, second)
    has_dead = ordered[-1].has_dead
    is_standing = watch.still_ns > 0 or has_dead
    ranks = {rank: RankRows() for rank in workers}
    found = watch.find_open() if is_standing else []
    for waiting in found:
        sequence = waiting.sequence % SEQUENCES
        ranks[waiting.rank].add(waiting.communicator, waiting.operator, sequence, iteration=ITERATION)
    for rank, name, operator, total in watch.newest_calls() if not found else ():
        ranks[rank].add(name, operator, total % SEQUENCES, elapsed_ns=ENDED_NS, iteration=ITERATION)
    unusable = sum(answer.unusable for answer in ordered)
    members, notes, places = watch.members, [], {}
    for rank, worker in sorted(workers.items()):
        is_told = worker.host != UNKNOWN_HOST
        places[rank] = RankLocation(worker.host if is_told else None, worker.local_gpu, lost_rows=0)
        if rank in watch.dead:
            where = f", GPU {worker.gpu} of process {worker.pid} on {worker.host}," if is_told else ""
            notes.append(f"rank {rank}{where} is out of reach, dead or in error by RAS's own words")
    return ImportedJob(
        job=job, world_size=world_size, clock="per_host", communicators=communicators_of(members, world_size),
        ranks=ranks, places=places, notes=(*notes, NOTE_COUNTS, *(() if is_standing else (NOTE_MOVING,))),
        skipped={"communicators that make no sense": unusable} if unusable else {},
    )  # fmt: skip


def _with_all_workers(answer: Answer, world_size: int) -> Answer:
    """Give the ranks of the largest communicators stand-ins where the answer does not name their processes."""

    def known(found: Mapping[int, Any]) -> dict[int, Any]:
        return {
            rank: one if one.worker.is_known else replace(one, worker=unknown_worker(rank))
            for rank, one in found.items()
        }

    made = (
        replace(one, answered=known(one.answered), missing=known(one.missing)) if one.size == world_size else one
        for one in answer.communicators
    )
    return replace(answer, communicators=tuple(made))


_NAMELESS: Final = OPERATOR_CODES["barrier"]
_TYPES: Final = (np.uint16, np.uint8, np.int64, np.int64, np.int64, np.float64, np.float64, np.int64)  # of `COMMOPS`


class Open(NamedTuple):
    """A collective in which a rank waits."""

    rank: int
    communicator: str
    operator: int
    sequence: int  # its whole number, which may be above a uint32
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
    dead: set[int] = field(default_factory=set)  # those that the service itself calls dead or in error
    is_settled: bool = False


def find_world(answer: Answer, world_size: int) -> RasCommunicator | None:
    """Return the communicator of all ranks, whose ranks are the global ones; None while there is none.

    Of several the first by id: all have the same order where PyTorch made them.
    """
    of_size = sorted((one for one in answer.communicators if one.size == world_size), key=lambda one: one.id)
    return next((one for one in of_size if len(set(one.workers.values())) == world_size), None)


class StandstillWatch:
    """Compares successive answers about one run of a job: whether it stands still, and which rank is waited for.

    NCCL counts operators that a rank *launched*, not those that ended: a rank that has launched n + 1 collectives on
    a communicator on which another one has launched n can't have left the last of them. While anything moves that
    proves nothing, since ranks that run launch a little apart. It counts once nothing has moved for a while.
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
        known = {one.id: one for one in answer.communicators}
        has_moved, is_whole = self._moved_ns is None or self._groups.keys() != known.keys(), True
        self._groups = {name: group for name, group in self._groups.items() if name in known}
        for name, one in known.items():
            moved, fell = _update(self._groups.setdefault(name, _Group(one.size)), one, self._ranks, now_ns)
            has_moved, is_whole = has_moved or moved, is_whole and not fell
        if has_moved:
            self._moved_ns = now_ns
        if has_moved or is_whole:
            self._seen_ns = now_ns

    @property
    def dead(self) -> set[int]:
        """Ranks that the service calls dead or in error, or that were out of reach twice in a row."""
        return {rank for group in self._groups.values() for rank in group.dead}

    def newest_calls(self) -> Iterator[tuple[int, str, int, int]]:
        """Yield rank, communicator, most frequent operator and count of calls of each rank that has launched any."""
        for name, group in self._groups.items():
            if len(group.members) == group.size:
                for rank, position in group.positions.items():
                    if position.total:
                        # Of equally frequent kinds the same one on all ranks
                        operator = max(sorted(position.launched), key=lambda one: position.launched[one])
                        yield rank, name, operator, position.total

    def find_open(self) -> list[Open]:
        """Return the collectives in which ranks wait for one that has not launched them."""
        found = [one for name, group in self._groups.items() for one in _waiting(name, group)]
        return sorted(found, key=lambda one: (one.since_ns, one.communicator, one.rank))

    def find_over(self, told: Iterable[Open]) -> list[Open]:
        """Return the collectives that all have launched, and so may have ended, or whose communicator is gone."""
        common = {  # how many all ranks are known to have launched; -1: not known
            name: min((position.total for position in group.positions.values()), default=-1)
            if not group.gone and len(group.positions) == group.size
            else -1
            for name, group in self._groups.items()
        }
        return [one for one in told if one.communicator not in common or common[one.communicator] >= one.sequence]


def _update(group: _Group, one: RasCommunicator, ranks: Mapping[Worker, int], now_ns: int) -> tuple[bool, bool]:
    """Update a communicator by an answer; return whether a count rose, and whether one fell."""
    for at, worker in one.workers.items():
        if worker in ranks:
            group.members[at] = ranks[worker]
    has_moved = has_fallen = False
    gone_before = group.gone  # out of reach in two answers in a row counts as dead
    group.is_settled = one.is_settled
    group.gone = {group.members[at] for at in one.missing if at in group.members}
    failed = {at for at, own in one.answered.items() if own.has_failed}
    failed = failed if len(failed) < len(one.answered) else set()  # all of them: an error of one spread
    dead = failed | {at for at, own in one.missing.items() if own.is_dead}
    group.dead = {group.members[at] for at in dead if at in group.members} | (gone_before & group.gone)
    group.gone |= group.dead
    for at, answered in one.answered.items():
        rank = group.members.get(at)
        if rank is None:
            continue  # its process is not one of the job's: nothing is known of its global rank
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
    is_settled = group.is_settled or bool(group.dead)
    if not is_settled or len(group.members) < group.size or len(alive) + len(group.gone) < group.size:
        return
    newest = max((position.total for position in alive.values()), default=0)
    last_of_gone = [group.positions[rank].total if rank in group.positions else newest for rank in group.gone]
    common = min([position.total for position in alive.values()] + [min(at, newest - 1) for at in last_of_gone])
    if newest == 0 and group.dead:  # nothing was launched yet: they wait for it in their first one
        for rank, position in alive.items():
            yield Open(rank, name, _NAMELESS, UNTOLD_CALLS.start, position.since_ns)
        return
    if not 0 <= common < newest:
        yield from _called_otherwise(name, group)
        return
    operator = _next_operator(group, common)
    for rank, position in alive.items():
        if position.total > common:
            yield Open(rank, name, operator, common + 1, position.since_ns)


def _called_otherwise(name: str, group: _Group) -> Iterator[Open]:
    """Yield the last call of each rank where all have launched as many, and not of the same kinds."""
    counts = [position.launched for position in group.positions.values()]
    operators = {operator for own in counts for operator in own}
    least = {operator: min(own.get(operator, 0) for own in counts) for operator in operators}
    more = {rank: {operator: count - least[operator] for operator, count in position.launched.items()}
            for rank, position in group.positions.items()}  # fmt: skip
    if group.gone or not all(any(own.values()) for own in more.values()):
        return
    for rank, position in group.positions.items():
        operator = max(sorted(more[rank]), key=lambda one: more[rank][one])
        yield Open(rank, name, operator, position.total, position.since_ns)


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
