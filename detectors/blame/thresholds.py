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

    match_share: float = threshold(0.25, _EXCESS,
        "From this share on, a cause shows in an iteration.",
        "chosen: three causes and noise may share an iteration")  # fmt: skip
    max_causes: int = threshold(3, "causes",
        "Most causes that one search looks for.",
        "chosen: more faults at once than two are rare, and each needs its share of the excess")  # fmt: skip
    most_typical: float = threshold(2.0, "times the median excess",
        "In a search for causes, an iteration with a larger excess weighs as one with this.",
        "chosen: commit 176bb49, where one long hang decided what six iterations had in common")  # fmt: skip
    min_probability: float = threshold(0.5, "probability",
        "A cause whose suspects have less together opens no verdict.", "formula: more probable than not")  # fmt: skip
    min_alternative: float = threshold(0.02, "probability",
        "A device that begins with less is not listed among the suspects of slow transfers.",
        "chosen: one in fifty, so that nobody is sent to a device that is hardly ever the one")  # fmt: skip
    min_named: float = threshold(0.25, "probability",
        "If the likeliest device has less, a slow communicator accuses none.",
        "chosen: in a ring of four equal members each has as much by chance")  # fmt: skip

    min_lead: float = threshold(2.0, "times the probability of the next switch",
        "If the likeliest switch has less, a slow communicator accuses none.",
        "chosen: the uplinks of all leafs carry the same of a ring, and chance would choose one of them")  # fmt: skip

    # --- what devices reported (`reported.py`) ---------------------------------------------------------------------

    events_before_s: float = threshold(600.0, "s before the cause was first seen",
        "An event that is older is not named.", "chosen: ten minutes, a usual join of errors and faults")  # fmt: skip
    events_after_s: float = threshold(10.0, "s",
        "Later events may follow from the earlier one: they weigh nothing, and XIDs of one GPU are told as one.",
        "chosen: clocks of hosts and the kernel's log may be late by seconds, and so is what follows")  # fmt: skip

    # --- who is late, and with whom (`work_causes.py`) --------------------------------------------------------------

    late_share: float = threshold(0.5, _LATENESS,
        "A rank with a smaller share does not count as late.",
        "chosen: half, halfway between on time and as late")  # fmt: skip
    clearly_most: float = threshold(0.6, "Jaccard index, or share of what the host's ranks lost",
        "A host or stage is accused of ranks that are late together only above this; if one rank has more, the "
        "host's ranks do not take turns.",
        "chosen: more than half, so that half of a host's ranks is not the host")  # fmt: skip
    min_own_late: float = threshold(0.2, "share of the late ranks",
        "A device with fewer of the ranks that are late together is not blamed for them.",
        "chosen: one rank may be late with four others by chance")  # fmt: skip
    everybody_share: float = threshold(0.7, "share of the ranks",
        "From here on, being late together accuses nobody.",
        "chosen: commit ac47e0f, longer batches make nearly all ranks late")  # fmt: skip

    min_covered: float = threshold(0.8, "share of what the accused ranks' gaps took longer",
        "A cause of own work is named only if its pauses cover this much.",
        "recalled: TraceML's straggler_cause_coverage_min; the rest may be another cause")  # fmt: skip

    same_work: float = threshold(2.0, "times the usual processor time",
        "A rank that runs up to this long does its usual work; of one that runs longer, waiting for a processor "
        "counts in proportion.",
        "chosen: two threads that share a core each run at about half of its speed")  # fmt: skip

    # --- ranks of one host that are last in turn (`work_causes.py`) -------------------------------------------------

    min_work_iterations: int = threshold(4, "iterations",
        "With fewer that lost time, a host's ranks do not take turns, and no rank lacks processor time.",
        "chosen: one for each GPU of a small host; as many open a verdict on transfers")  # fmt: skip
    turns_share: float = threshold(0.8, "share of what paths lost to ranks' work",
        "If a host's ranks have less, they do not take turns.",
        "chosen: on jobs of two simulators by other authors (commit f4481a5)")  # fmt: skip
    least_work_share: float = threshold(0.05, "share of what the host's ranks lost, or the transfers",
        "A rank whose work lost less takes no part in turns, nor lacks it processor time.",
        "chosen: less is what a rank on time loses by noise (commit 00b65ef)")  # fmt: skip
    taking_turns_share: float = threshold(0.75, "share of the host's ranks",
        "If fewer take part, the host's ranks do not take turns.", "chosen: three of four GPUs")  # fmt: skip

    # --- slow work beside slow transfers (`work_causes.py`) ---------------------------------------------------------

    starved_times_quickest: float = threshold(2.0, "times the largest apparent speed-up of a rank",
        "A rank whose work is slower by less does not lack processor time.",
        "chosen: no fault makes work quicker; twice, since the quickest is one draw (commit 6ebf6b1)")  # fmt: skip
    in_step_sigmas: float = threshold(2.0, "times the noise of the other ranks",
        "If the lateness of slow ranks differs by less, they do not lack processor time.",
        "chosen: the difference of two has 1.4 times the noise of one")  # fmt: skip

    # --- what an iteration shows (`observation.py`) -----------------------------------------------------------------

    slow_phase_share: float = threshold(0.07, "share of the usual iteration",
        "From this cost on, a cause need not explain half of an iteration's excess to count.",
        "chosen: slow phases of healthy hosts cost 3 to 6 % (commit 323d8dc)")  # fmt: skip

    # --- which lanes are slow (`slow_lanes.py`) ---------------------------------------------------------------------

    lane_sigmas: float = threshold(4.0, "standard errors",
        "Beside the accused lane, a lane with a smaller excess is not slow.",
        "chosen: with thousands of lanes and heavy tails it keeps chance below one lane in a job")  # fmt: skip
    like_accused: float = threshold(0.15, "share of what the accused lane's slow-down predicts",
        "Beside the accused lane, a lane with a smaller excess is not slow.",
        "chosen: a seventh or so; what a device carries slows by about as much as the accused lane")  # fmt: skip
    queue_ns: float = threshold(100_000.0, "ns for each transfer",
        "A lane with a smaller excess tells nothing where the predicted slow-down would hardly be noticed.",
        "chosen: a small message waits as long behind the traffic of a busy port (commit a900fc1)")  # fmt: skip
    model_error: float = threshold(0.03, "ratio to the lane's usual time",
        "Error of a lane's usual time besides its noise.",
        "chosen: ten iterations are few, and a job's own traffic drifts by some percent")  # fmt: skip

    # --- the rates of NICs (`nic_ends.py`) --------------------------------------------------------------------------

    held_swing: float = threshold(0.5, "deviation over mean of the rate",
        "While a collective runs, a NIC that swings more is not taken to be held back.",
        "formula: rates spread evenly from nothing to twice the mean have 0.58")  # fmt: skip
    moving_ratio: float = threshold(0.05, "ratio to the NIC's usual peak",
        "A NIC with a lower mean rate, sending or receiving, is not taken to carry a collective.",
        "chosen: acknowledgements are a few percent of what they answer")  # fmt: skip

    # --- switches that evidence alone makes suspects (`judging/review_candidates.py`) -------------------------------

    switch_ratio: float = threshold(1.5, "ratio to what lanes of the same role take",
        "If the slowest switch's median lane takes less, no switch is read.",
        "chosen: above noise between switches; it accuses nobody, so it may lie below a fault's factor of "
        "two")  # fmt: skip
    switch_lanes: int = threshold(8, "lanes",
        "A switch that fewer pass is not compared.",
        "chosen: their median has less than half of the noise of one")  # fmt: skip

    # --- what was slow from the beginning (`standing_causes.py`) ----------------------------------------------------

    review_iterations: int = threshold(5, "iterations",
        "With fewer regular ones a review finds nothing.",
        "chosen: of five, four may show a fault and one not")  # fmt: skip
    review_seen_share: float = threshold(0.8, "share of the reviewed iterations",
        "A cause that shows in fewer is not told by a review.",
        "chosen: four of five, since a fault that stands is there always and lost rows hide it now and "
        "then")  # fmt: skip
    standing_transfer_excess: float = threshold(0.5, "times what delta allows",
        "Slow transfers of a device that cost less are not told by a review.",
        "chosen: half; lanes beside it acquit noise, while some rank is always late")  # fmt: skip
    max_beside_ratio: float = threshold(0.75, "share of the recvs",
        "If ranks leave more open while they work, stages are not compared by their gaps.",
        "chosen: 1F1B that posts the next recv early leaves two in three open, interleaving more")  # fmt: skip
    stage_path_of_gaps: float = threshold(1.25, "times the gaps",
        "A stage whose part of the path is longer hides work.",
        "chosen: at most 1.11 in 56 drawn pipelines of two stages, 1.70 where recvs hid half of the work (commit "
        "018ff29)")  # fmt: skip
    stage_excess: float = threshold(1.5, "times what delta allows",
        "A heavy stage that costs less is not told by a review.",
        "chosen: in 165 healthy drawn jobs stages differ by up to 1.2, in slow ones mostly by 1.8 and more (commit "
        "018ff29)")  # fmt: skip
    uneven_excess: float = threshold(2.2, "times what delta allows",
        "Uneven data that cost less are not told by a review.",
        "chosen: somebody is always a little late, by up to 1.85 times in two reviews (commit 23b14f7)")  # fmt: skip

    # --- what comes back without the device (`what_if.py`) ----------------------------------------------------------

    min_claim_share: float = threshold(0.4,
        "share of what the iteration took longer, less what all ranks worked longer",
        "What comes back is held against this at least.",
        "formula: with half of it to bring back, causes down to a fifth of the excess can be told")  # fmt: skip


BLAME: Final = BlameThresholds()
