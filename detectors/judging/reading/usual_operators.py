"""What is usual of a job's operators: some regular iterations, of the ranks that were read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.detectors.abnormal_operators.healthy_pieces import UsualPieces, learn_usual_pieces
from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.judging.reading.operator_rows import NO_OPERATORS, joined
from irregulars.detectors.path.lane_tables import usual_lanes
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.ranks_to_read import lane_sums, usual_sums
from irregulars.detectors.path.usual_by_past import Reference, learn_reference
from irregulars.detectors.path.without_start_times import find_waits

Array = np.ndarray
Build = Callable[[Sequence[IterationRows], Mapping[str, Array]], OperatorGraph]

MOST_REPLAYED_ROWS: Final = 100_000
"""Operators of iterations with more rows are not judged one by one: it would cost as much as finding the culprit."""


class UsualOperators:
    """What is usual, learned of the ranks that were read.

    Parameters
    ----------
    iterations
        Regular iterations.
    is_whole
        Whether all ranks are read.
    """

    def __init__(self, iterations: list[IterationRows], *, is_whole: bool) -> None:
        self.iterations = iterations
        self._is_whole = is_whole
        self.ranks: set[int] = set()
        self.columns: dict[str, Array] = {}
        self._learned: Reference | None = None
        self._learned_untimed: dict[Lane, UsualLane] | None = None
        self._pieces: UsualPieces | None = None
        self._graph: OperatorGraph | None = None  # of which the pieces are learned when somebody asks
        self._lanes: dict[Lane, tuple[float, float]] | None = None
        rank = np.concatenate([rows.columns["rank"] for rows in iterations])
        work_ns = np.concatenate([rows.columns["work_ns"] for rows in iterations])
        order = np.lexsort((work_ns, rank))
        self.work_ranks, first, counts = np.unique(rank[order], return_index=True, return_counts=True)
        operators = np.concatenate([rows.columns["operators"] for rows in iterations])
        self._most_operators = np.maximum.reduceat(operators[order], first) if len(first) else operators
        ordered = work_ns[order]
        self.work_ns = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2

    def add(self, ranks: Collection[int], columns: dict[str, Array]) -> None:
        """Take in the operators of more ranks."""
        self.columns = joined([self.columns, columns])
        self.ranks |= set(ranks)
        self._learned = self._learned_untimed = None

    def reference(self, build: Build) -> Reference:
        """What is usual at each place; `build` makes a graph of operators."""
        if self._learned is None:
            own = [rows.only(self.ranks) for rows in self.iterations]
            graph = build(own, self.columns)
            self._learned = learn_reference(graph)
            is_small = self._is_whole and len(graph) <= MOST_REPLAYED_ROWS * len(own)
            self._graph, self._pieces = graph if is_small else None, None
        return self._learned

    @property
    def pieces(self) -> UsualPieces | None:
        """What is usual of single operators, as far as `reference` has learned: of jobs read whole, and not large."""
        if self._graph is not None:
            self._pieces, self._graph = learn_usual_pieces(self._graph), None
        return self._pieces

    def untimed(self) -> dict[Lane, UsualLane]:
        """What is usual on each lane by durations alone."""
        if self._learned_untimed is None:
            self._learned_untimed = usual_lanes(find_waits(self.columns or NO_OPERATORS).table)
        return self._learned_untimed

    def lanes(self, codes: Mapping[str, int]) -> dict[Lane, tuple[float, float]]:
        """What summaries say is usual on each lane."""
        if self._lanes is None:
            self._lanes = usual_sums(lane_sums(rows.summaries(codes)) for rows in self.iterations)
        return self._lanes

    def work_excess_ns(self, rows: IterationRows) -> dict[int, float]:
        """How much longer each rank worked than usual, by evidence alone, less what all did; ns."""
        rank, work_ns, usual_ns = self._work(rows)
        factor = self.common_factor(rows)
        return dict(zip(rank.tolist(), (work_ns - factor * usual_ns).tolist(), strict=True))

    def common_factor(self, rows: IterationRows) -> float:
        """How many times as long as usual all ranks worked: the lower median over them."""
        _, work_ns, usual_ns = self._work(rows)
        ratio = np.sort(work_ns[usual_ns > 0] / usual_ns[usual_ns > 0])
        factor = float(ratio[(len(ratio) - 1) // 2]) if len(ratio) else 1.0
        return factor if factor > 0 else 1.0

    def complete_ranks(self, rows: IterationRows) -> set[int]:
        """Ranks that logged as many operators as they do at most in regular iterations: they lost no row."""
        rank, operators = rows.columns["rank"], rows.columns["operators"]
        at = np.minimum(np.searchsorted(self.work_ranks, rank), len(self.work_ranks) - 1)
        is_complete = (self.work_ranks[at] == rank) & (operators >= self._most_operators[at])
        return set(rank[is_complete].tolist())

    def _work(self, rows: IterationRows) -> tuple[Array, Array, Array]:
        """Ranks of which it is known what they usually work, with their work now and usually."""
        rank, work_ns = rows.columns["rank"], rows.columns["work_ns"]
        at = np.minimum(np.searchsorted(self.work_ranks, rank), len(self.work_ranks) - 1)
        is_there = self.work_ranks[at] == rank
        return rank[is_there], work_ns[is_there], self.work_ns[at[is_there]]
