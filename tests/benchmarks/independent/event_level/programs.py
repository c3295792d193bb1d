"""What the engine executes: a job, and the program of each rank.

A program is the list of instructions of one iteration of one rank. A kernel has one share (a collective, a send, a
recv) or several (a batch of sends and receives: it starts and ends as one).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.event_level.cluster import Cluster, Pair, round_pairs, seconds_per_byte

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
    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.instructions: Instructions = []
        self._handles = self._segments = 0

    def compute(self, seconds: float, data: int = -1) -> None:
        self.instructions.append(Compute(seconds, data, self._segments))
        self._segments += 1

    def kernel(self, stream: Hashable, shares: Sequence[Share]) -> Handle:
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
        for handle in handles:
            if handle is not None:
                self.instructions.append(Wait(handle))

    def blocking(self, operator: str, communicator: int, size: float, data: int = -1) -> None:
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


def ddp(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Reduce buckets of gradients while backward goes on, and wait for them at the end."""
    world = list(range(cluster.world))
    job = Job("ddp", replica=world)
    kind, name = rng.choice([["dp", "dp0"], ["world", "world"]])
    whole = job.communicator(str(kind), str(name), world)
    buckets = int(rng.integers(8, 18))
    total = size_of_a_second(cluster, world, "all_reduce") * comm * seconds
    sizes = rng.dirichlet([20.0] * buckets) * total

    def write(program: Program, is_train: bool) -> None:
        program.compute(seconds * 0.05)  # loads data
        program.compute(seconds * 0.28, 0)
        handles = []
        if is_train:
            for size in sizes:
                program.compute(seconds * 0.62 / buckets, 0)
                handles.append(program.collective("all_reduce", whole, size))
        program.wait(*handles)
        program.blocking("all_reduce", whole, 8)  # the loss
        if is_train:
            program.compute(seconds * 0.05)

    return build(job, cluster.world, write)


