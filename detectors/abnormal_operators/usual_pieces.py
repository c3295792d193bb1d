"""How long each gap and each transfer of an iteration usually is, and how much it varies."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, medians, robust_sigma, weighted_medians
from irregulars.detectors.arrays.row_keys import find_sorted
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.operator_classes import pack_class
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.usual_by_past import class_columns, place_keys
from irregulars.dtypes import Flags, Floats, Ints

_FIRST: Final = -2  # place before the first operator of a rank's iteration
_DIFFERS: Final = -3  # place before an operator that does not always follow the same one


class UsualPieces(NamedTuple):
    """Usual gaps and transfers, from some regular iterations.

    A *place* is that of an operator in its rank's iteration.
    """

    classes: Ints  # packed classes of operators, ascending
    places: Ints  # packed rank, class and ordinal, ascending. All arrays below have one value for each place.
    # Place of the operator after which the gap begins; `_DIFFERS` where it is not always the same one, as on a second
    # stream
    before: Ints
    # Median gaps and transfers
    gap_ns: Floats
    transfer_ns: Floats
    # Standard deviations of the log ratios of single gaps and transfers to these medians
    gap_sigma: float
    transfer_sigma: float
    rank_sigma: float  # standard deviation of a rank's mean log ratio of gaps, against the job's pace
    pace: float  # median of that log ratio over the ranks
    iteration_ns: float  # how long an iteration takes

    def of_graph(self, graph: OperatorGraph) -> tuple[Floats, Floats]:
        """Return the usual gap and the usual transfer of each row, ns.

        NaN for operators that were never seen before, and for gaps that begin after another operator than usual.
        """
        own_place = _places(graph, self.classes)
        place, is_known = find_sorted(self.places, own_place)
        is_same_gap = is_known & (self.before[place] == graph.of_previous(own_place, _FIRST))
        gap_ns = np.where(is_same_gap, self.gap_ns[place], np.nan)
        return gap_ns, np.where(is_known, self.transfer_ns[place], np.nan)


def learn_usual_pieces(graph: OperatorGraph) -> UsualPieces | None:
    """Learn from the rows of regular iterations, ten or so; None if there are no rows."""
    if not len(graph):
        return None
    classes = np.unique(pack_class(class_columns(graph)))
    own_place = _places(graph, classes)
    places, place = np.unique(own_place, return_inverse=True)
    gap_ns, transfer_ns = graph.gap_ns.astype(np.float64), graph.transfer_ns.astype(np.float64)
    usual_gap_ns, usual_transfer_ns = medians(place, gap_ns), medians(place, transfer_ns)
    gap_ratio = log_ratios(gap_ns, usual_gap_ns[place])
    transfer_ratio = log_ratios(transfer_ns, usual_transfer_ns[place])
    gap_sigma = spread_of_pieces(gap_ratio, usual_gap_ns[place])
    rank_sigma, pace = _ranks_and_pace(graph, huber_means(graph.block, gap_ratio, usual_gap_ns[place], gap_sigma))
    return UsualPieces(
        classes=classes,
        places=places,
        before=_before(place, graph.of_previous(own_place, _FIRST)),
        gap_ns=usual_gap_ns,
        transfer_ns=usual_transfer_ns,
        gap_sigma=gap_sigma,
        transfer_sigma=spread_of_pieces(transfer_ratio, usual_transfer_ns[place]),
        rank_sigma=rank_sigma,
        pace=pace,
        iteration_ns=float(np.median([iteration_ns(graph, one) for one in np.unique(graph.iteration).tolist()])),
    )


def iteration_ns(graph: OperatorGraph, iteration: int) -> float:
    """Return the time of one iteration, from its first gap to its last end, ns."""
    own = graph.iteration == iteration
    return float(graph.end_ns[own].max() - (graph.start_ns - graph.gap_ns)[own].min())


def _ranks_and_pace(graph: OperatorGraph, slowness: Floats) -> tuple[float, float]:
    """Return how much a rank's slowness varies from iteration to iteration, and that of the middle rank.

    `slowness`: mean log ratio of gaps, of each rank in each iteration (each block of the graph). What all ranks have
    in an iteration is its pace, and is taken off.
    """
    first = np.unique(graph.block, return_index=True)[1]
    iteration = np.unique(graph.iteration[first], return_inverse=True)[1]
    pace = [np.quantile(slowness[iteration == one], JOB.part) for one in range(iteration.max() + 1)]
    own = slowness - np.array(pace)[iteration]
    of_ranks = medians(np.unique(graph.rank[first], return_inverse=True)[1], own)
    sigma = max(robust_sigma(own - np.median(own)), JOB.negligible / 2)
    return sigma, float(np.median(of_ranks))


def _places(graph: OperatorGraph, classes: Ints) -> Ints:
    """Return the place of each row; -1 for rows of other classes."""
    class_index, is_known = find_sorted(classes, pack_class(class_columns(graph)))
    return np.where(is_known, place_keys(graph, class_index, len(classes)), -1)


def _before(place: Ints, previous_place: Ints) -> Ints:
    """Return the place that each place comes after, if that is always the same one; else `_DIFFERS`."""
    size = int(place.max(initial=-1)) + 1
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(low, place, previous_place)
    np.maximum.at(high, place, previous_place)
    return np.where(low == high, low, _DIFFERS)


# --------------------------------------------------------------------------------------------------------------------
# Robust statistics of ratios: how many times as long as usual something took, as logarithms.
# Logarithms make twice as long and half as long equally far from usual, and make the factor of a slow device a sum.


def log_ratios(values: Floats, usual: Floats) -> Floats:
    """Return the logarithm of each value over the usual one; NaN where one of the two is not above 0."""
    is_known = (values > 0) & (usual > 0)
    return np.where(is_known, np.log(np.where(is_known, values, 1.0) / np.where(is_known, usual, 1.0)), np.nan)


def share_above_usual(log_ratio: Floats) -> Floats:
    """Return which share of a time is above usual, if the time is exp(`log_ratio`) times the usual one.

    >>> share_above_usual(np.log(np.array([4.0, 2.0])))
    array([0.75, 0.5 ])
    """
    return np.asarray(-np.expm1(-log_ratio))


def huber_means(group: Ints, values: Floats, weights: Floats, sigma: float) -> Floats:
    """Return the weighted mean of each group, in which values far from the median count as if they were less far.

    `group`: group of each row, numbered from 0. `values`, `weights`: of each row. Rows whose value is NaN, or whose
    weight is not above 0, do not count. `sigma`: standard deviation of the values; those beyond
    `AbnormalThresholds.huber_sigmas` of it are far.

    References
    ----------
    Huber: Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35, 1964; one step from the
    median.

    The median is 2, and 90 is moved to three standard deviations from there, which is 5:

    >>> huber_means(np.zeros(3, dtype=np.int64), np.array([0.0, 2.0, 90.0]), np.ones(3), sigma=1.0)
    array([2.33333333])
    """
    median = weighted_medians(group, values, weights)
    does_count = ~np.isnan(values) & (weights > 0)
    far = JOB.noise_sigmas * sigma
    distance = np.where(does_count, np.clip(values - median[group], -far, far), 0.0)
    weights = np.where(does_count, weights, 0.0)
    total = np.bincount(group, weights)
    return np.asarray(median + np.bincount(group, weights * distance) / np.where(total > 0, total, 1.0))


def spread_of_pieces(ratios: Floats, weights: Floats) -> float:
    """Return the robust standard deviation of single pieces' log ratios around 0, weighted."""
    distance = weighted_medians(np.zeros(len(ratios), dtype=np.int64), np.abs(ratios), weights)[0]
    return max(MAD_TO_SIGMA * float(distance), JOB.negligible)


def shrink_together(values: Floats, is_slow: Flags, sigma: Floats) -> Floats:
    """Draw the values of slow ones together, as far as they differ by noise alone; return 0 for all others.

    Ranks of one slow host are slow by the same factor, and their mean knows it better than each of them.

    `values`, `sigma`: of each rank or lane: its log ratio, and the standard deviation of that.

    References
    ----------
    James and Stein: Estimation with Quadratic Loss, Fourth Berkeley Symposium, 1961; the positive part, around the
    weighted mean.

    Two slow ranks that differ by less than their noise get their mean; the third is not slow:

    >>> shrink_together(np.array([0.4, 0.5, 0.0]), np.array([True, True, False]), np.full(3, 0.1))
    array([0.45, 0.45, 0.  ])
    """
    if not is_slow.any():
        return np.zeros(len(values))
    weights = is_slow / sigma**2
    mean = float((weights * values).sum() / weights.sum())
    # About as large as the number of slow ones, by noise alone.
    spread = float((weights * (values - mean) ** 2).sum())
    kept = max(1.0 - max(int(is_slow.sum()) - 1, 0) / spread, 0.0) if spread > 0 else 0.0
    return np.where(is_slow, mean + kept * (values - mean), 0.0)
