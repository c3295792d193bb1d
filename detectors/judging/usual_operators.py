"""The usual values of a job's operators, by some regular iterations of the ranks that were read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from irregulars.detectors.abnormal_operators.usual_pieces import UsualPieces, learn_usual_pieces
from irregulars.detectors.arrays.grouped_medians import lower_median, medians
from irregulars.detectors.job.clocks import Clocks
from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.iteration_rows import IterationRows
from irregulars.detectors.judging.operator_rows import NO_OPERATORS, joined, on_one_clock
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.path.lane_tables import usual_lanes
from irregulars.detectors.path.operator_graph import OperatorGraph, collective_rows
from irregulars.detectors.path.ranks_to_read import beside, lane_sums, usual_sums
from irregulars.detectors.path.usual_by_past import (
    Reference,
    UsualTransfers,
    learn_reference,
    learn_transfers,
    usual_counts,
)
from irregulars.detectors.path.without_start_times import find_waits
from irregulars.dtypes import Column, Floats, Ints

Build = Callable[[Sequence[IterationRows], Mapping[str, Column]], OperatorGraph]
"""Makes a graph of the operators of some iterations."""


class UsualOperators:
    """The usual values of the ranks that were read so far, each computed when it is asked for.

    `iterations`: regular iterations. `is_whole`: whether all ranks are read.
    """

    def __init__(self, iterations: list[IterationRows], *, is_whole: bool) -> None:
        self.iterations = iterations
        self._is_whole = is_whole
        self.ranks: set[int] = set()
        self.columns: dict[str, Column] = {}
        self._learned: Reference | None = None
        self._learned_untimed: dict[Lane, UsualLane] | None = None
        self._lanes: tuple[tuple[frozenset[int], Topology], dict[Lane, tuple[float, float]]] | None = None
        self._pieces: UsualPieces | None = None
        self._graph: OperatorGraph | None = None  # kept until the pieces are learned from it
        rank = np.concatenate([rows.columns["rank"] for rows in iterations])
        work_ns = np.concatenate([rows.columns["work_ns"] for rows in iterations])
        self.work_ranks, number = np.unique(rank, return_inverse=True)
        self.work_ns = medians(number, work_ns)
        operators = np.concatenate([rows.columns["operators"] for rows in iterations])
        self._operators = usual_counts(number, operators)

    def add(self, ranks: Collection[int], columns: dict[str, Column]) -> None:
        """Take in the operators of more ranks."""
        self.columns = joined([self.columns, columns])
        self.ranks |= set(ranks)
        # Both hold values for each rank or lane that was read: with more of them they are learned anew.
        self._learned = self._learned_untimed = None

    def reference(self, build: Build) -> Reference:
        """Return the usual values at each place of an iteration."""
        if self._learned is None:
            own = [rows.only(self.ranks) for rows in self.iterations]
            graph = build(own, self.columns)
            self._learned = learn_reference(graph)
            # The graph of a large job is not held in memory, as its operators are not judged one by one.
            is_small = self._is_whole and len(graph) <= JUDGING.most_replayed_rows * len(own)
            self._graph, self._pieces = graph if is_small else None, None
        return self._learned

    def transfers(self, communicators: Collection[int], clocks: Clocks) -> Reference | UsualTransfers:
        """Return the usual values of the transfers of some communicators' collectives, and perhaps of all else.

        While a path is followed each round reads more ranks, and asks for no more than that.
        """
        if self._learned is not None:
            return self._learned
        return learn_transfers(collective_rows(on_one_clock(self.columns, clocks), communicators))

    @property
    def pieces(self) -> UsualPieces | None:
        """The usual values of single operators, of jobs read whole and not too large, once `reference` was asked."""
        if self._graph is not None:
            self._pieces, self._graph = learn_usual_pieces(self._graph), None
        return self._pieces

    def untimed(self) -> dict[Lane, UsualLane]:
        """Return the usual values on each lane, by durations alone."""
        if self._learned_untimed is None:
            self._learned_untimed = usual_lanes(find_waits(self.columns or NO_OPERATORS).table)
        return self._learned_untimed

    def lanes(
        self, codes: Mapping[str, int], carried: Collection[int], topology: Topology
    ) -> Mapping[Lane, tuple[float, float]]:
        """Return the usual values on each lane that touches these ranks, by the summaries of the evidence.

        Each iteration of an incident asks for the same ranks, so that the newest answer is kept.
        """
        asked = frozenset(carried), topology
        # A topology by identity: a changed one is a new object, and comparing two large ones takes long.
        if self._lanes is None or self._lanes[0][0] != asked[0] or self._lanes[0][1] is not topology:
            summaries = (beside(rows.summaries(codes), carried, topology) for rows in self.iterations)
            self._lanes = asked, usual_sums(map(lane_sums, summaries))
        return self._lanes[1]

    def work_excess_ns(self, rows: IterationRows) -> dict[int, float]:
        """Return how much longer than usual each rank worked, less the factor that all have in common; ns."""
        rank, work_ns, usual_ns = self._work(rows)
        factor = self.common_factor(rows)
        return dict(zip(rank.tolist(), (work_ns - factor * usual_ns).tolist(), strict=True))

    def common_factor(self, rows: IterationRows) -> float:
        """Return how many times as long as usual all ranks worked: the lower median over them."""
        _, work_ns, usual_ns = self._work(rows)
        ratio = work_ns[usual_ns > 0] / usual_ns[usual_ns > 0]
        factor = lower_median(ratio) if len(ratio) else 1.0
        # A factor of 0 would make all usual work vanish, and any work an excess.
        return factor if factor > 0 else 1.0

    def complete_ranks(self, rows: IterationRows) -> set[int]:
        """Return the ranks that logged as many operators as in a usual iteration: they lost no row."""
        rank, operators = rows.columns["rank"], rows.columns["operators"]
        at = np.minimum(np.searchsorted(self.work_ranks, rank), len(self.work_ranks) - 1)
        is_complete = (self.work_ranks[at] == rank) & (operators >= self._operators[at])
        return set(rank[is_complete].tolist())

    def _work(self, rows: IterationRows) -> tuple[Ints, Floats, Floats]:
        """Return the ranks whose usual work is known, their work in this iteration, and their usual work, ns."""
        rank, work_ns = rows.columns["rank"], rows.columns["work_ns"]
        at = np.minimum(np.searchsorted(self.work_ranks, rank), len(self.work_ranks) - 1)
        is_there = self.work_ranks[at] == rank
        return rank[is_there], work_ns[is_there], self.work_ns[at[is_there]]
