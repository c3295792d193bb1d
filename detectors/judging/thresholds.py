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
        meaning="The newest regular ones, whose operators show what is usual.",
        source="chosen: the medians of ten are steady; more would take longer to read, and to follow a job's drift",
    )
    min_usual_iterations: int = threshold(
        3,
        unit="iterations",
        meaning="With fewer regular ones nothing is usual yet, and no suspect iteration is looked into.",
        source="chosen: the least number whose median one stray iteration can't move",
    )
    stage_iterations: int = threshold(
        10,
        unit="iterations",
        meaning="The first ones in which pipelines that nobody announced are looked for.",
        source="chosen: lost rows may hide a pipeline in one iteration, hardly in ten",
    )

    # A suspect iteration
    late_cost_share: float = threshold(
        0.5,
        unit="share of what is worth a look",
        meaning="A rank that stands out makes an iteration suspect only if the job took longer by more than this, "
        "or if it is late again and again while a verdict is open.",
        source="chosen: lateness that the job hardly feels is hidden behind somebody else's",
    )

    # Reviews: regular iterations are held against peers, as a fault may be older than the recording
    reviewed_iterations: int = threshold(
        8,
        unit="iterations",
        meaning="The newest regular ones that a review holds against peers (large jobs: blame's review_iterations).",
        source="chosen: above the five that a standing cause is judged by, so that single ones weigh little",
    )
    review_every: int = threshold(
        50,
        unit="iterations",
        meaning="A review is due once in as many iterations, besides the one when the window has its first level.",
        source="chosen: as many as the window holds; at seconds per iteration that is every few minutes",
    )
    review_standing_every: int = threshold(
        20,
        unit="iterations",
        meaning="The same while a verdict on a standing fault is open: reviews confirm or close it.",
        source="chosen: more often than review_every, so that a repaired fault does not stay accused for long",
    )
    review_plan_every: int = threshold(
        10,
        unit="iterations",
        meaning="The same while whom a review accuses, or a plan, waits for a second one to confirm it.",
        source="chosen: as many as usual_iterations, so that both reviews see different iterations",
    )
    odd_share: float = threshold(
        0.5,
        unit="share of what δ allows",
        meaning="A rank, a lane or a stage of a large job is odd, and reason for a review to read, if it may cost "
        "more.",
        source="chosen: evidence alone underestimates the cost, so half of what a review would tell is read",
    )
    far_ratio: float = threshold(
        1.0,
        unit="share of what its role takes",
        meaning="... as is a pair that takes longer by more, whatever it costs: it tells whose NIC slows all.",
        source="chosen: twice as long is no matter of distance or load; hardly a healthy pair stays so for long",
    )
    most_odd: int = threshold(
        16,
        unit="ranks or lanes",
        meaning="With as many of the oddest at most a review of a large job begins to read.",
        source="chosen: a host of eight and its partners; following the path adds the others that matter",
    )
    peers_per_stage: int = threshold(
        16,
        unit="ranks",
        meaning="Peers of each stage that a review of a large job reads to compare with.",
        source="chosen: more than the ranks of one host, so that a slow host is odd among them",
    )
    review_wait_share: float = threshold(
        0.1,
        unit="share of what δ allows",
        meaning="A review does not follow the path over a wait that may cost less.",
        source="chosen: of δ's 10 % this is 1 % of an iteration; reading.wait_share is finer, as single iterations "
        "are explained to the part",
    )

    # Hangs
    newest_iterations: int = threshold(
        2,
        unit="iterations",
        meaning="The newest ones of each rank, in which a hang is looked for when a job ends, is started again, "
        "falls silent or stands still.",
        source="chosen: ranks may stand on both sides of the border between two iterations",
    )
    most_apart: int = threshold(
        16,
        unit="iterations",
        meaning="To find a hang, nothing is kept of ranks that are further behind the newest.",
        source="chosen by hand: ranks are a few iterations apart",
    )
    most_lost_share: float = threshold(
        0.02,
        unit="share of a rank's rows",
        meaning="Of a rank that lost more, a missing row does not say that the rank is missing from an operator.",
        source="chosen: with 2 % lost, the row that matters is lost in one of fifty hangs",
    )


JUDGING: Final = JudgingThresholds()
