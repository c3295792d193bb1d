"""Which incidents the suite holds: every excess with every kind and every shape once at each size.

What a case is follows from split, size and number alone; where its fault sits is drawn by
`tests.benchmarks.localization.places` from the case's own seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from tests.benchmarks.localization.topologies import BASES, ITERATIONS, SEEDS, SIZES, Base

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
