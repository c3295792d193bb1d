"""Untidy reality: the simulator's shapes with its preset ``field``, whole with faults and sort by sort without.

What a case is follows from split, job shape, kind, strength and number alone. Incidents have times rounded to 1 ns,
1 µs or 10 µs, durations on clocks of their own, a first iteration that compiles, slow phases of hosts and heavy
tails, and every other one has clocks that are off. Healthy jobs have one such thing each, so that a wrong accusation
tells what it was caused by. Development and test share neither a seed nor a topology.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.producers.simulator.effects import fault_ranks
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import Fault
from irregulars.producers.simulator.presets import with_shape
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.benchmarks.incidents import Incident, Incidents, field_case, spread_of_micro_batches
from tests.benchmarks.localization.cases import SEEDS
from tests.benchmarks.localization.places import draw_fault
from tests.benchmarks.localization.running import run_whole
from tests.benchmarks.localization.scoring import accusations

STRENGTHS: Final = (0.1, 0.3, 1.0)
ITERATIONS: Final = 60
HEALTHY_ITERATIONS: Final = 250
JOBS_PER_SORT: Final = 4

_RANK: Final = ("slow_rank", "slow_host")
_ALL: Final = (*_RANK, "slow_nic", "slow_link")
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ddp": _RANK, "fsdp": _RANK, "hybrid": (*_RANK, "slow_nic"), "interleaved": _ALL, "cp_ring": _ALL, "moe": _ALL,
    "shared_nics": _ALL, "unlogged": _ALL,
}  # fmt: skip
"""Kinds that have a plain place in a job of each shape: a ring alone does not tell its NICs from each other."""

_SIZES: Final[dict[str, dict[str, dict[str, int]]]] = {
    "development": {
        "ddp": {"dp": 64}, "fsdp": {"dp": 48}, "hybrid": {"dp": 6}, "interleaved": {"dp": 8}, "cp_ring": {"dp": 4},
        "moe": {"dp": 4}, "shared_nics": {"dp": 8}, "unlogged": {"dp": 8},
    },
    "test": {
        "ddp": {"dp": 128}, "fsdp": {"dp": 96}, "hybrid": {"dp": 8}, "interleaved": {"dp": 6}, "cp_ring": {"dp": 6},
        "moe": {"dp": 6}, "shared_nics": {"dp": 12}, "unlogged": {"dp": 12},
    },
}  # fmt: skip
_TIMES: Final = ("lasting", "fluctuating", "ramp", "from_start", "sawtooth", "spike")
_LENGTHS: Final = {"lasting": 15, "fluctuating": 20, "ramp": 25, "sawtooth": 24, "spike": 1}
_OVER: Final = 8
_PLACES_TRIED: Final = 60

_CLEAN: Final[dict[str, Any]] = {
    "host_phase_ratio": 0.0, "warmup_iterations": 0, "compile_ms": 0.0, "connect_ms": 0.0, "pause_probability": 0.0,
    "micro_batch_spread_ratio": 0.02, "micro_batch_tail": 0.0, "replica_spread_ratio": 0.005,
}  # fmt: skip
SORTS: Final[dict[str, dict[str, Any]]] = {
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
"""What is untidy in healthy jobs of each sort, beside noise, rounding and clocks; ``everything``: the field whole."""

EVERYTHING: Final = "everything"


@dataclass(frozen=True, slots=True)
class FieldCase:
    """One incident in a job as one may meet it."""

    split: str
    job_shape: str  # one of `producers.simulator.presets.SHAPES`
    # kind, excess: Of the fault
    kind: str
    excess: float
    number: int  # place in the split: seed, clocks, resolution and the fault's shape over time follow from it

    @property
    def name(self) -> str:
        """Short name, as `--cases` takes it."""
        return f"{self.split}/field/{self.number}"

    @property
    def seed(self) -> int:
        """Apart from those of all other parts."""
        return SEEDS[self.split] + 20_000 + self.number

    @property
    def shape(self) -> str:
        """How the fault goes over time; one spike is enough to accuse a rank or a host, and nothing else."""
        shape = _TIMES[(self.number + self.number // len(STRENGTHS)) % len(_TIMES)]
        return "lasting" if shape == "spike" and self.kind not in _RANK else shape

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """When the fault acts, half-open."""
        if self.shape == "from_start":
            return ((0, ITERATIONS),)
        first = int(np.random.default_rng([self.seed, 2]).integers(22, 30))
        return ((first, first + _LENGTHS[self.shape]),)

    def settings(self) -> SimulatorSettings:
        """Return the job."""
        return _job(self.split, self.job_shape, self.name, self.seed, self.number, ITERATIONS)


@dataclass(frozen=True, slots=True)
class HealthyFieldCase:
    """One job in which nobody is to blame, of one sort."""

    split: str
    sort: str
    number: int

    @property
    def name(self) -> str:
        """Short name, as `--cases` takes it."""
        return f"{self.split}/field-{self.sort.replace(' ', '-')}/{self.number}"

    @property
    def seed(self) -> int:
        """Apart from those of all other parts."""
        place = (*SORTS, EVERYTHING).index(self.sort)
        return SEEDS[self.split] + 30_000 + 20 * place + self.number

    @property
    def job_shape(self) -> str:
        """Shapes in turn, beginning with another one for each sort."""
        place = (*SORTS, EVERYTHING).index(self.sort)
        return list(KINDS)[(3 * place + self.number) % len(KINDS)]

    def settings(self) -> SimulatorSettings:
        """Return the job."""
        job = _job(self.split, self.job_shape, self.name, self.seed, self.number, HEALTHY_ITERATIONS)
        if self.sort == EVERYTHING:
            return job
        untidy = _CLEAN | SORTS[self.sort]
        spread = spread_of_micro_batches(job, untidy["micro_batch_spread_ratio"])
        return replace(job, **untidy | {"micro_batch_spread_ratio": spread})


def _job(split: str, shape: str, name: str, seed: int, number: int, iterations: int) -> SimulatorSettings:
    """Every fourth job samples its NICs."""
    period_ms = 25.0 if number % 4 == 3 else 0.0
    plain = SimulatorSettings(job=name, seed=seed - number, iterations=iterations, bandwidth_period_ms=period_ms)
    return field_case(replace(with_shape(plain, shape), **_SIZES[split][shape]), number)


def draw_field(split: str) -> list[FieldCase]:
    """Draw the incidents: each kind that has a place with each strength, in each shape of a job."""
    wanted = ((shape, kind, excess) for shape in KINDS for kind, excess in product(KINDS[shape], STRENGTHS))
    return [FieldCase(split, *one, number) for number, one in enumerate(wanted)]


def draw_healthy_field(split: str, jobs: int = JOBS_PER_SORT) -> list[HealthyFieldCase]:
    """Draw the jobs in which nobody is to blame."""
    return [HealthyFieldCase(split, sort, number) for sort in (*SORTS, EVERYTHING) for number in range(jobs)]


def field_fault(case: FieldCase, engine: Engine) -> Iterator[Fault]:
    """Yield faults for a case, the next one where one can't cause the excess.

    Who is slow is logged, whoever else is not: of a host or a NIC some ranks, of a link both ends.
    """
    for attempt in range(_PLACES_TRIED):
        fault = replace(draw_fault(case, engine, attempt), over=_OVER)
        is_logged = engine.topology.is_logged[fault_ranks(fault, engine.topology)]
        if is_logged.all() if fault.kind == "slow_link" else is_logged.any():
            yield fault


def run_field_incident(case: FieldCase) -> Incident:
    """Run the incident of a case.

    Raises
    ------
    InputError
        If no place can cause the excess.
    """
    job = Incidents(case.settings())
    error = InputError(f"a case must have a place for its fault; got none ({case.name})")
    for fault in field_fault(case, job.engine):
        try:
            return job.run(fault)
        except InputError as reason:
            error = reason
    raise error


def run_field(case: FieldCase, delta: float) -> dict[str, Any]:
    """Run and judge one incident."""
    incident, _, row = run_whole(lambda: run_field_incident(case), delta, case.spans[0][0])
    return row | _described(case, incident.settings) | {
        "kind": case.kind, "shape": case.shape, "excess": case.excess, "spans": case.spans,
        "measured_excess": incident.label()["faults"][0]["excess_ratio"],
        "faults": [asdict(one) for one in incident.faults],
    }  # fmt: skip


def run_healthy_field(case: HealthyFieldCase, delta: float) -> dict[str, Any]:
    """Run and judge one job in which nobody is to blame."""
    incident, _, row = run_whole(Incidents(case.settings()).run, delta)
    times_s = incident.iteration_times_s()[incident.settings.warm_from :]
    row |= _described(case, incident.settings) | {"kind": case.sort}
    row["devices_accused"], row["blameless_verdicts"] = accusations(row["verdicts"])
    return row | {"variation": float(times_s.std() / times_s.mean())}


def _described(case: FieldCase | HealthyFieldCase, settings: SimulatorSettings) -> dict[str, Any]:
    return {
        "case": case.name, "job_shape": case.job_shape, "seed": case.seed, "ranks": settings.world_size,
        "clock": settings.clock, "time_resolution_ns": settings.time_resolution_ns,
        "has_bandwidth": settings.bandwidth_period_ms > 0,
    }  # fmt: skip
