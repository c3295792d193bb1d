"""Draws what a job is like: its machines, its shape, its noise, and how untidy its log is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.benchmarks.independent.event_level.cluster import GB, Cluster
from tests.benchmarks.independent.event_level.noise import Want

ALL_SHAPES: Final = ("ddp", "fsdp", "hsdp", "1f1b", "interleaved", "moe", "cp")

QUIET: Final = Want(
    rank_spread=0.01, iteration_sigma=0.005, rank_sigma=0.008, segment_sigma=0.015, data_sigma=0.01, lengths=0.0,
    network_sigma=0.02, packet_stalls=0.0, stalls=0.0,
)  # fmt: skip
"""Noise of pilot runs."""


@dataclass(frozen=True)
class Style:
    """What the log of a job is like."""

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
    """Draw the machines of a job with a fault of this kind, or with none."""
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
    """Draw the noise of a job, by what a healthy one is to show."""
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
    """Draw what the log is like."""
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
