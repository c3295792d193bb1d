"""Cases of the simulated suites: a job with its own seed, noise and clocks for each number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.producers.simulator.presets import FIELD, OFF_CLOCKS, with_preset
from irregulars.producers.simulator.settings import SimulatorSettings

_SPREADS: Final = (
    "gap_noise_ratio", "transfer_noise_ratio", "rank_spread_ratio", "replica_spread_ratio",
    "pause_probability", "elapsed_clock_ppm", "shared_clock_error_us", "compile_ms",
)  # fmt: skip
_SIZES: Final = (0.5, 1.5)
_ITERATION_SPREADS: Final = (0.004, 0.045)  # the other sorts add 1 to 3 %
_RESOLUTIONS_NS: Final = (1_000, 10_000, 1)
_FIELD: Final = 71  # apart from the generators of a job


def suite_case(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Return a job of the suite: its noise, its own seed, and with every odd number clocks that are off.

    Examples
    --------
    >>> [suite_case(SimulatorSettings(seed=100), n).clock for n in (0, 1)]
    ['shared', 'per_host']
    """
    noisy = with_preset(replace(settings, seed=settings.seed + number), "suite")
    return replace(noisy, **OFF_CLOCKS) if number % 2 else noisy


def spread_of_micro_batches(settings: SimulatorSettings, ratio: float) -> float:
    """Standard deviation of a job's micro-batches, of which a quarter of a replica's batch has this one.

    A replica that cuts its batch into fewer than four has more sequences in each, and they differ less.

    >>> spread_of_micro_batches(SimulatorSettings(micro_batches=1), 0.12)
    0.06
    """
    return ratio * min(math.sqrt(settings.micro_batches / 4), 1.0)


def field_case(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Return a job as one may meet it: its own seed, and each untidiness of `FIELD` in a size of its own.

    Times are rounded to 1 ns, 1 µs or 10 µs in turn, and with every odd number clocks are off.

    Examples
    --------
    >>> [field_case(SimulatorSettings(), n).time_resolution_ns for n in range(3)]
    [1000, 10000, 1]
    """
    seed = settings.seed + number
    draw = np.random.default_rng([seed, _FIELD]).uniform
    sizes = {name: FIELD[name] * draw(*_SIZES) for name in _SPREADS}
    sizes["iteration_spread_ratio"] = float(np.exp(draw(*np.log(_ITERATION_SPREADS))))
    sizes["micro_batch_spread_ratio"] = spread_of_micro_batches(settings, draw(0.02, 0.12))
    sizes["host_phase_ratio"] = draw(0.03, 0.045)  # hosts differ by a third: 2 to 6 %
    untidy = with_preset(replace(settings, seed=seed), "field")
    untidy = replace(untidy, **sizes, time_resolution_ns=_RESOLUTIONS_NS[number % len(_RESOLUTIONS_NS)])
    return replace(untidy, **OFF_CLOCKS) if number % 2 else untidy
