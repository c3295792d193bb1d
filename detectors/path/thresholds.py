"""Thresholds of the path: who has peers, which lanes are read from all sides, when two iterations are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class PathThresholds:
    """The limits of the walk from the symptom to the first cause."""

    # An iteration that is judged by another one of the same incident
    like_ratio: float = threshold(0.6, "ratio of the smaller excess to the larger",
        "Two iterations whose excesses differ more are not of one incident.",
        "chosen: what a fault costs varies from iteration to iteration by up to a third or so")  # fmt: skip

    # Metrics of ranks, from traces of their GPUs
    metric_least_count: int = threshold(10, "kernels, or multiplications of a kind",
        "With fewer, the distribution of a rank is not compared: their times may be a few µs, counted in whole ones.",
        "chosen: roundings by half a µs of calls of 5 µs then differ by 3% at the mean")  # fmt: skip


PATH: Final = PathThresholds()
