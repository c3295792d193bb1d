"""The thresholds of this room: for usual values, suspect iterations, reviews, hangs, and how much is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class JudgingThresholds:
    """Which iterations are usual, suspect, reviewed and read back, and how far a large job's path is followed."""

    # Reviews: regular iterations are held against peers, as a fault may be older than the recording
    reviewed_iterations: int = threshold(8, "iterations",
        "The newest regular ones that a review looks at, in jobs of up to whole_ranks ranks.",
        "chosen: above the five that a standing cause is judged by, so that single ones weigh little")  # fmt: skip

    # Hangs

    # Which jobs are read as a whole
    whole_ranks: int = threshold(512, "ranks",
        "A larger job is not read as a whole to explain an iteration.",
        "chosen: a whole iteration of 512 simulated ranks is read and judged in seconds; the localization benchmark "
        "of commit 539e3682 starts there")  # fmt: skip
    most_replayed_rows: int = threshold(100_000, "operators of an iteration",
        "With more, operators are not judged one by one.",
        "chosen: above it the replay takes as long as finding the culprit; verdicts do not need it")  # fmt: skip

    like_ratio: float = threshold(0.6, "ratio of the smaller excess to the larger",
        "Iterations of a large job whose excesses differ more are not of one incident: each is read.",
        "chosen: what a fault costs varies from iteration to iteration by up to a third or so")  # fmt: skip

    # How far the path of a large job is followed
    most_rounds: int = threshold(12, "rounds",
        "Most times that more ranks are read to follow a path.", "chosen by hand, on simulated jobs")  # fmt: skip

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
