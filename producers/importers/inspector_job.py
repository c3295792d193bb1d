"""The logs of a job's processes, joined, whole or as they grow: processes become ranks, hashes communicators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import P2P, UNKNOWN
from irregulars.producers.importers.groups import ProcessGroup, communicators_of
from irregulars.producers.importers.imported import ImportedJob, RankRows
from irregulars.producers.importers.inspector_lines import Connection, LogParser, Membership, Operation, Process
from irregulars.producers.iteration_inference.operators import OPERATOR_BITS, joined
from irregulars.producers.trace.job_file import RankLocation
from irregulars.words import name_ranks

_MOST_SEQUENCE: Final = 1 << (32 - OPERATOR_BITS)
NOTE_NO_STARTS: Final = (
    "{count} of {all} operators have no start time (only NCCL_INSPECTOR_DUMP_VERBOSE=1 writes it): durations still "
    "tell who arrived last in each collective, but not where an iteration's time went"
)
NOTE_NO_ITERATIONS: Final = "NCCL Inspector knows no training iterations"
NOTE_RANKS: Final = (
    "no communicator holds all processes, so global ranks are not known: "
    "processes are numbered by host and process id"
)
NOTE_PARTS: Final = "of some communicators not all members' logs are here: only members that are here are listed"
NOTE_GAPS: Final = (
    "{count} collectives that others logged are not in the logs of {ranks}: their rows were lost, and nobody is late "
    "by that"
)
NOTE_EARLIER: Final = (
    "{count} processes ended before others of their hosts began, and share no communicator with them: taken for an "
    "earlier start, and left out"
)
NOTE_NO_WAITS: Final = "by the proxies' clocks no rank and no way stands out in what sends waited for"
Members = Mapping[str, Mapping[Process, Membership]]
MOST_OPERATIONS: Final = 8_000_000
MOST_MEMBERSHIPS: Final = 200_000
_ROW: Final = Struct("=5q2d")  # place of process and communicator, and the rest of an `Operation`
_NEVER_NS: Final = int(np.iinfo(np.int64).max)
_COLUMNS: Final = np.dtype([("whole", np.int64, 5), ("real", np.float64, 2)])


class OperationTable:
    """Operators of all processes as numbers, 56 bytes each: logs of hours hold millions."""

    def __init__(self) -> None:
        self._places: dict[tuple[Process, Membership], int] = {}
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def add(self, one: Operation) -> None:
        """Add an operator; InputError if there are more, or more processes and communicators, than a job has."""
        place = self._places.setdefault((one.process, one.member), len(self._places))
        if len(self) >= MOST_OPERATIONS or place >= MOST_MEMBERSHIPS:
            rule = f"{MOST_OPERATIONS} operators, of {MOST_MEMBERSHIPS} pairs of process and communicator"
            raise InputError(f"logs must hold at most {rule}; got more")
        self._rows += _ROW.pack(place, *one[2:])

    def cut(self, length: int) -> None:
        """Keep the first operators alone."""
        del self._rows[length * _ROW.size :]

    def __iter__(self) -> Iterator[Operation]:
        pairs = list(self._places)
        for place, *values in _ROW.iter_unpack(self._rows):
            yield Operation(*pairs[place], *values)

    def leave_out_earlier_starts(self) -> int:
        """Drop processes that ended before others began on their host, with which none shares a communicator.

        Returns how many those are: a job that is started anew may log into the same folder.
        """
        parent: dict[Process | str, Process | str] = {}

        def root(one: Process | str) -> Process | str:
            while (above := parent.setdefault(one, one)) != one:
                parent[one] = one = parent[above]
            return one

        for process, member in self._places:
            parent[root(process)] = root(member.communicator)
        starts: dict[Process | str, int] = {}
        part = {process: starts.setdefault(root(process), len(starts)) for process, _ in self._places}
        if len(starts) < 2:
            return 0
        part_of_place = np.array([part[process] for process, _ in self._places])
        rows = np.frombuffer(self._rows, _COLUMNS)
        place, start_ns = rows["whole"][:, [0, 4]].T
        is_timed = start_ns != UNKNOWN
        first_ns, last_ns = np.full(len(starts), _NEVER_NS), np.full(len(starts), UNKNOWN)
        np.minimum.at(first_ns, part_of_place[place[is_timed]], start_ns[is_timed])
        np.maximum.at(last_ns, part_of_place[place[is_timed]], start_ns[is_timed])
        newest_ns: dict[str, int] = {}  # by host: when the last of its starts began
        for process, n in part.items():
            if last_ns[n] != UNKNOWN:
                newest_ns[process.host] = max(newest_ns.get(process.host, 0), int(first_ns[n]))
        over = {n for process, n in part.items() if UNKNOWN < last_ns[n] < newest_ns[process.host]}
        is_kept = ~np.isin(part_of_place, list(over))
        kept = rows[is_kept[place]]
        kept["whole"][:, 0] = (np.cumsum(is_kept) - 1)[kept["whole"][:, 0]]
        self._places = {pair: n for n, pair in enumerate(compress(self._places, is_kept.tolist()))}
        self._rows = bytearray(kept.tobytes())
        return sum(n in over for n in part.values())

    def lacking(self) -> Counter[Process]:
        """Count the collectives that other members of a communicator logged and a process did not.

        NCCL counts the calls of each function of a communicator: the same one has the same number on all ranks.
        """
        rows = np.frombuffer(self._rows, _COLUMNS)["whole"]
        place, operator, number = rows[~np.isin(rows[:, 1], sorted(P2P)), :3].T
        codes: dict[str, int] = {}
        of_place = np.array([codes.setdefault(member.communicator, len(codes)) for _, member in self._places])
        in_order = np.lexsort((place, number, operator, of_place[place]))
        shares = np.stack([of_place[place], operator, number, place])[:, in_order]
        is_new = np.diff(shares, axis=1, prepend=-1) != 0
        # Sorted, each new communicator, operator or number begins a collective, and with the place a member's share:
        # the places 0 0 1 of one number are three rows, two shares, one collective.
        own = Counter(zip(*shares[[3, 1]][:, is_new.any(axis=0)].tolist(), strict=True))
        logged = Counter(zip(*shares[:2, is_new[:3].any(axis=0)].tolist(), strict=True))
        kinds = grouped((code, (kind, count)) for (code, kind), count in logged.items())
        lacking = Counter[Process]()
        for at, (process, _) in enumerate(self._places):
            lacking[process] += sum(count - own[at, kind] for kind, count in kinds.get(int(of_place[at]), ()))
        return +lacking

    def members(self) -> Members:
        """Processes in each communicator; InputError if one of them is two ranks.

        Processes of containers may have one id, and their containers one name: their rows can't be told apart.
        """
        members: dict[str, dict[Process, Membership]] = {}
        for process, member in self._places:
            known = members.setdefault(member.communicator, {}).setdefault(process, member)
            if known.comm_rank != member.comm_rank:
                raise _alike(process, known, member)
        return members


def _alike(process: Process, one: Membership, other: Membership) -> InputError:
    ranks = f"ranks {one.comm_rank} and {other.comm_rank} of {one.communicator}"
    found = f"two of {process.pid} on {process.host}, {ranks}"
    return InputError(f"processes must be told apart by host and process id; got {found}")


class ProcessRanks(NamedTuple):
    """Global ranks of processes, and how many the job has."""

    of: Mapping[Process, int]
    world_size: int
    is_known: bool


def job_of_operations(
    whole: OperationTable,
    dropped: Mapping[Process, int],
    skipped: Mapping[str, int],
    job: str,
    waited_us: Mapping[Connection, Sequence[int]],
) -> ImportedJob:
    """Join the operators of a job's processes; those of one process in the order of its log.

    `waited_us`: the waits of sends, as in `LogParser.waited_us`. Raises InputError if there are no operators.
    """
    if not len(whole):
        found = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise InputError(f"logs must hold coll_perf or p2p_perf records of NCCL Inspector; got {found or 'none'}")
    earlier = whole.leave_out_earlier_starts()
    members = whole.members()
    ranks = ranks_of_processes(members)
    communicators = _communicators(members, ranks)
    rows: dict[int, RankRows] = {rank: RankRows() for rank in ranks.of.values()}
    of_comm_rank = {(text, m.comm_rank): ranks.of[p] for text, found in members.items() for p, m in found.items()}
    _add_rows(rows, whole, ranks.of, communicators, Counter(), of_comm_rank)
    startless, lacking = sum(one.start_ns == UNKNOWN for one in whole), whole.lacking()
    gaps = {"count": lacking.total(), "ranks": name_ranks([ranks.of[one] for one in lacking])}
    notes = {
        NOTE_NO_ITERATIONS: True, NOTE_NO_STARTS.format(count=startless, all=len(whole)): startless,
        NOTE_EARLIER.format(count=earlier): earlier,
        NOTE_RANKS: not ranks.is_known, NOTE_PARTS: any(len(own) < _size(own) for own in members.values()),
        NOTE_GAPS.format(**gaps): lacking,
        _note_waits(waited_us, ranks, of_comm_rank): waited_us,
    }  # fmt: skip
    lost = {process: max(dropped.get(process, 0), lacking[process]) for process in ranks.of}
    places = {rank: RankLocation(host=process.host, lost_rows=lost[process] or None)
              for process, rank in ranks.of.items()}  # fmt: skip
    return ImportedJob(
        job=job, world_size=ranks.world_size,
        clock="shared" if len({process.host for process in ranks.of}) == 1 else "per_host",
        communicators=communicators.values(), ranks=rows, places=places,
        notes=[note for note, is_so in notes.items() if is_so], skipped=dict(skipped),
    )  # fmt: skip


def _note_waits(
    waited_us: Mapping[Connection, Sequence[int]], ranks: ProcessRanks, members: Mapping[tuple[str, int], int]
) -> str:
    """Return a note on where sends waited most by far: a second opinion on which rank is late, or which link slow."""
    sums = Counter[tuple[int, str]]()
    for one, own in waited_us.items():
        sender, receiver = ranks.of.get(one.process), members.get((one.member.communicator, one.peer))
        # Of a process that logs its proxy alone, and of a peer without a log, the rank is not known.
        if sender is None or receiver is None:
            continue
        way = f"the network took them from {sender} to {receiver}"
        names = (f"rank {sender} made them", f"rank {receiver} had room", way)
        sums.update({(at, name): us for at, (name, us) in enumerate(zip(names, own, strict=True))})
    parts = []
    for wait in range(3):
        own_us = {name: us for (at, name), us in sums.items() if at == wait}
        most = max(own_us, key=lambda name: own_us[name], default="")
        whole_us = sum(own_us.values())
        # Of one or two, one always has half.
        if len(own_us) > 2 and own_us[most] > whole_us / 2:
            parts.append(f"until {most} ({own_us[most] / 1e3:.3g} ms of {whole_us / 1e3:.3g} ms)")
    return f"by the proxies' clocks chunks waited most {', and '.join(parts)}" if parts else NOTE_NO_WAITS


def _size(found: Mapping[Process, Membership]) -> int:
    return next(iter(found.values())).size


def ranks_of_processes(members: Members) -> ProcessRanks:
    """Return global ranks: those in the largest communicator that holds all processes, each with its own rank."""
    processes = {process for found in members.values() for process in found}
    for found in sorted(members.values(), key=_size, reverse=True):
        own = {process: member.comm_rank for process, member in found.items()}
        if own.keys() == processes and len(set(own.values())) == len(own):
            return ProcessRanks(own, _size(found), True)
    in_order = {process: at for at, process in enumerate(sorted(processes))}
    return ProcessRanks(in_order, len(in_order), False)


def _communicators(members: Members, ranks: ProcessRanks) -> dict[str, Communicator]:
    groups = {}
    for identity, found in members.items():
        in_order = sorted((member.comm_rank, ranks.of[process]) for process, member in found.items())
        own = tuple(dict.fromkeys(rank for _, rank in in_order))
        # Its ranks are the global ones, so that those without a log are known too.
        if ranks.is_known and _size(found) == ranks.world_size:
            own = tuple(range(ranks.world_size))
        groups[identity] = ProcessGroup(identity, next(iter(found.values())).name, own)
    made = communicators_of(groups.values(), ranks.world_size)
    return {identity: made[group] for identity, group in groups.items()}


def _add_rows(
    rows: Mapping[int, RankRows],
    operations: Iterable[Operation],
    ranks: Mapping[Process, int],
    communicators: Mapping[str, Communicator],
    counted: Counter[tuple[Any, ...]],
    members: Mapping[tuple[str, int], int],
) -> None:
    """Add operators of processes as rows of their ranks.

    `counted`: sends and recvs of each pair so far, by host, process id, communicator, peer and operator; is changed.
    `members`: global rank of each rank inside of each communicator, as far as it is known.
    """
    for one in operations:
        own = rows[ranks[one.process]]
        communicator = communicators[one.member.communicator]
        # Batches carry a sequence in 32 bits: of a longer job the numbers begin again.
        peer, sequence = UNKNOWN, joined(one.number % _MOST_SEQUENCE, one.operator)
        if one.operator in P2P:
            if len(communicator.ranks) == one.member.size:
                peer = communicator.ranks[one.peer]
            else:  # unknown where the log of the other end is not here
                peer = members.get((one.member.communicator, one.peer), UNKNOWN)
            direction = (*one.process, one.member.communicator, one.peer, one.operator)
            sequence, counted[direction] = counted[direction], counted[direction] + 1
            if peer == UNKNOWN or peer == ranks[one.process]:
                own.unusable += 1
                continue
        own.add(communicator.id, one.operator, sequence, peer, one.start_ns, one.elapsed_ns, one.size_bytes)


class LiveLog:
    """Lines of the processes of a node, as rows of their ranks.

    `job`, `world_size`: the job. A process's rank in the communicator of that size is its global rank: its operators
    before it was seen in there are left out.
    """

    def __init__(self, job: str, world_size: int) -> None:
        self._job, self._world_size = job, world_size
        self._ranks: dict[Process, int] = {}
        self._written_us: dict[Process, int] = {}
        self._members: dict[tuple[str, int], int] = {}
        self._process_of: dict[tuple[str, int], Process] = {}
        self._counted: Counter[tuple[Any, ...]] = Counter()
        self._parsers: dict[str, LogParser] = {}
        self._operations: list[Operation] = []
        self._worlds: dict[tuple[Process, str], Membership] = {}  # that were read just now

    def add(self, file: str, line: bytes) -> None:
        """Take in a line of a file; InputError if it is of another rank under the same host and process id."""
        parser = self._parsers.get(file)
        if parser is None:
            parser = self._parsers[file] = LogParser()
        operation = parser.parse(line)
        if operation is None:
            return
        own = operation.member
        if own.size == self._world_size:
            known = self._worlds.setdefault((operation.process, own.communicator), own)
            if known.comm_rank != own.comm_rank:
                raise _alike(operation.process, known, own)
            self._ranks.setdefault(operation.process, own.comm_rank)
        self._written_us[operation.process] = max(parser.written_us, self._written_us.get(operation.process, 0))
        self._operations.append(operation)

    def job(self) -> ImportedJob | None:
        """Return the rows read so far as a job; None if there are none."""
        known = [one for one in self._operations if one.process in self._ranks]
        if not known:
            return None
        for one in known:
            place = one.member.communicator, one.member.comm_rank
            self._members[place], self._process_of[place] = self._ranks[one.process], one.process
        communicators = self._communicators(known)
        ranks = {rank: RankRows() for rank in {self._ranks[one.process] for one in known}}
        _add_rows(ranks, known, self._ranks, communicators, self._counted, self._members)
        return ImportedJob(
            job=self._job, world_size=self._world_size, clock="per_host",
            communicators=communicators.values(), ranks=ranks,
            places={rank: RankLocation(host=process.host) for process, rank in self._ranks.items()},
        )  # fmt: skip

    def _communicators(self, operations: list[Operation]) -> dict[str, Communicator]:
        """Communicators of these operators; of smaller ones than the world the members seen so far."""
        groups = {}
        for one in operations:
            identity, size = one.member.communicator, one.member.size
            seen = sorted((at, rank) for (text, at), rank in self._members.items() if text == identity)
            own = tuple(range(size)) if size == self._world_size else tuple(dict.fromkeys(rank for _, rank in seen))
            groups[identity] = ProcessGroup(identity, one.member.name, own)
        made = communicators_of(groups.values(), self._world_size)
        # NCCL's hash is the id: unlike a made one it does not depend on the members seen so far.
        return {identity: replace(made[group], id=identity) for identity, group in groups.items()}

    def skipped(self) -> Counter[str]:
        """Count unusable lines and the rows that the processes report as lost, by reason."""
        skipped = sum((parser.skipped for parser in self._parsers.values()), Counter[str]())
        lost = sum(parser.dropped.total() for parser in self._parsers.values())
        outside = sum(one.process not in self._ranks for one in self._operations)
        skipped.update({"records that NCCL Inspector dropped itself": lost} if lost else {})
        skipped.update({"records of processes whose global rank was not told yet": outside} if outside else {})
        return skipped

    def end_reading(self, files: Container[str]) -> None:
        """Forget the operators of this reading, files that are not among these, and processes of earlier starts."""
        # Processes of earlier starts: a later process has their rank, and nothing of them was read just now.
        newest: dict[int, Process] = {}
        for process, rank in sorted(self._ranks.items(), key=lambda one: (self._written_us.get(one[0], 0), one[0])):
            newest[rank] = process
        over = self._ranks.keys() - {one.process for one in self._operations} - set(newest.values())
        self._ranks = {process: rank for process, rank in self._ranks.items() if process not in over}
        self._written_us = {process: us for process, us in self._written_us.items() if process in self._ranks}
        self._members = {at: rank for at, rank in self._members.items() if self._process_of[at] not in over}
        self._process_of = {at: self._process_of[at] for at in self._members}
        self._counted = Counter({key: n for key, n in self._counted.items() if Process(*key[:2]) not in over})
        # Of a file without a process each line names its own.
        named = ((file, one) for file, one in sorted(self._parsers.items()) if one.process not in {None, *over})
        self._parsers = {file: one for file, one in named if file in files}
        for parser in self._parsers.values():
            for counts in (parser.skipped, parser.dropped, parser.waited_us):
                counts.clear()
        self._operations.clear()
        self._worlds.clear()
