"""What ranks do in one iteration of a pipeline: 1F1B or interleaved, with tensor and data parallelism."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.event_level.cluster import Cluster
from tests.benchmarks.independent.event_level.programs import Handle, Job, Program, Share, build, size_of_a_second


class Piece(NamedTuple):
    """The forward ("F") or backward ("B") pass of a micro-batch through a chunk of the model."""

    kind: str
    chunk: int
    microbatch: int


def pipeline_order(stages: int, stage: int, microbatches: int, chunks: int, is_train: bool) -> list[Piece]:
    """Return the pieces of a stage in the order of 1F1B, interleaved where there are several chunks."""
    total = microbatches * chunks

    def piece(kind: str, k: int) -> Piece:
        if chunks == 1:
            return Piece(kind, 0, k)
        chunk = (k % (stages * chunks)) // stages
        microbatch = k // (stages * chunks) * stages + k % stages
        return Piece(kind, chunks - 1 - chunk if kind == "B" else chunk, microbatch)

    forward = [piece("F", k) for k in range(total)]
    if not is_train:
        return forward
    backward = [piece("B", k) for k in range(total)]
    ahead = stages - stage - 1 if chunks == 1 else (stages - stage - 1) * 2 + (chunks - 1) * stages
    ahead = min(ahead, total)
    order = forward[:ahead]
    for k in range(total - ahead):
        order += [forward[ahead + k], backward[k]]
    return order + backward[total - ahead :]


def one_chunk(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Pipeline in the order of 1F1B."""
    return _pipeline(rng, cluster, seconds, comm, is_interleaved=False)


