"""Judge an iteration without reading its operators, by another iteration of the same incident that was read.

A fault that lasts looks the same in each iteration. That can be seen without operators: the job lost about as much
time again, the ranks that were late by their own work still are, and no others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from irregulars.detectors.job.lanes import LaneExcess
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.path.thresholds import PATH


def carry_over(
    read: Attribution, read_excess_ns: float, iteration: int, excess_ns: float, work_excess_ns: Mapping[int, float]
) -> Attribution | None:
    """Say where the excess of `iteration` went, if it is like one that was read; None if it is not.

    Parameters
    ----------
    read, read_excess_ns
        The iteration that was read, and how much longer than usual it took.
    excess_ns, work_excess_ns
        How much longer the iteration to judge took, and how much longer each of its ranks worked than usual.
    """
    if min(read_excess_ns, excess_ns) < PATH.like_ratio * max(read_excess_ns, excess_ns) or excess_ns <= 0:
        return None
    late = _late(read.work_excess_ns, read_excess_ns)
    if late != _late(work_excess_ns, excess_ns):
        return None
    scale = excess_ns / read_excess_ns
    return replace(
        read,
        iteration=iteration,
        path_excess_ns={lane: ns * scale for lane, ns in read.path_excess_ns.items()},
        lanes={lane: _scaled(one, scale) for lane, one in read.lanes.items()},
        work_excess_ns=dict(work_excess_ns),
    )


def _late(work_excess_ns: Mapping[int, float], excess_ns: float) -> set[int]:
    return {rank for rank, ns in work_excess_ns.items() if ns >= PATH.late_ratio * excess_ns}


def _scaled(one: LaneExcess, scale: float) -> LaneExcess:
    return one._replace(excess_ns=one.excess_ns * scale if one.excess_ns > 0 else one.excess_ns)
