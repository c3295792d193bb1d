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
        meaning="If more of them lost their row, nobody knows who arrived last, and the transfer is left out.",
        source="chosen: one lost row of twenty most likely leaves the last arriver; one of two does not",
    )

    # What is usual: by the past, and by peers
    overlap_noise_ratio: float = threshold(
        0.5**0.5,
        unit="ratio of two deviations",
        meaning="A rank works on while the operator before runs, if the time since that operator began varies less "
        "than this ratio times the time since it ended.",
        source="chosen: what comes on top of the noise of work is then as large as that noise (variances add up)",
    )
    launch_ratio: float = threshold(
        0.01,
        unit="share of the time since the operator before began",
        meaning="A shorter gap is taken for a launch: work, if there was any, hid behind the operator before.",
        source="chosen: kernels are launched within microseconds, operators take a hundred times as long; "
        "on two simulators by other authors (seeds 71, 72)",
    )
    min_peers: int = threshold(
        2,
        unit="ranks, or lanes",
        meaning="Fewer in one role say nothing of one another.",
        source="chosen: the least with which there is another one; a pipeline stage often has two ranks",
    )
    alike_sizes: float = threshold(
        0.1,
        unit="share of the smaller one",
        meaning="Transfers are held against others of about their size: up to so much larger.",
        source="chosen: batches of replicas differ by a per cent or so in bytes (a simulator by another author, seed "
        "102); what differs by a tenth in time is not slow",
    )
    min_peers_of_any_stage: int = threshold(
        4,
        unit="ranks, or lanes",
        meaning="As min_peers, for transfers of different pipeline stages; from as many on, lanes below the usual "
        "time bound the spread as well.",
        source="chosen: above min_peers, since transfers of different stages are less alike",
    )

    # Lanes beside a slow transfer, in jobs too large to read whole
    accused_ratio: float = threshold(
        0.2,
        unit="share of the excess on the path",
        meaning="A lane of transfers between hosts with so large a share is accused: the lanes beside it are "
        "looked at as well.",
        source="chosen: five causes at most can have this share; fewer reads than with less",
    )
    slow_lane_ratio: float = threshold(
        0.25,
        unit="share of the lane's usual mean transfer",
        meaning="A lane beside an accused one that took longer by more may be slow, and is read to know.",
        source="chosen: summaries are bounds from above, and reading costs less than missing it",
    )
    slow_lane_sigmas: float = threshold(
        3.0,
        unit="robust standard deviations of the lane's mean transfer",
        meaning="The same; both must be exceeded.",
        source="chosen: the usual three sigma",
    )
    most_candidates: int = threshold(
        8,
        unit="ranks",
        meaning="Of the unread ranks that may have arrived last, the likeliest so many are read at a time.",
        source="chosen: a host's GPUs, whose ranks are mostly late together",
    )
    most_verified: int = threshold(
        16,
        unit="lanes",
        meaning="Of the lanes that may be slow beside an accused one, so many that stand out most are read.",
        source="chosen: both directions of a host's eight NICs",
    )

    # An iteration that is judged by another one of the same incident
    like_ratio: float = threshold(
        0.6,
        unit="ratio of the smaller excess to the larger",
        meaning="Two iterations whose excesses are as near may be of one incident.",
        source="chosen: what a fault costs varies from iteration to iteration by up to a third or so",
    )
    late_ratio: float = threshold(
        0.5,
        unit="share of the iteration's excess",
        meaning="A rank that works longer by so much may be the cause. In iterations of one incident it is the same.",
        source="chosen: less than half is not the main cause",
    )


PATH: Final = PathThresholds()
