"""The untidiness of a healthy job, drawn once per iteration and the same whatever is broken.

Each iteration has its own generator, and draws the same numbers with and without faults: a run with a fault equals
the run without it up to the fault's first iteration, and differs after it by the effect of the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Floats, Ints
from irregulars.producers.simulator.settings import NS_PER_US, SimulatorSettings

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

    def spread_ns(self, steps: Ints, transfer_ns: Floats) -> Floats:
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


def clock_errors(settings: SimulatorSettings, limit: float, clocks: int, *numbers: int) -> Floats:
    """Draw by how much each of some clocks is off, to either side; `numbers` as of `generator_of`."""
    return generator_of(settings, CLOCKS, *numbers).uniform(-limit, limit, clocks)
