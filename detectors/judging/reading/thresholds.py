"""The thresholds of this room: how much of a job's log is read, and how far the critical path is followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class ReadingThresholds:
    """How much of a job's log is read back, and how far the critical path of a large job is followed."""

    # Which jobs are read as a whole
    whole_ranks: int = threshold(512, "ranks",
        "A larger job is not read as a whole to explain an iteration.",
        "chosen: a whole iteration of 512 simulated ranks is read and judged in seconds; the localization benchmark "
        "starts there")  # fmt: skip
    followed_usual_iterations: int = threshold(6, "iterations",
        "Regular ones that show what is usual in such a job, at most.",
        "chosen: fewer than the ten of judging, since each is read once more for every rank that is "
        "followed")  # fmt: skip
    most_replayed_rows: int = threshold(100_000, "operators of an iteration",
        "With more, operators are not judged one by one.",
        "chosen: above it the replay takes as long as finding the culprit; verdicts do not need it")  # fmt: skip

    # How far the path of a large job is followed
    most_ranks: int = threshold(1024, "ranks",
        "Most ranks that are read to follow a path.",
        "chosen: twice whole_ranks: where a thousand ranks wait for one path, it can be followed")  # fmt: skip
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
    read_at_least: int = threshold(6, "iterations of each window",
        "In each window, so many may be read though the budget is spent.",
        "chosen: as many as the newest iterations in which a verdict looks for its cause")  # fmt: skip
    confirm_every: int = threshold(10, "iterations",
        "In a large job, an iteration that an open verdict explains is not read when fewer were judged since the "
        "last read one.",
        "chosen: as many as a verdict waits before it closes, so that a change is seen within that time")  # fmt: skip


READING: Final = ReadingThresholds()
