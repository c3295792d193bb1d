"""The thresholds of this room: for usual values, suspect iterations, reviews, hangs, and how much is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class JudgingThresholds:
    """Which iterations are usual, suspect, reviewed and read back, and how far a large job's path is followed."""

    # Usual values
    usual_iterations: int = threshold(10, "iterations",
        "The newest regular ones, which are kept to show what is usual; as many pass before a finding is confirmed, "
        "and unannounced pipelines are looked for in as many.",
        "chosen: the medians of ten are steady; more would take longer to read, and to follow a job's "
        "drift")  # fmt: skip
    min_usual_iterations: int = threshold(3, "iterations",
        "With fewer regular ones, what is usual is not learned.",
        "chosen: the least number whose median one stray iteration can't move")  # fmt: skip

    # A suspect iteration
    late_cost_share: float = threshold(0.5, "share of what is worth a look",
        "While no verdict is open, a late rank makes an iteration suspect only if the job took longer by more.",
        "chosen: lateness that the job hardly feels is hidden behind somebody else's")  # fmt: skip

    # Reviews: regular iterations are held against peers, as a fault may be older than the recording
    reviewed_iterations: int = threshold(8, "iterations",
        "The newest regular ones that a review looks at, in jobs of up to whole_ranks ranks.",
        "chosen: above the five that a standing cause is judged by, so that single ones weigh little")  # fmt: skip
    review_every: int = threshold(50, "iterations",
        "How often a review is due.",
        "chosen: as many as the window holds; at seconds per iteration that is every few minutes")  # fmt: skip
    review_standing_every: int = threshold(20, "iterations",
        "The same while a verdict on a standing fault is open.",
        "chosen: more often than review_every, so that a repaired fault does not stay accused for long")  # fmt: skip
    far_ratio: float = threshold(1.0, "share of what its role takes",
        "A pair that takes longer by more in most iterations is odd too.",
        "chosen: twice as long is no matter of distance or load; hardly a healthy pair stays so for "
        "long")  # fmt: skip
    review_wait_share: float = threshold(0.1, "share of what δ allows",
        "In a review, a member of a large collective that may have come later by no more is not read for that.",
        "chosen: of δ's 10 % this is 1 % of an iteration; wait_share is finer, as single iterations are "
        "explained to the part")  # fmt: skip

    # Hangs
    newest_iterations: int = threshold(2, "iterations",
        "An iteration is dropped from the search for hangs when each of its ranks has so many newer ones.",
        "chosen: ranks may stand on both sides of the border between two iterations")  # fmt: skip
    most_apart: int = threshold(16, "iterations",
        "Most iterations that are kept to search for a hang.",
        "chosen by hand: ranks are a few iterations apart")  # fmt: skip
    most_lost_share: float = threshold(0.02, "share of a rank's rows",
        "A missing row of a rank that lost more does not say that the rank did not arrive.",
        "chosen: with 2 % lost, the row that matters is lost in one of fifty hangs")  # fmt: skip

    # Which jobs are read as a whole
    whole_ranks: int = threshold(512, "ranks",
        "A larger job is not read as a whole to explain an iteration.",
        "chosen: a whole iteration of 512 simulated ranks is read and judged in seconds; the localization benchmark "
        "of commit 539e3682 starts there")  # fmt: skip
    followed_usual_iterations: int = threshold(6, "iterations",
        "Regular ones that show what is usual in such a job, at most.",
        "chosen: fewer than usual_iterations, since each is read once more for every rank that is "
        "followed")  # fmt: skip
    most_replayed_rows: int = threshold(100_000, "operators of an iteration",
        "With more, operators are not judged one by one.",
        "chosen: above it the replay takes as long as finding the culprit; verdicts do not need it")  # fmt: skip

    # How far the path of a large job is followed
    most_rounds: int = threshold(12, "rounds",
        "Most times that more ranks are read to follow a path.", "chosen by hand, on simulated jobs")  # fmt: skip
    wait_share: float = threshold(0.05, "share of the iteration's excess, or of what δ allows if that is more",
        "A member of a large collective that may have come later by no more is not read for that.",
        "chosen: a twentieth of the excess accuses nobody, whoever hides behind it")  # fmt: skip
    first_ranks: int = threshold(2, "ranks",
        "Ranks that are read first, besides the slowest one.",
        "chosen: the culprit is mostly the first, and the second makes sure where the first lost rows")  # fmt: skip

    # The budget of large jobs
    read_share: float = threshold(0.004, "share of the job's operators",
        "Reading budget of a large job.",
        "chosen: less than one per cent of the log moves again (0.38 % in bench_bytes.py, commit "
        "e24de91)")  # fmt: skip
    free_operators: int = threshold(500_000, "operators",
        "Least reading budget of a large job.",
        "chosen: at the start of a job the share is next to nothing, and a fault may be there all the "
        "same")  # fmt: skip


JUDGING: Final = JudgingThresholds()
