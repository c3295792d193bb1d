"""The one thing that is wrong; its strength, 0 to 1, is tuned by pilot runs, and means what the kind says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.independent.event_level.cluster import Cluster, Nic, Pair
from tests.benchmarks.independent.event_level.programs import Job


class Fault:
    """No fault; the others override what they touch.

    `reference` is the rank whose iteration decides when capacities change.
    """

    kind: str | None = None
    device: str | None = None
    reference: int = -1
    ranks: Sequence[int] = ()

    def compute(self, rank: int, iteration: int, data: int) -> float:
        """Return how many times longer a rank computes."""
        return 1.0

    def load(self, rank: int, iteration: int) -> float:
        """Return how many times more tokens a rank's experts attract."""
        return 1.0

    def capacities(self, iteration: int, cluster: Cluster) -> Sequence[tuple[int, float]]:
        """Return the resources that change when an iteration begins, with their new capacities."""
        return ()

    def hangs(self, rank: int, iteration: int, place: int) -> bool:
        """Tell whether a rank stops before the instruction at `place`."""
        return False

    def sticks(self, rank: int, iteration: int, place: int) -> bool:
        """Tell whether a rank, which has come to `place`, stays for ever inside the kernel that it starts."""
        return False


class SlowCompute(Fault):
    """A rank, a host or a pipeline stage computes longer."""

    def __init__(
        self, kind: str, device: str | None, ranks: Sequence[int], level: Sequence[float], strength: float
    ) -> None:
        self.kind, self.device, self.ranks, self.level = kind, device, sorted(ranks), level
        self.factor = 1.2 + (0.3 if kind == "slow_stage" else 0.8) * strength
        self._slow = frozenset(ranks)

    def compute(self, rank: int, iteration: int, data: int) -> float:
        return 1.0 + (self.factor - 1.0) * self.level[iteration] if rank in self._slow else 1.0


class SlowResource(Fault):
    """Capacities are divided, by 2 at least and by `widest` at most."""

    def __init__(
        self,
        names: tuple[str, str | None],
        ranks: Sequence[int],
        resources: Sequence[int],
        level: Sequence[float],
        strength: float,
        widest: float,
    ) -> None:
        self.kind, self.device = names
        self.ranks, self.resources, self.level = sorted(ranks), resources, level
        self.reference = self.ranks[0]
        self.divisor = 2.0 * (widest / 2.0) ** strength

    def capacities(self, iteration: int, cluster: Cluster) -> Sequence[tuple[int, float]]:
        factor = 1.0 / (1.0 + (self.divisor - 1.0) * self.level[iteration])
        return [(resource, cluster.capacity[resource] * factor) for resource in self.resources]


class Imbalance(Fault):
    """Uneven data: a fresh factor for each replica, iteration and micro-batch."""

    kind = "imbalance"

    def __init__(self, seed: int, job: Job, level: Sequence[float], strength: float) -> None:
        self.sigma = 0.08 + 0.5 * strength
        self._replica = job.replica
        shape = (len(level), max(job.replica) + 1, job.microbatches + 1)
        draws = np.random.default_rng(seed).normal(0, 1, shape)
        draws[:, :, -1] = 0.0
        spread = np.asarray(level)[:, None, None] * self.sigma
        # Minus half the variance: the mean factor stays 1.
        factors = np.exp(draws * spread - spread**2 / 2 * (draws != 0))
        self._factor: list[list[list[float]]] = factors.tolist()

    def compute(self, rank: int, iteration: int, data: int) -> float:
        return self._factor[iteration][self._replica[rank]][data]

    def load(self, rank: int, iteration: int) -> float:
        return self._factor[iteration][self._replica[rank]][0]


class Hang(Fault):
    """A rank stops before an instruction, or inside the next kernel that it starts."""

    kind = "hang"
    device = "gpu"

    def __init__(self, rank: int, iteration: int, place: int, is_inside: bool) -> None:
        self.ranks, self.iteration, self.place, self.is_inside = [rank], iteration, place, is_inside
        self._is_stuck = False

    def _has_come(self, rank: int, iteration: int, place: int) -> bool:
        return rank == self.ranks[0] and iteration == self.iteration and place >= self.place

    def hangs(self, rank: int, iteration: int, place: int) -> bool:
        return not self.is_inside and self._has_come(rank, iteration, place)

    def sticks(self, rank: int, iteration: int, place: int) -> bool:
        if self.is_inside and not self._is_stuck and self._has_come(rank, iteration, place):
            self._is_stuck = True
            return True
        return False


