"""The results of a job that have not been drained yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.detectors.judging.iteration_rows import IterationRows
from irregulars.detectors.nics.pattern_distances import Patterns, judge_patterns
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.verdicts.strange_ranks import RankScores
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.announcements import Announcement
from irregulars.messages.evidence import NUMERIC_UNKNOWN
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import OPERATORS, PAUSES, UNKNOWN

Columns = dict[str, Column]


class JudgementLog:
    """Gathers the results of one attempt of a job, oldest first, until they are drained.

    `job`, `attempt`: the job and its start number. `fills_columns`: whether operators and behaviour patterns of
    suspect iterations are kept; the sinks store them, verdicts do not need them. `iterations`, `verdicts`: the judged
    iterations, and the revisions of verdicts.
    """

    def __init__(self, job: str, attempt: int, *, fills_columns: bool = True) -> None:
        self._job = job
        self._attempt = attempt
        self.fills_columns = fills_columns
        self.iterations: list[JudgedIteration] = []
        self.verdicts: list[Verdict] = []
        self._ranks: list[Columns] = []
        self._audits: list[Columns] = []
        self._pauses: list[Columns] = []
        self._scores: list[Columns] = []
        self._operators: list[Columns] = []
        self._patterns: list[Columns] = []

    def add_ranks(self, rows: IterationRows, score: Floats) -> None:
        """Keep the ranks of an iteration, with a score for each, and their audits and pauses."""
        self._ranks.append(rank_columns(rows, score))
        if rows.audits is not None and rows.audits.has_entries:
            self._audits.append(audit_columns(rows, rows.audits))
        if self.fills_columns and rows.pauses is not None and rows.pauses.has_entries:
            self._pauses.append(pause_columns(rows, rows.pauses))

    def add_scores(self, rows: IterationRows, scores: RankScores, *, is_irregular: bool) -> None:
        """Keep the scores of an iteration, by detector, that are worth storing (`score_columns`)."""
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
        """Keep the operators of an iteration; the parameters are those of `operator_columns`."""
        if self.fills_columns:
            columns = operator_columns(graph, iteration, self._attempt, names, origin_ns, abnormal_ratio)
            self._operators.append(columns)

    def add_hung(self, columns: Mapping[str, Column], names: Sequence[str]) -> None:
        """Keep the operators in which ranks hang; the parameters are those of `hung_columns`."""
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
            audits=concatenate_columns(self._audits),
            pauses=concatenate_columns(self._pauses),
            detector_scores=concatenate_columns(self._scores),
            operators=concatenate_columns(self._operators),
            patterns=concatenate_columns(self._patterns),
            verdicts=self.verdicts,
        )
        self.iterations, self.verdicts = [], []
        self._ranks, self._audits, self._pauses = [], [], []
        self._scores, self._operators, self._patterns = [], [], []
        return judgements


# --------------------------------------------------------------------------------------------------------------------
# Columns that the sinks store, made from the data with which an iteration was judged.


_RATES: Final = ("share", "tx_mean", "tx_deviation", "rx_mean", "rx_deviation")


def rank_columns(rows: IterationRows, score: Floats) -> dict[str, Column]:
    """Return the columns ``rank_iterations`` of `messages.judgements.Judgements`; a score for each row."""
    names = ("attempt", "iteration", "rank", "start_ns", "work_ns", "operators", "late_rows", "lost_rows")
    columns = {name: rows.columns[name] for name in names}
    # Evidence has only the known ones, and iterations are joined column by column: each gets all of them.
    for name, unknown in NUMERIC_UNKNOWN.items():
        columns[name] = rows.columns[name] if name in rows.columns else np.full(len(rows), unknown)
    return {**columns, "elapsed_ns": rows.columns["elapsed_ns"].astype(np.float64), "score": score}


def audit_columns(rows: IterationRows, audits: Ragged) -> dict[str, Column]:
    """Return the columns ``audits`` of `messages.judgements.Judgements`, of one iteration."""
    placed = {name: audits.of_entries(rows.columns[name]) for name in ("attempt", "iteration", "rank", "start_ns")}
    return {**placed, **audits.columns}


def pause_columns(rows: IterationRows, pauses: Ragged) -> dict[str, Column]:
    """Return the columns ``pauses`` of `messages.judgements.Judgements`, of one iteration."""
    placed = {name: pauses.of_entries(rows.columns[name]) for name in ("attempt", "iteration", "rank")}
    elapsed_ns = pauses["elapsed_ns"].astype(np.float64)
    cause = np.array(PAUSES, dtype=object)[pauses["cause"]]
    return {**placed, "cause": cause, "start_ns": pauses["start_ns"], "elapsed_ns": elapsed_ns}


NOTABLE_SCORE: Final = 0.5
"""Least score that is stored by its detector's name, as a share of the one that is strange; chosen."""

NOTABLE_RANKS: Final = 32
"""Of an irregular iteration as many of each detector's highest scores are stored, however small; chosen."""


