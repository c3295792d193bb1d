"""Abnormal operators by replay: how long each operator of an iteration would have taken without what was slow.

Whether an operator is abnormal is a question about a run that never was: the same iteration with the same luck, and
without the fault. From one rank's log it can only be guessed at, since most of a communication operator is waiting
for others. With the operators of all ranks it can be computed:

1. who waited for whom is known (`detectors.path.operator_graph`), so an iteration is gaps and transfers, and the rest
   follows;
2. gaps and transfers that stand out of their own noise are set back (`detectors.abnormal_operators.healthy_pieces`):
   all gaps of a rank, or all transfers of a lane, are divided by how much they were longer in the mean. The luck of
   each stays as it was;
3. the iteration is run again with them. An operator's elapsed time over its elapsed time in the replay is the answer.

Nothing is trained, and nothing has to be tuned to a job: what drifts is part of the reference, which is made of the
newest regular iterations.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.abnormal_operators.healthy_pieces import without_slowness
from irregulars.detectors.abnormal_operators.usual_pieces import UsualPieces
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

    Parameters
    ----------
    graph
        Of one iteration or of several; iterations stay apart, each rank enters each when it did.
    gap_ns, transfer_ns
        float64, one value per row.

    Returns
    -------
    Times that are all NaN if no times fulfil the rules above: after `MOST_ROUNDS` rounds some still changed, or rows
    wait for each other in a circle, which a log can show whose clocks are off.

    References
    ----------
    Cochet-Terrasson et al.: Numerical computation of spectral elements in max-plus algebra, IFAC 1998.
    """
    partners = _Partners(graph)
    entry_ns = (graph.start_ns - graph.gap_ns).astype(np.float64)
    chosen = graph.blocker
    end_ns = np.full(len(graph), -np.inf)
    for _ in range(MOST_ROUNDS):
        before_ns = end_ns
        end_ns, has_circle = _sum_up(graph, chosen, gap_ns, transfer_ns, entry_ns)
        start_ns = np.where(graph.previous >= 0, end_ns[graph.previous], entry_ns) + gap_ns
        if np.all(np.abs(end_ns - before_ns) <= _SAME_NS):
            return _unknown(graph) if has_circle else Times(start_ns, end_ns)
        chosen = partners.latest(start_ns)
    return _unknown(graph)


def abnormal_ratios(graph: OperatorGraph, usual: UsualPieces) -> Floats:
    """Return the elapsed time of each row over what it would have been without what was slow.

    Above `AbnormalThresholds.ratio` an operator is abnormal.

    Parameters
    ----------
    graph
        Of one iteration, with the rows of all ranks that are logged.
    usual
        From the newest regular iterations.

    Returns
    -------
    float64, one value per row, finite and above 0; all NaN if the replay did not settle.
    """
    if not len(graph):
        return np.zeros(0)
    elapsed_ns = (graph.end_ns - graph.start_ns).astype(np.float64)
    again = replay(graph, *without_slowness(graph, usual))
    least_ns = JOB.least_resolution_ns
    return np.asarray(np.maximum(elapsed_ns, least_ns) / np.maximum(again.end_ns - again.start_ns, least_ns))


def _unknown(graph: OperatorGraph) -> Times:
    return Times(np.full(len(graph), np.nan), np.full(len(graph), np.nan))


def _sum_up(
    graph: OperatorGraph, chosen: Ints, gap_ns: Floats, transfer_ns: Floats, entry_ns: Floats
) -> tuple[Floats, bool]:
    """Return the end of each row if it waits for the partner `chosen`, and whether some rows wait in a circle.

    A row ends a transfer and a gap after the row above it, which is its partner's previous one; that one ends so
    much after the row above it, and so on up to the entry of a rank. By pointer doubling, as in

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
        left_early = may_leave_early & (self._last_start_ns(graph) > graph.end_ns)
        is_kept[graph.group[left_early]] = True
        self._is_kept = is_kept[graph.group]
        _, batch, sizes = np.unique(graph.batch, return_inverse=True, return_counts=True)
        self._batched = np.flatnonzero(sizes[batch] > 1)
        self._batches = _Groups(np.unique(batch[self._batched], return_inverse=True)[1])

    @staticmethod
    def _last_start_ns(graph: OperatorGraph) -> Ints:
        latest_ns = np.full(int(graph.group.max(initial=-1)) + 1, np.iinfo(np.int64).min)
        np.maximum.at(latest_ns, graph.group, graph.start_ns)
        return latest_ns[graph.group]

    def latest(self, start_ns: Floats) -> Ints:
        """Return the row that each row waits for if rows start at these times."""
        own = np.arange(len(start_ns))
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
