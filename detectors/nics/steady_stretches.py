"""Where in a recording without iterations one NIC was steady and capped while the others burst.

Time is cut into windows of equal numbers of samples, and each window is looked at as an iteration would be
(`detectors.nics.steadiness`). Without iterations nothing tells how much was lost, so this accuses nobody: it says
what was seen, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.job.topology import Topology
from irregulars.detectors.nics.behaviour_patterns import Executions, Intervals, is_one_counter, statistics
from irregulars.detectors.nics.peak_caps import End
from irregulars.detectors.nics.steadiness import WHOLE, Swing, steady_ends
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Floats, Ints

_MOST_WINDOWS: Final = 100_000


class Traffic(NamedTuple):
    """Samples of one rank's NIC: when each interval began and ended, ns, and bytes per second in it."""

    begin_ns: Ints
    end_ns: Ints
    tx: Floats
    rx: Floats


class Stretch(NamedTuple):
    """While one end of a NIC was steady: since the first sample of all, s, and its rate and swing (σ over mean)."""

    end: End
    begin_s: float
    past_s: float
    bytes_per_s: float
    swing: float


def steady_stretches(traffic: Mapping[int, Traffic], topology: Topology) -> list[Stretch]:
    """Find the stretches, in order of time; none if fewer NICs are sampled than can be compared.

    Parameters
    ----------
    traffic
        Of each rank, in order of time, on clocks that agree to within some samples.
    """
    known = {rank: own for rank, own in traffic.items() if len(own.tx) and is_one_counter(own.begin_ns, own.end_ns)}
    if not known:
        return []
    first_ns = min(int(own.begin_ns[0]) for own in known.values())
    window_ns = NICS.window_samples * median(float(np.median(own.end_ns - own.begin_ns)) for own in known.values())
    past_ns = max(int(own.end_ns[-1]) for own in known.values())
    edges = np.arange(first_ns, past_ns + window_ns, max(window_ns, (past_ns - first_ns) / _MOST_WINDOWS))
    swings = _swings(known, edges)
    ranks = sorted(known)
    steady = [
        (number, end)
        for number, own in enumerate(swings)
        for end, is_steady in steady_ends(WHOLE, ranks, [own], topology).items()
        if is_steady
    ]
    return sorted(_joined(steady, swings, edges - first_ns), key=lambda stretch: (stretch.begin_s, stretch.end))


def _swings(traffic: Mapping[int, Traffic], edges: Floats) -> list[list[Swing]]:
    """Swings of each window; a rate's usual peak is the highest of the whole recording."""
    count = len(edges) - 1
    windows = Executions(np.arange(count), edges[:-1], edges[1:])
    found: list[list[Swing]] = [[] for _ in range(count)]
    for rank, own in sorted(traffic.items()):
        sent, received = (
            statistics(windows, Intervals(own.begin_ns, own.end_ns, rate), count) for rate in (own.tx, own.rx)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = (
                sent.deviation / sent.mean, received.deviation / received.mean, sent.mean, received.mean,
                sent.mean / np.fmax.reduce(own.tx), received.mean / np.fmax.reduce(own.rx),
            )  # fmt: skip
        for number, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            found[number].append(Swing(WHOLE, rank, *values))
    return found


def _joined(steady: Sequence[tuple[int, End]], swings: Sequence[Sequence[Swing]], edges_ns: Floats) -> list[Stretch]:
    """Join windows of the same end that follow each other."""
    found = []
    for end, own in groupby(sorted(steady, key=lambda one: (one[1], one[0])), key=lambda one: one[1]):
        numbers = np.array([number for number, _ in own])
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
            if len(run) >= NICS.min_windows:
                of_end = [one for number in run.tolist() for one in swings[number] if one.rank in end[0].ranks]
                rate, swing = (median(one[column + end[1]] for one in of_end) for column in (4, 2))
                begin_s, past_s = float(edges_ns[run[0]]) / 1e9, float(edges_ns[run[-1] + 1]) / 1e9
                found.append(Stretch(end, begin_s, past_s, rate, swing))
    return found
