"""Measured time: how exactly two moments of a log compare.

A moment in a log is not a moment of the world. An exporter writes when an operator started and how long it took, each
rounded by itself, and often by two clocks. So an operator may end in the log a little *after* the next one of its
rank began. Within this slack the log does not tell which came first, so code that compares two moments takes the
slack from here.

The sources deliver:

=====================  ==========================  ==============================================================
source                 start and elapsed           clocks
=====================  ==========================  ==============================================================
NCCL Inspector         1 us, rounded apart         the GPU's timer for elapsed, the host's for the start
Kineto                 1 us (ns in new versions)   the GPU's timer, moved to the host's once per profile
flight recorder        1 us, ends seldom known     the host's for the start, CUDA events for elapsed
torch hook, native     1 ns                        CUDA events from one anchor; on a CPU the host's clock for both
torch hook, Python     1 ns                        the same
=====================  ==========================  ==============================================================

Quartz oscillators of servers keep +-50 ppm (Mills, *Computer Network Time Synchronization*, 2nd ed. 2010, section
1.3), so an elapsed time by another clock is off by up to `JobThresholds.drift_ratio` of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from irregulars.detectors.job.thresholds import JOB
from irregulars.dtypes import Column, Ints
from irregulars.messages.records import UNKNOWN

_STEPS_NS: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


def resolutions_ns(rank: Ints, start_ns: Ints, elapsed_ns: Ints) -> Ints:
    """Resolution of each row's times: that of its rank's starts or of its elapsed times, whichever is coarser.

    Exporters round the two apart, and not always alike.

    `rank`, `start_ns`, `elapsed_ns`: int64, one value per row; times in ns. Ranks may have different exporters.
    Returns int64, ns, one value per row, at least `JobThresholds.least_resolution_ns`.

    >>> rank = np.zeros(4, dtype=np.int64)
    >>> resolutions_ns(rank, np.array([10_000, 40_000, 50_000, 120_000]), np.array([20_000, 1_000, 60_000, 10_000]))
    array([10000, 10000, 10000, 10000])
    """
    return np.maximum(_resolutions(rank, start_ns), _resolutions(rank, elapsed_ns))


def _resolutions(rank: Ints, times_ns: Ints) -> Ints:
    """Resolution of the times of each row's rank: the largest power of ten that divides all of them.

    A rank all of whose times are 0 shows nothing of it.
    """
    resolution = np.full(len(rank), JOB.least_resolution_ns, dtype=np.int64)
    if not len(rank):
        return resolution
    # A time of 0 is a multiple of every step, and shows none.
    candidates = np.bincount(rank, times_ns != 0) >= JOB.often
    for step_ns in _STEPS_NS:
        rows = np.flatnonzero(candidates[rank])
        # Each step is a multiple of the one before: a rank that fails one fails all later ones.
        if not len(rows):
            break
        candidates[rank[rows[times_ns[rows] % step_ns != 0]]] = False
        resolution[candidates[rank]] = max(step_ns, JOB.least_resolution_ns)
    return resolution


def logged_resolutions_ns(columns: Mapping[str, Column]) -> Ints:
    """Return the resolution of each row of a log, int64, ns; rows without a start or an end get the least there is.

    `columns`: ``rank, start_ns`` (int64) and ``elapsed_ns`` (float64), as they were logged.
    """
    is_timed = (columns["start_ns"] != UNKNOWN) & np.isfinite(columns["elapsed_ns"])
    found = np.full(len(is_timed), JOB.least_resolution_ns, dtype=np.int64)
    timed = (columns["rank"][is_timed], columns["start_ns"][is_timed], columns["elapsed_ns"][is_timed])
    found[is_timed] = resolutions_ns(*(column.astype(np.int64) for column in timed))
    return found


def slack_ns(resolution_ns: Ints, elapsed_ns: Ints) -> Ints:
    """Return the error of each operator's end against other moments of its rank, int64, ns.

    The start, the elapsed time and the moment compared with are each off by half a resolution or less; the elapsed
    time also drifts.
    """
    return 2 * resolution_ns + (elapsed_ns * JOB.drift_ratio).astype(np.int64)
