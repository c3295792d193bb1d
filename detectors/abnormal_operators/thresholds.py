"""Thresholds of what stands out in an iteration, and of which operators are abnormal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold

_SIMULATED: Final = "chosen by hand; tests/benchmarks/bench_operators.py shows what it does"


@dataclass(frozen=True, slots=True)
class AbnormalThresholds:
    """What ranks, lanes and single pieces of an iteration are held against."""

    ratio: float = threshold(
        1.1,
        unit="elapsed time over that in the replay",
        meaning="An operator above it is called abnormal. No verdict rests on it.",
        source="Holmes (NSDI 2025): the definition of an abnormal operator",
    )

    # Who is slow: a rank by its gaps, a lane by its transfers
    sigmas: float = threshold(
        4.0,
        unit="standard deviations",
        meaning="A rank, a lane or a single gap that is slower by less does not stand out.",
        source="chosen: hundreds of ranks and lanes are looked at, and of normal noise one in 30,000 is above",
    )
    least_lane_log: float = threshold(
        0.05,
        unit="logarithm of a ratio",
        meaning="A lane that is slower by less does not stand out.",
        source=_SIMULATED + "; transfers are noisier than work",
    )
    cause_ratio: float = threshold(
        0.3,
        unit="share of the iteration's excess",
        meaning="A rank that costs less does not stand out.",
        source=_SIMULATED,
    )
    lane_ratio: float = threshold(
        0.3,
        unit="share of what a rank must cost",
        meaning="A lane that costs less does not stand out.",
        source=_SIMULATED + ": a slow NIC has several lanes",
    )
    least_excess_ratio: float = threshold(
        0.02,
        unit="share of the usual iteration",
        meaning="A smaller excess of the iteration counts as this.",
        source="chosen: healthy iterations vary by a percent or two",
    )
    few_transfers: int = threshold(
        3,
        unit="transfers of a lane in the iteration",
        meaning="A lane of fewer must cost as much as a rank.",
        source="chosen: a healthy job has spikes of single transfers, two at once hardly ever",
    )

    # The job's own pace, which no rank is blamed for
    pace_quantile: float = threshold(
        0.25,
        unit="quantile of the ranks' ratios",
        meaning="This quantile is taken for the job's pace.",
        source="chosen: low, since up to three quarters of the ranks may be on slow hosts",
    )
    min_ranks_of_pace: int = threshold(
        4,
        unit="ranks",
        meaning="With fewer, the iteration's pace is taken to be the usual one.",
        source="computed: the least with a quarter of the ranks",
    )

    # Noise
    huber_sigmas: float = threshold(
        2.0,
        unit="standard deviations",
        meaning="In a mean, a value farther from the median counts as if it were so far.",
        source="Huber, Robust Estimation of a Location Parameter, 1964; the value is chosen",
    )
    least_group_sigma: float = threshold(
        0.005,
        unit="logarithm of a ratio",
        meaning="The standard deviation of a rank's or lane's mean ratio counts as this at least.",
        source="chosen: half of least_piece_sigma, as of the mean of four pieces",
    )
    least_piece_sigma: float = threshold(
        0.01,
        unit="logarithm of a ratio",
        meaning="The standard deviation of single gaps or transfers counts as this at least.",
        source="chosen: repeated work of a GPU varies by about a percent",
    )


ABNORMAL: Final = AbnormalThresholds()
