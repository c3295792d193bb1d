"""Faults that are older than the recording: since when they stand, what they cost, and whether they still do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.verdicts.thresholds import VERDICTS

History = Sequence[tuple[int, Mapping[int, float]]]
"""Judged iterations, oldest first, with by how much their latest ranks worked longer than their stage, ns.

NaN: of that rank it is not known."""


@dataclass(slots=True)
class StandingFault:
    """A fault without a healthy past, found by review."""

    costs_ns: float  # what it typically costs an iteration
    # By how much the rank is late against its stage; NaN where it is not a rank's own work, or does not show
    late_ns: float
    # What the verdict knew in the newest iteration in which a review saw it (`OpenVerdict.confirm`)
    confirmed: tuple[int, int, int, float, float] = (0, 0, 0, 0.0, 0.0)

    @property
    def is_seen_by_review_alone(self) -> bool:
        """Whether an iteration by itself can't show it."""
        return math.isnan(self.late_ns)

    def stands(self, cause: Cause, late_ns: Mapping[int, float]) -> bool:
        """Whether it is seen to be there; what a review alone can see stands until the next one."""
        return self.is_seen_by_review_alone or late_ranks_ns(cause, late_ns) >= VERDICTS.same_share * self.late_ns

    def is_unknown(self, cause: Cause, late_ns: Mapping[int, float]) -> bool:
        """Whether an iteration should show it and can't tell: its ranks lost rows."""
        return not self.is_seen_by_review_alone and math.isnan(late_ranks_ns(cause, late_ns))


def typical_lateness_ns(cause: Cause, history: History) -> float:
    """Return the median lateness of the accused ranks; NaN where it is not a rank's own work or does not show."""
    late = [late_ns for iteration, late_ns in history if iteration in cause.explained_ns]
    if cause.kind != "slow_rank" or not late:
        return math.nan
    known = [ns for one in late if not math.isnan(ns := late_ranks_ns(cause, one))]
    typical_ns = median(known) if known else 0.0
    return typical_ns if typical_ns > 0 else math.nan


def standing_since(cause: Cause, late_ns: float, history: History) -> int:
    """Return the iteration since which the fault stands without a break; the oldest known one if lateness can't tell.

    With a rank that is typically 50 ms late, and was so in the iterations 9 to 5 and 10 ms in iteration 4, that is 5.
    """
    first = min(cause.explained_ns)
    for iteration, late in reversed(history):
        if (
            iteration < first
            and not math.isnan(late_ns)
            and late_ranks_ns(cause, late) < VERDICTS.same_share * late_ns
        ):
            break
        first = min(first, iteration)
    return first


def late_ranks_ns(cause: Cause, late_ns: Mapping[int, float]) -> float:
    """Return by how much the accused ranks were late, the median of those that are known, ns; NaN: none is.

    Ranks that `late_ns` leaves out are not among the latest.
    """
    known = [ns for rank in cause.suspects[0][0].ranks if not math.isnan(ns := late_ns.get(rank, 0.0))]
    return median(known) if known else math.nan