def fsdp(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Shard parameters over all ranks: gather them one unit ahead, scatter gradients."""
    job = Job("fsdp", replica=list(range(cluster.world)))
    return _sharded(rng, cluster, job, cluster.world, seconds, comm)


def hsdp(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Shard parameters inside groups of one host or two, and reduce gradients across the groups."""
    job = Job("hsdp", replica=list(range(cluster.world)))
    width = int(rng.choice([width for width in (cluster.gpus, 2 * cluster.gpus) if width < cluster.world]))
    return _sharded(rng, cluster, job, width, seconds, comm)


def _sharded(rng: np.random.Generator, cluster: Cluster, job: Job, width: int, seconds: float, comm: float) -> Job:
    starts = range(0, cluster.world, width)
    shard = [job.communicator("dp", f"shard{k}", range(at, at + width)) for k, at in enumerate(starts)]
    across = []
    if job.shape == "hsdp":
        across = [job.communicator("dp", f"replicate{k}", range(k, cluster.world, width)) for k in range(width)]
    units = int(rng.integers(6, 13))
    cost = seconds_per_byte(cluster, job.members[shard[0]], "all_gather")
    unit = comm * seconds / units / 3 / cost
    full = unit * width
    if across:
        cost = seconds_per_byte(cluster, job.members[across[0]], "all_reduce")
        reduced = min(unit, comm * seconds / units / cost)
        full, unit = max(full, reduced * width), max(unit, reduced)
    scatter_stream = "scatter" if rng.random() < 0.5 else "gather"
    return build(job, cluster.world, _Sharded(seconds, units, width, unit, full, shard, across, scatter_stream))


@dataclass(frozen=True, slots=True)
class _Sharded:
    seconds: float
    units: int
    width: int
    unit: float  # bytes of a rank's shard of a unit
    full: float  # bytes of a whole unit
    shard: Sequence[int]
    across: Sequence[int]  # empty where all ranks share one set of parameters
    scatter_stream: str

    def __call__(self, program: Program, is_train: bool) -> None:
        program.compute(self.seconds * 0.04)
        self._pass(program, self.seconds * 0.3, is_backward=False)
        if is_train:
            program.wait(*self._pass(program, self.seconds * 0.6, is_backward=True))
            program.compute(self.seconds * 0.06)

    def _pass(self, program: Program, seconds: float, is_backward: bool) -> list[int | None]:
        """Write one pass over all units, and return the kernels that reduce gradients."""
        ahead, reductions = self._gather(program), []
        for k in range(self.units):
            after = self._gather(program) if k + 1 < self.units else None
            program.wait(ahead)
            program.compute(seconds / self.units, 0)
            if is_backward:
                reductions += self._reduce(program, k)
            ahead = after
        return reductions

    def _gather(self, program: Program) -> int | None:
        return program.collective("all_gather", self.shard[program.rank // self.width], self.unit, stream="gather")

    def _reduce(self, program: Program, k: int) -> list[int | None]:
        mine = self.shard[program.rank // self.width]
        reductions = [program.collective("reduce_scatter", mine, self.full, stream=self.scatter_stream)]
        if self.across and k % 3 == 2:
            others = self.across[program.rank % self.width]
            reductions.append(program.collective("all_reduce", others, self.unit * 3, stream="replicate"))
        return reductions


def _groups(rng: np.random.Generator, world: int, width: int, likely: float) -> tuple[list[list[int]], bool]:
    """Return groups of `width` ranks, and whether each has its members on different hosts (as `likely` as said)."""
    spread = world // width
    if rng.random() < likely:
        return [list(range(k, world, spread)) for k in range(spread)], True
    return [list(range(k * width, k * width + width)) for k in range(spread)], False


def moe(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Send tokens to experts and back by all_to_all in each layer, and reduce dense gradients over all ranks."""
    widths = [width for width in (4, 8, 16) if cluster.gpus // 2 <= width < cluster.world]
    groups, is_scattered = _groups(rng, cluster.world, int(rng.choice(widths)), 0.6)
    world = list(range(cluster.world))
    job = Job("moe", replica=world)
    eps = [job.communicator("ep", f"ep{k}", group) for k, group in enumerate(groups)]
    inside = {rank: eps[k] for k, group in enumerate(groups) for rank in group}
    twins = {}
    for place, ranks in enumerate(map(list, zip(*groups, strict=True))):
        twins.update(dict.fromkeys(ranks, job.communicator("dp", f"edp{place}", ranks)))
    whole = job.communicator("world", "world", world)
    layers = int(rng.integers(3, 6))
    token = size_of_a_second(cluster, groups[0], "all_to_all") * seconds * comm * 0.5 / (layers * 4)
    if is_scattered:
        token /= max(1.0, cluster.gpus / cluster.nics)
    dense = size_of_a_second(cluster, world, "all_reduce") * seconds * comm * 0.3
    expert = size_of_a_second(cluster, job.members[twins[0]], "all_reduce") * seconds * comm * 0.15
    return build(job, cluster.world, _Experts(seconds, layers, token, dense, expert, inside, twins, whole))


@dataclass(frozen=True, slots=True)
class _Experts:
    """Writes the programs of ranks that hold experts."""

    seconds: float
    layers: int
    token: float
    dense: float
    expert: float
    inside: dict[int, int]
    twins: dict[int, int]
    whole: int

    def __call__(self, program: Program, is_train: bool) -> None:
        program.compute(self.seconds * 0.03)
        for _ in range(self.layers):
            self._layer(program, self.seconds * 0.3 / self.layers)
        if not is_train:
            return
        handles = []
        for k in range(self.layers):
            self._layer(program, self.seconds * 0.6 / self.layers)
            if k % 2 == 1 or k == self.layers - 1:
                handles.append(program.collective("all_reduce", self.whole, self.dense / ((self.layers + 1) // 2)))
        handles.append(program.collective("all_reduce", self.twins[program.rank], self.expert))
        program.wait(*handles)
        program.compute(self.seconds * 0.04)

    def _layer(self, program: Program, seconds: float) -> None:
        program.compute(seconds * 0.6)
        program.blocking("all_to_all", self.inside[program.rank], self.token)
        program.compute(seconds * 0.4, 0)  # the expert's load is the rank's data factor
        program.blocking("all_to_all", self.inside[program.rank], self.token)


def context(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Pass keys and values round a group in batches of isend and irecv while blocks are computed (ring attention)."""
    width = int(rng.choice([width for width in (4, 8) if width < cluster.world]))
    job = Job("cp")
    groups, is_scattered = _groups(rng, cluster.world, width, 0.7)
    own = {rank: k for k, group in enumerate(groups) for rank in group}
    job.replica = [own[rank] for rank in range(cluster.world)]
    cps = [job.communicator("cp", f"cp{k}", group) for k, group in enumerate(groups)]
    dps = [job.communicator("dp", f"dp{k}", [group[k] for group in groups]) for k in range(width)]
    if rng.random() < 0.5:
        dps = [job.communicator("dp", "dp_cp", range(cluster.world))] * width
    layers = int(rng.integers(2, 5)) if width == 4 else 2
    block = seconds / (layers * width)
    rate = min(cluster.capacity[resource] for a, b in round_pairs(groups[0]) for resource in cluster.path(a, b))
    size = rate * block * 0.3 * comm / (cluster.gpus / cluster.nics if is_scattered else 1)
    grad = size_of_a_second(cluster, job.members[dps[0]], "all_reduce") * seconds * comm * 0.3
    return build(
        job, cluster.world, _RingAttention(seconds, layers, block, size, grad / layers, groups, own, cps, dps)
    )


@dataclass(frozen=True, slots=True)
class _RingAttention:
    """Writes the programs of ranks that share a sequence."""

    seconds: float
    layers: int
    block: float
    size: float
    grad: float
    groups: Sequence[Sequence[int]]
    own: dict[int, int]  # the group of each rank
    cps: Sequence[int]
    dps: Sequence[int]  # by place in the group

    def __call__(self, program: Program, is_train: bool) -> None:
        program.compute(self.seconds * 0.03)
        for _ in range(self.layers):
            self._ring(program, self.block * 0.3, self.size)
        if not is_train:
            return
        place = self.groups[self.own[program.rank]].index(program.rank)
        handles = []
        for _ in range(self.layers):
            self._ring(program, self.block * 0.65, self.size * 2)
            handles.append(program.collective("all_reduce", self.dps[place], self.grad))
        program.wait(*handles)
        program.compute(self.seconds * 0.04)

    def _ring(self, program: Program, seconds: float, size: float) -> None:
        group, cp = self.groups[self.own[program.rank]], self.cps[self.own[program.rank]]
        place = group.index(program.rank)
        before, after = group[place - 1], group[(place + 1) % len(group)]
        exchange = [Share("send", cp, after, int(size), 0), Share("recv", cp, before, int(size), 0)]
        for step in range(len(group)):
            handle = program.kernel("cp", exchange) if step < len(group) - 1 else None
            program.compute(seconds, 0)
            program.wait(handle)