def draw_levels(rng: np.random.Generator, course: str, iterations: int) -> tuple[list[float], int, int]:
    """Return how far the fault is on in each iteration (0 to 1), its first iteration and the one past its last."""
    level = np.zeros(iterations)
    low = max(8, iterations // 4)
    if course == "start":
        first, past = 0, iterations
    elif course == "window":
        long = min(int(rng.integers(15, 31)), iterations - low - 4)
        first = int(rng.integers(low, iterations - long - 2))
        past = first + long
    else:
        first, past = int(rng.integers(low, iterations // 2 + 5)), iterations
    level[first:past] = 1.0
    if course == "ramp":
        long = min(10, past - first)
        level[first : first + long] = np.linspace(0.2, 1.0, long)
    if course == "fluctuating":
        at, is_on = first, True
        while at < past:
            step = int(rng.integers(2, 6))
            level[at : at + step] = rng.uniform(0.6, 1.0) if is_on else 0.0
            at, is_on = at + step, not is_on
    if course == "periodic":
        every = int(rng.integers(2, 6))
        level[first:past] = [(k % every == 0) for k in range(past - first)]
    if course in ("fluctuating", "periodic"):
        past = int(np.flatnonzero(level)[-1]) + 1
    return level.tolist(), first, past


@dataclass(frozen=True)
class Place:
    """A device of every kind, of which the fault's kind picks one, and the course of the fault."""

    kind: str
    seed: int
    course: str
    level: list[float]  # of each iteration, 0 to 1
    first: int
    past: int
    rank: int
    hang_iteration: int
    hang_progress: float  # how far in its program the rank stops
    hangs_inside: bool
    direction: str
    nic: Nic
    leaf: int
    host: int
    stage: int | None
    pair: Pair | None


def draw_place(seed: int, kind: str, cluster: Cluster, job: Job, iterations: int) -> Place:
    rng = np.random.default_rng(seed)
    course = _draw_course(rng, kind)
    level, first, past = draw_levels(rng, course, iterations)
    return Place(
        kind, seed, course, level, first, past,
        rank=int(rng.integers(cluster.world)),
        hang_iteration=int(rng.integers(iterations // 2, iterations)),
        hang_progress=rng.random(),
        hangs_inside=rng.random() < 0.3,
        direction=str(rng.choice(["tx", "rx", "both"])),
        nic=_draw_nic(rng, cluster, job),
        leaf=int(rng.integers(cluster.leaves)),
        host=int(rng.integers(cluster.hosts)),
        stage=int(rng.integers(max(job.stages) + 1)) if job.stages else None,
        pair=_draw_pair(rng, cluster, job),
    )  # fmt: skip


def _draw_course(rng: np.random.Generator, kind: str) -> str:
    course = str(rng.choice(["lasting", "window", "fluctuating", "start"], p=[0.35, 0.35, 0.15, 0.15]))
    if kind == "slow_rank/gpu":
        course = str(rng.choice(["lasting", "window", "fluctuating", "start", "ramp", "periodic"]))
    if kind == "slow_stage/stage":
        course = "start"
    return course


def _draw_nic(rng: np.random.Generator, cluster: Cluster, job: Job) -> Nic:
    used: set[Nic] = set()
    for members in job.members:
        for source, target, _ in cluster.ring_edges(members):
            if cluster.host(source) != cluster.host(target):
                used.update((cluster.nic(source), cluster.nic(target)))
    return sorted(used)[rng.integers(len(used))]


def _draw_pair(rng: np.random.Generator, cluster: Cluster, job: Job) -> Pair | None:
    pairs = job.pairs_sent()
    away = [pair for pair in pairs if cluster.host(pair[0]) != cluster.host(pair[1])]
    pairs = away if away and rng.random() < 0.85 else pairs
    return pairs[rng.integers(len(pairs))] if pairs else None


def make_fault(place: Place, cluster: Cluster, job: Job, strength: float, level: Sequence[float]) -> Fault:
    """Return the fault at a place, so strong, and on as far as `level` says in each iteration."""
    kind = place.kind.partition("/")[0]
    device = place.kind.partition("/")[2] or None
    if kind in ("slow_rank", "slow_stage"):
        return SlowCompute(kind, device, _slow_ranks(place, cluster, job), level, strength)
    if kind == "imbalance":
        return Imbalance(place.seed + 1, job, level, strength)
    if kind == "hang":
        at = int(place.hang_progress * len(job.programs["train"][place.rank]) * 0.9)
        return Hang(place.rank, place.hang_iteration, at, place.hangs_inside)
    names = (kind, device)
    if names[0] == "slow_nic":
        ways = ((cluster.nic_tx, "tx"), (cluster.nic_rx, "rx"))
        resources = [table[place.nic] for table, way in ways if place.direction in (way, "both")]
        return SlowResource(names, cluster.nic_ranks(place.nic), resources, level, strength, 10.0)
    if names[0] == "slow_communicator":
        ranks = [rank for rank in range(cluster.world) if cluster.leaf(rank) == place.leaf]
        return SlowResource(names, ranks, [cluster.up[place.leaf], cluster.down[place.leaf]], level, strength, 12.0)
    assert place.pair is not None, "a slow link needs a job that sends"
    source, target = place.pair
    pairs = [(source, target), (target, source)] if place.direction == "both" else [(source, target)]
    for pair in pairs:
        if pair not in cluster.link:
            cluster.add_link(*pair)
    return SlowResource(names, place.pair, [cluster.link[pair] for pair in pairs], level, strength, 40.0)


def _slow_ranks(place: Place, cluster: Cluster, job: Job) -> list[int]:
    if place.kind == "slow_rank/gpu":
        return [place.rank]
    if place.kind == "slow_rank/host":
        return [rank for rank in range(cluster.world) if cluster.host(rank) == place.host]
    return [rank for rank, stage in enumerate(job.stages) if stage == place.stage]
