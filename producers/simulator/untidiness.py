"""Differences between the ranks, hosts, data and transfers of a healthy job, beyond the noise of single operators.

Drawn from the seed alone, for the whole run at once or per iteration, so that any iteration can be run by itself and
a run with faults has the same.

The slow start of a job: connecting, compiling and warming up in its first iterations.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from irregulars.dtypes import Floats, Ints
from irregulars.producers.simulator.calls import has_expert_work
from irregulars.producers.simulator.noise import UNTIDINESS, WARM_UP, generator_of
from irregulars.producers.simulator.settings import NS_PER_MS
from irregulars.producers.simulator.topology import Topology

# How much is compiled in the first and the second iteration, relative to ``compile_ms``.
_COMPILED: Final = (1.0, 0.2)
_COMPILE_SPREAD: Final = 0.15  # caches, and CPUs that others use too


STALL_LOW_RATIO: Final = 0.5
STALL_HIGH_RATIO: Final = 2.0  # a transfer that hangs does so for between these parts of an iteration's time
_RANKS, _HOSTS, _DATA, _STALLS, _PHASES, _REPLICAS, _PAUSES, _EXPERTS, _ROUTERS = range(9)
_LEAST_HOST_PART: Final = 0.3
_SLOWEST_RANK_STDS: Final = 3.0
_MOST_STDS: Final = 4.0  # of a heavy tail: sequences have a longest length
_MOST_PAUSES: Final = 100.0  # longest pause, as a multiple of the shortest: a longer one is a fault
_PHASE_FROM, _PHASE_SIZES = 0.5, (2 / 3, 4 / 3)
# Part of the variance of experts' tokens that lasts; auxiliary losses even out batches, not preferences.
_LASTING_PART: Final = 0.8
_ROUTER_ITERATIONS: Final = 200.0


class Untidiness:
    """The untidiness of one job."""

    def __init__(self, topology: Topology) -> None:
        self._settings = topology.settings
        self._host = topology.host
        self._rank_factor: Floats | None = None
        if ratio := self._settings.rank_spread_ratio:
            drawn = generator_of(self._settings, UNTIDINESS, _RANKS, 0).standard_normal(self._settings.world_size)
            # Acceptance tests sort out slower GPUs.
            self._rank_factor = 1 + ratio * np.clip(drawn, -_SLOWEST_RANK_STDS, _SLOWEST_RANK_STDS)
        hosts = int(topology.host[-1]) + 1
        spells, phases = self._draw_spells(hosts), self._draw_phases(hosts)
        self._host_factor = spells if phases is None else phases if spells is None else spells * phases
        self._popularity: Floats | None = None
        if has_expert_work(self._settings):
            generator = generator_of(self._settings, UNTIDINESS, _EXPERTS, 0)
            shape = self._settings.iterations, self._settings.ep
            self._popularity = autocorrelated(generator, *shape, _ROUTER_ITERATIONS)

    def work_factor(self, iteration: int) -> Floats | None:
        """Per rank: factor on all its work; None: 1 for all."""
        if self._host_factor is None:
            return self._rank_factor
        by_host: Floats = self._host_factor[min(iteration, len(self._host_factor) - 1)][self._host]
        return by_host if self._rank_factor is None else by_host * self._rank_factor

    def warm_up_factor(self, iteration: int) -> float:
        """Factor on all work at the beginning of the job: falls evenly to 1."""
        count = self._settings.warmup_iterations
        return 1 + self._settings.warmup_ratio * max(count - iteration, 0) / count if count else 1.0

    def compile_ns(self, iteration: int) -> Floats | None:
        """Return per rank how long it compiles before its first forward; None: none does."""
        settings = self._settings
        if not settings.compile_ms or iteration >= len(_COMPILED):
            return None
        drawn = generator_of(settings, WARM_UP, iteration).standard_normal(settings.world_size)
        length_ns = settings.compile_ms * NS_PER_MS * _COMPILED[iteration]
        return np.asarray(length_ns * np.maximum(1 + _COMPILE_SPREAD * drawn, 0.5))

    def connecting(self, iteration: int, flow_path: Ints, nowhere: int) -> Ints:
        """Flows that are the first on their path, which has to be connected."""
        if iteration or not self._settings.connect_ms:
            return np.empty(0, dtype=np.int64)
        paths, first = np.unique(flow_path, return_index=True)
        return np.asarray(first[paths != nowhere])

    def load(self, iteration: int) -> Floats | float:
        """Weight of each micro-batch of each replica: the length of its sequences, and how uneven they are."""
        settings = self._settings
        factor: Floats | float = settings.workload_factor(iteration)
        job, replica = settings.iteration_spread_ratio, settings.replica_spread_ratio
        if job or replica:  # all micro-batches of a replica share this: ``(replicas, 1)``
            generator = generator_of(settings, UNTIDINESS, _REPLICAS, iteration)
            # Drawn before the job's number, below: the order of draws is part of a seed's result.
            own = replica * generator.standard_normal((settings.replicas, 1))
            factor = factor * np.exp(job * generator.standard_normal() + own)
        if not settings.micro_batch_spread_ratio:
            return factor
        generator = generator_of(settings, UNTIDINESS, _DATA, iteration)
        # A lognormal of this sigma, and of mean -sigma**2 / 2 in logarithms, has mean 1 and the spread that is set.
        sigma = float(np.sqrt(np.log1p(settings.micro_batch_spread_ratio**2)))
        shape = settings.replicas, settings.micro_batches
        if settings.micro_batch_tail:
            drawn = generator.standard_t(settings.micro_batch_tail, shape)
            return factor * np.exp(sigma * np.clip(drawn, -_MOST_STDS, _MOST_STDS) - sigma**2 / 2)
        return factor * generator.lognormal(-(sigma**2) / 2, sigma, shape)

    def pauses(self, iteration: int) -> tuple[Ints, Floats, Floats]:
        """Which ranks pause: after which part of their steps, and for how many ns."""
        settings = self._settings
        if not settings.pause_probability:
            return np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
        generator = generator_of(settings, UNTIDINESS, _PAUSES, iteration)
        ranks = np.flatnonzero(generator.random(settings.world_size) < settings.pause_probability)
        times = np.minimum(1 + generator.pareto(settings.pause_tail_index, len(ranks)), _MOST_PAUSES)
        return ranks, generator.random(len(ranks)), settings.pause_ms * NS_PER_MS * times

    def expert_load(self, iteration: int) -> Floats | None:
        """Tokens of each rank's experts, relative to the mean of its group; per rank of a stage. None: 1 for all."""
        if self._popularity is None:
            return None
        settings = self._settings
        shape = settings.dp, settings.shards, settings.ep, settings.cp
        lasting = self._popularity[min(iteration, len(self._popularity) - 1)][:, None]
        passing = generator_of(settings, UNTIDINESS, _ROUTERS, iteration).standard_normal(shape)
        # Variances add up, so the parts of the variance are squares of these factors.
        drawn = np.sqrt(_LASTING_PART) * lasting + np.sqrt(1 - _LASTING_PART) * passing
        load = np.exp(settings.expert_spread_ratio * drawn)
        load /= load.mean(axis=2, keepdims=True)
        return np.repeat(load.ravel(), settings.tp)

    def stalls(self, iteration: int, lanes: Ints) -> tuple[Ints, Floats]:
        """Which of these flows hang, and for how many iteration times."""
        generator = generator_of(self._settings, UNTIDINESS, _STALLS, iteration)
        count = int(generator.poisson(self._settings.stalls_per_iteration)) if len(lanes) else 0
        chosen = lanes[generator.integers(len(lanes), size=count)] if count else lanes[:0]
        return chosen, generator.uniform(STALL_LOW_RATIO, STALL_HIGH_RATIO, count)

    def _draw_phases(self, hosts: int) -> Floats | None:
        settings = self._settings
        if not settings.host_phase_ratio:
            return None
        generator = generator_of(settings, UNTIDINESS, _PHASES, 0)
        size = settings.host_phase_ratio * generator.uniform(*_PHASE_SIZES, hosts)
        state = autocorrelated(generator, settings.iterations, hosts, settings.host_phase_iterations)
        # A normal number is above `_PHASE_FROM` (0.5) with probability 0.31: so often a host is slow.
        return np.asarray(1 + size * np.clip(state - _PHASE_FROM, 0.0, 1.0))

    def _draw_spells(self, hosts: int) -> Floats | None:
        settings = self._settings
        if not settings.host_slow_probability:
            return None
        generator = generator_of(settings, UNTIDINESS, _HOSTS, 0)
        factor = np.ones((max(settings.iterations, 1), hosts))
        begins = np.argwhere(generator.random(factor.shape) < settings.host_slow_probability)
        lengths = generator.geometric(min(1 / settings.host_slow_iterations, 1.0), len(begins))
        parts = generator.uniform(_LEAST_HOST_PART, 1.0, len(begins))
        for (first, host), length, part in zip(begins.tolist(), lengths.tolist(), parts.tolist(), strict=True):
            spell = factor[first : first + length, host]
            # Where spells overlap, the slower one counts.
            np.maximum(spell, 1 + settings.host_slow_ratio * part, out=spell)
        return factor


def autocorrelated(generator: np.random.Generator, iterations: int, width: int, memory: float) -> Floats:
    """Draw ``(iterations, width)`` normal numbers, each column with a memory of `memory` iterations (AR(1))."""
    keep = float(np.exp(-1 / memory))
    drawn = generator.standard_normal((max(iterations, 1), width))
    # So each number has variance 1: keep**2 from the one before, the rest drawn anew.
    drawn[1:] *= np.sqrt(1 - keep**2)
    for now in range(1, len(drawn)):
        drawn[now] += keep * drawn[now - 1]
    return drawn
