"""Abnormal operators by replay: how long each operator of an iteration would have taken without what was slow.

Whether an operator is abnormal is a question about a run that never was: the same iteration with the same luck, and
without the fault. From one rank's log it can only be guessed at, since most of a communication operator is waiting
for others. With the operators of all ranks it can be computed:

1. who waited for whom is known (`detectors.path.operator_graph`), so an iteration is gaps and transfers, and the rest
   follows;
2. gaps and transfers that stand out of their own noise are set back (`detectors.abnormal_operators.healthy_pieces`):
divided by how much
   all of the rank's gaps, or all of the lane's transfers, were longer. The luck of each stays as it was;
3. the iteration is run again with them. An operator's elapsed over its elapsed in the replay is the answer.

Nothing is trained, and nothing has to be tuned to a job: drift is in the reference, which is made of the newest
regular iterations.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.abnormal_operators.healthy_pieces import UsualPieces, set_back
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.streams.messages.records import ROOTED, SEND

Array = np.ndarray

ABNORMAL_RATIO: Final = 1.1
"""An operator that takes more than so many times what it takes in the replay is abnormal (Holmes's definition)."""

_MOST_ROUNDS: Final = 60
_SAME_NS: Final = 1.0
_LEAST_ELAPSED_NS: Final = 1000.0  # what is shorter is compared as if it took so long: clocks tick in such steps


class Times(NamedTuple):
    """Start and end of each row, float64, ns on the clock of the graph."""

    start_ns: Array
    end_ns: Array


def replay(graph: OperatorGraph, gap_ns: Array, transfer_ns: Array) -> Times:
    """Run the rows of a graph again, with other gaps and transfers.

    A row begins its gap after the one that it had ended last, and ends its transfer after the last partner of its
    group has begun. That is a longest path for every row. Instead of walking row by row, each row starts with the
    partner that it did wait for; all paths are summed up at once by doubling; then each takes the partner that is
    now the latest, until no time changes (Howard's policy iteration, in max-plus algebra).

    Parameters
    ----------
    graph
        Of one iteration or of several; iterations stay apart, each rank enters each when it did.
    gap_ns, transfer_ns
        float64, one value per row.

    References
    ----------
    Cochet-Terrasson et al.: Numerical computation of spectral elements in max-plus algebra, IFAC 1998.
    """
    partners = _Partners(graph)
    entry_ns = (graph.start_ns - graph.gap_ns).astype(np.float64)
    chosen = graph.blocker
    end_ns = np.full(len(graph), -np.inf)
    for _ in range(_MOST_ROUNDS):
        before_ns, end_ns = end_ns, _sum_up(graph, chosen, gap_ns, transfer_ns, entry_ns)
        start_ns = np.where(graph.previous >= 0, end_ns[graph.previous], entry_ns) + gap_ns
        if np.all(np.abs(end_ns - before_ns) <= _SAME_NS):
            break
        chosen = partners.latest(start_ns)
    return Times(start_ns, end_ns)


def abnormal_ratios(graph: OperatorGraph, usual: UsualPieces) -> Array:
    """Elapsed of each row over its elapsed without what was slow; above `ABNORMAL_RATIO`: abnormal.

    Parameters
    ----------
    graph
        Of one iteration, with the rows of all ranks that are logged.
    usual
        From the newest regular iterations.

    Returns
    -------
    float64, one value per row, finite and above 0.
    """
    if not len(graph):
        return np.zeros(0)
    elapsed_ns = (graph.end_ns - graph.start_ns).astype(np.float64)
    again = replay(graph, *set_back(graph, usual))
    healthy_ns = again.end_ns - again.start_ns
    return np.asarray(np.maximum(elapsed_ns, _LEAST_ELAPSED_NS) / np.maximum(healthy_ns, _LEAST_ELAPSED_NS))


def _sum_up(graph: OperatorGraph, chosen: Array, gap_ns: Array, transfer_ns: Array, entry_ns: Array) -> Array:
    """End of each row if it waits for `chosen`: sums along chains, whose length is halved in each step."""
    above = graph.previous[chosen]
    total_ns = gap_ns[chosen] + transfer_ns + np.where(above < 0, entry_ns[chosen], 0.0)
    for _ in range(int(np.ceil(np.log2(max(len(graph), 2)))) + 1):
        has_more = above >= 0
        if not has_more.any():
            break
        total_ns = total_ns + np.where(has_more, total_ns[above], 0.0)
        above = np.where(has_more, above[above], -1)
    return np.asarray(total_ns)


class _Partners:
    """Whom each row may have to wait for: the members of its group, or of those of its batch.

    In groups in which some member began after another had ended (buffered sends, rooted operators) not all wait for
    all, and each keeps whom it waited for.
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
    def _last_start_ns(graph: OperatorGraph) -> Array:
        latest_ns = np.full(int(graph.group.max(initial=-1)) + 1, np.iinfo(np.int64).min)
        np.maximum.at(latest_ns, graph.group, graph.start_ns)
        return latest_ns[graph.group]

    def latest(self, start_ns: Array) -> Array:
        """Row that each row waits for at these starts."""
        own = np.arange(len(start_ns))
        kept = np.where(start_ns[self._blocker] > start_ns, self._blocker, own)
        chosen = np.where(self._is_kept, kept, self._groups.latest(own, start_ns))
        if len(self._batched):
            chosen[self._batched] = self._batches.latest(chosen[self._batched], start_ns)
        return np.asarray(chosen)


class _Groups:
    """Rows in groups (numbered from 0 without holes), sorted once."""

    def __init__(self, group: Array) -> None:
        self._group = group
        self._order = np.argsort(group, kind="stable")
        counts = np.bincount(group)
        self._firsts, self._sorted = np.cumsum(counts) - counts, np.repeat(np.arange(len(counts)), counts)

    def latest(self, rows: Array, start_ns: Array) -> Array:
        """For each position: of `rows` at the positions of its group, the one that starts last."""
        if not len(rows):
            return rows
        ordered = rows[self._order]
        starts_ns = start_ns[ordered]
        lasts_ns = np.maximum.reduceat(starts_ns, self._firsts)
        is_last = np.flatnonzero(starts_ns == lasts_ns[self._sorted])
        found = np.empty(len(self._firsts), dtype=np.int64)
        found[self._sorted[is_last]] = ordered[is_last]
        return np.asarray(found[self._group])
