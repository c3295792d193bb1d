"""What is random about a healthy job, drawn before the run: a twin with another fault sees exactly the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.independent.event_level.cluster import GB, Cluster
from tests.benchmarks.independent.event_level.programs import Job

SALTS: Final = 65536  # how many different draws there are for transfers


@dataclass
class Want:
    """How much noise a job has, and of which kinds."""

    rank_spread: float
    iteration_sigma: float
    rank_sigma: float
    segment_sigma: float
    data_sigma: float
    lengths: float
    network_sigma: float
    packet_stalls: float
    stalls: float
    host_phases: int = 0
    warmup: int = 0
    pauses: int = 0
    checkpoint_every: int = 0
    eval_every: int = 0
    eval_long: int = 1
    new_workload: tuple[int, float] | None = None  # from which iteration on, and how much longer it computes


class Noise:
    """Factors by iteration (lists, for speed).

    speed[iteration][rank]              permanent differences, slow phases of hosts, warm-up, new workloads
    segments[iteration][rank][segment]  lognormal noise of each compute segment
    data[iteration][replica][mb]        how much work (in elastic jobs, bytes) a micro-batch is; the last entry is 1
    load[iteration][rank]               share of the tokens that an expert attracts
    stalls[iteration, rank, segment]    seconds lost once
    network[salt], late[salt]           factor of the bytes, and extra latency, of a transfer
    phase[iteration], shown[iteration]  what the ranks execute, and what the log says they do
    """

    def __init__(
        self, seed: Sequence[int], cluster: Cluster, job: Job, iterations: int, seconds: float, want: Want
    ) -> None:
        rng = np.random.default_rng(seed)
        world = cluster.world
        self._iterations, self._world, self._seconds, self._segments = iterations, world, seconds, job.segments
        self.launch: list[float] = (rng.random(world) * 0.02 * seconds).tolist()
        self.speed = _speed(rng, cluster, iterations, want)
        shape = (world, job.segments)
        self.segments: list[list[list[float]]] = [
            np.exp(rng.normal(0, want.segment_sigma, shape)).tolist() for _ in range(iterations)
        ]
        self.data, self.load = _data(rng, world, job, iterations, want)
        self.network: list[float] = np.exp(np.abs(rng.normal(0, want.network_sigma, SALTS))).tolist()
        late = (rng.random(SALTS) < want.packet_stalls) * rng.uniform(0.1, 0.6, SALTS) * seconds
        self.late: list[float] = late.tolist()
        self.phase = ["train"] * iterations
        self.shown = ["train"] * iterations
        self.stalls: dict[tuple[int, int, int], float] = {}
        self._draw_stalls(rng, want)
        if want.checkpoint_every:
            self._draw_checkpoints(rng, want.checkpoint_every)
        if want.eval_every:
            for first in range(want.eval_every, iterations, want.eval_every):
                for iteration in range(first, min(first + want.eval_long, iterations)):
                    self.phase[iteration] = self.shown[iteration] = "eval"
        self.special = [shown != "train" for shown in self.shown]

    def _draw_stalls(self, rng: np.random.Generator, want: Want) -> None:
        for _ in range(rng.poisson(want.stalls * self._iterations)):
            iteration, rank = int(rng.integers(self._iterations)), int(rng.integers(self._world))
            self._stall(rng, iteration, rank, min(1.5, 0.04 * (1 + rng.pareto(1.6))) * self._seconds)
        for _ in range(want.pauses):  # one pause each, at ever different ranks
            iteration, rank = int(rng.integers(3, self._iterations)), int(rng.permutation(self._world)[0])
            self._stall(rng, iteration, rank, rng.uniform(0.4, 1.5) * self._seconds)

    def _stall(self, rng: np.random.Generator, iteration: int, rank: int, lost: float) -> None:
        key = (iteration, rank, int(rng.integers(max(1, self._segments // 2))))
        self.stalls[key] = self.stalls.get(key, 0.0) + float(lost)

    def _draw_checkpoints(self, rng: np.random.Generator, every: int) -> None:
        writers = self._world if rng.random() < 0.6 else 1
        for iteration in range(every - 1, self._iterations, every):
            for rank in range(writers):
                lost = self._seconds * rng.uniform(1.2, 1.6)
                self.stalls[iteration, rank, 0] = self.stalls.get((iteration, rank, 0), 0) + lost
            self.shown[iteration] = "checkpoint"


def _speed(rng: np.random.Generator, cluster: Cluster, iterations: int, want: Want) -> list[list[float]]:
    own = np.exp(rng.normal(0, want.rank_spread, cluster.world))
    phases = _host_phases(rng, cluster.hosts, iterations, want.host_phases)
    everyone = np.exp(rng.normal(0, want.iteration_sigma, iterations))
    if want.warmup:
        everyone[: want.warmup] *= 1.0 + rng.uniform(0.5, 4.0) * 0.4 ** np.arange(want.warmup)
    if want.new_workload:
        first, factor = want.new_workload
        everyone[first:] *= factor
    per_rank = np.exp(rng.normal(0, want.rank_sigma, (iterations, cluster.world)))
    host_of = np.array([cluster.host(rank) for rank in range(cluster.world)])
    speed: list[list[float]] = (everyone[:, None] * own[None, :] * per_rank * phases[:, host_of]).tolist()
    return speed


def _host_phases(rng: np.random.Generator, hosts: int, iterations: int, count: int) -> NDArray[np.float64]:
    """Return the factors of hosts that run 3-6 % slower for a while, and wander a little all the time."""
    phases = np.ones((iterations, hosts))
    wander = np.zeros(hosts)
    for iteration in range(iterations):
        wander = 0.9 * wander + rng.normal(0, 0.002, hosts)
        phases[iteration] += wander
    for _ in range(count):
        first, long, host = rng.integers(iterations), rng.integers(4, 16), rng.integers(hosts)
        phases[first : first + long, host] *= 1 + rng.uniform(0.03, 0.06)
    return phases


def _data(
    rng: np.random.Generator, world: int, job: Job, iterations: int, want: Want
) -> tuple[list[list[list[float]]], list[list[float]]]:
    shape = (iterations, max(job.replica) + 1, job.microbatches + 1)
    data = np.exp(rng.normal(0, want.data_sigma, shape))
    if want.lengths:
        data *= np.exp(rng.normal(0, want.lengths, (iterations, 1, 1)))
    load = np.ones((iterations, world))
    if job.shape == "moe":
        load = np.exp(rng.normal(0, 0.15, (iterations, world)))
        data[:, :, 0] *= load
    data[:, :, -1] = 1.0
    return data.tolist(), load.tolist()


ALL_SHAPES: Final = ("ddp", "fsdp", "hsdp", "1f1b", "interleaved", "moe", "cp")

QUIET: Final = Want(
    rank_spread=0.01, iteration_sigma=0.005, rank_sigma=0.008, segment_sigma=0.015, data_sigma=0.01, lengths=0.0,
    network_sigma=0.02, packet_stalls=0.0, stalls=0.0,
)  # fmt: skip
"""Noise of pilot runs."""


@dataclass(frozen=True)
class Style:
    is_clock_shared: bool
    start_unit: int  # ns, to which starts are rounded
    elapsed_unit: int
    drop: float  # share of the rows that are lost
    twice: float  # share of the rows that are there twice
    are_losses_known: bool
    exit_skew: float  # s, by which members leave a collective apart
    order: str
    has_no_sizes: bool
    first_iteration: int
    has_iterations: bool
    has_phases: bool
    bandwidth: float  # s between samples, 0 for none
    is_end_known: bool
    logged: list[int] | None  # ranks, if not all


def draw_cluster(rng: np.random.Generator, kind: str | None) -> Cluster:
    gpus = int(rng.choice([4, 8]))
    world = int(rng.choice([16, 32, 64, 128], p=[0.25, 0.4, 0.25, 0.1]))
    if kind == "slow_communicator/switch":
        gpus, world = 4, int(rng.choice([32, 64]))
    if kind == "slow_nic/nic" and world == 16:
        gpus = 4  # with few hosts there is nothing to compare with
    likely = [0.25, 0.25, 0.5] if gpus == 4 else [0.15, 0.15, 0.3, 0.4]
    nics = int(rng.choice([n for n in (1, 2, 4, 8) if n <= gpus], p=likely))
    return Cluster(
        world,
        gpus,
        nics,
        hosts_per_leaf=2 if world // gpus >= 4 else 1,
        nic_rate=float(rng.choice([12.5, 25.0, 50.0])) * GB,
        nvlink_rate=float(rng.choice([150.0, 300.0])) * GB,
        oversubscription=float(rng.choice([1.0, 1.0, 2.0, 3.0])),
    )


def draw_shape(rng: np.random.Generator, kind: str | None) -> str:
    """Draw a shape in which a fault of this kind can be told from others."""
    if kind == "slow_stage/stage":
        return str(rng.choice(["1f1b", "interleaved"]))
    if kind == "slow_link/link":
        return str(rng.choice(["1f1b", "1f1b", "interleaved", "cp"]))
    if kind in ("slow_nic/nic", "slow_communicator/switch"):
        shapes = ["1f1b", "interleaved", "hsdp", "cp", "moe", "ddp", "fsdp"]
        return str(rng.choice(shapes, p=[0.4, 0.24, 0.08, 0.14, 0.08, 0.03, 0.03]))
    return str(rng.choice(ALL_SHAPES, p=[0.14, 0.12, 0.14, 0.22, 0.12, 0.13, 0.13]))


def is_affordable(rng: np.random.Generator, cluster: Cluster, shape: str) -> bool:
    """Tell whether a job is neither too small to say anything nor too dear to simulate."""
    if cluster.hosts < 2 or (shape == "interleaved" and cluster.world < 16):
        return False
    if shape in ("1f1b", "interleaved", "moe", "cp") and cluster.world > 64:
        return False
    return not (shape in ("cp", "interleaved") and cluster.world > 32 and rng.random() < 0.7)


def draw_want(rng: np.random.Generator, healthy: str | None, iterations: int) -> Want:
    want = Want(
        rank_spread=rng.uniform(0.005, 0.015),
        iteration_sigma=float(rng.choice([0.003, 0.01, 0.02])),
        rank_sigma=float(rng.choice([0.003, 0.008, 0.015, 0.03])),
        segment_sigma=float(rng.choice([0.005, 0.015, 0.03, 0.06])),
        data_sigma=float(rng.choice([0.0, 0.01, 0.04])),
        lengths=float(rng.choice([0.0, 0.0, 0.0, 0.0, 0.04, 0.1])),
        network_sigma=float(rng.choice([0.01, 0.04, 0.1])),
        packet_stalls=float(rng.choice([0.0, 0.0, 1e-4])),
        stalls=float(rng.choice([0.0, 0.05, 0.2])),
        host_phases=int(rng.choice([0, 0, 1, 3])),
        warmup=int(rng.choice([0, 0, 1, 3])),
    )
    if healthy == "clean":
        want.stalls = want.packet_stalls = want.lengths = 0.0
        want.host_phases = want.warmup = 0
    if healthy == "stalls":
        want.stalls, want.packet_stalls = rng.uniform(0.3, 1.0), 1e-4
    if healthy == "checkpoints" or (healthy is None and rng.random() < 0.12):
        want.checkpoint_every = int(rng.choice([8, 10, 15, 20]))
    if healthy in ("eval", "eval_unmarked") or (healthy is None and rng.random() < 0.1):
        want.eval_every, want.eval_long = int(rng.integers(12, 25)), int(rng.integers(1, 5))
    if healthy == "warmup":
        want.warmup = int(rng.integers(3, 9))
    if healthy == "new_workload":
        first = int(rng.integers(iterations // 3, 2 * iterations // 3))
        want.new_workload = (first, rng.uniform(1.12, 1.7))
    if healthy == "host_phases":
        want.host_phases = int(rng.integers(4, 12))
    if healthy == "pauses":
        want.pauses = int(rng.integers(5, 16))
    return want


def draw_style(rng: np.random.Generator, cluster: Cluster, healthy: str | None, kind: str | None) -> Style:
    drop = float(rng.choice([0, 0, 0, 0.001, 0.01]))
    logged, are_losses_known = None, bool(rng.random() < 0.5)
    if kind == "hang" and rng.random() < 0.8:  # only then can it be known whether a rank arrived
        drop, are_losses_known = 0.0, True
    if rng.random() < 0.05:
        logged = list(range(0, cluster.world, int(rng.choice([2, 4]))))
    return Style(
        is_clock_shared=bool(rng.random() < 0.55),
        start_unit=int(rng.choice([1, 1000])),
        elapsed_unit=int(rng.choice([1, 1000])),
        drop=drop,
        twice=float(rng.choice([0, 0, 0, 0.003])),
        are_losses_known=are_losses_known,
        exit_skew=float(rng.choice([5e-7, 3e-6])),
        order=str(rng.choice(["end", "rank", "shuffled"])),
        has_no_sizes=bool(rng.random() < 0.08),
        first_iteration=int(rng.choice([0, 0, 1, 500])),
        has_iterations=bool(rng.random() < 0.75),
        has_phases=healthy == "eval" or (healthy != "eval_unmarked" and bool(rng.random() < 0.7)),
        bandwidth=float(rng.choice([0.01, 0.05, 0.1])) if rng.random() < 0.34 else 0.0,
        is_end_known=bool(rng.random() < 0.3),
        logged=logged,
    )
