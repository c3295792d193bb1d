"""The replay of `detectors.abnormal_operators.replay` on simulated cases.

It needs the operators of all ranks, a forest those of one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from irregulars.detectors.abnormal_operators.replay import abnormal_ratios
from irregulars.detectors.abnormal_operators.usual_pieces import UsualPieces, learn_usual_pieces
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from tests.benchmarks.operator_cases import CaseRun

_LEARN_EVERY = 16  # iterations for which what is usual is kept
_KEY = ("communicator", "operator", "peer", "sequence")


@dataclass(slots=True)
class Replays:
    """Ratios of elapsed to the replay's, by rank and iteration in the order of the frames, and what they cost."""

    is_tuned: bool  # learn what is usual anew; else what was usual before the first fault stays
    ratios: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    rows: int = 0
    took_s: float = 0.0


def replay_case(run: CaseRun, iterations: Sequence[int], *, most_ranks: int, is_tuned: bool) -> Replays:
    """Replay these iterations, ascending, of a case that has run."""
    found = Replays(is_tuned)
    columns = _all_ranks(run)
    bounds = np.searchsorted(columns["iteration"], np.arange(run.case.iterations + 1))
    usual: UsualPieces | None = None
    learned = 0
    for iteration in iterations:
        if usual is None or (is_tuned and iteration - learned >= _LEARN_EVERY):
            usual, learned = (
                learn_usual_pieces(_graph(run, columns, bounds, _regular_before(run, iteration))),
                iteration,
            )
        started_s = time.perf_counter()
        graph = _graph(run, columns, bounds, [iteration])
        ratios = np.ones(len(graph)) if usual is None else abnormal_ratios(graph, usual)
        found.took_s += time.perf_counter() - started_s
        found.rows += len(graph)
        # Bring the ratios of some ranks into the order of their frames.
        ranks = run.ranks(most_ranks)
        for rank in ranks:
            rows = run.with_fault.operators[rank]
            own = np.flatnonzero(rows["iteration"] == iteration)
            in_graph = np.flatnonzero(graph.rank == rank)
            names = ("job_communicator", *_KEY[1:])
            order = np.lexsort([rows[name][own] for name in names])
            graph_order = np.lexsort([getattr(graph, name)[in_graph] for name in _KEY])
            values = np.full(len(own), np.nan)
            values[order] = ratios[in_graph[graph_order]]
            found.ratios[rank, iteration] = values
    return found


def _all_ranks(run: CaseRun) -> dict[str, np.ndarray]:
    """Operators of all ranks in the order of iterations."""
    parts = []
    for rank, rows in run.with_fault.operators.items():
        kept = {name: rows[name] for name in ("iteration", *_KEY[1:], "start_ns", "elapsed_ns", "size_bytes")}
        ranks = np.full(len(rows["sequence"]), rank)
        parts.append({**kept, "communicator": rows["job_communicator"], "rank": ranks})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["iteration"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def _graph(
    run: CaseRun, columns: dict[str, np.ndarray], bounds: np.ndarray, iterations: Sequence[int]
) -> OperatorGraph:
    rows = np.concatenate([np.arange(bounds[one], bounds[one + 1]) for one in iterations])
    return build_graph({name: column[rows] for name, column in columns.items()}, run.with_fault.starts_ns)


def _regular_before(run: CaseRun, iteration: int) -> list[int]:
    regular = [one for one in range(1, iteration) if run.is_irregular(one) is False]
    return regular[-JUDGING.usual_iterations :]
