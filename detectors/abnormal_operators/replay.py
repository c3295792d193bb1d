"""Abnormal operators by replay: how long each operator of an iteration would have taken without slow ranks and lanes.

Whether an operator is abnormal is a question about a run that never was: the same iteration with the same luck, and
without the fault. From one rank's log it can only be guessed at, since most of a communication operator is waiting
for others. With the operators of all ranks it can be computed:

1. who waited for whom is known (`detectors.path.operator_graph`), so an iteration is gaps and transfers, and the rest
   follows;
2. gaps and transfers that stand out of their own noise are set back (`without_slowness`):
   all gaps of a rank, or all transfers of a lane, are divided by how much they were longer in the mean. The luck of
   each stays as it was;
3. the iteration is run again with them. An operator's elapsed time over its elapsed time in the replay is the answer.

Nothing is trained, and nothing has to be tuned to a job: a drift is part of the reference, which is made of the
newest regular iterations.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.abnormal_operators.usual_pieces import (
    UsualPieces,
    huber_means,
    iteration_ns,
    log_ratios,
    share_above_usual,
    shrink_together,
)
from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import starts_of
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.dtypes import Floats, Ints
from irregulars.messages.records import ROOTED, SEND

MOST_ROUNDS: Final = 60  # a job in which one change of partner leads to the next more often than this is not replayed
_SAME_NS: Final = 1.0  # times that differ by less are the same: float64 counts days in steps of a hundredth of it


class Times(NamedTuple):
    """Start and end of each row, float64, ns on the clock of the graph; NaN if the replay did not settle."""

    start_ns: Floats
    end_ns: Floats


def replay(graph: OperatorGraph, gap_ns: Floats, transfer_ns: Floats) -> Times:
    """Run the rows of a graph again, with other gaps and transfers.

    A row begins its gap when the row before it on its rank (`OperatorGraph.previous`) ends, and ends its transfer
    after the last partner of its group has begun. So each time is the longest of many paths through the graph. They
    are not walked row by row:

    1. each row takes one partner to wait for, at first the one that it did wait for;
    2. that leaves one path to each row, and all paths are summed up at once (`_sum_up`);
    3. by these times each row takes the partner that is now the latest; and again from 2, until no time changes.

    This is Howard's policy iteration in max-plus algebra. It needs one round for each change of partner that follows
    from another one: few, as a rule, since the iteration that was logged is a good guess.

    `graph`: of one iteration or of several; iterations stay apart, each rank enters each when it did. `gap_ns`,
    `transfer_ns`: float64, one value per row. Returns times that are all NaN if no times fulfil the rules above:
    after `MOST_ROUNDS` rounds some still changed, or rows wait for each other in a circle, which a log can show whose
    clocks are off.

    References
    ----------
    Cochet-Terrasson et al.: Numerical computation of spectral elements in max-plus algebra, IFAC 1998.
    """
    partners = _Partners(graph)
    entry_ns = (graph.start_ns - graph.gap_ns).astype(np.float64)
    chosen = graph.blocker
    end_ns = np.full(len(graph), -np.inf)  # differs from all times of the first round
    for _ in range(MOST_ROUNDS):
        before_ns = end_ns
        end_ns, has_circle = _sum_up(graph, chosen, gap_ns, transfer_ns, entry_ns)
        # Of rows without a previous one, -1 picks the last row, which `where` drops.
        start_ns = np.where(graph.previous >= 0, end_ns[graph.previous], entry_ns) + gap_ns
        if np.all(np.abs(end_ns - before_ns) <= _SAME_NS):
            # Sums along a circle settle as well, but they are no times.
            if not has_circle:
                return Times(start_ns, end_ns)
            break
        chosen = partners.latest(start_ns)
    return Times(*np.full((2, len(graph)), np.nan))


def abnormal_ratios(graph: OperatorGraph, usual: UsualPieces) -> Floats:
    """Return the elapsed time of each row over that in a replay without slow ranks and lanes.

    Above `AbnormalThresholds.ratio` an operator is abnormal.

    `graph`: of one iteration, with the rows of all ranks that are logged. `usual`: from the newest regular
    iterations. Returns float64, one value per row, finite and above 0; all NaN if the replay did not settle.
    """
    if not len(graph):
        return np.zeros(0)
    elapsed_ns = (graph.end_ns - graph.start_ns).astype(np.float64)
    again = replay(graph, *without_slowness(graph, usual))
    least_ns = JOB.least_resolution_ns
    return np.asarray(np.maximum(elapsed_ns, least_ns) / np.maximum(again.end_ns - again.start_ns, least_ns))


def _sum_up(
    graph: OperatorGraph, chosen: Ints, gap_ns: Floats, transfer_ns: Floats, entry_ns: Floats
) -> tuple[Floats, bool]:
    """Return the end of each row if it waits for the partner `chosen`, and whether some rows wait in a circle.

    A row ends a transfer and a gap after the row above it, which is its partner's previous one; that one ends its own
    transfer and gap after the row above it, and so on up to the entry of a rank. By pointer doubling, as in

    ======  =============================  =========
    round   each row knows the sum of      row above
    ======  =============================  =========
    0       itself                         1 up
    1       itself and the one above       2 up
    2       itself and the three above     4 up
    ======  =============================  =========

    a chain of n rows takes log2(n) rounds. If it has no end by then, it is a circle.
    """
    above = graph.previous[chosen]
    total_ns = gap_ns[chosen] + transfer_ns + np.where(above < 0, entry_ns[chosen], 0.0)
    # One round more than the longest chain takes, which finds that it has ended.
    for _ in range(int(np.ceil(np.log2(max(len(graph), 2)))) + 1):
        has_more = above >= 0
        if not has_more.any():
            return np.asarray(total_ns), False
        total_ns = total_ns + np.where(has_more, total_ns[above], 0.0)
        above = np.where(has_more, above[above], -1)
    return np.asarray(total_ns), bool((above >= 0).any())


class _Partners:
    """The rows that each row may have to wait for: those of its group, and of the groups of its batch.

    Where some member of a group began after another had ended (buffered sends, rooted operators), not all wait for
    all: each row keeps the partner that it waited for.
    """

    def __init__(self, graph: OperatorGraph) -> None:
        self._groups, self._blocker = _Groups(graph.group), graph.blocker
        may_leave_early = np.isin(graph.operator, [SEND, *ROOTED])
        is_kept = np.zeros(int(graph.group.max(initial=-1)) + 1, dtype=np.bool_)
        last_start_ns = np.full(len(is_kept), np.iinfo(np.int64).min)
        np.maximum.at(last_start_ns, graph.group, graph.start_ns)
        # A member that ended before the last one began did not wait for that one.
        left_early = may_leave_early & (last_start_ns[graph.group] > graph.end_ns)
        is_kept[graph.group[left_early]] = True
        self._is_kept = is_kept[graph.group]
        _, batch, sizes = np.unique(graph.batch, return_inverse=True, return_counts=True)
        self._batched = np.flatnonzero(sizes[batch] > 1)
        self._batches = _Groups(np.unique(batch[self._batched], return_inverse=True)[1])

    def latest(self, start_ns: Floats) -> Ints:
        """Return the row that each row waits for if rows start at these times."""
        own = np.arange(len(start_ns))
        # A partner that is kept holds the row up only while it still begins later.
        kept = np.where(start_ns[self._blocker] > start_ns, self._blocker, own)
        chosen = np.where(self._is_kept, kept, self._groups.latest(own, start_ns))
        if len(self._batched):
            chosen[self._batched] = self._batches.latest(chosen[self._batched], start_ns)
        return np.asarray(chosen)


class _Groups:
    """Rows in groups (numbered from 0 without holes), sorted once."""

    def __init__(self, group: Ints) -> None:
        self._group = group
        self._order = np.argsort(group, kind="stable")
        counts = np.bincount(group)
        self._firsts, self._sorted = starts_of(counts), np.repeat(np.arange(len(counts)), counts)

    def latest(self, rows: Ints, start_ns: Floats) -> Ints:
        """For each position return, of the `rows` at the positions of its group, the one that starts last."""
        if not len(rows):
            return rows
        ordered = rows[self._order]
        starts_ns = start_ns[ordered]
        lasts_ns = np.maximum.reduceat(starts_ns, self._firsts)
        is_last = np.flatnonzero(starts_ns == lasts_ns[self._sorted])
        found = np.empty(len(self._firsts), dtype=np.int64)
        found[self._sorted[is_last]] = ordered[is_last]
        return np.asarray(found[self._group])


# --------------------------------------------------------------------------------------------------------------------
# Gaps and transfers of an iteration as they would be if nothing had been slow.
# A slow device makes all of its pieces longer by about the same factor, so all gaps of a rank, and all transfers of a
# lane, are judged together: by the mean of their log ratios to the usual values. If that stands out, all of them are
# divided by the factor, which takes the fault away and leaves each piece its own luck. A single gap that is far out
# alone (a rank that stood still once) is set to its usual length.


class Pieces(NamedTuple):
    """Gap and transfer of each row of a graph, float64, ns."""

    gap_ns: Floats
    transfer_ns: Floats


def without_slowness(graph: OperatorGraph, usual: UsualPieces) -> Pieces:
    """Return the gaps and transfers of one iteration as they would be if nothing stood out.

    Pieces of which nothing is known (`UsualPieces.of_graph`) stay as they are.
    """
    usual_gap_ns, usual_transfer_ns = usual.of_graph(graph)
    # Divide all gaps of each slow rank by its factor, then set single gaps that are still far out to the usual
    gap_ns = graph.gap_ns.astype(np.float64)
    rank = np.unique(graph.rank, return_inverse=True)[1]
    slowness = huber_means(rank, log_ratios(gap_ns, usual_gap_ns), usual_gap_ns, usual.gap_sigma)
    pace = usual.pace + _pace(slowness)
    own = slowness - pace
    least_ns = _least_cost_ns(graph, usual)
    cost_ns = np.bincount(rank, np.where(np.isnan(usual_gap_ns), 0.0, gap_ns)) * share_above_usual(own)
    is_slow = (own > JOB.sigmas * usual.rank_sigma) & (cost_ns > least_ns)
    factor = np.exp(shrink_together(own, is_slow, np.full(len(own), usual.rank_sigma)))
    gap_ns = gap_ns / factor[rank]
    expected_ns = usual_gap_ns * np.exp(pace)
    limit_ns = np.maximum(JOB.sigmas * usual.gap_sigma * usual_gap_ns, least_ns)
    return Pieces(
        np.where(gap_ns - expected_ns > limit_ns, expected_ns, gap_ns),
        _healthy_transfers(graph, usual, usual_transfer_ns),
    )


def _pace(slowness: Floats) -> float:
    """Return by how much the job as a whole is slower in this iteration, which no rank is to blame for (a log)."""
    # Of three ranks all may be slow: none of them shows the job's own pace.
    if len(slowness) < 1 / JOB.part:
        return 0.0
    return float(np.quantile(slowness, JOB.part))


def _healthy_transfers(graph: OperatorGraph, usual: UsualPieces, usual_ns: Floats) -> Floats:
    """Divide all transfers of each slow lane by its factor."""
    transfer_ns = graph.transfer_ns.astype(np.float64)
    # Operators of one communicator are apart, since an all_gather may be slow where an all_reduce is not.
    source, destination = np.where(graph.is_p2p, graph.source, -1), np.where(graph.is_p2p, graph.destination, -1)
    lane, first = group_rows([graph.communicator, graph.operator, source, destination])
    # A collective is one transfer, however many members logged it.
    _, first_of_transfer = group_rows([lane, graph.group])
    members, transfers = np.bincount(lane), np.bincount(lane[first_of_transfer], minlength=len(first))
    ratio = log_ratios(transfer_ns, usual_ns)
    slowness = huber_means(lane, ratio, usual_ns, usual.transfer_sigma)
    # The mean comes from the median, and of the members of one collective only one value is new.
    sigma = np.maximum(MEDIAN_ERROR * usual.transfer_sigma / np.sqrt(transfers), JOB.negligible / 2)
    # All members log the one transfer of a collective: its time counts once.
    cost_ns = np.bincount(lane, np.nan_to_num(transfer_ns)) * share_above_usual(slowness) * transfers / members
    has_few = transfers < JOB.repeated
    least_ns = np.where(has_few, 1.0, JOB.part) * _least_cost_ns(graph, usual)
    stands_out = slowness > np.maximum(JOB.sigmas * sigma, JOB.least_share)
    factor = shrink_together(slowness, stands_out & (cost_ns > least_ns), sigma)[lane]
    # Of a slow lane too some rows may not have met the network: a buffered send returns when its bytes are copied.
    return np.where(np.nan_to_num(ratio) > factor / 2, transfer_ns / np.exp(factor), transfer_ns)


def _least_cost_ns(graph: OperatorGraph, usual: UsualPieces) -> float:
    """Return the least cost of a rank that counts as slow, a share of the iteration's excess, ns."""
    if not len(graph):
        return 0.0
    excess_ns = iteration_ns(graph, int(graph.iteration[0])) - usual.iteration_ns
    return JOB.part * max(excess_ns, JOB.negligible * usual.iteration_ns)
