"""The thresholds of verdicts: how often, how clearly and how alone a cause must be seen, and when it is over.

The costs from which on a verdict is urgent are settings: `severity.SeverityLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class VerdictThresholds:
    """Limits that decide whether a verdict is opened, goes on and is closed."""

    # --- seen often enough (`opening.py`) ---------------------------------------------------------------------------

    seen: int = threshold(3, "iterations of the recent ones",
        "The rule for late ranks that recur wants as many.",
        "chosen: single late ranks occur on every healthy job")  # fmt: skip
    seen_transfer: int = threshold(4, "iterations of the recent ones",
        "The rule for slow transfers that recur wants as many, and so does a detector that finds a rank strange.",
        "chosen: one more than `seen`, since single transfers hang (a lost packet) even more often; a rank "
        "strange in one healthy iteration of 20 reaches it once in 12,000")  # fmt: skip
    seen_in_a_row: int = threshold(3, "iterations in a row",
        "The rule for slow transfers in a row wants as many.",
        "chosen: on jobs of two simulators by other authors (commit f4481a5)")  # fmt: skip
    seen_twice: int = threshold(2, "long iterations",
        "The rule for a late rank that stands alone wants as many.",
        "chosen: pauses hit ever different ranks, hardly the same one twice")  # fmt: skip
    clear_certainty: float = threshold(0.8, "probability",
        "The rule for transfers in a row accuses no suspect with less.",
        "chosen: a whole communicator's transfers hang now and then, and nobody is to blame")  # fmt: skip
    sure_certainty: float = threshold(0.9, "probability",
        "The rule for a cause that each recent iteration shows accuses no suspect with less.",
        "chosen: above clear_certainty, as a job has slow phases that nobody is to blame for (commit "
        "848b513)")  # fmt: skip
    min_recovered: float = threshold(0.5, "share of what a cause is said to have cost",
        "A cause that irregular iterations show opens no verdict if less of it comes back in a replay.",
        "formula: most of it; who brings back less is late beside something that is as late")  # fmt: skip
    few_others: int = threshold(1, "long iterations",
        "While data are uneven, the rule for late ranks that recur allows so many due to others.",
        "chosen: where each rank is last now and then, one in six is little")  # fmt: skip

    # --- the same again (`open_verdict.py`) -------------------------------------------------------------------------

    same_share: float = threshold(0.5, "share of what the fault typically costs",
        "Of a verdict that irregular iterations opened, an iteration that is not long shows the fault only from "
        "here on.",
        "chosen: half; what is left of a noisy job's slow phase after a fault is no part of it")  # fmt: skip
    loss_step: float = threshold(2.0, "times what was last published: the loss, or of custom verdicts the iterations",
        "Below, no revision `continued` is published.",
        "chosen: doubling, so that a fault that lasts a month has some twenty revisions")  # fmt: skip
    close_quiet: int = threshold(10, "judged iterations in a row, without those that cannot tell",
        "A verdict closes when its cause was absent in as many, and twice as long as between two sightings; of as "
        "many that it explains one is read.",
        "chosen: more than the recent ones: what is seen once in six iterations stays one verdict")  # fmt: skip

    # --- single iterations (`single_spikes.py`) ---------------------------------------------------------------------

    spike_sigmas: float = threshold(8.0, "standard deviations",
        "A single iteration that stands out by less opens no verdict.",
        "chosen: twice what makes an iteration suspect")  # fmt: skip
    spike_transfers: float = threshold(3.0, "transfers (participation number)",
        "Slow transfers of a single iteration that are fewer open no verdict.",
        "chosen: two may hang at once by chance")  # fmt: skip
    spike_cost: float = threshold(0.1, "share of the usual iteration",
        "A single iteration that cost less opens no verdict.", "chosen: what delta allows by default")  # fmt: skip
    spike_cost_of_one: float = threshold(0.5, "share of the usual iteration",
        "The same where one rank is accused.",
        "chosen: healthy ranks pause for a third of one (garbage collection, data loaders); the verdict is a "
        "note")  # fmt: skip

    # --- suspect iterations of late (`suspicions.py`) ---------------------------------------------------------------

    event_memory: int = threshold(50, "iterations",
        "Iterations before and after those of a cause, in which other causes are looked for.",
        "chosen: the window of delta-irregularity")  # fmt: skip
    event_alike: float = threshold(1 / 3, "ratio to the least that a cause explains of an iteration",
        "A smaller loss to another lane does not speak against a cause.",
        "chosen: pauses of garbage collection vary threefold; same_share is about one and the same "
        "fault")  # fmt: skip
    host_by_chance: float = threshold(0.05, "probability",
        "If chance is larger, coming last in turn accuses no host.",
        "chosen: six of six on either of two hosts are less probable (0.03), five are not (0.22)")  # fmt: skip
    uneven_ranks: int = threshold(3, "ranks",
        "If fewer came last, data are not uneven.",
        "chosen: two ranks in turn are one host, or a slow one and noise")  # fmt: skip

    # --- checkpoints (`slow_checkpoints.py`) ------------------------------------------------------------------------

    slow_write: float = threshold(2.0, "times what is usual",
        "A rank that writes a checkpoint for less is not late.",
        "SCOUT (LM Resiliency 0.2): twice the median of ranks")  # fmt: skip
    slow_write_probability: float = threshold(0.9, "probability",
        "The suspect of a slow checkpoint.",
        "chosen: as of a hang; who waited for whom is known, and rows may be lost")  # fmt: skip

    # --- hangs (`revision.py`) --------------------------------------------------------------------------------------

    hang_probability: float = threshold(0.96, "probability",
        "The suspect of a hang for which the one below does not hold.",
        "computed: (14 + 1/2) / 15, since 14 of 14 in recordings and drawn jobs were right")  # fmt: skip
    silent_hang_probability: float = threshold(0.7, "probability",
        "The suspect of a hang whose members that log nothing are accused.",
        "chosen: one of the others may have stopped inside, and those may wait themselves")  # fmt: skip

    # --- detectors with a say (`custom_verdicts.py`, `strange_ranks.py`) --------------------------------------------

    custom_probability: float = threshold(0.5, "probability",
        "The suspect of a verdict that a detector opens.",
        "chosen: nobody has measured how often a stranger's detector is right")  # fmt: skip
    custom_open: int = threshold(8, "verdicts of one detector at a time",
        "While as many are open, further strange ranks join the newest.",
        "chosen: whoever finds more things strange at once says something of the job, not of a device")  # fmt: skip


VERDICTS: Final = VerdictThresholds()