def score_columns(rows: IterationRows, scores: RankScores, *, is_irregular: bool) -> dict[str, Column]:
    """Return the columns ``detector_scores`` of `messages.judgements.Judgements`; empty: there are none.

    Most scores show nothing strange: of these only the largest of each rank and iteration is stored (``score`` of
    ``rank_iterations``).
    """
    parts = []
    for name, own in scores.by_detector.items():
        at = np.flatnonzero(own >= NOTABLE_SCORE)
        if is_irregular and len(at) < NOTABLE_RANKS:
            known = np.flatnonzero(~np.isnan(own))
            highest = known[np.argsort(-own[known], kind="stable")[:NOTABLE_RANKS]]
            at = np.union1d(at, highest)
        if len(at):
            columns = {one: rows.columns[one][at] for one in ("attempt", "iteration", "rank", "start_ns")}
            parts.append({**columns, "detector": np.full(len(at), name, dtype=object), "score": own[at]})
    return concatenate_columns(parts)


def operator_columns(
    graph: OperatorGraph,
    iteration: int,
    attempt: int,
    names: Sequence[str],
    origin_ns: Mapping[int, int],
    abnormal_ratio: Floats | None = None,
) -> dict[str, Column]:
    """Return the columns ``operators`` of `messages.judgements.Judgements`, of one iteration.

    `names`: ids of the communicators, by code. `origin_ns`: how far the clock of each rank is ahead, ns: the graph's
    times are on the common clock, the columns' on the rank's own. `abnormal_ratio`: of each row of the graph
    (`detectors.abnormal_operators.replay.abnormal_ratios`); None: they were not judged.
    """
    rows = np.flatnonzero(graph.iteration == iteration)
    own_ns = np.array([origin_ns.get(rank, 0) for rank in graph.rank[rows].tolist()], dtype=np.int64)
    return {
        "attempt": np.full(len(rows), attempt),
        "iteration": graph.iteration[rows],
        "rank": graph.rank[rows],
        "communicator": np.array(names, dtype=object)[graph.communicator[rows]],
        "operator": np.array(OPERATORS, dtype=object)[graph.operator[rows]],
        "sequence": graph.sequence[rows],
        "peer": np.where(graph.is_p2p[rows], graph.peer[rows], UNKNOWN),
        "start_ns": graph.start_ns[rows] + own_ns,
        "elapsed_ns": (graph.end_ns[rows] - graph.start_ns[rows]).astype(np.float64),
        "size_bytes": graph.size_bytes[rows],
        "gap_ns": graph.gap_ns[rows].astype(np.float64),
        "wait_ns": graph.wait_ns[rows].astype(np.float64),
        "transfer_ns": graph.transfer_ns[rows].astype(np.float64),
        "abnormal_ratio": np.full(len(rows), np.nan) if abnormal_ratio is None else abnormal_ratio[rows],
    }


def hung_columns(columns: Mapping[str, Column], attempt: int, names: Sequence[str]) -> dict[str, Column]:
    """Return columns ``operators`` that show where each rank is in a hang: few rows, however many ranks wait.

    Of each rank the operators that never ended, and the last one that did. Who waited for whom is not known of them.

    `columns`: operators of the newest iterations, as the log has them; ``elapsed_ns`` is NaN where one never ended.
    `names`: ids of the communicators, by code.
    """
    is_open = np.isnan(columns["elapsed_ns"])
    order = np.lexsort((columns["sequence"], columns["start_ns"], columns["iteration"], columns["rank"]))
    ended = order[~is_open[order]]
    rank = columns["rank"][ended]
    is_last = np.ones(len(rank), dtype=bool)
    is_last[:-1] = rank[1:] != rank[:-1]
    rows = np.concatenate([ended[is_last], np.flatnonzero(is_open)])
    unknown = np.full(len(rows), np.nan)
    return {
        "attempt": np.full(len(rows), attempt),
        **{name: columns[name][rows] for name in ("iteration", "rank", "sequence", "start_ns", "size_bytes")},
        "communicator": np.array(names, dtype=object)[columns["communicator"][rows]],
        "operator": np.array(OPERATORS, dtype=object)[columns["operator"][rows]],
        "peer": columns["peer"][rows],
        "elapsed_ns": columns["elapsed_ns"][rows].astype(np.float64),
        **dict.fromkeys(("gap_ns", "wait_ns", "transfer_ns", "abnormal_ratio"), unknown),
    }


def pattern_columns(
    rows: IterationRows, regular: Sequence[IterationRows], codes: Mapping[str, int]
) -> dict[str, Column]:
    """Return the columns ``patterns`` of `messages.judgements.Judgements`, of one iteration.

    `regular`: regular iterations, whose patterns are the expected ones. `codes`: the job's code of each communicator,
    from 0 on in this order.
    """
    patterns = rows.behaviour(codes)
    # The empty one lets the columns be joined where no regular iteration is known.
    usual = [one.behaviour(codes) for one in (*regular, rows.only(()))]
    judged = judge_patterns(patterns, Patterns(*(np.concatenate(column) for column in zip(*usual, strict=True))))
    names = list(codes)
    at = np.searchsorted(rows.columns["rank"], patterns.rank)  # rows of an iteration ascend by rank
    placed = ("attempt", "iteration", "start_ns")
    return {
        **{name: rows.columns[name][at] for name in placed},
        "rank": patterns.rank,
        "communicator": _named(patterns.communicator, names),
        "operator": _named(patterns.operator, OPERATORS),
        **{name: getattr(patterns, name) for name in _RATES},
        "differential": judged.differential,
        "unexpected": judged.unexpected,
        "is_abnormal": judged.is_abnormal,
    }


def _named(codes: Ints, names: Sequence[str]) -> Column:
    """Return the names of codes; -1 has an empty one."""
    return np.array([*names, ""], dtype=object)[codes]


def concatenate_columns(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Join columns of the same names; without any part the result is empty."""
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
