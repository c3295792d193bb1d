"""Which behaviour patterns are abnormal, compared with other workers and with regular iterations.

Patterns of one class of operators on different ranks are points in space: share of the iteration, mean and
deviation of the NIC's rate, each divided by the largest one of its class. A worker that behaves unlike the others has
a large differential distance Δ. A fault that all workers suffer alike shows in the distance D to the range that
regular iterations gave (EROICA, NSDI 2026, localization).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import medians
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import run_starts
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Flags, Floats, Ints

MOST_COMPARED: Final = 256
"""Workers of a class that each one is compared with. Of a larger class evenly spread ones are taken."""


class Patterns(NamedTuple):
    """Behaviour patterns of one iteration, one row per rank and class (communicator, operator).

    Communicator -1: the iteration as a whole. Rates are bytes per second, NaN where there were too few samples.
    """

    rank: Ints
    communicator: Ints
    operator: Ints
    share: Floats
    tx_mean: Floats
    tx_deviation: Floats
    rx_mean: Floats
    rx_deviation: Floats

    def only(self, rows: Ints) -> Patterns:
        """Return the patterns of some rows."""
        return Patterns._make(column[rows] for column in self)


class Judged(NamedTuple):
    """For each pattern Δ and D, each the larger of both directions, and whether it is abnormal; NaN if not known."""

    differential: Floats
    unexpected: Floats
    is_abnormal: Flags


def judge_patterns(patterns: Patterns, regular: Patterns) -> Judged:
    """Judge which patterns of an iteration are abnormal: β > 0.01, and D > 0 or Δ > median + 5 MAD of its class.

    `regular`: patterns of regular iterations, which give the expected ranges; may be empty.
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
    # Of a direction that is not sampled (NaN) the other one counts.
    differential, unexpected = (np.fmax(*pair) for pair in list(zip(*found, strict=True))[:2])
    is_odd = np.logical_or(*(one.is_abnormal for one in found))
    return Judged(differential, unexpected, is_odd & (patterns.share > JOB.negligible))


def differential_distances(group: Ints, triples: Floats, rank: Ints) -> Floats:
    """Return Δ of each pattern: the share of the other workers of its class that it is far from.

    `group`: class of each row, numbered from 0. `triples`: β, μ and σ of each row, shape ``(rows, 3)``, all of one
    scale; a row with a NaN has no distance. `rank`: of each row; the workers that others are held against are evenly
    spread over them. Returns from 0 to 1; NaN where the class has no other worker.
    """
    found = np.full(len(group), np.nan)
    known = np.flatnonzero(np.isfinite(triples).all(axis=1))
    order = known[np.lexsort((rank[known], group[known]))]
    begins = run_starts(group[order])
    for rows in np.split(order, begins[1:]) if len(order) else ():
        if len(rows) > 1:
            found[rows] = _far_shares(triples[rows])
    return found


def expected_ranges(group: Ints, triples: Floats, classes: int) -> tuple[Floats, Floats]:
    """Return the range of each component of each class in regular iterations: median ± 5 MAD, and ± a tenth at least.

    Returns lowest and highest values, each of shape ``(classes, 3)``; NaN where the class was never seen.
    """
    low, high = np.full((2, classes, 3), np.nan)
    known = np.flatnonzero(np.isfinite(triples).all(axis=1))
    if len(known):
        seen, own = np.unique(group[known], return_inverse=True)
        for column in range(3):
            values = triples[known, column]
            middle = medians(own, values)
            deviation = medians(own, np.abs(values - middle[own]))
            width = np.maximum(NICS.deviations * deviation, JOB.alike)
            low[seen, column], high[seen, column] = middle - width, middle + width
    return low, high


def _judge_way(group: Ints, triples: Floats, rank: Ints, of_regular: Ints, regular: Floats) -> Judged:
    classes = int(max(group.max(initial=-1), of_regular.max(initial=-1))) + 1
    largest = np.zeros((classes, 3))  # each component of each class is scaled to at most 1
    np.fmax.at(largest, np.concatenate([group, of_regular]), np.concatenate([triples, regular]))
    scale = np.where(largest > 0, largest, 1.0)
    triples, regular = triples / scale[group], regular / scale[of_regular]
    differential = differential_distances(group, triples, rank)
    low, high = expected_ranges(of_regular, regular, classes)
    unexpected = np.maximum(low[group] - triples, 0) + np.maximum(triples - high[group], 0)
    distance = unexpected.sum(axis=1)
    # Median + 5 MAD of Δ in each row's class; NaN where there is no Δ
    limits = np.full(len(group), np.nan)
    known = np.flatnonzero(np.isfinite(differential))
    if len(known):
        _, own = np.unique(group[known], return_inverse=True)
        middle = medians(own, differential[known])
        deviation = medians(own, np.abs(differential[known] - middle[own]))
        limits[known] = (middle + NICS.deviations * deviation)[own]
    # NaN is above nothing: a distance that is not known makes no pattern abnormal.
    return Judged(differential, distance, (distance > 0) | (differential > limits))


def _triples(patterns: Patterns, way: str) -> Floats:
    columns = (patterns.share, getattr(patterns, f"{way}_mean"), getattr(patterns, f"{way}_deviation"))
    return np.stack(columns, axis=1)


def _far_shares(triples: Floats) -> Floats:
    count = len(triples)
    others = np.unique(np.linspace(0, count - 1, min(count, MOST_COMPARED)).astype(np.int64))
    far = np.zeros(count)
    compared = np.full(count, float(len(others)))
    compared[others] -= 1  # nobody is held against itself, and nobody is far from itself
    # In blocks of rows, so that the table of distances stays small however many workers there are.
    for first in range(0, count, MOST_COMPARED):
        rows = triples[first : first + MOST_COMPARED]
        distance = np.abs(rows[:, None, :] - triples[others][None, :, :]).sum(axis=2)
        far[first : first + MOST_COMPARED] = (distance >= NICS.far).sum(axis=1)
    return far / compared
