"""What the engine executes: a job, and the program of each rank.

A program is the list of instructions of one iteration of one rank. A kernel has one share (a collective, a send, a
recv) or several (a batch of sends and receives: it starts and ends as one).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.benchmarks.independent.event_level.cluster import Cluster, Pair, seconds_per_byte

Handle = int  # the number of a kernel in its program


class Share(NamedTuple):
    """One operator in a kernel; the peer of a collective is -1."""

    operator: str
    communicator: int
    peer: int
    size: int
    data: int


class Compute(NamedTuple):
    """Compute on the main stream; `data` picks the factor of the data, -1 is none."""

    seconds: float
    data: int
    segment: int


class Put(NamedTuple):
    """Put a kernel on a stream, without waiting for it."""

    stream: Hashable
    shares: tuple[Share, ...]
    handle: Handle


class Wait(NamedTuple):
    """Wait until a kernel has ended."""

    handle: Handle


Instructions = list[Compute | Put | Wait]


@dataclass
class Job:
    """Everything the engine wants to know about a job; communicators are numbered in `names`, `kinds`, `members`."""

    shape: str
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    programs: dict[str, list[Instructions]] = field(default_factory=dict)  # of each phase, of each rank
    replica: list[int] = field(default_factory=list)  # of each rank: whose data it works on
    stages: list[int] = field(default_factory=list)  # of each rank, if it has pipeline stages
    microbatches: int = 1
    segments: int = 0  # of compute, at most, in any program
    elastic: bool = False  # message sizes follow the data (sequence lengths)
    coupled: bool = True  # rings go round in step
    latency: float = 1.2e-5
    eager: int = 8192
    buffered: int = 0  # sends end once the bytes are in the kernel (gloo)

    def communicator(self, kind: str, name: str, members: Sequence[int]) -> int:
        """Return the number of the communicator with these members, a new one where there is none of that kind."""
        ranks = list(members)
        if ranks in self.members and self.kinds[self.members.index(ranks)] == kind:
            return self.members.index(ranks)
        self.names.append(name)
        self.kinds.append(kind)
        self.members.append(ranks)
        return len(self.names) - 1

    def pairs_sent(self) -> list[Pair]:
        """Return the ordered pairs of ranks between which something is sent in training."""
        found: set[Pair] = set()
        for rank, program in enumerate(self.programs["train"]):
            for instruction in program:
                if isinstance(instruction, Put):
                    found.update((rank, share.peer) for share in instruction.shares if share.operator == "send")
        return sorted(found)

    def compute_seconds(self) -> float:
        """Return the longest compute time of a rank in a training iteration."""
        programs = self.programs["train"]
        return max(sum(i.seconds for i in program if isinstance(i, Compute)) for program in programs)

    def rows(self) -> int:
        """Return how many rows a training iteration logs."""
        programs = self.programs["train"]
        return sum(sum(len(i.shares) for i in program if isinstance(i, Put)) for program in programs)


class Program:
    """Collects the instructions of one rank."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.instructions: Instructions = []
        self._handles = self._segments = 0

    def compute(self, seconds: float, data: int = -1) -> None:
        """Compute for a while."""
        self.instructions.append(Compute(seconds, data, self._segments))
        self._segments += 1

    def kernel(self, stream: Hashable, shares: Sequence[Share]) -> Handle:
        """Put a kernel on a stream."""
        self.instructions.append(Put(stream, tuple(shares), self._handles))
        self._handles += 1
        return self._handles - 1

    def collective(
        self, operator: str, communicator: int, size: float, data: int = -1, stream: Hashable | None = None
    ) -> Handle | None:
        """Put a collective on the communicator's stream or another, unless the rank is alone."""
        if len(self.job.members[communicator]) < 2:
            return None
        share = Share(operator, communicator, -1, int(size), data)
        return self.kernel(("coll", communicator) if stream is None else stream, [share])

    def wait(self, *handles: Handle | None) -> None:
        """Wait for kernels."""
        for handle in handles:
            if handle is not None:
                self.instructions.append(Wait(handle))

    def blocking(self, operator: str, communicator: int, size: float, data: int = -1) -> None:
        """Put a collective and wait for it."""
        self.wait(self.collective(operator, communicator, size, data))


def build(job: Job, world: int, write: Callable[[Program, bool], None]) -> Job:
    """Have `write(program, is_train)` write the programs of all ranks in both phases."""
    for phase in ("train", "eval"):
        job.programs[phase] = []
        for rank in range(world):
            program = Program(job, rank)
            write(program, phase == "train")
            job.programs[phase].append(program.instructions)
    everything = (i for programs in job.programs.values() for program in programs for i in program)
    job.segments = max(i.segment + 1 for i in everything if isinstance(i, Compute))
    return job


def size_of_a_second(cluster: Cluster, ranks: Sequence[int], operator: str) -> float:
    """Return the `size_bytes` with which an operator takes a second."""
    cost = seconds_per_byte(cluster, ranks, operator)
    return 1.0 / cost if cost else 1e9
