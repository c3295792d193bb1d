"""Which NICs are capped: the lowest peak rate among the NICs at the ends of slow transfers.

A slow NIC drags everybody's mean rate down, since all wait for it. Its peak gives it away: the others still burst and
idle, while it moves steadily as fast as it can (EROICA, NSDI 2026, figures 3 to 5). Samples that are too coarse to
show bursts make all peaks fall alike, and then no NIC stands out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import (
    MEDIAN_ERROR,
    median,
    medians,
    nan_medians,
    robust_sigma,
    round_to_bits,
)
from irregulars.detectors.arrays.runs import starts_of
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Floats, Ints

Rates = Mapping[int, tuple[float, float]]  # peak rates of ranks' NICs, sent and received, over the usual ones
_RATE_BITS: Final = 10  # significant ones of a ratio: of some hundred samples one is the peak

_NOTHING: Final = 1e-9  # of the usual peak: has a logarithm

_NOT_SAMPLED: Final = (math.nan, math.nan)

End = tuple[Device, int]  # a NIC, and 0 where it sends, 1 where it receives


def relative_peaks(rank: Ints, tx: Floats, rx: Floats, usual: Mapping[int, tuple[float, float]]) -> Rates:
    """Divide peak rates by the usual ones, to `_RATE_BITS`; ranks without either are left out."""
    ranks, peaks = rank.tolist(), np.array([tx, rx], dtype=np.float64).T
    usual_peaks = np.array([usual.get(one, (math.nan, math.nan)) for one in ranks]).reshape(-1, 2)
    # NaN fails both tests.
    is_known = ((peaks >= 0) & (usual_peaks > 0)).all(axis=1)
    ratios = round_to_bits(peaks[is_known] / usual_peaks[is_known], _RATE_BITS)
    known = np.flatnonzero(is_known).tolist()
    return {ranks[at]: (sent, received) for at, (sent, received) in zip(known, ratios.tolist(), strict=True)}


def usual_peaks(group: Ints, tx: Floats, rx: Floats) -> dict[int, tuple[float, float]]:
    """Return the medians of the peaks of each group, those that are NaN left out."""
    rows = np.flatnonzero(np.isfinite(tx) & np.isfinite(rx))
    groups, number = np.unique(group[rows], return_inverse=True)
    peaks = zip(medians(number, tx[rows]).tolist(), medians(number, rx[rows]).tolist(), strict=True)
    return dict(zip(groups.tolist(), peaks, strict=True))


def peak_if_capped(slowdown: float) -> float:
    """Return the highest peak, as a ratio to the usual, of a NIC whose cap makes a transfer `slowdown` times as long.

    A transfer that takes 30 times as long moves at a thirtieth of its rate. Samples of 10 ms flatten the usual
    bursts, so that the peak falls by less than that, but a peak of two thirds is no cap: bursts vary by as much on
    their own.
    """
    return min(JOB.nearly_all, max(1 / NICS.flattened, NICS.flattened / max(slowdown, 1.0)))


def capped_ends(
    ranks: Iterable[int], rates: Sequence[Rates], topology: Topology, at_most: float | None = None
) -> dict[End, bool]:
    """Return of each end of a slow transfer whether its peak is among the lowest; empty if the peaks show nothing.

    `ranks`: those that take part in the transfer. `rates`: peaks of some iterations in which it was slow. `at_most`:
    the lowest peak is a cap if it is no higher (`peak_if_capped`); default: `JOB.nearly_all`.
    """
    nics = sorted({topology.nic(rank) for rank in ranks})
    peaks = _peaks(nics, rates)
    # An end that is not sampled is left out, and the others are held against each other without it.
    known: Ints = np.flatnonzero(np.isfinite(peaks).any(axis=1)) if peaks.size else np.empty(0, dtype=np.int64)
    # Where half of them are not sampled, the lowest is as likely one of those.
    if 2 * len(known) <= len(peaks):
        return {}
    peaks = peaks[known]
    ends = [(nics[at // 2], at % 2) for at in known.tolist()]
    typical = nan_medians(peaks)
    cap = JOB.nearly_all if at_most is None else at_most
    if typical.min() > cap:
        # No end is capped where a cap would have shown in spite of flattened samples.
        return dict.fromkeys(ends, False) if cap < JOB.nearly_all <= typical.min() else {}
    low = as_low(peaks, typical)
    return dict(zip(ends, low.tolist(), strict=True)) if low.mean() <= JOB.most else {}


def as_low(values: Floats, typical: Floats) -> Floats:
    """Mark the ends whose rates cannot be told from the lowest.

    The next NIC in a ring after a capped one is held back as well, only less: its peak is 1.1 to 1.2 times as high.
    One iteration does not show the difference, but the noise over many is small, as both were seen in the same ones.

    `values`: of each end (first axis) in each iteration (second axis); NaN: not known. `typical`: their median of
    each end.
    """
    lowest = int(np.argmin(typical))
    is_near = typical <= (1 + JOB.part) * typical[lowest]
    higher = np.log(np.maximum(values, _NOTHING)) - np.log(np.maximum(values[lowest], _NOTHING))
    for end in np.flatnonzero(is_near & (typical > (1 + JOB.alike) * typical[lowest])):
        known = higher[end][np.isfinite(higher[end])]
        # With fewer pairs it stays one of the lowest.
        if len(known) >= JOB.often:
            middle = median(known)
            error = MEDIAN_ERROR * robust_sigma(known - middle) / math.sqrt(len(known))
            is_near[end] = middle <= JOB.noise_sigmas * error
    return np.asarray(is_near)


def _peaks(nics: Sequence[Device], rates: Sequence[Rates]) -> Floats:
    """Return the peak of each NIC, sending and receiving, in each iteration.

    It is the lowest that any of the ranks that share the NIC has sampled; NaN if none has. Rows are the ends: of each
    NIC sending, then receiving.
    """
    if not nics or not rates:
        return np.empty((0, 0))
    ranks = [rank for nic in nics for rank in nic.ranks]
    sampled = np.array([[one.get(rank, _NOT_SAMPLED) for rank in ranks] for one in rates])
    lowest = np.fmin.reduceat(sampled, starts_of(np.array([len(nic.ranks) for nic in nics])), axis=1)
    return np.ascontiguousarray(lowest.reshape(len(rates), -1).T)
