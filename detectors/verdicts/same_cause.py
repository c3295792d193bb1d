"""Whether two causes are one incident: one cause, one verdict.

found now                       open verdict                    one incident?
NIC of rank 1 slow              its communicator slow           yes: the NIC carries the communicator's lanes
link from 1 to 3 slow           NIC of rank 3 slow, sure        yes: the NIC carries the link's lanes
NIC of rank 1 slow, sure        NIC of rank 7 slow, sure        no, even if both are in one communicator
rank 1 works longer             the stage of rank 1 does        no: a heavy stage is a plan, a slow rank is not
"""

from __future__ import annotations

from typing import Final

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.suspects import is_carried
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.verdicts.thresholds import VERDICTS

_OF_WORK: Final = frozenset({"slow_rank", "slow_stage"})


def is_same(one: Cause, other: Cause) -> bool:
    """Whether two causes blame the same lanes; those of a whole stage or of nobody are told by their kind.

    A stage that works more than the others is a plan: what slows one of its ranks down besides is another matter.
    """
    if (one.kind == "slow_stage") != (other.kind == "slow_stage"):
        return False
    shared = one.lanes & other.lanes
    if _accuse_others(one, other) and all(lane.kind == "collective" for lane in shared):
        return False  # both NICs are in the communicator of all ranks
    return bool(shared) or (not one.lanes and one.kind == other.kind)


def is_explained(cause: Cause, by: Cause, topology: Topology) -> bool:
    """Whether the device of one of two causes slows down all that the other one blames.

    A throttled NIC makes its communicators slow, and these may be seen first: one cause, one verdict.
    """
    if "slow_stage" in (cause.kind, by.kind) or not cause.lanes or not by.lanes:
        return False
    if _accuse_others(cause, by):
        return False
    return _carries_all(by, cause, topology) or _carries_all(cause, by, topology)


def carries_lane(cause: Cause, lane: Lane, topology: Topology) -> bool:
    """Whether a cause's first suspect carries the transfers of a lane: a rank, a host and a stage carry none."""
    if not cause.suspects or cause.kind in _OF_WORK or lane.kind == "work":
        return False
    return is_carried(cause.suspects[0][0], lane, min(cause.lanes), topology)


def _carries_all(one: Cause, other: Cause, topology: Topology) -> bool:
    """Whether the device of one cause carries all transfers that the other one blames."""
    if not one.suspects or not _OF_WORK.isdisjoint((one.kind, other.kind)):
        return False
    return all(carries_lane(one, lane, topology) for lane in other.lanes if lane.kind != "work")


def _accuse_others(one: Cause, other: Cause) -> bool:
    """Whether two causes surely accuse devices that have no rank in common, all alternatives included."""
    if not one.suspects or not other.suspects:
        return False
    if min(cause.suspects[0][1] for cause in (one, other)) < VERDICTS.sure_certainty:
        return False
    first, second = ({rank for device, _ in cause.suspects for rank in device.ranks} for cause in (one, other))
    return first.isdisjoint(second)
