"""Thresholds for bandwidth samples of NICs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold

_EROICA_LOCALIZATION: Final = "EROICA (NSDI 2026), localization"


@dataclass(frozen=True, slots=True)
class NicThresholds:
    """Limits for patterns, peaks and swings of NICs' rates."""

    # Behaviour patterns
    min_samples: float = threshold(5.0, "samples; one that an operator overlaps by half counts as half",
        "A pattern that rests on fewer is not known.",
        "chosen: a standard deviation of five values is off by a third")  # fmt: skip
    far: float = threshold(0.4, "Manhattan distance of two patterns whose components are scaled to 1",
        "Two workers at least so far apart behave differently.",
        _EROICA_LOCALIZATION)  # fmt: skip
    deviations: float = threshold(5.0, "median absolute deviations",
        "A differential distance further above the median of its class stands out.",
        _EROICA_LOCALIZATION)  # fmt: skip

    # Who is capped: at the peak, and on average
    flattened: float = threshold(3.0, "times",
        "Divided by the slow-down of a transfer, this is the highest peak of a cap, between a third and "
        "JOB.nearly_all. An end that swings less than the middle one by as many times is steady.",
        "chosen: samples of 10 ms flatten usual bursts to about a third; EROICA's figures 3 to 5")  # fmt: skip

    # Likelihoods: that an end of a slow transfer is one of those with the lowest peak
    low_if_nic_receives: float = threshold(0.6, "probability",
        "A receiving end stands out if its NIC is slow.",
        "chosen: a fault may leave this direction alone, so it is less than for sending")  # fmt: skip
    low_if_link: float = threshold(0.3, "probability",
        "An end of a slow link stands out.",
        "chosen: other transfers of the same NIC mostly reach their usual peak")  # fmt: skip

    # Who is steady
    window_samples: int = threshold(50, "samples",
        "Without iterations, a window of time is at least so long.",
        "chosen: half a second at 10 ms a sample, which holds several bursts")  # fmt: skip


NICS: Final = NicThresholds()
