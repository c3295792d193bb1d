"""The job whose bytes are counted: 2,048 ranks, 1,000 operators per rank and iteration, a fifth of them irregular."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from irregulars.producers.simulator.presets import with_preset
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.benchmarks.incidents import Incidents
from tests.benchmarks.localization.running import Hearing, judged_row, truth_of
from tests.benchmarks.localization.topologies import SEEDS

ITERATIONS: Final = 30
IRREGULAR: Final = (20, 26)
_EXCESS: Final = 0.3
_HEARD_AT_ONCE: Final = 5  # the first hop holds what is not closed yet: two million rows an iteration


@dataclass(frozen=True, slots=True)
class HeavyCase:
    """The one job of its sort."""

    split: str

    @property
    def name(self) -> str:
        """Short name, as `--cases` takes it."""
        return f"{self.split}/2,048 GPUs, 1,000 operators, a fifth irregular"

    def settings(self) -> SimulatorSettings:
        """32 × 8 × 8 ranks, 16 micro-batches, 31 tensor parallel operators in each pass."""
        job = SimulatorSettings(
            job="heavy", dp=32, pp=8, tp=8, micro_batches=16, tp_operators=29, seed=SEEDS[self.split] + 900,
            iterations=ITERATIONS, bandwidth_period_ms=0.0,
        )  # fmt: skip
        return with_preset(job, "suite")


def run_heavy(case: HeavyCase, delta: float) -> dict[str, Any]:
    """Run it, judge it, count the bytes."""
    began_s = time.process_time()
    first, past = IRREGULAR
    incident = Incidents(case.settings()).run(f"slow_rank:rank=777,from={first},to={past},excess={_EXCESS}")
    truth, simulated_s = truth_of(incident), time.process_time() - began_s
    hearing = Hearing(incident, (delta,))
    for part in range(0, ITERATIONS, _HEARD_AT_ONCE):
        is_end = part + _HEARD_AT_ONCE >= ITERATIONS
        hearing.hear(incident.batches(part, part + _HEARD_AT_ONCE), is_end=is_end)
    return judged_row(hearing, truth, first) | {
        "case": case.name, "kind": "slow_rank", "ranks": incident.settings.world_size, "seed": case.settings().seed,
        "simulated_s": simulated_s,
    }  # fmt: skip
