"""Thresholds of the path: who has peers, which lanes are read from all sides, when two iterations are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class PathThresholds:
    """The limits of the walk from the symptom to the first cause."""

    # Rows that were lost
    most_lost_ratio: float = threshold(0.1, "share of the members of a collective or message",
        "If more lost their row, the transfer is not held against what is usual.",
        "chosen: one lost row of twenty most likely leaves the last arriver; one of two does not")  # fmt: skip

    # Usual values: by the past, and by peers
    overlap_noise_ratio: float = threshold(0.5**0.5,
        "deviation of the time since that operator began, over that since it ended",
        "Below, ranks are taken to work on while the operator before runs.",
        "chosen: what comes on top of the noise of work is then as large as that noise (variances add "
        "up)")  # fmt: skip
    launch_ratio: float = threshold(0.01, "share of the time since the operator before began",
        "A shorter gap is taken for a launch.",
        "chosen: kernels are launched within microseconds, operators take a hundred times as long; on two "
        "simulators by other authors (seeds 71, 72)")  # fmt: skip
    alike_sizes: float = threshold(0.1, "share of the smaller one",
        "Transfers whose sizes differ by more are not peers.",
        "chosen: batches of replicas differ by a per cent or so in bytes (a simulator by another author, seed 102); "
        "what differs by a tenth in time is not slow")  # fmt: skip
    min_peers_of_any_stage: int = threshold(4, "ranks, or lanes",
        "The same for transfers of different pipeline stages.",
        "chosen: above min_peers, since transfers of different stages are less alike")  # fmt: skip

    # Lanes beside a slow transfer, in jobs too large to read whole
    accused_ratio: float = threshold(0.2, "share of the excess on the path",
        "A lane with a smaller share is no reason to look at the lanes beside it; the search for causes ends at one "
        "that explains less of all iterations looked at.",
        "chosen: five causes at most can have this share; fewer reads than with less")  # fmt: skip
    slow_lane_ratio: float = threshold(0.25, "share of the lane's usual mean transfer",
        "A lane beside an accused one that took longer by less does not count as slow.",
        "chosen: summaries are bounds from above, and reading costs less than missing it")  # fmt: skip
    most_candidates: int = threshold(8, "ranks",
        "Of the unread ranks that may have arrived last at a collective, so many are read next, at most.",
        "chosen: a host's GPUs, whose ranks are mostly late together")  # fmt: skip
    most_verified: int = threshold(16, "lanes",
        "Of the lanes that may be slow beside an accused one, so many are read, at most.",
        "chosen: both directions of a host's eight NICs")  # fmt: skip

    # An iteration that is judged by another one of the same incident
    like_ratio: float = threshold(0.6, "ratio of the smaller excess to the larger",
        "Two iterations whose excesses differ more are not of one incident.",
        "chosen: what a fault costs varies from iteration to iteration by up to a third or so")  # fmt: skip
    late_ratio: float = threshold(0.5, "share of the iteration's excess",
        "In iterations of one incident the same ranks work longer by as much.",
        "chosen: less than half is not the main cause")  # fmt: skip

    # Metrics of ranks, from traces of their GPUs
    metric_deviations: float = threshold(5.0, "median absolute deviations above the median",
        "A rank whose distribution lies further from the typical one is unlike its peers.",
        "EROICA (NSDI 2026), localization")  # fmt: skip
    metric_least_count: int = threshold(10, "kernels, or multiplications of a kind",
        "With fewer, the distribution of a rank is not compared: their times may be a few µs, counted in whole ones.",
        "chosen: roundings by half a µs of calls of 5 µs then differ by 3% at the mean")  # fmt: skip
    metric_least_latency: float = threshold(2.0, "ratio of issue latencies",
        "Distributions that differ by a smaller factor are alike.",
        "chosen: the queue of a healthy GPU varies by as much within a step")  # fmt: skip
    metric_least_ratio: float = threshold(0.1, "ratio of rates minus 1, or share of the step",
        "Rates, or voids, that differ by less are alike.",
        "chosen: as for peers' transfers (alike_sizes)")  # fmt: skip


PATH: Final = PathThresholds()
