"""Draws jobs, and tunes the strength of their faults in short pilot runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tests.benchmarks.independent.event_level.cluster import Cluster
from tests.benchmarks.independent.event_level.engine import Engine
from tests.benchmarks.independent.event_level.faults import Fault, Place, draw_place, make_fault
from tests.benchmarks.independent.event_level.noise import (
    QUIET,
    Noise,
    draw_cluster,
    draw_shape,
    draw_style,
    draw_want,
    is_affordable,
)
from tests.benchmarks.independent.event_level.pipelines import interleaved, one_chunk
from tests.benchmarks.independent.event_level.programs import Job, context, ddp, fsdp, hsdp, moe

FAULTS: Final = (
    "slow_rank/gpu", "slow_rank/host", "slow_nic/nic", "slow_link/link", "slow_communicator/switch",
    "slow_stage/stage", "imbalance", "hang",
)  # fmt: skip
NETWORK_FAULTS: Final = ("slow_nic/nic", "slow_link/link", "slow_communicator/switch")
HEALTHY: Final = (
    "clean", "stalls", "checkpoints", "eval", "eval_unmarked", "warmup", "new_workload", "host_phases", "pauses",
)  # fmt: skip
SHAPES: Final[Mapping[str, Callable[[np.random.Generator, Cluster, float, float], Job]]] = {
    "ddp": ddp, "fsdp": fsdp, "hsdp": hsdp, "1f1b": one_chunk, "interleaved": interleaved, "moe": moe, "cp": context,
}  # fmt: skip
PILOT: Final = 4  # iterations of a pilot run
ROWS: Final = 90_000  # how many rows a job may have, about


class Draw:
    """One job: everything about it but its fault."""

    def __init__(self, seed: int, number: int) -> None:
        self.seed = [seed, number]
        rng = np.random.default_rng([*self.seed, 1])
        self._draw_kind(rng)
        self._draw_machines(rng)
        self.seconds = float(np.exp(rng.uniform(np.log(0.08), np.log(0.8))))
        self._comm = float(rng.uniform(0.25, 0.8))
        self._shape_seed = int(rng.integers(1 << 40))
        self._is_coupled = bool(rng.random() < 0.5)
        self.transport = str(rng.choice(["rendezvous", "rendezvous", "eager", "gloo"]))
        self._is_elastic = bool(rng.random() < 0.6)
        self.job = self._build()
        # Communicate less where an iteration would be little else (shared NICs, oversubscribed leaves).
        for _ in range(6):
            if self._pilot(Fault()) < self.job.compute_seconds() * (2.4 if self.job.stages else 1.7):
                break
            self._comm *= 0.5
            self.job = self._build()
        wanted = min(ROWS / self.job.rows(), float(rng.integers(45, 101)))
        self.iterations = int(min(max(wanted, 40), 100))
        self.want = draw_want(rng, self.healthy, self.iterations)
        self._fault_seed = int(rng.integers(1 << 40))
        self.style = draw_style(rng, self.cluster, self.healthy, self.kind)

    def _draw_kind(self, rng: np.random.Generator) -> None:
        self.kind = str(rng.choice(FAULTS)) if rng.random() < 0.65 else None
        self.healthy = None if self.kind else str(rng.choice(HEALTHY))

    def _draw_machines(self, rng: np.random.Generator) -> None:
        while True:
            self.cluster, self.shape = draw_cluster(rng, self.kind), draw_shape(rng, self.kind)
            if is_affordable(rng, self.cluster, self.shape):
                return

    def _build(self) -> Job:
        self.cluster.link.clear()
        rng = np.random.default_rng(self._shape_seed)
        job = SHAPES[self.shape](rng, self.cluster, self.seconds, self._comm)
        are_nics_shared = self.cluster.nics < self.cluster.gpus
        # Flows of their own are too dear to simulate in the largest exchanges.
        job.coupled = self._is_coupled or (self.shape == "moe" and (are_nics_shared or self.cluster.world > 32))
        job.elastic = self._is_elastic
        if self.transport == "eager":
            job.eager = 1 << 20
        if self.transport == "gloo":
            job.buffered = 1 << 22
        return job

    def _pilot(self, fault: Fault) -> float:
        """Return the mean iteration time of a short run with little noise, without its first iteration."""
        noise = Noise([*self.seed, 3], self.cluster, self.job, PILOT, self.seconds, QUIET)
        engine = Engine(self.cluster, self.job, noise, fault, PILOT).run()
        return float(engine.iteration_times()[1:].mean())

    def place(self) -> Place:
        """Draw which device is broken and how the fault goes, in a job that is to have a fault."""
        assert self.kind is not None, "the job is healthy"
        return draw_place(self._fault_seed, self.kind, self.cluster, self.job, self.iterations)

    def tune(self, place: Place) -> float:
        """Return a strength with an effect near a drawn one; change how much is communicated where it has no grip."""
        target = self._draw_target(place)
        most = self._effect(place, 1.0)
        for _ in range(3):
            if most >= min(target, 1.2):
                break
            self._comm *= 1.7 if self.kind in NETWORK_FAULTS else 0.5
            self.job = self._build()
            most = self._effect(place, 1.0)
        if most <= target * 1.03:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(3):
            middle = (low + high) / 2
            if self._effect(place, middle) > target:
                high = middle
            else:
                low = middle
        return (low + high) / 2

    def _draw_target(self, place: Place) -> float:
        """Return what the fault is to make of an iteration time while it is on."""
        rng = np.random.default_rng(self._fault_seed + 2)
        weakest, strongest = (0.03, 0.1) if rng.random() < 0.12 else (0.1, 0.95)
        target = 1.0 + float(np.exp(rng.uniform(np.log(weakest), np.log(strongest))))
        is_on = np.array(place.level[place.first : place.past]) > 0
        return min(2.0, 1.0 + (target - 1.0) / float(is_on.mean()))

    def _effect(self, place: Place, strength: float) -> float:
        level = [float(np.mean([level for level in place.level if level > 0]))] * PILOT
        fault = make_fault(place, self.cluster, self.job, strength, level)
        return self._pilot(fault) / self._pilot(Fault())
