"""Evidence rows of one iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from irregulars.detectors.judging.iteration_rows import split_by_iteration
from irregulars.messages.evidence import concatenate
from irregulars.messages.ragged import Ragged
from tests.streams.evidence_rows import evidence_of


def test_summaries_of_a_communicator_that_was_made_after_the_announcement_are_left_out() -> None:
    own = {"operator": [0, 0, 3], "communicator": [1, 0, 1], "peer": [-1, -1, 5], "count": [2, 4, 6],
           "shortest_ns": [10, 20, 30]}  # fmt: skip
    classes = Ragged(np.array([1, 2]), {name: np.array(column) for name, column in own.items()})
    evidence = concatenate([evidence_of(rank, {7: 1.0}) for rank in (3, 4)])
    (rows,) = split_by_iteration(evidence, np.ones(2, dtype=bool))
    rows = replace(rows, names=("later", "world"), classes=classes)
    found = rows.summaries({"world": 8})
    assert {name: column.tolist() for name, column in found._asdict().items()} == {
        "rank": [3, 4], "communicator": [8, 8], "operator": [0, 3], "peer": [-1, 5], "counts": [2, 6],
        "shortest_ns": [10, 30],
    }  # fmt: skip
    assert len(rows.summaries({}).rank) == 0
