"""What happens to a job: nuisances of healthy clusters, and the fault."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Flags, Floats, Ints
from tests.benchmarks.independent.closed_form.program import Program
from tests.benchmarks.independent.closed_form.topology import Fabric, Health, Layout


@dataclass
class Fault:
    """A culprit and what it does, as hard as `apply` makes it.

    mode: clock (all compute slower), loader (late at the start of an iteration), cpu (late at every launch),
    network, stage, replica (imbalance), hang.
    """

    kind: str
    device: str | None
    ranks: Ints
    mode: str
    onset: str
    iterations: tuple[int, int]  # absolute indices [first, past)
    active: Flags  # over all iterations
    words: str
    target: float = 1.3  # effect that was drawn
    seed: int = 0
    strength: float = 0.0
    direction: str = "both"
    nics: Ints | None = None
    peer: int | None = None
    network: bool = False
    health: Health | None = None
    factor: Floats | None = None  # by rank
    late: float = 0.0  # seconds, loader or cpu
    hang_at: int = -1  # compute index on the culprits' stage

    def on(self, iteration: int) -> bool:
        """Whether it acts in an iteration."""
        return bool(self.active[iteration])

    def apply(self, strength: float, fabric: Fabric, iteration_time: float, compute_ops: float) -> None:
        """Give the fault a strength (about: the share of an iteration, or of a rate, that it takes)."""
        self.strength = strength
        self.factor, self.late = np.ones(fabric.layout.size), 0.0
        if self.mode in ("clock", "stage"):
            self.factor[self.ranks] = 1 + strength
        elif self.mode == "loader":
            self.late = strength * iteration_time
        elif self.mode == "cpu":
            self.late = strength * iteration_time / max(compute_ops, 1)
        elif self.mode == "network":
            self.health = self._slowed(fabric.health.copy(), 1 / (1 + strength))

    def _slowed(self, health: Health, left: float) -> Health:
        if self.kind == "slow_link":
            a, b = self.ranks_in_order
            health.link[a, b] = left
            if self.direction == "both":
                health.link[b, a] = left
            return health
        if self.direction in ("both", "tx"):
            health.tx[self.nics] *= left
        if self.direction in ("both", "rx"):
            health.rx[self.nics] *= left
        return health

    @property
    def ranks_in_order(self) -> tuple[int, int]:
        """Sender and receiver of a link."""
        a, b = self.ranks
        return (int(b), int(a)) if self.peer == a else (int(a), int(b))


@dataclass
class Scenario:
    """Nuisances by iteration, all drawn before: they are the same with and without the fault."""

    layout: Layout
    fabric: Fabric
    phase: list[str]  # train, eval or checkpoint
    common: Floats  # factor of everybody's work
    rank_factor: Floats  # permanent
    stage_factor: Floats  # permanent differences of stages
    host_phase: Floats  # (iteration, host) factor
    warm: Floats  # seconds added at the start, everybody
    gap: float
    rank_sigma: float = 0.004  # of a rank in an iteration
    op_sigma: float = 0.01  # of one piece of compute
    op_tail: float = 0.0  # share of pieces with a heavy tail
    data_sigma: float = 0.0  # of a micro-batch of a replica
    transfer_sigma: float = 0.04
    tail_share: float = 0.0
    # By iteration: (rank, share of its computes done, seconds) of every stall.
    stalls: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    # By iteration: share of collectives done, and seconds.
    network_stalls: dict[int, tuple[float, float]] = field(default_factory=dict)

    def compute(
        self, program: Program, iteration: int, rng: np.random.Generator, fault: Fault | None
    ) -> list[Floats]:
        """Durations of all pieces of compute: a list by stage of (piece, lane)."""
        layout, lanes = self.layout, self.layout.lanes
        acting = fault if fault is not None and fault.on(iteration) else None
        rank_noise = 1 + self.rank_sigma * rng.standard_normal(layout.size, dtype=np.float32)
        data = self._data(program, iteration, rng, acting)
        result = []
        for s in range(layout.pp):
            ranks = slice(s * lanes, (s + 1) * lanes)
            work = program.compute_work[s]
            hosts = self.fabric.host[ranks]
            by_rank = self.rank_factor[ranks] * rank_noise[ranks] * self.host_phase[iteration][hosts]
            by_rank = by_rank * self.common[iteration] * self.stage_factor[s]
            if acting is not None and acting.mode in ("clock", "stage"):
                assert acting.factor is not None
                by_rank = by_rank * acting.factor[ranks]
            noise = self._piece_noise((len(work), lanes), rng)
            took = work[:, None] * by_rank[None, :] * noise * data[program.compute_micro[s]][:, layout.replica]
            if self.warm[iteration]:
                took[0] += self.warm[iteration] * np.exp(0.15 * rng.standard_normal(lanes))
            for rank, share, seconds in self.stalls.get(iteration, ()):
                if ranks.start <= rank < ranks.stop:
                    took[int(share * len(work)), rank - ranks.start] += seconds
            if acting is not None:
                _delay(took, acting, iteration, s, lanes)
            result.append(took)
        return result

    def _data(self, program: Program, iteration: int, rng: np.random.Generator, acting: Fault | None) -> Floats:
        """Factor of the work of every micro-batch (row) of every replica; the last row is work without data."""
        replicas = int(self.layout.replica[-1]) + 1
        micros = max((int(m.max()) for m in program.compute_micro if len(m)), default=0) + 1
        data: Floats = np.exp(self.data_sigma * rng.standard_normal((micros + 1, replicas), dtype=np.float32))
        data[-1] = 1.0
        if acting is not None and acting.mode == "replica":
            who = np.random.default_rng([acting.seed, 5, iteration])
            late = who.choice(replicas, size=who.integers(1, max(1, replicas // 6) + 1), replace=False)
            data[:-1, late] *= 1 + acting.strength * who.uniform(0.6, 1.0, len(late)).astype(np.float32)
        return data

    def _piece_noise(self, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
        noise: Floats = 1 + self.op_sigma * rng.standard_normal(shape, dtype=np.float32)
        np.maximum(noise, 0.5, out=noise)
        if self.op_tail:
            is_long = rng.random(shape, dtype=np.float32) < self.op_tail
            noise[is_long] += (0.3 * rng.pareto(1.8, int(is_long.sum()))).clip(0, 6)
        return noise


def _delay(took: Floats, fault: Fault, iteration: int, stage: int, lanes: int) -> None:
    """Let the culprits of a stage be late by a constant, or for ever."""
    first = stage * lanes
    mine = fault.ranks[(fault.ranks >= first) & (fault.ranks < first + lanes)] - first
    if not len(mine):
        return
    wobble = np.random.default_rng([fault.seed, 6, iteration, stage])
    if fault.mode == "loader":
        took[0, mine] += fault.late * wobble.uniform(0.85, 1.15)
    elif fault.mode == "cpu":
        took[:, mine] += fault.late * wobble.uniform(0.7, 1.3, (len(took), 1))
    elif fault.mode == "hang":
        took[fault.hang_at, mine] = np.inf
