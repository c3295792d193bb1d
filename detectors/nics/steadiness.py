"""Which NICs move steadily: the lowest deviation of the rate among the NICs at the ends of slow transfers.

In a ring all members move the same bytes, so one slow NIC or link lowers everybody's mean alike. But the slow one is
busy all the time, while the others burst at full rate and then wait: the lowest deviation names it (EROICA, NSDI
2026, figures 3 to 5). A steady rate that is as high as ever is no cap. Where nobody bursts, because all is well or
samples are too coarse, deviations say nothing.

Unlike the peak of a whole iteration (`detectors.nics.peak_caps`), a pattern is of the operators of one communicator,
so that a burst of other traffic over the same NIC does not hide a cap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import pack_columns
from irregulars.detectors.arrays.runs import run_ends
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.nics.peak_caps import End
from irregulars.detectors.nics.thresholds import NICS

WHOLE: Final = -1  # instead of a communicator: the iteration as a whole
_UNKNOWN: Final = (math.nan, math.nan)
_SWING, _RATIO = 2, 6  # columns of what is sent; what is received stands behind


class Swing(NamedTuple):
    """How a rank's NIC moved while operators of a communicator ran: sent and received.

    ``tx`` and ``rx`` are deviation over mean, ``_rate`` the mean in bytes per second, ``_ratio`` the mean over the
    usual peak of the NIC. NaN where there were too few samples, or nobody knows what is usual.
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
    same group may go round in opposite directions, and only one of them may pass by what is slow.
    """
    rows = np.flatnonzero(np.isin(patterns.communicator, list(communicators)))
    key = pack_columns([patterns.communicator[rows], patterns.operator[rows]])
    keys, first, group = np.unique(key, return_index=True, return_inverse=True)
    shares = np.bincount(group, patterns.share[rows], minlength=len(keys))
    order = np.lexsort((shares, patterns.communicator[rows][first]))
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
    communicator: int,
    ranks: Iterable[int],
    swings: Sequence[Sequence[Swing]],
    topology: Topology,
) -> dict[End, bool]:
    """Say of each NIC that takes part, sending and receiving, whether its rate is steady and capped.

    Parameters
    ----------
    communicator
        On which a transfer is slow, by the job's code, or `WHOLE`.
    ranks
        Those that take part.
    swings
        Swings of some iterations in which it was slow.

    Returns
    -------
    Empty if the swings say nothing: an end has no pattern, nobody bursts, or nobody is steady.
    """
    ends = [(nic, way) for nic in sorted({topology.nic(rank) for rank in ranks}) for way in (0, 1)]
    if len(ends) < NICS.min_ends:
        return {}
    by_place = by_places(swings)
    known: dict[End, float] = {}
    for end in ends:
        swing = typical_swing(end, communicator, by_place)
        if swing is None:
            return {}  # mostly the first one: of few communicators there are patterns
        known[end] = swing
    middle = median(known.values())

    def is_capped(end: End) -> bool:
        return (_typical(end, communicator, by_place, _RATIO) or 0.0) <= NICS.capped_ratio

    steady = {end: swing <= NICS.steady_ratio * middle and is_capped(end) for end, swing in known.items()}
    return steady if middle > NICS.bursts and 0 < sum(steady.values()) <= NICS.most_alike_ratio * len(steady) else {}


def by_places(swings: Sequence[Sequence[Swing]]) -> list[Swings]:
    """Index the swings of each iteration by communicator and rank."""
    return [{(one.communicator, one.rank): one for one in own} for own in swings]


def typical_swing(end: End, communicator: int, swings: Sequence[Swings]) -> float | None:
    """Median over the iterations of the deviation of an end's rate over its mean; None if not known."""
    return _typical(end, communicator, swings, _SWING)


def steady_text(device: Device, communicator: int, swings: Sequence[Sequence[Swing]]) -> str | None:
    """Say at which rate a NIC, or a link's sender, moved, and how steadily beside the others; None if not known.

    Of its two directions that one is told which was steadier.
    """
    known = [one for own in swings for one in own if one.communicator == communicator]
    owners = device.ranks if device.kind == "nic" else device.ranks[:1]
    found = []
    for way, verb in enumerate(("sent", "received")):
        own = [(one[2 + way], one[4 + way]) for one in known if one.rank in owners and one[2 + way] >= 0]
        others = [one[2 + way] for one in known if one.rank not in device.ranks and one[2 + way] >= 0]
        if own and others:
            swing, rate = (median(column) for column in zip(*own, strict=True))
            found.append((swing, f"{verb} {_bits(rate)} meanwhile, ± {swing:.0%} (others ± {median(others):.0%})"))
    return f"rank {device.ranks[0]} {min(found)[1]}" if found else None


def _typical(end: End, communicator: int, swings: Sequence[Swings], column: int) -> float | None:
    """Median of one column of an end over the iterations; any of the ranks that share a NIC may have sampled it."""
    nic, way = end
    found = []
    for own in swings:
        known = [own[communicator, rank][column + way] for rank in nic.ranks if (communicator, rank) in own]
        found += [min(finite)] if (finite := [value for value in known if value >= 0]) else []
    return median(found) if found else None


def _bits(rate: float) -> str:
    return f"{rate * 8 / 1e6:.3g} Mbit/s" if rate < 1.25e8 else f"{rate * 8 / 1e9:.3g} Gbit/s"
