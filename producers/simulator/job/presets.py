"""How untidy simulated jobs are: in one place for the demo, the tests, the benchmarks and the command line.

==============  ======================================================================================================
``default``     what `SimulatorSettings` says: noise of single operators
``tidy``        no noise of work and transfers, no drift: any crude rule detects effects
``suite``       the noise of the simulated suite: gaps 3 %, transfers 10 %, one in 200 transfers takes several times
                its length, 10 % drift; and otherwise as untidy as recordings are: ranks and hosts of different speed,
                micro-batches of different weight, transfers that hang and are nobody's fault
``field``       reality as a whole: times to the microsecond, durations on another clock, slow phases of hosts, heavy
                tails of sequences and pauses, iterations that compile and warm up; healthy times vary by 1 to 8 %
``untidy``      the suite, and what makes recordings hard to read besides: buckets on a second stream, rooted
                operators, a barrier that nobody logged, rows lost in bursts, and rows that come twice
``off_clocks``  clocks of hosts are milliseconds apart and drift; a job may have it besides another preset
==============  ======================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.producers.simulator.job.settings import SimulatorSettings

TIDY: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.0, "transfer_noise_ratio": 0.0, "spike_probability": 0.0, "drift_ratio": 0.0,
}  # fmt: skip
SUITE: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.03, "transfer_noise_ratio": 0.10, "spike_probability": 1 / 200, "drift_ratio": 0.10,
    "rank_spread_ratio": 0.01, "micro_batch_spread_ratio": 0.03, "host_slow_probability": 0.002,
    "host_slow_iterations": 5.0, "host_slow_ratio": 0.05, "stalls_per_iteration": 0.02,
}  # fmt: skip
UNTIDY: Final[Mapping[str, Any]] = {
    **SUITE, "is_gradient_overlapped": True, "gradient_buckets": 4, "has_data_broadcast": True,
    "has_loss_reduction": True, "hidden": ("barrier",), "loss_ratio": 0.002, "repeat_ratio": 0.001,
}  # fmt: skip
FIELD: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.03, "transfer_noise_ratio": 0.10, "spike_probability": 1 / 200, "drift_ratio": 0.03,
    "rank_spread_ratio": 0.01, "host_phase_ratio": 0.045, "host_phase_iterations": 25.0,
    "iteration_spread_ratio": 0.015, "replica_spread_ratio": 0.01, "micro_batch_spread_ratio": 0.06,
    "micro_batch_tail": 5.0, "pause_probability": 0.001, "pause_ms": 3.0, "pause_tail_index": 2.0,
    "warmup_iterations": 5, "warmup_ratio": 0.3, "compile_ms": 3000.0,
    "connect_ms": 20.0, "time_resolution_ns": 1000, "elapsed_clock_ppm": 5.0, "shared_clock_error_us": 20.0,
    "is_launched_ahead": True,
}  # fmt: skip
OFF_CLOCKS: Final[Mapping[str, Any]] = {"clock": "per_host", "clock_offset_ms": 5.0, "clock_drift_ppm": 5.0}
"""Clocks of every other case of the suite."""
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {}, "tidy": TIDY, "suite": SUITE, "untidy": UNTIDY, "field": FIELD, "off_clocks": OFF_CLOCKS,
}  # fmt: skip

_SPREADS: Final = (
    "gap_noise_ratio", "transfer_noise_ratio", "rank_spread_ratio", "replica_spread_ratio",
    "pause_probability", "elapsed_clock_ppm", "shared_clock_error_us", "compile_ms",
)  # fmt: skip
_SIZES: Final = (0.5, 1.5)
_ITERATION_SPREADS: Final = (0.004, 0.045)  # the other sorts add 1 to 3 %
_RESOLUTIONS_NS: Final = (1_000, 10_000, 1)
_FIELD: Final = 71  # apart from the generators of a job


def with_preset(settings: SimulatorSettings, name: str) -> SimulatorSettings:
    """Return the same job, as untidy as the preset says.

    Raises
    ------
    InputError
        If there is no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}; got {name!r} (simulator settings)")
    return replace(settings, **PRESETS[name])


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
