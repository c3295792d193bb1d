"""Results wait until they are drained, and are drained once."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.judging.reading.iteration_rows import split_by_iteration
from irregulars.detectors.judging.result_log import JudgementLog
from irregulars.messages.judgements import JudgedIteration
from tests.detectors.operator_graphs import graph_of, row
from tests.streams.evidence_rows import evidence_of


def filled(*, fills_columns: bool) -> JudgementLog:
    log = JudgementLog("j", 3, fills_columns=fills_columns)
    evidence = evidence_of(0, {7: 10.0}, attempt=3)
    (rows,) = split_by_iteration(evidence, np.ones(1, dtype=bool))
    log.iterations.append(JudgedIteration("j", 3, 7, 0, 10, 10.0, "train", False, 1))
    log.add_ranks(rows, np.array([0.5]))
    log.add_operators(graph_of(row(0, 10, 60), row(1, 50, 60)), 0, ("world",), {}, None)
    log.add_patterns(rows, [], {})
    return log


def test_all_there_is_is_drained_once() -> None:
    log = filled(fills_columns=True)
    found = log.drain([])
    assert [one.iteration for one in found.iterations] == [7]
    assert found.rank_iterations["score"].tolist() == [0.5]
    assert found.operators["attempt"].tolist() == [3, 3]
    assert found.patterns == {}  # it had none
    again = log.drain([])
    assert (again.iterations, again.rank_iterations, again.operators) == ([], {}, {})


@pytest.mark.parametrize("fills_columns", [True, False])
def test_operators_are_kept_for_the_sinks_alone(fills_columns: bool) -> None:
    assert bool(filled(fills_columns=fills_columns).drain([]).operators) == fills_columns
