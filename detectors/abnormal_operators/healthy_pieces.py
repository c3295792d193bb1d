"""Gaps and transfers of an iteration as they would be if nothing had been slow.

A slow device makes all of its pieces longer by about the same factor, so all gaps of a rank, and all transfers of a
lane, are judged together: by the mean of their log ratios to what is usual. If that stands out, all of them are
divided by the factor, which takes the fault away and leaves each piece its own luck. A single gap that is far out
alone (a rank that stood still once) is set to its usual length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from irregulars.detectors.abnormal_operators.robust_means import (
    huber_means,
    log_ratios,
    share_above_usual,
    shrink_together,
)
from irregulars.detectors.abnormal_operators.thresholds import ABNORMAL
from irregulars.detectors.abnormal_operators.usual_pieces import UsualPieces, iteration_ns
from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.dtypes import Floats, Ints


class Pieces(NamedTuple):
    """Gap and transfer of each row of a graph, float64, ns."""

    gap_ns: Floats
    transfer_ns: Floats


def without_slowness(graph: OperatorGraph, usual: UsualPieces) -> Pieces:
    """Return the gaps and transfers of one iteration as they would be if nothing stood out.

    Pieces of which nothing is known (`UsualPieces.of_graph`) stay as they are.
    """
    usual_gap_ns, usual_transfer_ns = usual.of_graph(graph)
    return Pieces(_healthy_gaps(graph, usual, usual_gap_ns), _healthy_transfers(graph, usual, usual_transfer_ns))


def _healthy_gaps(graph: OperatorGraph, usual: UsualPieces, usual_ns: Floats) -> Floats:
    """Divide all gaps of each slow rank by its factor, then set single gaps that are still far out to the usual."""
    gap_ns = graph.gap_ns.astype(np.float64)
    rank = np.unique(graph.rank, return_inverse=True)[1]
    slowness = huber_means(rank, log_ratios(gap_ns, usual_ns), usual_ns, usual.gap_sigma)
    pace = usual.pace + _pace(slowness)
    own = slowness - pace
    least_ns = _least_cost_ns(graph, usual)
    cost_ns = np.bincount(rank, np.where(np.isnan(usual_ns), 0.0, gap_ns)) * share_above_usual(own)
    is_slow = (own > ABNORMAL.sigmas * usual.rank_sigma) & (cost_ns > least_ns)
    factor = np.exp(shrink_together(own, is_slow, np.full(len(own), usual.rank_sigma)))
    gap_ns = gap_ns / factor[rank]
    expected_ns = usual_ns * np.exp(pace)
    limit_ns = np.maximum(ABNORMAL.sigmas * usual.gap_sigma * usual_ns, least_ns)
    return np.where(gap_ns - expected_ns > limit_ns, expected_ns, gap_ns)


def _pace(slowness: Floats) -> float:
    """Return by how much the job as a whole is slower in this iteration, which no rank is to blame for (a log)."""
    if len(slowness) < ABNORMAL.min_ranks_of_pace:
        return 0.0
    return float(np.quantile(slowness, ABNORMAL.pace_quantile))


def _healthy_transfers(graph: OperatorGraph, usual: UsualPieces, usual_ns: Floats) -> Floats:
    """Divide all transfers of each slow lane by its factor."""
    transfer_ns = graph.transfer_ns.astype(np.float64)
    lane, members, transfers = _lanes(graph)
    ratio = log_ratios(transfer_ns, usual_ns)
    slowness = huber_means(lane, ratio, usual_ns, usual.transfer_sigma)
    # The mean comes from the median, and of the members of one collective only one value is new.
    sigma = np.maximum(MEDIAN_ERROR * usual.transfer_sigma / np.sqrt(transfers), ABNORMAL.least_group_sigma)
    cost_ns = np.bincount(lane, np.nan_to_num(transfer_ns)) * share_above_usual(slowness) * transfers / members
    has_few = transfers < ABNORMAL.few_transfers
    least_ns = np.where(has_few, 1.0, ABNORMAL.lane_ratio) * _least_cost_ns(graph, usual)
    stands_out = slowness > np.maximum(ABNORMAL.sigmas * sigma, ABNORMAL.least_lane_log)
    factor = shrink_together(slowness, stands_out & (cost_ns > least_ns), sigma)[lane]
    # Of a slow lane too some rows may not have met the network: a buffered send returns when its bytes are copied.
    return np.where(np.nan_to_num(ratio) > factor / 2, transfer_ns / np.exp(factor), transfer_ns)


def _lanes(graph: OperatorGraph) -> tuple[Ints, Ints, Ints]:
    """Number the lanes: return the lane of each row, and the rows and the transfers of each lane.

    A collective is one transfer, however many members logged it. Operators of one communicator are apart here, since
    an all_gather may be slow where an all_reduce is not.
    """
    source, destination = np.where(graph.is_p2p, graph.source, -1), np.where(graph.is_p2p, graph.destination, -1)
    lane, first = group_rows([graph.communicator, graph.operator, source, destination])
    _, first_of_transfer = group_rows([lane, graph.group])
    return lane, np.bincount(lane), np.bincount(lane[first_of_transfer], minlength=len(first))


def _least_cost_ns(graph: OperatorGraph, usual: UsualPieces) -> float:
    """Return what a slow rank must cost at least: a share of what the iteration takes too long, ns."""
    if not len(graph):
        return 0.0
    excess_ns = iteration_ns(graph, int(graph.iteration[0])) - usual.iteration_ns
    return ABNORMAL.cause_ratio * max(excess_ns, ABNORMAL.least_excess_ratio * usual.iteration_ns)
