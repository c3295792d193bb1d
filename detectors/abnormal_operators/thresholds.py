"""Thresholds of ranks, lanes and pieces that stand out in an iteration, and of abnormal operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class AbnormalThresholds:
    """Limits for ranks, lanes and single pieces of an iteration."""

    ratio: float = threshold(1.1, "elapsed time over that in the replay",
        "An operator above it is called abnormal. No verdict rests on it.",
        "Holmes (NSDI 2025): the definition of an abnormal operator")  # fmt: skip

    # Noise
    huber_sigmas: float = threshold(2.0, "standard deviations",
        "In a mean, a value farther from the median counts as if it were so far.",
        "Huber, Robust Estimation of a Location Parameter, 1964; the value is chosen")  # fmt: skip


ABNORMAL: Final = AbnormalThresholds()
