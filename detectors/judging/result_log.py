"""The results of a job that have not been drained yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.judging.result_columns import (
    concatenate_columns,
    hung_columns,
    operator_columns,
    pattern_columns,
    rank_columns,
    score_columns,
)
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.verdicts.strange_ranks import RankScores
from irregulars.dtypes import Column, Floats
from irregulars.messages.announcements import Announcement
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict

Columns = dict[str, Column]


class JudgementLog:
    """Gathers the results of one attempt of a job, oldest first, until they are drained.

    Parameters
    ----------
    job, attempt
        The job and its start number.
    fills_columns
        Whether operators and behaviour patterns of suspect iterations are kept; the sinks store them, verdicts do not
        need them.

    Attributes
    ----------
    iterations, verdicts
        The judged iterations, and the revisions of verdicts.
    """

    def __init__(self, job: str, attempt: int, *, fills_columns: bool = True) -> None:
        self._job = job
        self._attempt = attempt
        self.fills_columns = fills_columns
        self.iterations: list[JudgedIteration] = []
        self.verdicts: list[Verdict] = []
        self._ranks: list[Columns] = []
        self._scores: list[Columns] = []
        self._operators: list[Columns] = []
        self._patterns: list[Columns] = []

    def add_ranks(self, rows: IterationRows, score: Floats) -> None:
        """Keep the ranks of an iteration, with a score for each."""
        self._ranks.append(rank_columns(rows, score))

    def add_scores(self, rows: IterationRows, scores: RankScores, *, is_irregular: bool) -> None:
        """Keep those scores of an iteration by detector of which it is worth to know."""
        if self.fills_columns and (columns := score_columns(rows, scores, is_irregular=is_irregular)):
            self._scores.append(columns)

    def add_operators(
        self,
        graph: OperatorGraph,
        iteration: int,
        names: Sequence[str],
        origin_ns: Mapping[int, int],
        abnormal_ratio: Floats | None,
    ) -> None:
        """Keep the operators of an iteration; the parameters are those of `result_columns.operator_columns`."""
        if self.fills_columns:
            columns = operator_columns(graph, iteration, self._attempt, names, origin_ns, abnormal_ratio)
            self._operators.append(columns)

    def add_hung(self, columns: Mapping[str, Column], names: Sequence[str]) -> None:
        """Keep where each rank stands in a hang; the parameters are those of `result_columns.hung_columns`."""
        if self.fills_columns:
            self._operators.append(hung_columns(columns, self._attempt, names))

    def add_patterns(self, rows: IterationRows, usual: Sequence[IterationRows], codes: Mapping[str, int]) -> None:
        """Keep the behaviour patterns of an iteration, if it has any, with how abnormal each is against the usual."""
        if self.fills_columns and rows.has_patterns:
            self._patterns.append(pattern_columns(rows, usual, codes))

    def drain(self, announced: Sequence[Announcement]) -> Judgements:
        """Return all there is, with the announcements that are new, and forget it."""
        judgements = Judgements(
            job=self._job,
            announcements=announced,
            iterations=self.iterations,
            rank_iterations=concatenate_columns(self._ranks),
            detector_scores=concatenate_columns(self._scores),
            operators=concatenate_columns(self._operators),
            patterns=concatenate_columns(self._patterns),
            verdicts=self.verdicts,
        )
        self.iterations, self.verdicts = [], []
        self._ranks, self._scores, self._operators, self._patterns = [], [], [], []
        return judgements
