"""Draws jobs of the project's own simulator: any shape, size, preset, fault, excess and pattern, or a healthy one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.dtypes import Floats
from irregulars.errors import InputError
from irregulars.messages.kinds import device_kind
from irregulars.producers.simulator.effects import fault_ranks
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import FAULT_KINDS, Fault, parse_fault
from irregulars.producers.simulator.settings import (
    FIELD,
    OFF_CLOCKS,
    SHAPES,
    SimulatorSettings,
    with_preset,
    with_shape,
)
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.simulator.truth import calibrated
from tests.benchmarks.makers.places import Wanted, draw_fault

_SALT: Final = 35  # apart from the generators of the jobs themselves
_FAULTY: Final = 0.7
_TRIES: Final = 20
_PLACES_TRIED: Final = 4
_LEAST_EXCESS: Final = 0.08  # below, the other makers too call a fault hard
_LASTING: Final = ("slow_stage", "uneven_data", "hang")  # what a single iteration can't show, or nothing follows
_KINDS: Final = tuple(sorted(FAULT_KINDS, key=lambda kind: kind in _LASTING))  # in this order seeds draw them
_PATTERNS: Final = (
    "lasting", "lasting", "single", "recurring", "from_start", "fluctuating", "ramp", "sawtooth",
)  # fmt: skip
_SORTS: Final[dict[str, dict[str, Any]]] = {
    "clean": {},
    "stalls": {"stalls_per_iteration": 0.05},
    "checkpoints": {"checkpoint_every": 20, "is_checkpoint_marked": False},
    "evaluation": {"evaluate_every": 25, "evaluation_passes": 3, "is_evaluation_marked": False},
    "warm-up": {"warmup_iterations": 8, "warmup_ratio": 0.4, "compile_ms": 3000.0, "connect_ms": 20.0},
    "new workload": {"workload_changes": ((60, 1.3), (130, 0.8), (190, 1.6))},
    "slow phases": {"host_phase_ratio": 0.045, "host_phase_iterations": 25.0},
    "sequence lengths": {"micro_batch_spread_ratio": 0.12, "micro_batch_tail": 4.0, "replica_spread_ratio": 0.03},
    "pauses": {"pause_probability": 0.002, "pause_tail_index": 1.5},
}
"""What is untidy in healthy jobs of each sort, beside noise, rounding and clocks."""

_SPREADS: Final = (
    "gap_noise_ratio", "transfer_noise_ratio", "rank_spread_ratio", "replica_spread_ratio",
    "pause_probability", "elapsed_clock_ppm", "shared_clock_error_us", "compile_ms",
)  # fmt: skip
_SIZES: Final = (0.5, 1.5)
_ITERATION_SPREADS: Final = (0.004, 0.045)  # the other sorts add 1 to 3 %
_RESOLUTIONS_NS: Final = (1_000, 10_000, 1)
_FIELD: Final = 71  # apart from the generators of a job


def write_simulated(seed: int, number: int, directory: Path) -> None:
    """Draw one job, and write its trace directory with the truth; another one while it has no place for its fault."""
    rng = np.random.default_rng([seed, number, _SALT])
    for _ in range(_TRIES):
        job = _draw_job(rng, seed, number)
        wanted = _draw_fault(rng, job) if number % 10 < 10 * _FAULTY else None
        try:
            job = replace(job, faults=_fitted(rng, job, wanted) if wanted else ())
            label = simulate_trace(directory, job)
        except (InputError, ValueError):  # no device of the kind is told apart by its lanes, or can cost as much
            continue
        told = json.dumps(_label(label, job, wanted), indent=1)
        (directory / "label.json").write_text(told + "\n", encoding="utf-8")
        return
    raise InputError(f"one of {_TRIES} draws must have a place for its fault; got none (seed {seed}, job {number})")


def _draw_job(rng: np.random.Generator, seed: int, number: int) -> SimulatorSettings:
    is_healthy = number % 10 >= 10 * _FAULTY
    shape = str(rng.choice(list(SHAPES)))
    ranks = int(rng.choice([16, 32, 64, 128, 256, 512, 1024], p=[0.1, 0.2, 0.25, 0.25, 0.1, 0.06, 0.04]))
    job = SimulatorSettings(
        job=f"simulator-{seed}-{number}",
        seed=1000 * seed,
        iterations=int(rng.integers(100, 151) if is_healthy else rng.integers(50, 81)),
        bandwidth_period_ms=25.0 if rng.random() < 0.4 else 0.0,
    )
    own: dict[str, Any] = {}
    if shape == "pipeline":
        forward_ms = float(rng.uniform(3, 12))
        own |= {axis: int(rng.choice([2, 4, 8])) for axis in ("pp", "tp")}
        own |= {axis: int(rng.choice([1, 1, 2])) for axis in ("cp", "ep", "shards")}
        own |= {
            "forward_ms": forward_ms, "backward_ms": 2 * forward_ms, "micro_batches": int(rng.choice([4, 6, 8])),
            "gradient_sync": str(rng.choice(["sharded", "all_reduce"])), "is_send_buffered": bool(rng.random() < 0.3),
            "gradient_buckets": int(rng.choice([1, 2, 4])), "gpus_per_nic": int(rng.choice([1, 1, 2])),
        }  # fmt: skip
    if shape == "hybrid":
        own["shards"] = int(rng.choice([4, 8, 16]))
    job = replace(with_shape(job, shape), **own)
    job = replace(job, dp=max(2, ranks // (job.world_size // job.dp)))
    job = (suite_case if rng.random() < 0.5 else field_case)(job, number)
    if is_healthy:
        changes = ((int(rng.integers(30, job.iterations - 20)), float(rng.choice([0.8, 1.2, 1.4]))),)
        sort = _SORTS[str(rng.choice(list(_SORTS)))]
        job = replace(job, **({**sort, "workload_changes": changes} if "workload_changes" in sort else sort))
    return job


def suite_case(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Return a job of the suite: its noise, its own seed, and with every odd number clocks that are off.

    >>> [suite_case(SimulatorSettings(seed=100), n).clock for n in (0, 1)]
    ['shared', 'per_host']
    """
    noisy = with_preset(replace(settings, seed=settings.seed + number), "suite")
    return replace(noisy, **OFF_CLOCKS) if number % 2 else noisy


