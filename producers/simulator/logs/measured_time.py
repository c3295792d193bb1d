"""Times as logs give them: starts and durations, rounded apart and taken on clocks that are not the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.job.noise import elapsed_drifts_ratio
from irregulars.producers.simulator.job.settings import SimulatorSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class MeasuredTime:
    """What a job's logs show of true times.

    Kineto writes microseconds (``libkineto`` until 2024; nanoseconds since), NCCL Inspector whole microseconds, and
    some trainers hundredths of a millisecond. Start and duration are rounded each by itself, so an operator may seem
    to end after the next one of its stream began.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self._resolution_ns = int(settings.time_resolution_ns)
        self._drift = elapsed_drifts_ratio(settings)

    def starts_ns(self, times_ns: Ints) -> Ints:
        """Round starts, ns."""
        step_ns = self._resolution_ns
        return times_ns if step_ns == 1 else (times_ns + step_ns // 2) // step_ns * step_ns

    def elapsed_ns(self, lengths_ns: Floats, rank: int) -> Floats:
        """Durations as the rank's own clock gives them, rounded; NaN stays NaN."""
        step_ns, drift = self._resolution_ns, float(self._drift[rank])
        if step_ns == 1 and not drift:
            return lengths_ns
        return np.asarray(np.rint(lengths_ns * (1 + drift) / step_ns) * step_ns)

    def watermark_ns(self, last_ns: int, length_ns: float) -> int:
        """Up to when nothing comes after a run of some length: its end, and by what rows may show it later."""
        step_ns, drift = self._resolution_ns, float(np.abs(self._drift).max())
        return last_ns if step_ns == 1 and not drift else last_ns + step_ns + int(np.ceil(drift * length_ns))
