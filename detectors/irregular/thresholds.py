"""The thresholds of this room: when an iteration is irregular or suspect, and when a rank stands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.detectors.job.thresholds import JOB
from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class IrregularThresholds:
    """When an iteration is irregular or suspect, and when a rank stands out by its own work."""

    # What is usual
    min_iterations: int = threshold(10, "iterations",
        "With fewer, no iteration is called irregular. The newest regular ones, as many, show the usual times; a "
        "cause that is absent in as many is over.",
        "chosen: warm-up and compilation of the recorded jobs are over by then, and a MAD of fewer is "
        "coarse")  # fmt: skip
    level_iterations: int = threshold(20, "iterations",
        "The newest regular ones, whose median is the job's level. While a verdict on a standing fault is open, a "
        "review is due as often. As many are kept to search for a hang. In the "
        "first ones, and after a change of level, no number is a spike.",
        "chosen: enough for a median and a MAD, few enough that a job's slow drift moves them along")  # fmt: skip

    memory: int = threshold(50, "iterations",
        "How often a review is due; iterations before and after those of a cause in which others are looked for.",
        "chosen: the window of delta-irregularity")  # fmt: skip

    # A shift: several iterations together take longer
    shift_iterations: int = threshold(5, "iterations",
        "The newest ones, whose median shows a shift.",
        "chosen: the median bears two stray iterations; a lasting 10 % then shows in a job with 9 % "
        "noise")  # fmt: skip

    # A rank that stands out by its own work
    most_ranks: int = threshold(16, "ranks",
        "The latest of an iteration, whose lateness is kept; the odd ones, and peers of each stage, that a review of "
        "a large job begins to read; those read next that may have arrived last; verdicts of one detector at a time.",
        "chosen: more than the ranks of one host, all of which a fault of the host makes late")  # fmt: skip
    # The newest judged iterations, in which recurring causes and lasting lateness are looked for; of each window of a
    # large job, as many as these may be read though the budget is spent. A fault may leave every second one alone.
    recent: int = 2 * JOB.repeated
    least_lasting_sigma_ratio: float = threshold(1 / 6, "share of the usual lasting lateness",
        "The standard deviation of lasting lateness counts as this at least.",
        "chosen: above JOB.least_share, since windows overlap: 20 iterations hold hardly 4 that do "
        "not")  # fmt: skip


IRREGULAR: Final = IrregularThresholds()
LATE_SIGMAS: Final = 2 * JOB.noise_sigmas
"""Robust standard deviations: the latest of many ranks has a heavy tail, where 3 to 4 of them are no surprise."""
