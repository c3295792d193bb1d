"""The jobs and incidents of the suite: every excess with every kind and every shape once at each size.

Jobs have 3, 4 and 6 parallel dimensions at each size; none of one split has the shape of another. Speed, payloads and
wiring (buffered sends, shared NICs, interleaved stages, how gradients are reduced) differ from job to job, so that
nothing can be fitted to one of them. What a case is follows from split, size and number alone; where its fault sits
is drawn by `tests.benchmarks.localization.places` from the case's own seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from irregulars.producers.simulator.settings import MIB, SimulatorSettings
from tests.benchmarks.incidents import suite_case

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
        shape = _SHAPES[self.split][self.ranks][self.number // 2]
        more = {"backward_ms": 2 * shape["forward_ms"]} if "forward_ms" in shape else {}
        return suite_case(replace(job, **shape, **more), self.number)


EXCESSES: Final = (0.05, 0.10, 0.20, 0.50, 1.00)
KINDS: Final = ("slow_rank", "slow_host", "slow_nic", "slow_link", "slow_switch")
"""Faults that sit on one device. The contract's other kinds accuse none, or have no excess: measured apart."""

NETWORK_KINDS: Final = ("slow_nic", "slow_link", "slow_switch")
SHAPES: Final = ("spike", "fluctuating", "lasting", "from_start")
COMBINATIONS: Final = tuple(product(EXCESSES, KINDS, SHAPES))

BEFORE: Final = 20
"""Incidents of one healthy run begin alike: before this iteration acts no fault but one that was always there."""

_FIRST: Final = (BEFORE, BEFORE + 5)
_LENGTH: Final = {"lasting": 14, "fluctuating": 18}
_AFTER: Final = 10
_SPIKES: Final = 3
_SPIKE_DISTANCE: Final = (4, 8)


@dataclass(frozen=True, slots=True)
class Case:
    """One incident: what is wanted of it, and when."""

    base: Base
    number: int  # place in its size, from 0
    seed: int  # of the fault's place and times
    kind: str
    shape: str
    excess: float
    spans: tuple[tuple[int, int], ...]  # half-open ranges of iterations in which the fault acts

    @property
    def iterations(self) -> int:
        """Length of the job: it ends soon after its fault."""
        return min(self.spans[-1][1] + _AFTER, ITERATIONS)

    @property
    def name(self) -> str:
        """Short name, as `--cases` takes it."""
        return f"{self.base.split}/{self.base.ranks}/{self.number}"


def draw_cases(split: str, sizes: tuple[int, ...] = SIZES) -> list[Case]:
    """Draw the suite of one split: `COMBINATIONS` in another order for each size, over the bases in turn."""
    return [case for size in sizes for case in _of_size(split, size)]


def _of_size(split: str, size: int) -> Iterator[Case]:
    seed = SEEDS[split] + 10 * SIZES.index(size)
    order = np.random.default_rng([seed, 1]).permutation(len(COMBINATIONS))
    for number, place in enumerate(order.tolist()):
        excess, kind, shape = COMBINATIONS[place]
        base, own = Base(split, size, number % BASES), 1000 * seed + number
        yield Case(base, number, own, kind, shape, excess, _spans(own, kind, shape, base))


def _spans(seed: int, kind: str, shape: str, base: Base) -> tuple[tuple[int, int], ...]:
    """When the fault acts.

    One spike is enough to accuse a rank or a host. The contract accuses NICs, links and switches only if they recur
    or a rate is capped: so where no NIC is sampled, their spikes come back.
    """
    if shape == "from_start":
        return ((0, ITERATIONS),)
    generator = np.random.default_rng([seed, 2])
    first = int(generator.integers(*_FIRST))
    if shape != "spike":
        return ((first, first + _LENGTH[shape]),)
    count = _SPIKES if kind in NETWORK_KINDS and not base.has_bandwidth else 1
    firsts = first + np.r_[0, np.cumsum(generator.integers(*_SPIKE_DISTANCE, count - 1))]
    return tuple((one, one + 1) for one in firsts.tolist())


def choose_quick(cases: list[Case]) -> list[Case]:
    """Take a stratified sample: at the smallest size each kind with each shape, over the excesses that must be found.

    Every second of the other excesses' combinations is left out, and all larger sizes.
    """
    smallest = min(case.base.ranks for case in cases)
    places = {pair: n for n, pair in enumerate(product(KINDS, SHAPES))}
    return [
        case
        for case in cases
        if case.base.ranks == smallest
        and EXCESSES.index(case.excess) == places[case.kind, case.shape] % len(EXCESSES)
    ]
