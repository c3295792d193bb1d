"""Draws which device is broken and how the fault goes; how strong it is comes later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.independent.event_level.cluster import Cluster, Nic, Pair
from tests.benchmarks.independent.event_level.faults import (
    Fault,
    Hang,
    Imbalance,
    SlowCompute,
    SlowResource,
    draw_levels,
)
from tests.benchmarks.independent.event_level.programs import Job


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
    """Draw a place for a fault of this kind in a job."""
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
