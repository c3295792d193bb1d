"""What is random about a healthy job, drawn before the run: a twin with another fault sees exactly the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.independent.event_level.cluster import Cluster
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