def interleaved(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float) -> Job:
    """Pipeline with two chunks of the model on each stage."""
    return _pipeline(rng, cluster, seconds, comm, is_interleaved=True)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Which rank is at which stage, data replica and tensor shard, and in which communicators."""

    tp: int
    pp: int
    dp: int
    tps: dict[tuple[int, int], int] = field(default_factory=dict)
    pps: dict[tuple[int, int], int] = field(default_factory=dict)
    dps: dict[tuple[int, int], int] = field(default_factory=dict)

    def at(self, stage: int, replica: int, shard: int) -> int:
        return (stage * self.dp + replica) * self.tp + shard

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank // (self.dp * self.tp), rank // self.tp % self.dp, rank % self.tp

    def join(self, job: Job) -> None:
        stages, replicas, shards = range(self.pp), range(self.dp), range(self.tp)
        if self.tp > 1:
            for s, d in ((s, d) for s in stages for d in replicas):
                self.tps[s, d] = job.communicator("tp", f"tp_s{s}_d{d}", [self.at(s, d, t) for t in shards])
        for d, t in ((d, t) for d in replicas for t in shards):
            self.pps[d, t] = job.communicator("pp", f"pp_d{d}_t{t}", [self.at(s, d, t) for s in stages])
        for s, t in ((s, t) for s in stages for t in shards):
            self.dps[s, t] = job.communicator("dp", f"dp_s{s}_t{t}", [self.at(s, d, t) for d in replicas])


def _draw_grid(rng: np.random.Generator, cluster: Cluster, is_interleaved: bool) -> _Grid:
    options = []
    for tp in (1, 2, 4, 8):
        for pp in (2, 4, 8):
            dp = cluster.world // tp // pp
            does_fit = tp <= cluster.gpus and cluster.world % (tp * pp) == 0 and dp in (2, 4, 8)
            if does_fit and (not is_interleaved or pp == 4):
                options.append((tp, pp, dp))
    return _Grid(*options[rng.integers(len(options))])


def _pipeline(rng: np.random.Generator, cluster: Cluster, seconds: float, comm: float, is_interleaved: bool) -> Job:
    grid = _draw_grid(rng, cluster, is_interleaved)
    tp, pp = grid.tp, grid.pp
    microbatches = pp
    if not is_interleaved and pp < 8:
        microbatches = int(rng.choice([pp, pp + pp // 2, 2 * pp]))
    job = Job("interleaved" if is_interleaved else "1f1b", microbatches=microbatches)
    places = [grid.place(rank) for rank in range(cluster.world)]
    job.replica, job.stages = [place[1] for place in places], [place[0] for place in places]
    grid.join(job)
    world = job.communicator("world", "world", range(cluster.world)) if rng.random() < 0.5 else None
    chunks = 2 if is_interleaved else 1
    slot = seconds / (microbatches + pp - 1) / chunks
    layers = int(rng.integers(1, 3)) if tp > 1 else 1
    tp_size = 0.0
    if tp > 1:
        tp_size = size_of_a_second(cluster, job.members[grid.tps[0, 0]], "all_reduce") * slot * 0.05
    writer = _Pipeline(
        grid, seconds, chunks, microbatches, world, slot, layers, tp_size,
        pp_size=int(_boundary_size(cluster, grid, slot, comm)),
        dp_size=size_of_a_second(cluster, job.members[grid.dps[0, 0]], "all_reduce") * seconds * 0.3 * comm,
        is_batched=not is_interleaved and bool(rng.random() < 0.6),
        is_sharded=bool(rng.random() < 0.5),
        buckets=int(rng.integers(1, 4)),
        lookahead=int(rng.integers(1, 3)),
        uneven=[1.0 + x for x in rng.normal(0, 0.01, pp)],
    )  # fmt: skip
    return build(job, cluster.world, writer)


def _boundary_size(cluster: Cluster, grid: _Grid, slot: float, comm: float) -> float:
    """Return the bytes between two stages, fewer where several ranks send at once over one NIC."""
    tp, gpus, nics = grid.tp, cluster.gpus, cluster.nics
    rate = min(cluster.capacity[resource] for resource in cluster.path(grid.at(0, 0, 0), grid.at(1, 0, 0)))
    sharers = tp * nics / gpus if tp * nics > gpus else 1
    return rate * slot * comm * 0.4 / max(1.0, gpus / nics / sharers if tp > 1 else 1)


@dataclass(frozen=True, slots=True)
class _Pipeline:
    grid: _Grid
    seconds: float
    chunks: int
    microbatches: int
    world: int | None
    slot: float  # forward and backward of a micro-batch on a stage's chunk
    layers: int
    tp_size: float
    pp_size: int
    dp_size: float
    is_batched: bool  # sends and recvs in batches (as Megatron's 1F1B) or alone, recvs posted early
    is_sharded: bool  # reduce_scatter and all_gather instead of all_reduce
    buckets: int
    lookahead: int
    uneven: list[float]

    def __call__(self, program: Program, is_train: bool) -> None:
        stage = self.grid.place(program.rank)[0]
        order = pipeline_order(self.grid.pp, stage, self.microbatches, self.chunks, is_train)
        program.compute(self.seconds * 0.01)
        if self.is_batched:
            pending = self._shares(program, order[0], is_recv=True)
            if pending:
                program.wait(program.kernel("pp", pending))
            for piece, after in zip(order, [*order[1:], None], strict=True):
                self._work(program, piece)
                out = self._shares(program, piece, is_recv=False)
                into = self._shares(program, after, is_recv=True) if after else []
                # What goes out and what comes in over the same boundary is one batch.
                if out and into and out[0].peer == into[0].peer:
                    program.wait(program.kernel("pp", out + into))
                else:
                    for shares in (out, into):
                        if shares:
                            program.wait(program.kernel("pp", shares))
        else:
            self._alone(program, order)
        if is_train:
            self._step(program)

    def _alone(self, program: Program, order: list[Piece]) -> None:
        wanted = [piece for piece in order if self._shares(program, piece, is_recv=True)]
        posted: dict[Piece, Handle] = {}
        for _ in range(min(self.lookahead, len(wanted))):
            self._post(program, wanted, posted)
        sends = []
        for piece in order:
            if piece in posted:
                program.wait(posted.pop(piece))
                if wanted:
                    self._post(program, wanted, posted)
            self._work(program, piece)
            shares = self._shares(program, piece, is_recv=False)
            if shares:
                sends.append(program.kernel(("send", shares[0].peer, piece.kind), shares))
        program.wait(*sends)

    def _post(self, program: Program, wanted: list[Piece], posted: dict[Piece, Handle]) -> None:
        piece = wanted.pop(0)
        shares = self._shares(program, piece, is_recv=True)
        posted[piece] = program.kernel(("recv", shares[0].peer, piece.kind), shares)

    def _shares(self, program: Program, piece: Piece, is_recv: bool) -> list[Share]:
        """Return what is received before a piece, or sent after it: nothing at both ends of the pipeline."""
        stage, replica, shard = self.grid.place(program.rank)
        step = -1 if (piece.kind == "F") == is_recv else 1
        is_first = stage == 0 and piece.chunk == 0 and step == -1
        is_last = stage == self.grid.pp - 1 and piece.chunk == self.chunks - 1 and step == 1
        if is_first or is_last:
            return []
        peer = self.grid.at((stage + step) % self.grid.pp, replica, shard)
        operator = "recv" if is_recv else "send"
        return [Share(operator, self.grid.pps[replica, shard], peer, self.pp_size, piece.microbatch)]

    def _work(self, program: Program, piece: Piece) -> None:
        stage, replica, _ = self.grid.place(program.rank)
        part = 0.35 if piece.kind == "F" else 0.65
        for _ in range(self.layers):
            program.compute(self.slot * self.uneven[stage] * part / self.layers, piece.microbatch)
            if (stage, replica) in self.grid.tps:
                program.blocking("all_reduce", self.grid.tps[stage, replica], self.tp_size, piece.microbatch)

    def _step(self, program: Program) -> None:
        stage, _, shard = self.grid.place(program.rank)
        reduce, operator = self.grid.dps[stage, shard], "reduce_scatter" if self.is_sharded else "all_reduce"
        size = self.dp_size / self.buckets
        program.wait(*[program.collective(operator, reduce, size) for _ in range(self.buckets)])
        if self.world is not None:
            program.blocking("all_reduce", self.world, 4)
        program.compute(self.seconds * 0.03)
        if self.is_sharded:
            program.blocking("all_gather", reduce, self.dp_size / self.grid.dp)
