"""How untidy simulated jobs are: in one place for the demo, the tests, the benchmarks and the command line.

===========  =========================================================================================================
``default``  what `SimulatorSettings` says: noise of single operators
``tidy``     no noise at all: effects can be measured to the microsecond, and any crude rule detects them
``suite``    the noise of the simulated suite: gaps 3 %, transfers 10 %, one in 200 transfers takes several times its
             length, 10 % drift; and otherwise as untidy as recordings are: ranks and hosts of different speed,
             micro-batches of different weight, transfers that hang and are nobody's fault
``untidy``   the suite, and what makes recordings hard to read besides: buckets on a second stream, rooted
             operators, a barrier that nobody logged, rows lost in bursts, and rows that come twice
===========  =========================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from producers.simulator.settings import SimulatorSettings
from streams.errors import InputError

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
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {"default": {}, "tidy": TIDY, "suite": SUITE, "untidy": UNTIDY}

OFF_CLOCKS: Final[Mapping[str, Any]] = {"clock": "per_host", "clock_offset_ms": 5.0, "clock_drift_ppm": 5.0}
"""Clocks of every other case of the suite."""


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
