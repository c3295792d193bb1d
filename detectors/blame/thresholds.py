"""The thresholds of blame: from which share, size or certainty on an excess is laid upon a device.

Probabilities (priors, chances) are in `likelihoods.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold

_EXCESS = "share of the iteration's excess"
_LATENESS = "share of the lateness of the accused rank, or of the latest"


@dataclass(frozen=True, slots=True)
class BlameThresholds:
    """Limits that decide between devices; each field names its meaning and its source."""

    # --- which causes are found in some iterations (`causes.py`) ----------------------------------------------------

    max_causes: int = threshold(3, "causes",
        "Most causes that one search looks for.",
        "chosen: more faults at once than two are rare, and each needs its share of the excess")  # fmt: skip
    min_alternative: float = threshold(0.02, "probability",
        "A device that begins with less is not listed among the suspects of slow transfers.",
        "chosen: one in fifty, so that nobody is sent to a device that is hardly ever the one")  # fmt: skip

    # --- what devices reported (`reported.py`) ---------------------------------------------------------------------

    events_before_s: float = threshold(600.0, "s before the cause was first seen",
        "An event that is older is not named.", "chosen: ten minutes, a usual join of errors and faults")  # fmt: skip
    events_after_s: float = threshold(10.0, "s",
        "Later events may follow from the earlier one: they weigh nothing, and XIDs of one GPU are told as one.",
        "chosen: clocks of hosts and the kernel's log may be late by seconds, and so is what follows")  # fmt: skip

    # --- who is late, and with whom (`work_causes.py`) --------------------------------------------------------------

    clearly_most: float = threshold(0.6, "Jaccard index, or share of what the host's ranks lost",
        "A host or stage is accused of ranks that are late together only above this; if one rank has more, the "
        "host's ranks do not take turns.",
        "chosen: more than half, so that half of a host's ranks is not the host")  # fmt: skip
    everybody_share: float = threshold(0.7, "share of the ranks",
        "From here on, being late together accuses nobody.",
        "chosen: commit ac47e0f, longer batches make nearly all ranks late")  # fmt: skip

    # --- what an iteration shows (`observation.py`) -----------------------------------------------------------------

    slow_phase_share: float = threshold(0.07, "share of the usual iteration",
        "From this cost on, a cause need not explain half of an iteration's excess to count.",
        "chosen: slow phases of healthy hosts cost 3 to 6 % (commit 323d8dc)")  # fmt: skip

    # --- which lanes are slow (`slow_lanes.py`) ---------------------------------------------------------------------

    queue_ns: float = threshold(100_000.0, "ns for each transfer",
        "A lane with a smaller excess tells nothing where the predicted slow-down would hardly be noticed.",
        "chosen: a small message waits as long behind the traffic of a busy port (commit a900fc1)")  # fmt: skip
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
        "chosen: somebody is always a little late, by up to 1.85 times in two reviews (commit 23b14f7)")  # fmt: skip


BLAME: Final = BlameThresholds()
