"""Measured time: how exactly two moments of a log compare.

A moment in a log is not a moment of the world. An exporter writes when an operator started and how long it took, each
rounded by itself, and often by two clocks; so an operator may end in the log a little *after* the next one of its
rank began. Within that slack the log says nothing about order, and whoever compares two moments asks here.

What the sources deliver:

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
1.3), so an elapsed time by another clock is off by up to `DRIFT_RATIO` of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from irregulars.streams.messages.records import UNKNOWN

Array = np.ndarray

DRIFT_RATIO: Final = 1e-4
"""Two oscillators of +-50 ppm differ by at most this share of the time that both measure."""

LEAST_RESOLUTION_NS: Final = 1_000
"""No log is trusted to be finer than a microsecond: reading a clock and recording an event take about as long."""

CLOCK_ERROR_NS: Final = 100_000
"""Moments of different hosts compare to better than this (contract.md, ``clock``)."""

_STEPS_NS: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
_MIN_VALUES: Final = 4  # starts and elapsed times of so few rows are multiples of ten by chance once in 10^8


def resolutions_ns(rank: Array, start_ns: Array, elapsed_ns: Array) -> Array:
    """Resolution of each row's times: the largest power of ten that divides all times of its rank.

    Parameters
    ----------
    rank, start_ns, elapsed_ns
        int64, one value per row; times in ns. Ranks may have different exporters.

    Returns
    -------
    int64, ns, one value per row, at least `LEAST_RESOLUTION_NS`.

    Examples
    --------
    >>> rank = np.zeros(4, dtype=np.int64)
    >>> resolutions_ns(rank, np.array([10_000, 40_000, 50_000, 120_000]), np.array([20_000, 0, 60_000, 10_000]))
    array([10000, 10000, 10000, 10000])
    """
    resolution = np.full(len(rank), LEAST_RESOLUTION_NS, dtype=np.int64)
    if not len(rank):
        return resolution
    candidates = np.bincount(rank) >= _MIN_VALUES  # ranks whose times are multiples of the step so far
    for step_ns in _STEPS_NS:
        rows = np.flatnonzero(candidates[rank])
        if not len(rows):
            break
        is_finer = (start_ns[rows] % step_ns != 0) | (elapsed_ns[rows] % step_ns != 0)
        candidates[rank[rows[is_finer]]] = False
        resolution[candidates[rank]] = max(step_ns, LEAST_RESOLUTION_NS)
    return resolution


def logged_resolutions_ns(columns: Mapping[str, Array]) -> Array:
    """Return the resolution of each row of a log, int64, ns; of rows without start or end the least there is.

    Parameters
    ----------
    columns
        ``rank, start_ns`` (int64) and ``elapsed_ns`` (float64), as they were logged.
    """
    is_timed = (columns["start_ns"] != UNKNOWN) & np.isfinite(columns["elapsed_ns"])
    found = np.full(len(is_timed), LEAST_RESOLUTION_NS, dtype=np.int64)
    timed = (columns["rank"][is_timed], columns["start_ns"][is_timed], columns["elapsed_ns"][is_timed])
    found[is_timed] = resolutions_ns(*(column.astype(np.int64) for column in timed))
    return found


def slack_ns(resolution_ns: Array, elapsed_ns: Array) -> Array:
    """How far the end of an operator may lie off from other moments of its rank, int64, ns.

    Start, elapsed and the moment it is compared with are each off by half a resolution; elapsed also drifts.
    """
    return 2 * resolution_ns + (elapsed_ns * DRIFT_RATIO).astype(np.int64)
