"""The thresholds of verdicts: how often, how clearly and how alone a cause must be seen, and when it is over.

What a verdict costs, and from when on that is urgent, are settings: `severity.SeverityLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class VerdictThresholds:
    """What decides whether a verdict is opened, goes on and is closed."""

    # --- seen often enough (`opening.py`) ---------------------------------------------------------------------------

    recent: int = threshold(
        6, unit="judged iterations",
        meaning="The newest ones, in which it counts how often a cause was seen.",
        source="chosen: twice `seen`, so that a fault may leave every second iteration alone",
    )  # fmt: skip
    seen: int = threshold(
        3, unit="iterations of the recent ones",
        meaning="While data are even, a late rank was seen often enough when it was seen in as many, and in twice as "
        "many as all others.",
        source="chosen: single late ranks occur on every healthy job",
    )  # fmt: skip
    seen_transfer: int = threshold(
        4, unit="iterations of the recent ones",
        meaning="Slow transfers were seen often enough when they were seen in as many.",
        source="chosen: one more than `seen`, since single transfers hang (a lost packet) even more often",
    )  # fmt: skip
    seen_in_a_row: int = threshold(
        3, unit="iterations in a row",
        meaning="As many long ones suffice for transfers beyond noise in each, if their suspect has "
        "`clear_certainty`, or they have none.",
        source="chosen: on jobs of two simulators by other authors (commit f4481a5)",
    )  # fmt: skip
    seen_twice: int = threshold(
        2, unit="long iterations",
        meaning="A rank that stands out in as many suffices if no other rank's work made an iteration of late as "
        "long.",
        source="chosen: pauses hit ever different ranks, hardly the same one twice",
    )  # fmt: skip
    memory: int = threshold(
        20, unit="iterations",
        meaning="Slow transfers that come and go are gathered over as many.",
        source="chosen: three times the recent ones and a little, on jobs of two simulators (commit f4481a5)",
    )  # fmt: skip
    clear_certainty: float = threshold(
        0.8, unit="probability",
        meaning="From here on it is clear whose the slow transfers are that come and go, or come in a row.",
        source="chosen: a whole communicator's transfers hang now and then, and nobody is to blame",
    )  # fmt: skip
    sure_certainty: float = threshold(
        0.9, unit="probability",
        meaning="From here on a suspect is sure: it may be accused though no recent iteration is long, and is not "
        "merged with another sure one that shares no rank with it.",
        source="chosen: above clear_certainty, as a job has slow phases that nobody is to blame for (commit 848b513)",
    )  # fmt: skip
    min_recovered: float = threshold(
        0.5, unit="share of what a cause is said to have cost",
        meaning="As much must come back when an iteration is run again with its device as usual, where that can be "
        "told.",
        source="formula: most of it; who brings back less is late beside something that is as late",
    )  # fmt: skip
    few_others: int = threshold(
        1, unit="long iterations",
        meaning="While data are uneven no more of the recent ones may be due to others than the accused rank.",
        source="chosen: where each rank is last now and then, one in six is little",
    )  # fmt: skip

    # --- the same again (`open_verdict.py`, `standing_fault.py`) ----------------------------------------------------

    same_share: float = threshold(
        0.5, unit="share of what the fault typically costs, or of how late its rank typically is",
        meaning="Only from here on an iteration that is not long by itself shows the fault of a verdict.",
        source="chosen: half; what is left of a noisy job's slow phase after a fault is no part of it",
    )  # fmt: skip
    loss_step: float = threshold(
        2.0, unit="times the loss that was last published (of custom verdicts the iterations)",
        meaning="A revision says that a verdict goes on from here on.",
        source="chosen: doubling, so that a fault that lasts a month has some twenty revisions",
    )  # fmt: skip
    close_quiet: int = threshold(
        10, unit="judged iterations in a row",
        meaning="A verdict closes after as many without its cause, those aside that could not tell; one that only "
        "reviews see, when they do not find it.",
        source="chosen: more than the recent ones: what is seen once in six iterations stays one verdict",
    )  # fmt: skip

    # --- single iterations (`single_spikes.py`) ---------------------------------------------------------------------

    spike_sigmas: float = threshold(
        8.0, unit="standard deviations",
        meaning="A single iteration accuses only if it stands this far out of the noise.",
        source="chosen: twice what makes an iteration suspect",
    )  # fmt: skip
    spike_transfers: float = threshold(
        3.0, unit="transfers (participation number)",
        meaning="... and its excess, where it is one of transfers, is spread over as many.",
        source="chosen: two may hang at once by chance",
    )  # fmt: skip
    spike_share: float = threshold(
        0.5, unit="share of the iteration's excess",
        meaning="... and one cause explains as much.",
        source="formula: most of it",
    )  # fmt: skip
    spike_cost: float = threshold(
        0.1, unit="share of the usual iteration",
        meaning="... and it cost as much.",
        source="chosen: what delta allows by default",
    )  # fmt: skip
    spike_cost_of_one: float = threshold(
        1.0, unit="share of the usual iteration",
        meaning="... or this where a single rank is accused.",
        source="chosen: healthy ranks pause for a third of one (garbage collection, data loaders), and a pause that "
        "costs less than an iteration and does not come back is nobody's task",
    )  # fmt: skip
    spike_wait: int = threshold(
        5, unit="iterations",
        meaning="A spike is decided as much later, or when the job ends or falls silent.",
        source="chosen: with them it is one of the recent ones, in which a cause that lasts is seen again",
    )  # fmt: skip

    # --- what suspect iterations have in common (`suspicions.py`) ---------------------------------------------------

    event_memory: int = threshold(
        50, unit="iterations",
        meaning="What made an iteration long is remembered for as many, before and after.",
        source="chosen: the window of delta-irregularity",
    )  # fmt: skip
    event_alike: float = threshold(
        1 / 3, unit="ratio to the least that a cause explains of an iteration",
        meaning="From here on the loss of another iteration counts as one that is as large.",
        source="chosen: pauses of garbage collection vary threefold; same_share is about one and the same fault",
    )  # fmt: skip
    uneven_seen: int = threshold(
        6, unit="suspect iterations",
        meaning="Suspect iterations show uneven data if as many within twice as many were lost to ranks' own work, "
        "...",
        source="formula: of six fair draws among four ranks, 82 % show three ranks or more, and none of them in most",
    )  # fmt: skip
    host_by_chance: float = threshold(
        0.05,
        unit="probability",
        meaning="Ranks that come last in turn are a slow host's if chance puts so many on one host more rarely.",
        source="chosen: six of six on either of two hosts are less probable (0.03), five are not (0.22)",
    )
    uneven_ranks: int = threshold(
        3, unit="ranks",
        meaning="Beside uneven_seen: as many came last, none of them in most.",
        source="chosen: two ranks in turn are one host, or a slow one and noise",
    )  # fmt: skip

    # --- hangs (`revision.py`) --------------------------------------------------------------------------------------

    hang_probability: float = threshold(
        0.9, unit="probability",
        meaning="Promised of those who did not arrive in an operator, or stopped inside.",
        source="chosen: rows may be lost of which nobody knows",
    )  # fmt: skip
    shared_hang_probability: float = threshold(
        0.5, unit="probability",
        meaning="Promised where ranks wait for one another, or all of an operator are inside and none came out.",
        source="chosen: what connects them may as well be to blame",
    )  # fmt: skip

    silent_hang_probability: float = threshold(
        0.7, unit="probability",
        meaning="Promised of the members of an operator that log nothing, where all others are inside.",
        source="chosen: one of the others may have stopped inside, and those may wait themselves",
    )  # fmt: skip

    # --- detectors with a say (`custom_verdicts.py`, `strange_ranks.py`) --------------------------------------------

    strange_recent: int = threshold(
        6, unit="judged iterations",
        meaning="The newest ones, in which a detector must find a rank strange often enough.",
        source="chosen: as many as for causes of ours",
    )  # fmt: skip
    strange_seen: int = threshold(
        4, unit="iterations of strange_recent",
        meaning="A detector with a say accuses a rank that it finds strange in as many, the newest included, "
        "unless a verdict of another kind does.",
        source="formula: a rank that is strange in one healthy iteration of 20 reaches it once in 12,000, and 3 of "
        "6 once in 450",
    )  # fmt: skip
    witness_seen: int = threshold(
        3, unit="iterations of strange_recent",
        meaning="Evidence names the witnesses among detectors that find a suspect strange in as many.",
        source="chosen: as many as a late rank must be seen; the suspect is accused already",
    )  # fmt: skip
    custom_probability: float = threshold(
        0.5, unit="probability",
        meaning="Promised of ranks that a detector opens a verdict on.",
        source="chosen: nobody has measured how often a stranger's detector is right",
    )  # fmt: skip
    custom_open: int = threshold(
        8, unit="verdicts of one detector at a time",
        meaning="Ranks that become strange while as many are open join the newest.",
        source="chosen: whoever finds more things strange at once says something of the job, not of a device",
    )  # fmt: skip


VERDICTS: Final = VerdictThresholds()
