"""A detector, and those that ship, over some jobs: what each found, missed and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from irregulars.detectors.plugins.loading import Comparable, installed_detectors, load_detector
from irregulars.detectors.plugins.protocol import Level, MakeDetector
from irregulars.errors import PluginError
from irregulars.infra.backtesting.frames import JobFrames, replay
from irregulars.infra.backtesting.scoring import Counts, count_job


@dataclass(slots=True)
class Result:
    """What came of one detector, over all jobs.

    Parameters
    ----------
    took_s, rows
        Time of one core to score and learn, and rows that took it.
    """

    detector: str
    counts: Counts = field(default_factory=Counts)
    took_s: float = 0.0
    rows: int = 0

    @property
    def us_per_row(self) -> float:
        """Microseconds of one core, to score and to learn a row."""
        return self.took_s * 1e6 / self.rows if self.rows else math.nan

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it; unknown is null."""
        counts = self.counts
        ratios = {
            "precision": counts.precision,
            "recall": counts.recall,
            "delay_iterations": counts.delay,
            "false_alarms_per_1000_iterations": counts.false_per_1000,
            "us_per_row": self.us_per_row,
        }
        return {
            "detector": self.detector,
            **{name: round(value, 4) if math.isfinite(value) else None for name, value in ratios.items()},
            "faults": counts.faults,
            "found": counts.found,
            "false_alarms": counts.false_alarms,
            "iterations": counts.iterations,
            "rows": self.rows,
        }


def shipped_detectors(level: Level) -> dict[str, MakeDetector]:
    """Return the detectors of a level that ship, by name."""
    ours = [name for name, target in installed_detectors().items() if target.startswith("irregulars.")]
    made = {name: load_detector(name) for name in ours}
    return {name: make for name, make in made.items() if make().level == level}


def backtest(detectors: Mapping[str, MakeDetector], jobs: Iterable[JobFrames]) -> list[Result]:
    """Run detectors over jobs, one job in memory at a time; scores are on the scale on which 1 is strange.

    Raises
    ------
    PluginError
        If a detector raises, or does not give one score per row.
    """
    results = {name: Result(name) for name in detectors}
    for job in jobs:
        for name, make in detectors.items():
            try:
                one = replay(job, lambda make=make: Comparable(make()))  # type: ignore[misc]
            except PluginError as error:
                raise PluginError(f"detector {name}: {error} ({job.name})") from error
            result = results[name]
            result.counts += count_job(one.job, job.faults)
            result.took_s += one.took_s
            result.rows += one.rows
    return list(results.values())
