"""Reads NCCL Inspector's lines while they are written, and remembers what the next reading needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

from irregulars.messages.announcements import Communicator
from irregulars.producers.foreign_files.groups import Group, communicators_of
from irregulars.producers.foreign_files.imported import ImportedJob, Place, RankRows
from irregulars.producers.importers.nccl_inspector.job import ProcessRanks, RowMaker
from irregulars.producers.importers.nccl_inspector.lines import LogParser, Operation, Process

State = dict[str, Any]


class LiveLog:
    """Lines of the processes of a node, as rows of their ranks.

    Parameters
    ----------
    job, world_size
        The job. A process's rank in the communicator of that size is its global rank: what it did before it was seen
        in there waits for no one, and is left out.
    state
        What `state` gave after the reading before.
    """

    def __init__(self, job: str, world_size: int, state: Mapping[str, Any]) -> None:
        self._job, self._world_size = job, world_size
        self._ranks = {Process(host, pid): rank for host, pid, rank, *_ in state.get("ranks", ())}
        self._written_us = {Process(host, pid): us for host, pid, _, *told in state.get("ranks", ()) for us in told}
        self._members = {(text, comm_rank): rank for text, comm_rank, rank, *_ in state.get("members", ())}
        self._process_of = {
            (text, comm_rank): Process(*told) for text, comm_rank, _, *told in state.get("members", ()) if told
        }
        self._counted = Counter({tuple(key): count for *key, count in state.get("pairs", ())})
        self._parsers = {file: LogParser.of_state(one) for file, one in state.get("parsers", {}).items()}
        self._operations: list[Operation] = []

    def add(self, file: str, line: bytes) -> None:
        """Take in a line of a file."""
        parser = self._parsers.get(file)
        if parser is None:
            parser = self._parsers[file] = LogParser()
        operation = parser.parse(line)
        if operation is None:
            return
        self._written_us[operation.process] = max(parser.written_us, self._written_us.get(operation.process, 0))
        if operation.member.size == self._world_size:
            self._ranks.setdefault(operation.process, operation.member.comm_rank)
        self._operations.append(operation)

    def refuse(self, file: str) -> None:
        """Note that no more lines of a file come: what is kept of it is small, and misleads nobody."""

    def job(self) -> ImportedJob | None:
        """Return the rows read so far as a job; None if there are none."""
        known = [one for one in self._operations if one.process in self._ranks]
        if not known:
            return None
        for one in known:
            place = one.member.communicator, one.member.comm_rank
            self._members[place], self._process_of[place] = self._ranks[one.process], one.process
        communicators = self._communicators(known)
        maker = RowMaker(
            ProcessRanks(self._ranks, self._world_size, True), communicators, self._counted, self._members
        )
        ranks: dict[int, RankRows] = {}
        for one in known:
            maker.add(ranks.setdefault(self._ranks[one.process], RankRows()), one)
        return ImportedJob(
            job=self._job,
            world_size=self._world_size,
            clock="per_host",
            communicators={one.id: one for one in communicators.values()},
            ranks=ranks,
            places={rank: Place(host=process.host) for process, rank in self._ranks.items()},
        )

    def _communicators(self, operations: list[Operation]) -> dict[str, Communicator]:
        """Communicators of these operators; of smaller ones than the world the members seen so far."""
        groups = {}
        for one in operations:
            identity, size = one.member.communicator, one.member.size
            seen = sorted((at, rank) for (text, at), rank in self._members.items() if text == identity)
            own = tuple(range(size)) if size == self._world_size else tuple(dict.fromkeys(rank for _, rank in seen))
            groups[identity] = Group(identity, one.member.name, own)
        made = communicators_of(groups.values(), self._world_size)
        return {identity: _named(made[group], identity) for identity, group in groups.items()}

    def skipped(self) -> Counter[str]:
        """Count unusable lines and the rows that the processes report as lost, by reason."""
        skipped = sum((parser.skipped for parser in self._parsers.values()), Counter[str]())
        lost = sum(parser.dropped.total() for parser in self._parsers.values())
        outside = sum(one.process not in self._ranks for one in self._operations)
        skipped.update({"records that NCCL Inspector dropped itself": lost} if lost else {})
        skipped.update({"records of processes whose global rank was not told yet": outside} if outside else {})
        return skipped

    def state(self, files: Container[str]) -> State:
        """Return what the next reading needs, of these files alone, as JSON values."""
        over = self._over()
        kept = {process: rank for process, rank in self._ranks.items() if process not in over}
        members = {at: rank for at, rank in self._members.items() if self._process_of.get(at) not in over}
        return {
            "ranks": [[*process, rank, self._written_us.get(process, 0)] for process, rank in sorted(kept.items())],
            "members": [[*at, rank, *self._process_of.get(at, ())] for at, rank in sorted(members.items())],
            "pairs": [[*key, count] for key, count in sorted(self._counted.items()) if Process(*key[:2]) not in over],
            "parsers": {
                file: parser.state()
                for file, parser in sorted(self._parsers.items())
                if file in files and parser.process not in {None, *over}  # else each line tells its process itself
            },
        }

    def _over(self) -> set[Process]:
        """Processes of earlier starts: a later process has their rank, and nothing of them was read just now."""
        newest: dict[int, Process] = {}
        for process, rank in sorted(self._ranks.items(), key=lambda one: (self._written_us.get(one[0], 0), one[0])):
            newest[rank] = process
        heard = {one.process for one in self._operations}
        return self._ranks.keys() - heard - set(newest.values())


def _named(communicator: Communicator, identity: str) -> Communicator:
    """NCCL's hash is the id: it does not depend on what was seen so far."""
    return Communicator(identity, communicator.kind, communicator.ranks)
