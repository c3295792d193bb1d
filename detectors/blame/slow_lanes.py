"""Which lanes were slow, over all iterations that are looked at.

A lane counts by how surely it differs from what is usual, and not by what it costs: a NIC at a ninth of its speed
shows in each of its sends, also where they are a hundredth of the iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.critical_path import Attribution

_USUAL_ITERATIONS: Final = 6  # at least: `detectors.path.usual_by_past` learns from as many


def observe_lanes(accused: Lane, attributions: Sequence[Attribution]) -> dict[Lane, bool]:
    """Return of each lane that tells something whether it was slow; the accused one always was.

    A lane is held against what it would take longer if it were slowed as the accused one is. Where that would be
    noticed, it is slow or normal. Where it would not, looking normal tells nothing, and it is left out unless it is
    slower by more than waiting behind the accused one's traffic explains: a barrier of a few bytes waits behind all
    other traffic. A lane in which a single transfer of several hung is not slow: the others passed as always.

    Examples
    --------
    Both pairs usually take 10 ms, give or take 0.1 ms. From 1 to 5 it takes 30 ms longer, from 1 to 3 nothing:

    >>> took = {Lane("pair", 1, 5): LaneExcess(30e6, 10e6, 1e5, 1e6)}
    >>> took[Lane("pair", 1, 3)] = LaneExcess(0.0, 10e6, 1e5, 1e6)
    >>> list(observe_lanes(Lane("pair", 1, 5), [Attribution(0, {}, {}, took, {})]).values())
    [True, False]
    """
    by_lane: dict[Lane, list[LaneExcess]] = {}
    for attribution in attributions:
        for lane, excess in attribution.lanes.items():
            by_lane.setdefault(lane, []).append(excess)
    lanes = {lane: _typical(found) for lane, found in by_lane.items()}
    seen = {accused: True}
    for lane, typical in lanes.items():
        is_slow = _is_slow(typical, len(by_lane[lane]), lanes.get(accused))
        if is_slow is not None:
            seen.setdefault(lane, is_slow)
    return seen


def _is_slow(typical: LaneExcess, iterations: int, accused: LaneExcess | None) -> bool | None:
    """Return whether a lane is slow; None if it tells nothing."""
    is_over = typical.excess_ns > _noticed_ns(typical, iterations) and not typical.is_stray
    expected_ns = 0.0 if accused is None else _expected_excess_ns(typical, accused)
    if expected_ns > BLAME.telling_ratio * BLAME.lane_sigmas * _standard_error_ns(typical, iterations):
        return is_over and typical.excess_ns > BLAME.like_accused * expected_ns
    return True if is_over and typical.excess_ns > _queued_ns(typical, accused) else None


def stands_out(lane: Lane, attributions: Sequence[Attribution]) -> bool:
    """Whether some iterations together show that a lane is slow, beyond the noise of it and of what is usual."""
    typical = typical_excess(lane, attributions)
    return typical is not None and typical.excess_ns > _noticed_ns(
        typical, sum(lane in a.lanes for a in attributions)
    )


def typical_excess(lane: Lane, attributions: Iterable[Attribution]) -> LaneExcess | None:
    """Return the medians, over the iterations, of what is known of a lane; None if nothing is."""
    found = [a.lanes[lane] for a in attributions if lane in a.lanes]
    return _typical(found) if found else None


def _typical(found: Sequence[LaneExcess]) -> LaneExcess:
    if len(found) == 1:
        return found[0]
    return LaneExcess(*(median(values) for values in zip(*found, strict=True)))


def _noticed_ns(typical: LaneExcess, iterations: int) -> float:
    """Return the excess above which a lane is slow beyond noise and drift, ns."""
    return BLAME.lane_sigmas * _standard_error_ns(typical, iterations)


def _standard_error_ns(typical: LaneExcess, iterations: int) -> float:
    """Return the standard error of the median excess of a lane: of these iterations and of what is usual, ns."""
    of_noise_ns = typical.noise_ns * math.sqrt(1 / iterations + 1 / _USUAL_ITERATIONS)
    of_clock_ns = JOB.least_resolution_ns * typical.transfers  # roundings that are alike add up
    return math.hypot(MEDIAN_ERROR * of_noise_ns, BLAME.model_error * typical.usual_ns, of_clock_ns)


def _queued_ns(typical: LaneExcess, accused: LaneExcess | None) -> float:
    """Return the excess that a lane may have from waiting behind the accused one's traffic alone, ns."""
    by_time_ns = _by_time_ns(typical, accused) if accused is not None else 0.0
    return max(BLAME.queue_ns * typical.transfers, BLAME.like_accused * by_time_ns)


def _expected_excess_ns(lane: LaneExcess, accused: LaneExcess) -> float:
    """Return the excess that a lane would have at least if it were slowed as the accused one is, ns.

    By its usual time or by its bytes where the device is slow, by its transfers where each of them is delayed.
    """
    by_time_ns = _by_time_ns(lane, accused)
    by_count_ns = accused.excess_ns * lane.transfers / max(accused.transfers, 1.0)
    least_ns = min(by_time_ns, by_count_ns)
    if lane.size_bytes > 0 and accused.size_bytes > 0:
        return min(least_ns, accused.excess_ns * lane.size_bytes / accused.size_bytes)
    return least_ns


def _by_time_ns(lane: LaneExcess, accused: LaneExcess) -> float:
    """Return the excess of a lane whose transfers took longer in the accused one's proportion, ns."""
    return accused.excess_ns * lane.usual_ns / max(accused.usual_ns, 1.0)
