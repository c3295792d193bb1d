"""The untidiness of a healthy job, drawn once per iteration and the same whatever is broken.

Each iteration has its own generator, and draws the same numbers with and without faults: a run with a fault equals
the run without it up to the fault's first iteration, and differs after it by the effect of the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.settings import NS_PER_MS, NS_PER_US, SimulatorSettings

Floats = NDArray[np.float64]
# No transfer takes less than this part of its nominal time: a device has a highest rate.
LEAST_TRANSFER_RATIO: Final = 0.8
_SPREAD_NS: Final = 5 * NS_PER_US
_SPREAD_RATIO: Final = 0.01
_LEAST_GAP_RATIO: Final = 0.5
# Follow the seed in the key of a generator, so that its streams of numbers never mix.
HEALTHY, CLOCKS, FAULTS, UNTIDINESS, DELIVERY, WARM_UP, LOGGING = range(7)


def generator_of(settings: SimulatorSettings, topic: int, *numbers: int) -> np.random.Generator:
    """Return the generator of one topic, of the whole run or (by further numbers) of one iteration or fault."""
    return np.random.default_rng([settings.seed, topic, *numbers])


@dataclass(frozen=True, slots=True)
class Noise:
    """Factors of one iteration."""

    gap: Floats  # per step: factor on its work
    transfer: Floats  # per flow: factor on its time
    spread: Floats  # per step, 0 to 1: how late within the spread it leaves its transfer
    tail: Floats  # per rank: factor on its work after its last operator

    def spread_ns(self, steps: NDArray[np.int64], transfer_ns: Floats) -> Floats:
        """How long after the end of a transfer each share leaves it: longer after a longer transfer."""
        return np.asarray(self.spread[steps] * (_SPREAD_NS + _SPREAD_RATIO * transfer_ns))


def draw_noise(settings: SimulatorSettings, iteration: int, *, steps: int, flows: int) -> Noise:
    """Draw the noise of one iteration."""
    generator = generator_of(settings, HEALTHY, iteration)
    gap = 1 + settings.gap_noise_ratio * generator.standard_normal(steps)
    transfer = np.exp(settings.transfer_noise_ratio * generator.standard_normal(flows))
    spike = generator.uniform(settings.spike_factor_low, settings.spike_factor_high, flows)
    has_spike = generator.random(flows) < settings.spike_probability
    return Noise(
        gap=np.maximum(gap, _LEAST_GAP_RATIO),
        transfer=np.maximum(transfer, LEAST_TRANSFER_RATIO) * np.where(has_spike, spike, 1.0),
        spread=generator.random(steps),
        tail=1 + settings.gap_noise_ratio * generator.random(settings.world_size),
    )


def no_noise(steps: int) -> Noise:
    """Return noise that changes nothing."""
    # One factor for all, which numpy broadcasts.
    one = np.ones(1)
    return Noise(gap=one, transfer=one, spread=np.zeros(steps), tail=one)


def drift_factor(settings: SimulatorSettings, iteration: int) -> float:
    """Factor on all work, from 1 in the first iteration to ``1 + drift_ratio`` in the last."""
    return 1 + settings.drift_ratio * iteration / max(settings.iterations - 1, 1)


def clock_offsets_ns(settings: SimulatorSettings, hosts: int) -> NDArray[np.int64]:
    """Return how far each host's clock is ahead, ns; little or nothing where clocks are shared."""
    is_shared = settings.clock == "shared"
    limit_ns = settings.shared_clock_error_us * NS_PER_US if is_shared else settings.clock_offset_ms * NS_PER_MS
    if not limit_ns:
        return np.zeros(hosts, dtype=np.int64)
    generator = generator_of(settings, CLOCKS)
    return np.rint(generator.uniform(-limit_ns, limit_ns, hosts)).astype(np.int64)


def clock_drifts_ratio(settings: SimulatorSettings, hosts: int) -> Floats:
    """Return how much faster each host's clock runs than a true one."""
    if settings.clock == "shared":
        return np.zeros(hosts)
    generator = generator_of(settings, CLOCKS, 1)
    limit = settings.clock_drift_ppm / 1e6
    return generator.uniform(-limit, limit, hosts)


def elapsed_drifts_ratio(settings: SimulatorSettings) -> Floats:
    """Return how much faster the clock of each rank's durations runs than a true one."""
    if not settings.elapsed_clock_ppm:
        return np.zeros(settings.world_size)
    limit = settings.elapsed_clock_ppm / 1e6
    return generator_of(settings, CLOCKS, 2).uniform(-limit, limit, settings.world_size)
