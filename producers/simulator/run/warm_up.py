"""The slow start of a job: connecting, compiling and warming up in its first iterations."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.job.noise import warm_up_generator
from irregulars.producers.simulator.job.settings import NS_PER_MS, SimulatorSettings
from irregulars.producers.simulator.job.topology import Ints

Floats = NDArray[np.float64]

_COMPILED: Final = (1.0, 0.2)
"""How much is compiled in the first and the second iteration, relative to ``compile_ms``."""

_COMPILE_SPREAD: Final = 0.15  # caches, and CPUs that others use too


class WarmUp:
    """The beginning of one job."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings

    def work_factor(self, iteration: int) -> float:
        """Factor on all work: falls evenly to 1."""
        count = self._settings.warmup_iterations
        return 1 + self._settings.warmup_ratio * max(count - iteration, 0) / count if count else 1.0

    def compile_ns(self, iteration: int) -> Floats | None:
        """Per rank: how long it compiles before its first forward; None: nobody does."""
        settings = self._settings
        if not settings.compile_ms or iteration >= len(_COMPILED):
            return None
        drawn = warm_up_generator(settings, iteration).standard_normal(settings.world_size)
        length_ns = settings.compile_ms * NS_PER_MS * _COMPILED[iteration]
        return np.asarray(length_ns * np.maximum(1 + _COMPILE_SPREAD * drawn, 0.5))

    def connecting(self, iteration: int, flow_path: Ints, nowhere: int) -> Ints:
        """Flows that are the first on their path, which has to be connected."""
        if iteration or not self._settings.connect_ms:
            return np.empty(0, dtype=np.int64)
        paths, first = np.unique(flow_path, return_index=True)
        return np.asarray(first[paths != nowhere])
