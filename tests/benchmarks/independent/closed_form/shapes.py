"""Draws what a job is made of: dimensions, hosts and network, work and sizes of an iteration."""

from __future__ import annotations

import math

import numpy as np

from tests.benchmarks.independent.closed_form.program import Shape
from tests.benchmarks.independent.closed_form.topology import (
    Fabric,
    Hardware,
    Layout,
    choose,
    log_uniform,
    ring_traffic,
)

ROWS = {"tidy": 1_000_000, "untidy": 1_000_000, "ddp": 900_000, "dims": 2_200_000, "large": 3_600_000}
SIZES = {
    "tidy": (64, 128, 256),
    "untidy": (64, 128, 256, 512),
    "dims": (512, 1024),
    "large": (512, 1024, 2048, 4096, 8192),
}
FURTHER_DIMENSIONS = {"untidy": 0.3, "dims": 0.7, "large": 0.2}  # the chance of each
ATTEMPTS = 2000


def _draw_ddp_dims(rng: np.random.Generator, fault: str | None) -> dict[str, int]:
    size = choose(rng, (64, 128, 256))
    if rng.random() < (0.7 if fault in ("nic", "switch") else 0.4):
        zs = choose(rng, (8, 16, 16, 32))
        return {"zs": zs, "dp": size // zs}
    return {"dp": size}


def _draw_sizes(rng: np.random.Generator, suite: str) -> tuple[int, dict[str, int]]:
    """World size, and the sizes of all dimensions but dp."""
    size = choose(rng, SIZES[suite])
    dims = {"tp": choose(rng, (1, 2, 4, 8)), "pp": choose(rng, (1, 2, 4, 8)), "cp": 1, "ep": 1, "zs": 1}
    if suite == "tidy":
        dims["tp"], dims["pp"] = choose(rng, (2, 4, 8)), choose(rng, (2, 4))
    else:
        more = FURTHER_DIMENSIONS[suite]
        if rng.random() < more:
            dims["cp"] = 2
        if rng.random() < more:
            dims["ep"] = choose(rng, (2, 4, 8))
        if rng.random() < more * 0.7:
            dims["zs"] = choose(rng, (2, 4))
    return size, dims


def draw_dims(rng: np.random.Generator, suite: str, fault: str | None) -> dict[str, int]:
    """Sizes of the dimensions; network and stage faults get a pipeline, by which they can be told."""
    if suite == "ddp":
        return _draw_ddp_dims(rng, fault)
    for _ in range(ATTEMPTS):
        size, dims = _draw_sizes(rng, suite)
        rest = size // math.prod(dims.values())
        if math.prod(dims.values()) * rest != size or rest < 2:
            continue
        dims["dp"] = rest
        if suite == "dims" and sum(v > 1 for v in dims.values()) not in (3, 4, 6):
            continue
        if suite == "large" and ((dims["pp"] > 4 and size > 2048) or dims["tp"] == 1):
            continue
        if size // dims["pp"] < 16 or (fault in ("nic", "link", "switch", "stage") and dims["pp"] < 2):
            continue
        return dims
    raise RuntimeError("no dimensions found")


def draw_layout(rng: np.random.Generator, suite: str, fault: str | None) -> tuple[Layout, Fabric]:
    """Layout and fabric such that the fault exists in it (a switch among several, stages of whole hosts)."""
    for _ in range(ATTEMPTS):
        layout = Layout(draw_dims(rng, suite, fault))
        gpus = 8 if suite in ("dims", "large") or rng.random() < 0.8 else 4
        if layout.lanes % gpus or layout.lanes < 2 * gpus or layout.dims["tp"] > gpus:
            continue
        per_nic = 1
        if suite in ("dims", "untidy") and rng.random() < (0.45 if suite == "dims" else 0.25):
            per_nic = choose(rng, (2, 4, gpus))
        hosts = layout.size // gpus
        rails = suite in ("dims", "large", "ddp") and per_nic < gpus and rng.random() < 0.5
        per_switch = choose(rng, [h for h in (2, 4, 8, 16, 32) if h * 4 <= hosts] or [1])
        nic_rate = choose(rng, (12.5e9, 25e9, 50e9)) * 0.92
        nvlink_rate = choose(rng, (160e9, 230e9, 300e9))
        latency = rng.uniform(12e-6, 35e-6)
        hardware = Hardware(gpus, min(per_nic, gpus), rails, per_switch, nic_rate, nvlink_rate, latency)
        fabric = Fabric(layout, hardware, rng)
        if fault == "switch" and (fabric.switches < 2 or hardware.hosts_per_switch < 2):
            continue
        if fault == "imbalance" and layout.replica[-1] < 3:
            continue  # who is late must be able to change
        return layout, fabric
    raise RuntimeError("no layout found")


def draw_shape(rng: np.random.Generator, suite: str, layout: Layout, fabric: Fabric, iterations: int) -> Shape:
    """Work, operators and sizes; sizes follow from the share of time a transfer is to take when healthy."""
    shape = Shape()
    shape.world_logged = rng.random() < 0.8
    budget = ROWS[suite] / (layout.size * iterations)
    if suite == "ddp":
        groups = fabric.layout.groups
        shape.style = "ddp" if "zero" not in groups and rng.random() < 0.6 else "fsdp"
        shape.micros = choose(rng, (1, 1, 2, 4))
        shape.units = int(rng.integers(4, 9))
        while shape.style == "fsdp" and shape.micros > 1 and 3 * shape.units * shape.micros > budget:
            shape.micros //= 2
        pace = log_uniform(rng, 0.05, 0.5)
        shape.forward, shape.backward, shape.optimizer = pace, 2 * pace, pace * rng.uniform(0.05, 0.2)
        kind = "zero" if "zero" in groups else "dp"
        op = "all_reduce" if shape.style == "ddp" else "all_gather"
        share = log_uniform(rng, 0.2, 1.0) if shape.style == "ddp" else log_uniform(rng, 0.15, 0.8)
        per_unit = (shape.backward if shape.style == "ddp" else shape.forward) / shape.units * share
        shape.sizes["grad"] = _size_for(fabric, kind, op, per_unit)
        if "rep" in groups:
            size = _size_for(fabric, "rep", "all_reduce", per_unit * rng.uniform(0.3, 0.9))
            shape.sizes["rep"] = max(size, 1024)
    else:
        _draw_pipeline(rng, suite, shape, fabric, budget)
    return shape


def _schedules(rng: np.random.Generator, suite: str, layout: Layout, budget: float) -> list[tuple[int, int, int]]:
    """(chunks, micro-batches, operators of tp) whose rows of an iteration a rank fit the budget."""
    pp, groups = layout.pp, layout.groups
    is_interleaved = pp >= 4 and rng.random() < (0.5 if suite == "dims" else 0.15)
    options = []
    for chunks in (2, 1) if is_interleaved else (1,):
        for micros in [*(pp * k for k in (4, 3, 2, 1)), 2, 1]:
            for tp_ops in (4, 2, 1):
                if chunks > 1 and micros % pp:
                    continue
                inside = tp_ops * ("tp" in groups) + ("cp" in groups) + 2 * ("ep" in groups)
                rows = micros * chunks * (2 * inside + (4 * (pp - 1) / pp if chunks == 1 else 4)) + 8
                if rows <= budget:
                    options.append((chunks, micros, tp_ops))
    return options or [(1, 1 if pp == 1 else 2, 1)]


def _draw_pipeline(rng: np.random.Generator, suite: str, shape: Shape, fabric: Fabric, budget: float) -> None:
    pp = fabric.layout.pp
    shape.batched = rng.random() < 0.5
    shape.sequence_parallel = rng.random() < 0.6
    shape.gradient = choose(rng, ("rs_ag", "ar"))
    shape.overlap = rng.random() < 0.5
    options = _schedules(rng, suite, fabric.layout, budget)
    most = max(m for _, m, _ in options)
    good = [o for o in options if o[1] >= max(min(most, pp * 2), 1)] or options
    shape.chunks, shape.micros, shape.tp_ops = choose(rng, good)
    shape.buckets = 1 if suite == "large" else int(rng.integers(1, 4))
    iteration = log_uniform(rng, 0.2, 3.0)
    shape.forward = iteration / (shape.micros + pp - 1) / 3
    shape.backward = 2 * shape.forward
    shape.optimizer = iteration * rng.uniform(0.01, 0.05)
    segment = shape.forward / shape.chunks
    sizes = shape.sizes
    sizes["tp"] = _size_for(fabric, "tp", "all_gather", segment * rng.uniform(0.03, 0.12) / shape.tp_ops)
    sizes["cp"] = _size_for(fabric, "cp", "all_gather", segment * rng.uniform(0.02, 0.1))
    sizes["ep"] = _size_for(fabric, "ep", "all_to_all", segment * rng.uniform(0.02, 0.1))
    activations = segment * log_uniform(rng, 0.01, 0.08) * fabric.nic_rate / fabric.gpus_per_nic
    sizes["pp"] = max(int(activations), 4096)
    share = iteration * log_uniform(rng, 0.03, 0.15) / shape.buckets
    kind = "zero" if "zero" in fabric.layout.groups else "dp"
    sizes["grad"] = _size_for(fabric, kind, "all_gather", share)
    sizes["rep"] = _size_for(fabric, "rep", "all_reduce", share * 0.6)
    sizes["edp"] = _size_for(fabric, "edp", "all_reduce", share * rng.uniform(0.3, 0.8))


def _size_for(fabric: Fabric, kind: str, operator: str, seconds: float) -> int:
    """Size of the buffer whose transfer takes so long on a healthy network (16-byte multiple)."""
    if kind not in fabric.layout.groups:
        return 0
    rate = float(fabric.group_rate(kind, 0, fabric.health).mean())
    n = fabric.layout.groups[kind].shape[1]
    return max(int(seconds * rate / ring_traffic(operator, n)) // 16 * 16, 1024)
