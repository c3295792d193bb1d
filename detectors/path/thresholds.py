"""Thresholds of the path: who has peers, which lanes are read from all sides, when two iterations are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class PathThresholds:
    """What the walk from the symptom to the first cause compares with."""

    # Rows that were lost
    most_lost_ratio: float = threshold(
        0.1,
        unit="share of the members of a collective or message",
        meaning="If more lost their row, the transfer is not held against what is usual.",
        source="chosen: one lost row of twenty most likely leaves the last arriver; one of two does not",
    )

    # What is usual: by the past, and by peers
    overlap_noise_ratio: float = threshold(
        0.5**0.5,
        unit="deviation of the time since that operator began, over that since it ended",
        meaning="Below, ranks are taken to work on while the operator before runs.",
        source="chosen: what comes on top of the noise of work is then as large as that noise (variances add up)",
    )
    launch_ratio: float = threshold(
        0.01,
        unit="share of the time since the operator before began",
        meaning="A shorter gap is taken for a launch.",
        source="chosen: kernels are launched within microseconds, operators take a hundred times as long; "
        "on two simulators by other authors (seeds 71, 72)",
    )
    min_peers: int = threshold(
        2,
        unit="ranks, or lanes",
        meaning="With fewer in a role, nothing is usual in it.",
        source="chosen: the least with which there is another one; a pipeline stage often has two ranks",
    )
    alike_sizes: float = threshold(
        0.1,
        unit="share of the smaller one",
        meaning="Transfers whose sizes differ by more are not peers.",
        source="chosen: batches of replicas differ by a per cent or so in bytes (a simulator by another author, seed "
        "102); what differs by a tenth in time is not slow",
    )
    min_peers_of_any_stage: int = threshold(
        4,
        unit="ranks, or lanes",
        meaning="The same for transfers of different pipeline stages.",
        source="chosen: above min_peers, since transfers of different stages are less alike",
    )

    # Lanes beside a slow transfer, in jobs too large to read whole
    accused_ratio: float = threshold(
        0.2,
        unit="share of the excess on the path",
        meaning="A lane with a smaller share is no reason to look at the lanes beside it.",
        source="chosen: five causes at most can have this share; fewer reads than with less",
    )
    slow_lane_ratio: float = threshold(
        0.25,
        unit="share of the lane's usual mean transfer",
        meaning="A lane beside an accused one that took longer by less does not count as slow.",
        source="chosen: summaries are bounds from above, and reading costs less than missing it",
    )
    slow_lane_sigmas: float = threshold(
        3.0,
        unit="robust standard deviations of the lane's mean transfer",
        meaning="A lane beside an accused one that took longer by less does not count as slow.",
        source="chosen: the usual three sigma",
    )
    most_candidates: int = threshold(
        8,
        unit="ranks",
        meaning="Of the unread ranks that may have arrived last at a collective, so many are read next, at most.",
        source="chosen: a host's GPUs, whose ranks are mostly late together",
    )
    most_verified: int = threshold(
        16,
        unit="lanes",
        meaning="Of the lanes that may be slow beside an accused one, so many are read, at most.",
        source="chosen: both directions of a host's eight NICs",
    )

    # An iteration that is judged by another one of the same incident
    like_ratio: float = threshold(
        0.6,
        unit="ratio of the smaller excess to the larger",
        meaning="Two iterations whose excesses differ more are not of one incident.",
        source="chosen: what a fault costs varies from iteration to iteration by up to a third or so",
    )
    late_ratio: float = threshold(
        0.5,
        unit="share of the iteration's excess",
        meaning="In iterations of one incident the same ranks work longer by as much.",
        source="chosen: less than half is not the main cause",
    )


PATH: Final = PathThresholds()
