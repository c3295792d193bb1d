"""Jobs in which nobody is to blame, and jobs of the kinds that accuse no single device.

Healthy jobs, changed workloads, checkpoints and evaluations (marked and not), uneven data: whom the judgement accuses
there is wrong. Apart from them the three kinds of the contract that do not fit the grid of cases: a heavy stage and
uneven data (blameless, but to be named), and hangs (no excess).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from irregulars.producers.simulator.presets import OFF_CLOCKS, with_preset
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.benchmarks.incidents import Incidents
from tests.benchmarks.localization.cases import SEEDS
from tests.benchmarks.localization.running import Hearing, judged_row, truth_of
from tests.benchmarks.localization.scoring import accusations, is_hang_right

ITERATIONS: Final = 250
JOBS_PER_KIND: Final = 4  # so that each kind has 1,000 iterations

_JOBS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "development": (
        {"dp": 8, "pp": 4, "tp": 8}, {"dp": 4, "pp": 8, "tp": 4, "cp": 2},
        {"dp": 16, "pp": 2, "tp": 8, "gradient_sync": "all_reduce"},
        {"dp": 2, "pp": 4, "tp": 4, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6},
    ),
    "test": (
        {"dp": 4, "pp": 8, "tp": 8, "is_send_buffered": True}, {"dp": 8, "pp": 4, "tp": 4, "ep": 2},
        {"dp": 16, "pp": 4, "tp": 4, "gpus_per_nic": 2},
        {"dp": 4, "pp": 2, "tp": 4, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6},
    ),
}  # fmt: skip
KINDS: Final[dict[str, dict[str, Any]]] = {
    "healthy": {},
    "workload changes": {"workload_changes": ((60, 1.3), (130, 0.8), (190, 1.6))},
    "checkpoints, marked": {"checkpoint_every": 20},
    "checkpoints, unmarked": {"checkpoint_every": 20, "is_checkpoint_marked": False},
    "evaluations, marked": {"evaluate_every": 25, "evaluation_passes": 3},
    "evaluations, unmarked": {"evaluate_every": 25, "evaluation_passes": 3, "is_evaluation_marked": False},
    "uneven data": {},
}
FURTHER: Final = ("slow_stage", "uneven_data", "hang")
_UNEVEN: Final = (0.1, 0.2, 0.3, 0.5)
_EXCESSES: Final = (0.1, 0.2, 0.5, 1.0)
_FURTHER_ITERATIONS: Final = 60


@dataclass(frozen=True, slots=True)
class BlamelessCase:
    """One job without a culprit, or of a kind of its own; `number` is its place in its kind."""

    split: str
    kind: str
    number: int

    @property
    def name(self) -> str:
        """Short name, as `--cases` takes it."""
        return f"{self.split}/{self.kind.replace(', ', '-').replace(' ', '-')}/{self.number}"

    @property
    def seed(self) -> int:
        """Apart from the seeds of the grid."""
        place = (*KINDS, *FURTHER).index(self.kind)
        return SEEDS[self.split] + 500 + 20 * place + self.number

    @property
    def is_further(self) -> bool:
        """Whether there is something to name."""
        return self.kind in FURTHER

    def settings(self) -> SimulatorSettings:
        """Return the job, every other one with clocks that are off."""
        shape = _JOBS[self.split][self.number % JOBS_PER_KIND]
        iterations = _FURTHER_ITERATIONS if self.is_further else ITERATIONS
        job = SimulatorSettings(job=self.name, seed=self.seed, iterations=iterations, bandwidth_period_ms=0.0)
        job = with_preset(replace(job, **shape, **KINDS.get(self.kind, {})), "suite")
        return replace(job, **OFF_CLOCKS) if self.number % 2 else job

    def fault(self, world_size: int, stages: int) -> str | None:
        """What is done to the job, if anything."""
        generator = np.random.default_rng([self.seed, 3])
        match self.kind:
            case "uneven data":
                return f"uneven_data:spread={_UNEVEN[self.number % len(_UNEVEN)]}"
            case "uneven_data":
                return f"uneven_data:excess={_EXCESSES[self.number % len(_EXCESSES)]}"
            case "slow_stage":
                stage, excess = generator.integers(stages), _EXCESSES[self.number % len(_EXCESSES)]
                return f"slow_stage:stage={stage},excess={excess},shape=from_start"
            case "hang":
                rank, first = generator.integers(world_size), generator.integers(20, 50)
                at, inside = generator.uniform(0, 0.99), "yes" if self.number % 3 == 2 else "no"
                return f"hang:rank={rank},from={first},at={at:.3f},inside={inside}"
        return None


def draw_blameless(split: str, jobs: int = JOBS_PER_KIND) -> list[BlamelessCase]:
    return [BlamelessCase(split, kind, number) for kind in KINDS for number in range(jobs)]


def draw_further(split: str, jobs: int = 8) -> list[BlamelessCase]:
    return [BlamelessCase(split, kind, number) for kind in FURTHER for number in range(jobs)]


def run_blameless(case: BlamelessCase, delta: float) -> dict[str, Any]:
    settings = case.settings()
    fault = case.fault(settings.world_size, settings.pp)
    incident = Incidents(settings).run(*([fault] if fault else []))
    truth, hearing = truth_of(incident), Hearing(incident, delta)
    hearing.hear(incident.batches())
    row = judged_row(hearing, truth, 0)
    row |= {
        "case": case.name, "kind": case.kind, "seed": case.seed, "ranks": settings.world_size,
        "clock": settings.clock, "fault": fault,
    }  # fmt: skip
    row["devices_accused"], row["blameless_verdicts"] = accusations(row["verdicts"])
    if case.kind == "hang":
        row["is_top1"] = is_hang_right(row["verdicts"], {device[1] for device in truth.culprits})
    return row
