"""Draws what is odd about healthy clusters."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Floats, autoregressive, choose, log_uniform
from tests.benchmarks.independent.closed_form.scenario import Scenario
from tests.benchmarks.independent.closed_form.topology import Fabric

HEALTHY = (
    "clean",
    "stalls",
    "checkpoints",
    "evaluation",
    "warm-up",
    "new workload",
    "host phases",
    "sequence lengths",
)
MESSY = {"tidy": 0.1, "untidy": 0.5, "ddp": 0.3, "dims": 0.3, "large": 0.25}


def draw_scenario(
    rng: np.random.Generator, suite: str, fabric: Fabric, iterations: int, pace: float, healthy: str | None
) -> tuple[Scenario, list[str]]:
    """Nuisances and their names; `healthy` is what a healthy job is about, None for a job with a fault."""
    scenario = _draw_usual(rng, suite, fabric, iterations, pace)
    if suite != "tidy":
        shrink = min(1, 256 / fabric.layout.size)  # more ranks must not make an iteration's worst moment worse
        scenario.data_sigma = choose(rng, (0, 0, 0.01, 0.03, 0.06))
        scenario.op_sigma = rng.uniform(0.005, 0.03)
        scenario.op_tail = choose(rng, (0, 0, 2e-5, 1e-4)) * shrink
        scenario.tail_share = choose(rng, (0, 0, 1e-4, 1e-3)) * shrink
    chance = MESSY[suite] * 0.5
    about = {h: healthy == h or (healthy != "clean" and rng.random() < chance) for h in HEALTHY}
    if suite == "tidy" and healthy is None:
        about = dict.fromkeys(HEALTHY, False) | {"warm-up": rng.random() < 0.3}
    if about["stalls"]:
        _add_stalls(rng, scenario, iterations, pace)
    if about["host phases"]:
        scenario.host_phase = _host_phases(rng, iterations, fabric.hosts, rng.uniform(0.05, 0.25))
    if about["warm-up"]:
        for i in range(int(rng.integers(1, 5))):
            scenario.warm[i] = pace * rng.uniform(0.3, 3.0) / (1 + i)
    if about["new workload"]:
        first = int(iterations * rng.uniform(0.25, 0.75))
        scenario.common[first:] *= choose(rng, (0.75, 0.85, 1.15, 1.25, 1.4))
    if about["sequence lengths"]:
        wave = autoregressive(rng, iterations, choose(rng, (0, 0.5, 0.9)), rng.uniform(0.06, 0.12))
        scenario.common *= np.exp(np.clip(wave, -0.2, 0.2))
    for what, phase in (("evaluation", "eval"), ("checkpoints", "checkpoint")):
        if about[what]:
            every = int(rng.integers(12, 26))
            for i in range(int(rng.integers(5, every)), iterations, every):
                scenario.phase[i] = phase
    return scenario, [h for h in HEALTHY[1:] if about[h]]


def _draw_usual(rng: np.random.Generator, suite: str, fabric: Fabric, iterations: int, pace: float) -> Scenario:
    """The differences and the jitter that every job has."""
    layout, tidy = fabric.layout, suite == "tidy"
    host = rng.normal(0, 0.004, fabric.hosts)[fabric.host]
    rank_factor = np.clip(1 + host + rng.normal(0, rng.uniform(0.004, 0.012), layout.size), 0.96, 1.04)
    stages: Floats = rng.normal(0, 0.006 if tidy else 0.015, layout.pp)
    stage_factor: Floats = 1 + (stages if tidy else np.clip(stages, -0.05, 0.05))
    if layout.pp > 1 and rng.random() < 0.5:
        stage_factor[-1] *= 1 + rng.uniform(0, 0.05)  # the head of the model
    sigma = rng.uniform(0.009, 0.018) if tidy else log_uniform(rng, 0.005, 0.03)
    scenario = Scenario(
        layout=layout,
        fabric=fabric,
        phase=["train"] * iterations,
        common=1 + autoregressive(rng, iterations, 0.3, sigma),
        rank_factor=rank_factor,
        stage_factor=stage_factor,
        host_phase=np.ones((iterations, fabric.hosts)),
        warm=np.zeros(iterations),
        gap=pace * rng.uniform(0.002, 0.02),
    )
    scenario.rank_sigma, scenario.op_sigma = rng.uniform(0.001, 0.004), rng.uniform(0.003, 0.012)
    scenario.transfer_sigma = rng.uniform(0.01, 0.04) if tidy else rng.uniform(0.02, 0.12)
    return scenario


def _add_stalls(rng: np.random.Generator, scenario: Scenario, iterations: int, pace: float) -> None:
    size = scenario.layout.size
    for i in np.flatnonzero(rng.random(iterations) < rng.uniform(0.04, 0.15)).tolist():
        if rng.random() < 0.3:
            scenario.network_stalls[i] = (rng.random() * 0.999, pace * log_uniform(rng, 0.05, 0.5))
        else:
            scenario.stalls[i] = [
                (int(rng.integers(size)), rng.random() * 0.999, pace * log_uniform(rng, 0.05, 0.6))
                for _ in range(int(rng.integers(1, 3)))
            ]


def _host_phases(rng: np.random.Generator, iterations: int, hosts: int, share: float) -> Floats:
    """Hosts that are a few per cent slower for 5 to 25 iterations; `share` of the time in mean."""
    factor = np.ones((iterations, hosts))
    for h in range(hosts):
        for _ in range(rng.poisson(share * iterations / 14)):
            first = int(rng.integers(-10, iterations))
            length = int(rng.integers(5, 25))
            factor[max(first, 0) : max(first + length, 0), h] = 1 + rng.uniform(0.03, 0.06)
    return factor