def field_case(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Return a job as one may meet it: its own seed, and each untidiness of `FIELD` in a size of its own.

    Times are rounded to 1 ns, 1 µs or 10 µs in turn, and with every odd number clocks are off.

    >>> [field_case(SimulatorSettings(), n).time_resolution_ns for n in range(3)]
    [1000, 10000, 1]
    """
    seed = settings.seed + number
    draw = np.random.default_rng([seed, _FIELD]).uniform
    sizes = {name: FIELD[name] * draw(*_SIZES) for name in _SPREADS}
    sizes["iteration_spread_ratio"] = float(np.exp(draw(*np.log(_ITERATION_SPREADS))))
    # A replica that cuts its batch into fewer than four has more sequences in each, and they differ less.
    sizes["micro_batch_spread_ratio"] = draw(0.02, 0.12) * min(math.sqrt(settings.micro_batches / 4), 1.0)
    sizes["host_phase_ratio"] = draw(0.03, 0.045)  # hosts differ by a third: 2 to 6 %
    untidy = with_preset(replace(settings, seed=seed), "field")
    untidy = replace(untidy, **sizes, time_resolution_ns=_RESOLUTIONS_NS[number % len(_RESOLUTIONS_NS)])
    return replace(untidy, **OFF_CLOCKS) if number % 2 else untidy


def _draw_fault(rng: np.random.Generator, job: SimulatorSettings) -> Wanted:
    kind, pattern = str(rng.choice(_KINDS)), str(rng.choice(_PATTERNS))
    # By the contract one slow transfer accuses nobody.
    if pattern == "single" and not device_kind(FAULT_KINDS[kind].device).is_worker:
        pattern = "recurring"
    if kind in _LASTING and pattern not in ("from_start", "fluctuating"):
        pattern = "lasting"
    seed = int(rng.integers(1 << 40))
    least, most = (0.3, 2.0) if pattern in ("single", "recurring") else (0.1, 1.0)
    excess = float(np.exp(rng.uniform(np.log(least), np.log(most))))
    first = int(rng.integers(18, job.iterations - 24))
    past = first + int(rng.integers(12, job.iterations - first)) if rng.random() < 0.6 else job.iterations
    spans = {
        "single": ((first, first + 1),),
        "from_start": ((0, job.iterations),),
        "recurring": _spikes(rng, first, job),
    }
    shape = {"single": "spike", "recurring": "spike"}.get(pattern, pattern)
    return Wanted(seed, kind, shape, excess, spans.get(pattern, ((first, past),)))


def _spikes(rng: np.random.Generator, first: int, job: SimulatorSettings) -> tuple[tuple[int, int], ...]:
    places = first + np.r_[0, np.cumsum(rng.integers(2, 8, int(rng.integers(2, 6))))]
    return tuple((one, one + 1) for one in places.tolist() if one < job.iterations)


def _fitted(rng: np.random.Generator, job: SimulatorSettings, wanted: Wanted) -> tuple[Fault, ...]:
    """Return a fault with the strength that gives the excess in its first span, once for each span."""
    error: Exception = InputError(f"a fault must have a place; got none ({wanted.kind})")
    for fault in _faults(rng, Engine(job), wanted):
        try:
            (fitted,) = calibrated(replace(job, faults=(fault,))).faults
        except InputError as reason:
            error = reason
            continue
        if len(wanted.spans) == 1:
            return (fitted,)
        return tuple(replace(fitted, first=first, past=past) for first, past in wanted.spans)
    raise error


def _faults(rng: np.random.Generator, engine: Engine, wanted: Wanted) -> Iterator[Fault]:
    """Yield faults of the kind; who is slow is logged at least in part, of a link both ends."""
    topology, (first, past) = engine.topology, wanted.spans[0]
    when = f"from={first},to={past},shape={wanted.shape},excess={wanted.excess:.4f}"
    match wanted.kind:
        case "hang":
            rank, inside = rng.choice(np.flatnonzero(topology.is_logged)), rng.choice(["yes", "no", "no"])
            yield parse_fault(f"hang:rank={rank},from={first},at={rng.uniform(0, 0.99):.3f},inside={inside}")
        case "slow_stage":
            # A stage within one host works longer just as the host would.
            if topology.settings.pp > 1 and topology.stage_ranks > topology.settings.gpus_per_host:
                yield parse_fault(f"slow_stage:stage={rng.integers(topology.settings.pp)},{when}")
        case "uneven_data":
            yield parse_fault(f"uneven_data:{when}")
        case _:
            for attempt in range(_PLACES_TRIED):
                fault = draw_fault(wanted, engine, attempt)
                is_logged = topology.is_logged[fault_ranks(fault, topology)]
                if is_logged.all() if wanted.kind == "slow_link" else is_logged.any():
                    yield fault


def _label(label: dict[str, Any], job: SimulatorSettings, wanted: Wanted | None) -> dict[str, Any]:
    """Add to the simulator's label what those of the other makers say; hard by their rule, too."""
    shape = f"{job.world_size} ranks, {job.gradient_sync}, pp {job.pp}, tp {job.tp}"
    if wanted is None:
        return label | {"what": f"healthy: {shape}"}
    faults, is_hard, said, inflation = label["faults"], label["hard"], "", None
    if wanted.kind != "hang":
        healthy_ns = _times_ns(replace(job, faults=()))
        noise_ratio = float(1.05 * np.median(np.abs(np.diff(healthy_ns))) / np.median(healthy_ns))
        excess = sum(one["excess_ratio"] for one in faults) / len(faults)
        is_hard, said = is_hard or excess < max(_LEAST_EXCESS, 2 * noise_ratio), f" x{1 + excess:.2f}"
        # Of each iteration: connecting and compiling, in the first ones, are no fault's loss
        inflation = np.round(_times_ns(calibrated(job)) / healthy_ns, 4).tolist()
    spans = [list(one["iterations"]) for one in faults]
    return label | {
        "device": FAULT_KINDS[wanted.kind].device, "spans": spans, "hard": is_hard, "inflation": inflation,
        "what": f"{wanted.kind}{said}, {'recurring' if len(spans) > 1 else wanted.shape}; {shape}",
    }  # fmt: skip


def _times_ns(job: SimulatorSettings) -> Floats:
    """Return how long each iteration takes."""
    engine = Engine(job)
    return np.array([engine.advance().elapsed_ns for _ in range(job.iterations)])
