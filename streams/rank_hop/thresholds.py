"""Thresholds of the first hop: when an iteration closes, and which progress is not believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class RankHopThresholds:
    """Thresholds of the reduction of a rank's rows; none of them accuses a device."""

    # When an iteration closes (closing_times.py): the margin is the smaller of the two.
    closing_margin_ratio: float = threshold(0.5, "share of the iteration's length",
        "Margin by which the watermark passes the end of a rank's iteration before that closes.",
        "chosen, not fitted: operators on a second stream may end after the iteration that they belong to, and a "
        "wider margin delays each verdict by as much")  # fmt: skip
    most_closing_margin_ns: int = threshold(1_000_000_000, "ns",
        "The margin is at most this.",
        "chosen, not fitted: it bounds how much later a job with long iterations gets its verdicts")  # fmt: skip

    # When a rank can't have come as far as its message says (plausible_progress.py).
    most_ahead_days: int = threshold(366, "days",
        "A time further ahead of what its rank sent before is not believed at first.",
        "chosen, not fitted: no job stands still for a year, and a damaged number is mostly off by "
        "decades")  # fmt: skip
    most_ahead_of_clock_days: int = threshold(1, "days",
        "The same for a time further ahead of both the worker's clock and the rank's newest time, where both are "
        "known.",
        "chosen, not fitted: clocks are off by hours, rarely by a day; old recordings lie behind the "
        "clock")  # fmt: skip
    most_skipped_iterations: int = threshold(1 << 20, "iterations",
        "An iteration further ahead of the rank's newest one is not believed at first, unless iterations are "
        "numbered in wide steps.",
        "chosen, not fitted: jobs go on at iteration 500,000, and hardly any has run for two million")  # fmt: skip
    most_skipped_steps: int = threshold(1000, "steps",
        "If the first message of a rank spans more iterations, the limit rises to so many of its usual steps.",
        "chosen, not fitted: like the one above, which a step of 4,000,000 tokens would exceed each "
        "time")  # fmt: skip


RANK_HOP: Final = RankHopThresholds()
