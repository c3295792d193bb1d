"""What makes the ranks, hosts, data and transfers of a healthy job unequal, beyond the noise of each operator.

Drawn from the seed alone, for the whole run at once or per iteration, so that any iteration can be run by itself and
a run with faults has the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.simulator.noise import untidiness_generator
from producers.simulator.topology import Ints, Topology

Floats = NDArray[np.float64]

STALL_LOW_RATIO: Final = 0.5
STALL_HIGH_RATIO: Final = 2.0
"""A transfer that hangs does so for between these parts of an iteration's time."""

_RANKS, _HOSTS, _DATA, _STALLS = range(4)
_LEAST_HOST_PART: Final = 0.3
_SLOWEST_RANK_STDS: Final = 3.0


class Untidiness:
    """The untidiness of one job."""

    def __init__(self, topology: Topology) -> None:
        self._settings = topology.settings
        self._host = topology.host
        self._rank_factor = self._draw_ranks()
        self._host_factor = self._draw_hosts(int(topology.host[-1]) + 1)

    def work_factor(self, iteration: int) -> Floats | None:
        """Per rank: factor on all its work; None: 1 for all."""
        if self._host_factor is None:
            return self._rank_factor
        by_host: Floats = self._host_factor[min(iteration, len(self._host_factor) - 1)][self._host]
        return by_host if self._rank_factor is None else by_host * self._rank_factor

    def load(self, iteration: int) -> Floats | float:
        """Weight of each micro-batch of each replica: the length of its sequences, and how uneven they are."""
        settings = self._settings
        factor = settings.workload_factor(iteration)
        if not settings.micro_batch_spread_ratio:
            return factor
        generator = untidiness_generator(settings, _DATA, iteration)
        sigma = float(np.sqrt(np.log1p(settings.micro_batch_spread_ratio**2)))
        return factor * generator.lognormal(-(sigma**2) / 2, sigma, (settings.replicas, settings.micro_batches))

    def stalls(self, iteration: int, lanes: Ints) -> tuple[Ints, Floats]:
        """Which of these flows hang, and for how many iteration times."""
        generator = untidiness_generator(self._settings, _STALLS, iteration)
        count = int(generator.poisson(self._settings.stalls_per_iteration)) if len(lanes) else 0
        chosen = lanes[generator.integers(len(lanes), size=count)] if count else lanes[:0]
        return chosen, generator.uniform(STALL_LOW_RATIO, STALL_HIGH_RATIO, count)

    def _draw_ranks(self) -> Floats | None:
        ratio = self._settings.rank_spread_ratio
        if not ratio:
            return None
        drawn = untidiness_generator(self._settings, _RANKS).standard_normal(self._settings.world_size)
        # Acceptance tests sort out what is worse than that.
        return np.asarray(1 + ratio * np.clip(drawn, -_SLOWEST_RANK_STDS, _SLOWEST_RANK_STDS))

    def _draw_hosts(self, hosts: int) -> Floats | None:
        settings = self._settings
        if not settings.host_slow_probability:
            return None
        generator = untidiness_generator(settings, _HOSTS)
        factor = np.ones((max(settings.iterations, 1), hosts))
        begins = np.argwhere(generator.random(factor.shape) < settings.host_slow_probability)
        lengths = generator.geometric(min(1 / settings.host_slow_iterations, 1.0), len(begins))
        parts = generator.uniform(_LEAST_HOST_PART, 1.0, len(begins))
        for (first, host), length, part in zip(begins.tolist(), lengths.tolist(), parts.tolist(), strict=True):
            spell = factor[first : first + length, host]
            np.maximum(spell, 1 + settings.host_slow_ratio * part, out=spell)
        return factor
