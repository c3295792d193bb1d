"""The thresholds of this room: what is usual, what is looked into, when healthy iterations are reviewed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class JudgingThresholds:
    """What is usual, what is looked into, and when iterations that seem healthy are reviewed."""

    # What is usual
    usual_iterations: int = threshold(
        10,
        unit="iterations",
        meaning="The newest regular ones, which are kept to show what is usual.",
        source="chosen: the medians of ten are steady; more would take longer to read, and to follow a job's drift",
    )
    min_usual_iterations: int = threshold(
        3,
        unit="iterations",
        meaning="With fewer regular ones, what is usual is not learned.",
        source="chosen: the least number whose median one stray iteration can't move",
    )
    stage_iterations: int = threshold(
        10,
        unit="iterations",
        meaning="The first ones, in which unannounced pipelines are looked for.",
        source="chosen: lost rows may hide a pipeline in one iteration, hardly in ten",
    )

    # A suspect iteration
    late_cost_share: float = threshold(
        0.5,
        unit="share of what is worth a look",
        meaning="While no verdict is open, a late rank makes an iteration suspect only if the job took longer "
        "by more.",
        source="chosen: lateness that the job hardly feels is hidden behind somebody else's",
    )

    # Reviews: regular iterations are held against peers, as a fault may be older than the recording
    reviewed_iterations: int = threshold(
        8,
        unit="iterations",
        meaning="The newest regular ones that a review looks at, in jobs of up to whole_ranks ranks.",
        source="chosen: above the five that a standing cause is judged by, so that single ones weigh little",
    )
    review_every: int = threshold(
        50,
        unit="iterations",
        meaning="How often a review is due.",
        source="chosen: as many as the window holds; at seconds per iteration that is every few minutes",
    )
    review_standing_every: int = threshold(
        20,
        unit="iterations",
        meaning="The same while a verdict on a standing fault is open.",
        source="chosen: more often than review_every, so that a repaired fault does not stay accused for long",
    )
    review_plan_every: int = threshold(
        10,
        unit="iterations",
        meaning="The same while a finding waits to be confirmed; it goes first.",
        source="chosen: as many as usual_iterations, so that both reviews see different iterations",
    )
    odd_share: float = threshold(
        0.5,
        unit="share of what δ allows",
        meaning="A rank, lane or stage of a large job that may cost more is odd: a review reads.",
        source="chosen: evidence alone underestimates the cost, so half of what a review would tell is read",
    )
    far_ratio: float = threshold(
        1.0,
        unit="share of what its role takes",
        meaning="A pair that takes longer by more in most iterations is odd too.",
        source="chosen: twice as long is no matter of distance or load; hardly a healthy pair stays so for long",
    )
    most_odd: int = threshold(
        16,
        unit="ranks",
        meaning="Odd ranks with which a review of a large job begins to read, at most.",
        source="chosen: a host of eight and its partners; following the path adds the others that matter",
    )
    peers_per_stage: int = threshold(
        16,
        unit="ranks",
        meaning="Ranks of each stage that a review of a large job reads to compare with, at most.",
        source="chosen: more than the ranks of one host, so that a slow host is odd among them",
    )
    review_wait_share: float = threshold(
        0.1,
        unit="share of what δ allows",
        meaning="In a review, a member of a large collective that may have come later by no more is not read "
        "for that.",
        source="chosen: of δ's 10 % this is 1 % of an iteration; reading.wait_share is finer, as single iterations "
        "are explained to the part",
    )

    # Hangs
    newest_iterations: int = threshold(
        2,
        unit="iterations",
        meaning="An iteration is dropped from the search for hangs when each of its ranks has so many newer ones.",
        source="chosen: ranks may stand on both sides of the border between two iterations",
    )
    most_apart: int = threshold(
        16,
        unit="iterations",
        meaning="Most iterations that are kept to search for a hang.",
        source="chosen by hand: ranks are a few iterations apart",
    )
    most_lost_share: float = threshold(
        0.02,
        unit="share of a rank's rows",
        meaning="A missing row of a rank that lost more does not say that the rank did not arrive.",
        source="chosen: with 2 % lost, the row that matters is lost in one of fifty hangs",
    )


JUDGING: Final = JudgingThresholds()
