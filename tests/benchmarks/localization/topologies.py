"""The jobs of the suite: 3, 4 and 6 parallel dimensions at each size; none of one split has the shape of another.

Speed, payloads and wiring (buffered sends, shared NICs, interleaved stages, how gradients are reduced) differ from
job to job, so that nothing can be fitted to one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from irregulars.producers.simulator.settings import MIB, SimulatorSettings
from tests.benchmarks.simulated_cases import suite_case

SPLITS: Final = ("development", "test")
SIZES: Final = (512, 1024, 2048, 8192)
DIMENSIONS: Final = (3, 4, 6)
ITERATIONS: Final = 60
SEEDS: Final = {"development": 1_000, "test": 500_000}
"""Seed of the first job of a split; the others count up from it, far below the other split's."""

BASES: Final = 2 * len(DIMENSIONS)
"""Healthy runs of each size: each topology with shared clocks and with clocks that are off."""

_BANDWIDTH_PERIOD_MS: Final = 25.0
_PAIR: Final[dict[str, Any]] = {"tp_operators": 1, "cp_operators": 1, "ep_operators": 1}

_SHAPES: Final[dict[str, dict[int, tuple[dict[str, Any], ...]]]] = {
    "development": {
        512: (
            {"dp": 16, "pp": 4, "tp": 8, "forward_ms": 5.0, "gradient_buckets": 2},
            {"dp": 8, "pp": 4, "tp": 8, "cp": 2, "is_send_buffered": True},
            {"dp": 4, "pp": 4, "tp": 4, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6, **_PAIR},
        ),
        1024: (
            {"dp": 16, "pp": 8, "tp": 8, "gradient_sync": "all_reduce", "gpus_per_nic": 2},
            {"dp": 16, "pp": 8, "tp": 4, "ep": 2, "forward_ms": 3.0, "ep_operators": 1},
            {"dp": 4, "pp": 8, "tp": 4, "cp": 2, "ep": 2, "shards": 2, "rank_order": "tp-cp-ep-pp-dp", **_PAIR},
        ),
        2048: (
            {"dp": 32, "pp": 8, "tp": 8, "gpus_per_host": 4, "forward_ms": 8.0},
            {"dp": 16, "pp": 8, "tp": 8, "shards": 2, "is_send_buffered": True, "gradient_buckets": 4},
            {"dp": 4, "pp": 8, "tp": 8, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6, **_PAIR},
        ),
        8192: (
            {"dp": 64, "pp": 16, "tp": 8, "tp_operators": 1},
            {"dp": 64, "pp": 8, "tp": 8, "cp": 2, "tp_operators": 1, "gradient_sync": "all_reduce"},
            {"dp": 8, "pp": 16, "tp": 8, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6, **_PAIR},
        ),
    },
    "test": {
        512: (
            {"dp": 8, "pp": 8, "tp": 8, "is_send_buffered": True, "forward_ms": 4.0},
            {"dp": 8, "pp": 8, "tp": 4, "ep": 2, "gpus_per_nic": 2, "ep_operators": 1},
            {"dp": 2, "pp": 8, "tp": 4, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6, **_PAIR},
        ),
        1024: (
            {"dp": 64, "pp": 4, "tp": 4, "forward_ms": 9.0, "gradient_buckets": 3},
            {"dp": 16, "pp": 4, "tp": 8, "cp": 2, "model_chunks": 2, "tp_operators": 1},
            {"dp": 8, "pp": 4, "tp": 4, "cp": 2, "ep": 2, "shards": 2, "is_send_buffered": True, **_PAIR},
        ),
        2048: (
            {"dp": 16, "pp": 16, "tp": 8, "gradient_sync": "all_reduce", "tp_operators": 1},
            {"dp": 32, "pp": 4, "tp": 8, "cp": 2, "rank_order": "tp-cp-ep-pp-dp"},
            {"dp": 8, "pp": 4, "tp": 8, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6, **_PAIR},
        ),
        8192: (
            {"dp": 128, "pp": 8, "tp": 8, "tp_operators": 1, "is_send_buffered": True},
            {"dp": 32, "pp": 16, "tp": 8, "ep": 2, "tp_operators": 1, "ep_operators": 1},
            {"dp": 16, "pp": 8, "tp": 8, "cp": 2, "ep": 2, "shards": 2, "micro_batches": 6, **_PAIR},
        ),
    },
}


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """One healthy run that incidents share."""

    split: str
    ranks: int
    number: int  # 0 to `BASES` - 1: twice the place of the topology in `DIMENSIONS`, and 1 more where clocks are off

    @property
    def dimensions(self) -> int:
        """Parallel dimensions of the job."""
        return DIMENSIONS[self.number // 2]

    @property
    def has_bandwidth(self) -> bool:
        """Whether NICs are sampled: with either clock in turn, so that half of the bases of a size are."""
        return (self.number // 2 + self.number) % 2 == 0

    @property
    def shape(self) -> dict[str, int]:
        """Sizes of the parallel dimensions, those of 1 left out."""
        given = _SHAPES[self.split][self.ranks][self.number // 2]
        return {axis: given[axis] for axis in ("dp", "pp", "tp", "cp", "ep", "shards") if axis in given}

    def settings(self, iterations: int = ITERATIONS) -> SimulatorSettings:
        """Return the job, with the noise of the suite."""
        job = SimulatorSettings(
            job=f"{self.split}-{self.ranks}-{self.number}",
            seed=SEEDS[self.split] + 10 * SIZES.index(self.ranks),
            iterations=iterations,
            activation_bytes=16 * MIB,
            bandwidth_period_ms=_BANDWIDTH_PERIOD_MS if self.has_bandwidth else 0.0,
        )
        return suite_case(_shaped(job, _SHAPES[self.split][self.ranks][self.number // 2]), self.number)


def _shaped(job: SimulatorSettings, shape: dict[str, Any]) -> SimulatorSettings:
    more = {"backward_ms": 2 * shape["forward_ms"]} if "forward_ms" in shape else {}
    return replace(job, **shape, **more)
