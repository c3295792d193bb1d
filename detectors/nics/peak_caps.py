"""Whose rate is capped: what bandwidth samples say of the NICs at the ends of slow transfers.

A slow NIC drags everybody's mean rate down, since all wait for it. What gives it away is its peak: the others still
burst and idle, while it moves steadily at the most it can (EROICA, NSDI 2026, figures 3 to 5). Samples that are too
coarse to show bursts make all peaks fall alike, and then they say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR, robust_sigma
from irregulars.detectors.job.topology import Device, Topology

Array = np.ndarray

Rates = Mapping[int, tuple[float, float]]
"""Peak rates of ranks' NICs, sent and received, as ratios to what is usual."""

_CAPPED: Final = 0.8  # of the usual peak, and below
_LEAST_CAPPED: Final = 0.3  # ... and this low at most, however slow the transfer is
_FLATTENED: Final = 3.0  # times the ratio of the transfer's own rates that a peak of 10 ms samples may keep
_NEAR: Final = 1.25  # times the lowest peak: above, it is higher
_ALIKE: Final = 1.1  # two ports held at one rate differ by some percent: what a shaper lets through, when one looks
_SIGMAS: Final = 2.0  # standard errors of the median over iterations that a peak above that must be higher by
_NOTHING: Final = 1e-9  # of the usual peak: has a logarithm
_MIN_PAIRED: Final = 4  # fewer iterations know no noise
_MOST: Final = 0.5  # if more ends are as low, all are, and it says nothing

# Chances that an end of a slow transfer (a NIC, sending or receiving) is one of those with the lowest peak.
_LOW_IF_NIC: Final = (0.8, 0.6)  # queues build where it sends; a fault may leave the other direction alone
_LOW_IF_LINK: Final = 0.3  # other transfers of the same NIC reach their usual peak
_LOW_IF_SWITCH: Final = 0.5
_LOW_BY_CHANCE: Final = 0.1  # and its neighbour in a ring has the same peak

_CAPPED_BY_CHANCE: Final = 0.1  # that any end is, where nothing in the network is slow
_NOT_IN_NETWORK: Final = ("communicator", "none", "unseen")

End = tuple[Device, int]
"""A NIC, and 0 where it sends, 1 where it receives."""


def relative_peaks(rank: Array, tx: Array, rx: Array, usual: Mapping[int, tuple[float, float]]) -> Rates:
    """Divide peak rates by the usual ones; ranks without either are left out."""
    found = {}
    for one, sent, received in zip(rank.tolist(), tx.tolist(), rx.tolist(), strict=True):
        usual_tx, usual_rx = usual.get(one, (math.nan, math.nan))
        if sent >= 0 and received >= 0 and usual_tx > 0 and usual_rx > 0:
            found[one] = (sent / usual_tx, received / usual_rx)
    return found


def usual_peaks(group: Array, tx: Array, rx: Array) -> dict[int, tuple[float, float]]:
    """Return the medians of the peaks of each group, those that are NaN left out."""
    rows = np.flatnonzero(np.isfinite(tx) & np.isfinite(rx))
    order = rows[np.argsort(group[rows], kind="stable")]
    groups, begins = np.unique(group[order], return_index=True)
    own = np.split(order, begins[1:]) if len(groups) else []
    return {
        one: (float(np.median(tx[at])), float(np.median(rx[at])))
        for one, at in zip(groups.tolist(), own, strict=True)
    }


def peak_if_capped(slowdown: float) -> float:
    """Return the peak rate, as a ratio to the usual one, that a NIC has at most if its cap slows a transfer so much.

    A transfer that takes 30 times as long moves at a thirtieth of its rate. Samples of 10 ms flatten the usual
    bursts, so that the peak falls by less than that, but a peak of two thirds is no cap: bursts vary by as much on
    their own.
    """
    return min(_CAPPED, max(_LEAST_CAPPED, _FLATTENED / max(slowdown, 1.0)))


def capped_ends(
    ranks: Iterable[int], rates: Sequence[Rates], topology: Topology, at_most: float = _CAPPED
) -> dict[End, bool]:
    """Say of each end of a slow transfer whether it is one of those with the lowest peak; empty if that says nothing.

    Parameters
    ----------
    ranks
        That take part in the transfer.
    rates
        Of some iterations in which it was slow.
    at_most
        The lowest peak says something if it is no higher (`peak_if_capped`).
    """
    nics = sorted({topology.nic(rank) for rank in ranks})
    ends = [(nic, way) for nic in nics for way in (0, 1)]
    peaks = np.array([[_peak(end, one) for one in rates] for end in ends]).reshape(len(ends), len(rates))
    if not peaks.size or not np.isfinite(peaks).any(axis=1).all():
        return {}
    typical = np.nanmedian(peaks, axis=1)
    low = as_low(peaks, typical)
    return dict(zip(ends, low.tolist(), strict=True)) if typical.min() <= at_most and low.mean() <= _MOST else {}


def as_low(values: Array, typical: Array) -> Array:
    """Say of which ends the rates can't be told from the lowest.

    Who moves the bytes next after a capped NIC is held back as well, only less, since its own bursts come back bit by
    bit: 1.1 to 1.2 times the peak. One iteration says nothing of that, but the noise of many is small, as both were
    seen in the same ones.

    Parameters
    ----------
    values
        Of each end (first axis) in each iteration (second axis); NaN: not known.
    typical
        Their median of each end.
    """
    lowest = int(np.argmin(typical))
    is_near = typical <= _NEAR * typical[lowest]
    higher = np.log(np.maximum(values, _NOTHING)) - np.log(np.maximum(values[lowest], _NOTHING))
    for end in np.flatnonzero(is_near & (typical > _ALIKE * typical[lowest])):
        known = higher[end][np.isfinite(higher[end])]
        if len(known) >= _MIN_PAIRED:
            middle = float(np.median(known))
            error = MEDIAN_ERROR * robust_sigma(known - middle) / math.sqrt(len(known))
            is_near[end] = middle <= _SIGMAS * error
    return np.asarray(is_near)


def _peak(end: End, rates: Rates) -> float:
    """Peak of a NIC in one direction; any of the ranks that share it may have sampled it. NaN if none has."""
    nic, way = end
    return min((rates[rank][way] for rank in nic.ranks if rank in rates), default=math.nan)


def log_odds(device: Device, low: Mapping[End, bool]) -> float:
    """Logarithm of how much likelier the lowest peaks are if `device` is the cause than if none of these ends is.

    A capped rate has a cause in the network. A communicator that is slow as such has none to show, or by rare chance.
    """
    if device.kind in _NOT_IN_NETWORK:
        return math.log(_CAPPED_BY_CHANCE) if any(low.values()) else 0.0
    # Ends that a device does not touch add nothing; of thousands of NICs each touches its own two.
    ends = [(device, way) for way in (0, 1) if (device, way) in low] if device.kind == "nic" else list(low)
    return sum(
        math.log(_chance(device, end) / _LOW_BY_CHANCE)
        if low[end]
        else math.log((1 - _chance(device, end)) / (1 - _LOW_BY_CHANCE))
        for end in ends
    )


def _chance(device: Device, end: End) -> float:
    nic, way = end
    if device.kind == "nic":
        return _LOW_IF_NIC[way] if nic == device else _LOW_BY_CHANCE
    if device.kind == "link":
        return _LOW_IF_LINK if device.ranks[way] in nic.ranks else _LOW_BY_CHANCE
    if device.kind == "switch":
        return _LOW_IF_SWITCH if not set(nic.ranks).isdisjoint(device.ranks) else _LOW_BY_CHANCE
    return _LOW_BY_CHANCE
