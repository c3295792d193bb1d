"""What happens to rows between the rank and the reader: some never arrive, some arrive twice.

An exporter that can't keep up drops rows in bursts. Drawn per iteration from the seed, and so the same for a run and
its healthy twin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.job.noise import delivery_generator
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.program.operator_rows import OperatorRows

Bools = NDArray[np.bool_]


def delivered(settings: SimulatorSettings, rows: OperatorRows, iteration: int) -> tuple[Bools | None, Bools | None]:
    """Return which rows of an iteration arrive, and which of these arrive twice; None: all, and none."""
    if not (settings.loss_ratio or settings.repeat_ratio):
        return None, None
    generator = delivery_generator(settings, iteration)
    count = len(rows.step)
    comes = ~_lost(settings, rows, generator) if settings.loss_ratio else np.ones(count, dtype=np.bool_)
    again = (generator.random(count) < settings.repeat_ratio) & comes
    return comes, again


def _lost(settings: SimulatorSettings, rows: OperatorRows, generator: np.random.Generator) -> Bools:
    """Bursts begin anywhere, and end with the rank's rows of the iteration at the latest."""
    count = len(rows.step)
    burst_rows = max(settings.loss_burst_rows, 1.0)
    begins = np.flatnonzero(generator.random(count) < settings.loss_ratio / burst_rows)
    ends = begins + generator.geometric(1 / burst_rows, len(begins))
    ends = np.minimum(ends, rows.first[np.searchsorted(rows.first, begins, side="right")])
    edges = np.zeros(count + 1, dtype=np.int64)
    np.add.at(edges, begins, 1)
    np.add.at(edges, ends, -1)
    return np.cumsum(edges)[:-1] > 0
