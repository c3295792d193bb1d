"""Gaps and transfers of an iteration that stand out, and what they would be if they did not.

A device that is slow makes all of its pieces longer by about the same factor, so a rank's gaps and a lane's transfers
are judged together: by the middle of their ratios to what is usual for the same piece. Dividing by it takes the fault
away and leaves each piece its own luck. A single piece that is far out alone (a rank that stood still once) is set to
its usual length.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import (
    MAD_TO_SIGMA,
    MEDIAN_ERROR,
    medians,
    robust_sigma,
    weighted_medians,
)
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.path.operator_graph import OperatorGraph, pack_class
from irregulars.detectors.path.usual_by_past import class_columns, find, place_keys

Array = np.ndarray

_FIRST: Final = -2
_DIFFERS: Final = -3
_SIGMAS: Final = 4.0  # by which gaps or transfers must be longer: hundreds of ranks and lanes are looked at
_LEAST_RANK_RATIO: Final = 0.01
_LEAST_LANE_RATIO: Final = 0.05
_FEW: Final = 3  # a lane of fewer transfers may have met a spike, which healthy jobs have too: it must explain more
_FEW_RANKS: Final = 4  # too few to know the job's own pace from
_CAUSE_SHARE: Final = 0.3  # of what the iteration takes too long: less than that explains nothing
_LANE_SHARE: Final = 0.3  # of that: a NIC has many lanes
_LEAST_EXCESS: Final = 0.02  # of an iteration; a smaller excess counts as this
_FAR: Final = 2.0  # standard deviations
_LOW: Final = 0.25  # quantile of the ranks' ratios that is taken for the job's own pace
_FLOOR_SIGMA: Final = 0.005  # of the middle ratio of many pieces
_LEAST_SIGMA: Final = 0.01  # of a single one


class UsualPieces(NamedTuple):
    """What is usual, from some regular iterations.

    ``classes`` and ``places`` (ascending) say which piece is which, ``before`` after which place each place's gap
    begins (`_DIFFERS`: not always after the same one, as on a second stream); ``gap_ns`` and ``transfer_ns`` are
    their medians, ``gap_sigma`` and ``transfer_sigma`` the spreads of log ratios to them, ``rank_sigma`` that of the
    middle ratio of a rank, ``pace`` the usual quantile of those, ``iteration_ns`` an iteration's time.
    """

    classes: Array
    places: Array
    before: Array
    gap_ns: Array
    transfer_ns: Array
    gap_sigma: float
    transfer_sigma: float
    rank_sigma: float
    pace: float
    iteration_ns: float


class Pieces(NamedTuple):
    """Gap and transfer of each row of a graph without what was slow, float64, ns."""

    gap_ns: Array
    transfer_ns: Array


def learn_usual_pieces(graph: OperatorGraph) -> UsualPieces | None:
    """Learn from the rows of regular iterations, ten or so; None if there are no rows."""
    if not len(graph):
        return None
    classes = np.unique(pack_class(class_columns(graph)))
    own_place = _places(graph, classes)
    places, place = np.unique(own_place, return_inverse=True)
    before = _before(place, graph.of_previous(own_place, _FIRST))
    gap_ns, transfer_ns = graph.gap_ns.astype(np.float64), graph.transfer_ns.astype(np.float64)
    usual_gap_ns, usual_transfer_ns = medians(place, gap_ns), medians(place, transfer_ns)
    of_gap, of_transfer = _log_ratio(gap_ns, usual_gap_ns[place]), _log_ratio(transfer_ns, usual_transfer_ns[place])
    first = np.unique(graph.block, return_index=True)[1]
    gap_sigma = _sigma(of_gap, usual_gap_ns[place])
    middle = _middles(graph.block, of_gap, usual_gap_ns[place], gap_sigma)
    iteration = graph.iteration[first]
    pace = {one: np.quantile(middle[iteration == one], _LOW) for one in np.unique(iteration).tolist()}
    own = middle - np.array([pace[one] for one in iteration.tolist()])
    usual_own = medians(np.unique(graph.rank[first], return_inverse=True)[1], own)
    return UsualPieces(
        classes, places, before, usual_gap_ns, usual_transfer_ns, gap_sigma,
        _sigma(of_transfer, usual_transfer_ns[place]),
        max(robust_sigma(own - np.median(own)), _FLOOR_SIGMA), float(np.median(usual_own)),
        float(np.median([_length_ns(graph, one) for one in pace])),
    )  # fmt: skip


def set_back(graph: OperatorGraph, usual: UsualPieces) -> Pieces:
    """Gaps and transfers of one iteration as they would be if nothing stood out.

    Pieces that were never seen before stay as they are, and so do gaps that begin after another operator than usual.
    """
    own_place = _places(graph, usual.classes)
    place = np.minimum(np.searchsorted(usual.places, own_place), len(usual.places) - 1)
    is_known = usual.places[place] == own_place
    is_same_gap = is_known & (usual.before[place] == graph.of_previous(own_place, _FIRST))
    usual_gap_ns = np.where(is_same_gap, usual.gap_ns[place], np.nan)
    usual_transfer_ns = np.where(is_known, usual.transfer_ns[place], np.nan)
    return Pieces(_gaps(graph, usual, usual_gap_ns), _transfers(graph, usual, usual_transfer_ns))


def _gaps(graph: OperatorGraph, usual: UsualPieces, usual_ns: Array) -> Array:
    """Set back all gaps of ranks that are slow, then single gaps far out."""
    gap_ns = graph.gap_ns.astype(np.float64)
    rank = np.unique(graph.rank, return_inverse=True)[1]
    middle = _middles(rank, _log_ratio(gap_ns, usual_ns), usual_ns, usual.gap_sigma)
    pace = usual.pace + (float(np.quantile(middle, _LOW)) if len(middle) >= _FEW_RANKS else 0.0)
    own = middle - pace
    least_ns = _least_ns(graph, usual)
    longer_ns = np.bincount(rank, np.where(np.isnan(usual_ns), 0.0, gap_ns)) * -np.expm1(-own)
    is_slow = (own > np.maximum(_SIGMAS * usual.rank_sigma, _LEAST_RANK_RATIO)) & (longer_ns > least_ns)
    factor = np.exp(_shrink(own, is_slow, np.full(len(own), usual.rank_sigma)))
    gap_ns = gap_ns / factor[rank]
    expected_ns = usual_ns * np.exp(pace)
    limit_ns = np.maximum(_SIGMAS * usual.gap_sigma * usual_ns, least_ns)
    return np.where(gap_ns - expected_ns > limit_ns, expected_ns, gap_ns)


def _transfers(graph: OperatorGraph, usual: UsualPieces, usual_ns: Array) -> Array:
    """Set back all transfers of lanes that are slow."""
    transfer_ns = graph.transfer_ns.astype(np.float64)
    source, destination = np.where(graph.is_p2p, graph.source, -1), np.where(graph.is_p2p, graph.destination, -1)
    lane, first = group_rows([graph.communicator, graph.operator, source, destination])
    ratio = _log_ratio(transfer_ns, usual_ns)
    middle = _middles(lane, ratio, usual_ns, usual.transfer_sigma)
    members = np.bincount(lane)
    count = np.bincount(lane[group_rows([lane, graph.group])[1]], minlength=len(first))
    sigma = np.maximum(MEDIAN_ERROR * usual.transfer_sigma / np.sqrt(count), _FLOOR_SIGMA)
    longer_ns = np.bincount(lane, np.nan_to_num(transfer_ns)) * -np.expm1(-middle) * count / members
    is_few = count < _FEW
    least_ns = np.where(is_few, 1.0, _LANE_SHARE) * _least_ns(graph, usual)
    is_slow = (middle > np.maximum(_SIGMAS * sigma, _LEAST_LANE_RATIO)) & (longer_ns > least_ns)
    longer = _shrink(middle, is_slow, sigma)[lane]
    # Of a slow lane too some rows may not have met the network: a buffered send returns when its bytes are copied.
    return np.where(np.nan_to_num(ratio) > longer / 2, transfer_ns / np.exp(longer), transfer_ns)


def _least_ns(graph: OperatorGraph, usual: UsualPieces) -> float:
    """What a cause must explain: a part of what the iteration takes too long."""
    if not len(graph):
        return 0.0
    excess_ns = _length_ns(graph, int(graph.iteration[0])) - usual.iteration_ns
    return _CAUSE_SHARE * max(excess_ns, _LEAST_EXCESS * usual.iteration_ns)


def _shrink(values: Array, is_slow: Array, sigma: Array) -> Array:
    """Values of what is slow, drawn together as far as they differ by noise alone; 0 for all else.

    Ranks of one slow host are slow by the same factor. (James and Stein's estimator, with its positive part.)
    """
    if not is_slow.any():
        return np.zeros(len(values))
    weights = is_slow / sigma**2
    mean = float((weights * values).sum() / weights.sum())
    spread = float((weights * (values - mean) ** 2).sum())
    kept = max(1.0 - max(int(is_slow.sum()) - 1, 0) / spread, 0.0) if spread > 0 else 0.0
    return np.where(is_slow, mean + kept * (values - mean), 0.0)


def _places(graph: OperatorGraph, classes: Array) -> Array:
    """Place of each row; rows of other classes get one that none has."""
    class_index, is_known = find(classes, pack_class(class_columns(graph)))
    return np.where(is_known, place_keys(graph, class_index, len(classes)), -1)


def _before(place: Array, previous_places: Array) -> Array:
    """After which place each place comes, if it is always the same one; else `_DIFFERS`."""
    size = int(place.max(initial=-1)) + 1
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(low, place, previous_places)
    np.maximum.at(high, place, previous_places)
    return np.where(low == high, low, _DIFFERS)


def _length_ns(graph: OperatorGraph, iteration: int) -> float:
    own = graph.iteration == iteration
    return float(graph.end_ns[own].max() - (graph.start_ns - graph.gap_ns)[own].min())


def _log_ratio(values: Array, usual: Array) -> Array:
    """Log of values over usual ones; NaN where one is not above 0."""
    is_known = (values > 0) & (usual > 0)
    return np.where(is_known, np.log(np.where(is_known, values, 1.0) / np.where(is_known, usual, 1.0)), np.nan)


def _middles(group: Array, values: Array, weights: Array, sigma: float) -> Array:
    """Weighted mean of each group, values far from the median moved to where they begin to be far (Huber)."""
    median = weighted_medians(group, values, weights)[group]
    is_known = ~np.isnan(values) & (weights > 0)
    near = np.where(is_known, np.clip(values - median, -_FAR * sigma, _FAR * sigma), 0.0)
    weights = np.where(is_known, weights, 0.0)
    total = np.bincount(group, weights)
    mean = np.bincount(group, weights * near) / np.where(total > 0, total, 1.0)
    return np.asarray(weighted_medians(group, values, weights) + mean)


def _sigma(ratios: Array, weights: Array) -> float:
    distance = np.abs(ratios)
    return max(
        MAD_TO_SIGMA * float(weighted_medians(np.zeros(len(ratios), dtype=np.int64), distance, weights)[0]), 0.01
    )
