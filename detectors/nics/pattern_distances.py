"""Which behaviour patterns are abnormal: held against those of other workers, and against what is expected.

Patterns of one class of operators on different ranks are points in space: share of the iteration, mean and
deviation of the NIC's rate, each divided by the largest one of its class. Few workers that behave unlike the others
have a large differential distance Δ; what befalls all alike shows in the distance D to the range that regular
iterations gave (EROICA, NSDI 2026, localization).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import medians
from irregulars.detectors.arrays.row_keys import group_rows

Array = np.ndarray

MIN_SHARE: Final = 0.01
FAR: Final = 0.4
"""Two patterns differ if their Manhattan distance is so large."""

DEVIATIONS: Final = 5.0
"""Δ is abnormal above the median of its class and so many median absolute deviations; regular ranges are as wide."""

MOST_COMPARED: Final = 256
"""Workers of a class that each one is held against; of more, evenly spread ones are taken."""

_ROOM: Final = 0.1  # of the largest value of the class: the least half width of an expected range


class Patterns(NamedTuple):
    """Behaviour patterns of one iteration, one row per rank and class (communicator, operator).

    Communicator -1: the iteration as a whole. Rates are bytes per second, NaN where there were too few samples.
    """

    rank: Array
    communicator: Array
    operator: Array
    share: Array
    tx_mean: Array
    tx_deviation: Array
    rx_mean: Array
    rx_deviation: Array


class Judged(NamedTuple):
    """Of each pattern Δ and D, the larger of both directions, and whether it is abnormal; NaN: nobody knows."""

    differential: Array
    unexpected: Array
    is_abnormal: Array


def judge_patterns(patterns: Patterns, regular: Patterns) -> Judged:
    """Say which patterns of an iteration are abnormal: β > 0.01, and D > 0 or Δ > median + 5 MAD of its class.

    Parameters
    ----------
    regular
        Patterns of regular iterations: what is expected; may be empty.
    """
    classes = [
        np.concatenate([own, others]) for own, others in zip(patterns[1:3], regular[1:3], strict=True)
    ]  # communicator and operator
    group, _ = group_rows(classes)
    own, others = group[: len(patterns.rank)], group[len(patterns.rank) :]
    found = [
        _judge_way(own, _triples(patterns, way), patterns.rank, others, _triples(regular, way))
        for way in ("tx", "rx")
    ]
    differential, unexpected = (np.fmax(*pair) for pair in list(zip(*found, strict=True))[:2])
    is_odd = np.logical_or(*(one.is_abnormal for one in found))
    return Judged(differential, unexpected, is_odd & (patterns.share > MIN_SHARE))


def differential_distances(group: Array, triples: Array, rank: Array) -> Array:
    """Δ: which share of the other workers of its class each pattern is far from.

    Parameters
    ----------
    group
        Class of each row, numbered from 0.
    triples
        β, μ and σ of each row, shape ``(rows, 3)``, all of one scale; a row with a NaN has no distance.
    rank
        Of each row; the workers that others are held against are evenly spread over them.

    Returns
    -------
    From 0 to 1; NaN where the class has no other worker.
    """
    found = np.full(len(group), np.nan)
    known = np.flatnonzero(np.isfinite(triples).all(axis=1))
    order = known[np.lexsort((rank[known], group[known]))]
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, begins[1:]) if len(order) else ():
        if len(rows) > 1:
            found[rows] = _far_shares(triples[rows])
    return found


def expected_ranges(group: Array, triples: Array, classes: int) -> tuple[Array, Array]:
    """Range that regular iterations gave each component of each class: median ± 5 MAD, and no narrower than a tenth.

    Returns
    -------
    Lowest and highest values, each of shape ``(classes, 3)``; NaN where the class was never seen.
    """
    low, high = np.full((2, classes, 3), np.nan)
    known = np.flatnonzero(np.isfinite(triples).all(axis=1))
    if len(known):
        seen, own = np.unique(group[known], return_inverse=True)
        for column in range(3):
            values = triples[known, column]
            middle = medians(own, values)
            deviation = medians(own, np.abs(values - middle[own]))
            width = np.maximum(DEVIATIONS * deviation, _ROOM)
            low[seen, column], high[seen, column] = middle - width, middle + width
    return low, high


def _judge_way(group: Array, triples: Array, rank: Array, of_regular: Array, regular: Array) -> Judged:
    """Judge one direction of the NICs."""
    classes = int(max(group.max(initial=-1), of_regular.max(initial=-1))) + 1
    scale = _largest(np.concatenate([group, of_regular]), np.concatenate([triples, regular]), classes)
    triples, regular = triples / scale[group], regular / scale[of_regular]
    differential = differential_distances(group, triples, rank)
    low, high = expected_ranges(of_regular, regular, classes)
    unexpected = np.maximum(low[group] - triples, 0) + np.maximum(triples - high[group], 0)
    distance = unexpected.sum(axis=1)
    return Judged(differential, distance, (distance > 0) | (differential > _limits(group, differential)))


def _triples(patterns: Patterns, way: str) -> Array:
    columns = (patterns.share, getattr(patterns, f"{way}_mean"), getattr(patterns, f"{way}_deviation"))
    return np.stack(columns, axis=1)


def _largest(group: Array, triples: Array, classes: int) -> Array:
    """Largest value of each component of each class; what is alike stays alike when it is divided by it."""
    largest = np.zeros((classes, 3))
    np.fmax.at(largest, group, triples)
    return np.where(largest > 0, largest, 1.0)


def _far_shares(triples: Array) -> Array:
    count = len(triples)
    others = np.unique(np.linspace(0, count - 1, min(count, MOST_COMPARED)).astype(np.int64))
    far = np.zeros(count)
    compared = np.full(count, float(len(others)))
    compared[others] -= 1  # nobody is held against itself, and nobody is far from itself
    for first in range(0, count, MOST_COMPARED):
        rows = triples[first : first + MOST_COMPARED]
        distance = np.abs(rows[:, None, :] - triples[others][None, :, :]).sum(axis=2)
        far[first : first + MOST_COMPARED] = (distance >= FAR).sum(axis=1)
    return far / compared


def _limits(group: Array, differential: Array) -> Array:
    """Median + 5 MAD of each row's class; NaN where there is no Δ."""
    limits = np.full(len(group), np.nan)
    known = np.flatnonzero(np.isfinite(differential))
    if len(known):
        _, own = np.unique(group[known], return_inverse=True)
        middle = medians(own, differential[known])
        deviation = medians(own, np.abs(differential[known] - middle[own]))
        limits[known] = (middle + DEVIATIONS * deviation)[own]
    return limits
