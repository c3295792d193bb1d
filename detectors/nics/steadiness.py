"""Which NICs move steadily: the lowest deviation of the rate among the NICs at the ends of slow transfers.

In a ring all members move the same bytes, so one slow NIC or link lowers everybody's mean alike. But the slow one is
busy all the time, while the others burst at full rate and then wait: the lowest deviation names it (EROICA, NSDI
2026, figures 3 to 5). A steady rate that is as high as ever is no cap. Where nobody bursts, because all is well or
samples are too coarse, deviations show nothing.

Unlike the peak of a whole iteration (`detectors.nics.peak_caps`), a pattern is of the operators of one communicator,
so that a burst of other traffic over the same NIC does not hide a cap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import pack_columns
from irregulars.detectors.arrays.runs import run_ends
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.behaviour_patterns import Executions, Intervals, is_one_counter, statistics
from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.nics.peak_caps import End
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Floats, Ints

WHOLE: Final = -1  # instead of a communicator: the iteration as a whole
_UNKNOWN: Final = (math.nan, math.nan)
_SWING, _RATIO = 2, 6  # columns of the sent traffic; that of the received one follows each


class Swing(NamedTuple):
    """How a rank's NIC moved while operators of a communicator ran: sent and received.

    ``tx`` and ``rx`` are deviation over mean, ``_rate`` the mean in bytes per second, ``_ratio`` the mean over the
    usual peak of the NIC. NaN where there were too few samples, or the usual values are not known.
    """

    communicator: int
    rank: int
    tx: float
    rx: float
    tx_rate: float
    rx_rate: float
    tx_ratio: float
    rx_ratio: float


Peaks = Mapping[int, tuple[float, float]]  # usual peaks of ranks' NICs, sent and received, bytes per second
Swings = Mapping[tuple[int, int], Swing]  # by communicator and rank


def swings_of(patterns: Patterns, communicators: Collection[int], usual: Peaks) -> tuple[Swing, ...]:
    """Return the swings on some communicators, of the operator there that took longest over all of its ranks.

    All ranks are held against each other by the same operator: in a ring, an all_gather and a reduce_scatter of the
    same group may go round in opposite directions, and only one of them may pass the slow device.
    """
    rows = np.flatnonzero(np.isin(patterns.communicator, list(communicators)))
    key = pack_columns([patterns.communicator[rows], patterns.operator[rows]])
    keys, first, group = np.unique(key, return_index=True, return_inverse=True)
    shares = np.bincount(group, patterns.share[rows], minlength=len(keys))
    order = np.lexsort((shares, patterns.communicator[rows][first]))
    # By communicator, then share: the last row of each run is the operator that took longest.
    longest = order[run_ends(patterns.communicator[rows][first][order])]
    rows = rows[np.isin(group, longest)]
    own = patterns.only(rows)
    peaks = np.array([usual.get(one, _UNKNOWN) for one in own.rank.tolist()]).reshape(-1, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        tx, rx = own.tx_deviation / own.tx_mean, own.rx_deviation / own.rx_mean
        ratios = own.tx_mean / peaks[:, 0], own.rx_mean / peaks[:, 1]
    columns = (own.communicator, own.rank, tx, rx, own.tx_mean, own.rx_mean, *ratios)
    return tuple(Swing(*values) for values in zip(*(column.tolist() for column in columns), strict=True))


def steady_ends(
    communicator: int, ranks: Iterable[int], swings: Sequence[Sequence[Swing]], topology: Topology
) -> dict[End, bool]:
    """Return of each NIC that takes part, sending and receiving, whether its rate is steady and capped.

    `communicator`: on which a transfer is slow, by the job's code, or `WHOLE`. `ranks`: those that take part.
    `swings`: swings of some iterations in which it was slow. Empty if the swings show nothing: an end has no pattern,
    nobody bursts, or nobody is steady.
    """
    ends = [(nic, way) for nic in sorted({topology.nic(rank) for rank in ranks}) for way in (0, 1)]
    if len(ends) < 2 * JOB.repeated:
        return {}
    by_place = [{(one.communicator, one.rank): one for one in own} for own in swings]
    known: dict[End, float] = {}
    for end in ends:
        swing = _typical(end, communicator, by_place, _SWING)
        if swing is None:
            return {}  # mostly the first one: of few communicators there are patterns
        known[end] = swing
    middle = median(known.values())

    def is_capped(end: End) -> bool:
        return (_typical(end, communicator, by_place, _RATIO) or 0.0) <= JOB.nearly_all

    steady = {end: swing <= 1 / NICS.flattened * middle and is_capped(end) for end, swing in known.items()}
    # Peaks vary by as much without a burst.
    return steady if middle > 1 - JOB.nearly_all and any(steady.values()) else {}


def steady_text(device: Device, communicator: int, swings: Sequence[Sequence[Swing]]) -> str | None:
    """Return a text on a NIC's, or a link's sender's, rate, and how steady it was beside the others; None: not known.

    Of its two directions the steadier one is named.
    """
    known = [one for own in swings for one in own if one.communicator == communicator]
    owners = device.traits.senders(device.ranks)
    found = []
    for way, verb in enumerate(("sent", "received")):
        own = [(one[2 + way], one[4 + way]) for one in known if one.rank in owners and one[2 + way] >= 0]
        others = [one[2 + way] for one in known if one.rank not in device.ranks and one[2 + way] >= 0]
        if own and others:
            swing, rate = (median(column) for column in zip(*own, strict=True))
            bits = f"{rate * 8 / 1e6:.3g} Mbit/s" if rate < 1.25e8 else f"{rate * 8 / 1e9:.3g} Gbit/s"
            found.append((swing, f"{verb} {bits} meanwhile, ± {swing:.0%} (others ± {median(others):.0%})"))
    return f"rank {device.ranks[0]} {min(found)[1]}" if found else None


def _typical(end: End, communicator: int, swings: Sequence[Swings], column: int) -> float | None:
    """Median of one column of an end over the iterations; any of the ranks that share a NIC may have sampled it."""
    nic, way = end
    found = []
    for own in swings:
        known = [own[communicator, rank][column + way] for rank in nic.ranks if (communicator, rank) in own]
        found += [min(finite)] if (finite := [value for value in known if value >= 0]) else []
    return median(found) if found else None


# --------------------------------------------------------------------------------------------------------------------
# Where in a recording without iterations one NIC was steady and capped while the others burst.
# Time is cut into windows of equal numbers of samples, and each window is looked at as an iteration would be
# (`detectors.nics.steadiness`). Without iterations nobody knows how much was lost, so this accuses nobody: it lists
# steady stretches with their times.


# Windows of a longer recording hold more samples, so that their number stays bounded.
_MOST_WINDOWS: Final = 100_000
_MOST_SWINGS: Final = 1_000_000  # windows times ranks: each takes a third of a KiB, and some microseconds
_LEAST_WINDOWS: Final = 100  # of however many ranks, so that a stretch of a twentieth of the time is seen


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

    `traffic`: of each rank, in order of time, on clocks that agree to within some samples.
    """
    known = {rank: own for rank, own in traffic.items() if len(own.tx) and is_one_counter(own.begin_ns, own.end_ns)}
    if not known:
        return []
    first_ns = min(int(own.begin_ns[0]) for own in known.values())
    window_ns = NICS.window_samples * median(float(np.median(own.end_ns - own.begin_ns)) for own in known.values())
    past_ns = max(int(own.end_ns[-1]) for own in known.values())
    most = max(_LEAST_WINDOWS, min(_MOST_WINDOWS, _MOST_SWINGS // len(known)))
    edges = np.arange(first_ns, past_ns + window_ns, max(window_ns, (past_ns - first_ns) / most))
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
            if len(run) >= JOB.repeated:
                of_end = [one for number in run.tolist() for one in swings[number] if one.rank in end[0].ranks]
                rate, swing = (median(one[column + end[1]] for one in of_end) for column in (4, 2))
                begin_s, past_s = float(edges_ns[run[0]]) / 1e9, float(edges_ns[run[-1] + 1]) / 1e9
                found.append(Stretch(end, begin_s, past_s, rate, swing))
    return found
