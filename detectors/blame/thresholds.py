"""The thresholds of blame: from which share, size or certainty on an excess is laid upon a device.

Probabilities (priors, chances) are in `likelihoods.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class BlameThresholds:
    """Limits that decide between devices; each field names its meaning and its source."""

    # --- what devices reported (`reported.py`) ---------------------------------------------------------------------

    events_before_s: float = threshold(600.0, "s before the cause was first seen",
        "An event that is older is not named.", "chosen: ten minutes, a usual join of errors and faults")  # fmt: skip
    events_after_s: float = threshold(10.0, "s",
        "Later events may follow from the earlier one: they weigh nothing, and XIDs of one GPU are told as one.",
        "chosen: clocks of hosts and the kernel's log may be late by seconds, and so is what follows")  # fmt: skip

    # --- which lanes are slow (`slow_lanes.py`) ---------------------------------------------------------------------

    model_error: float = threshold(0.03, "ratio to the lane's usual time",
        "Error of a lane's usual time besides its noise.",
        "chosen: ten iterations are few, and a job's own traffic drifts by some percent")  # fmt: skip

    # --- what was slow from the beginning (`standing_causes.py`) ----------------------------------------------------

    stage_excess: float = threshold(1.5, "times what delta allows",
        "A heavy stage that costs less is not told by a review.",
        "chosen: in 165 healthy drawn jobs stages differ by up to 1.2, in slow ones mostly by 1.8 and more (commit "
        "018ff29)")  # fmt: skip
    uneven_excess: float = threshold(2.2, "times what delta allows",
        "Uneven data that cost less are not told by a review.",
        "chosen: somebody is always a little late, by up to 1.85 times in two reviews (commit 23b14f7); at JOB.twice "
        "a recording (optimizer-state-sign-bf16) has a note of it")  # fmt: skip


BLAME: Final = BlameThresholds()
