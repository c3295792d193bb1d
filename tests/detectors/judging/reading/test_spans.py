"""Which offsets hold the operators of some iterations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from irregulars.detectors.judging.reading.iteration_rows import IterationRows, split_by_iteration
from irregulars.detectors.judging.reading.spans import Span, spans_of
from irregulars.messages.evidence import concatenate
from irregulars.messages.ragged import Ragged
from tests.streams.evidence_rows import evidence_of


def iteration(number: int, offsets: dict[int, list[int]]) -> IterationRows:
    """One row for each rank; ranks with an even number are in partition 0, the others in 1."""
    parts = [
        replace(
            evidence_of(rank, {number: 10.0}, partition=rank % 2),
            offsets=Ragged(np.array([len(own)]), {"offset": np.array(own, dtype=np.int64)}),
        )
        for rank, own in offsets.items()
    ]
    (rows,) = split_by_iteration(concatenate(parts), np.ones(len(parts), dtype=bool))
    return rows


def test_a_batch_that_holds_two_iterations_is_read_once() -> None:
    iterations = [iteration(4, {0: [3, 2], 1: [2]}), iteration(5, {0: [3, 4]})]
    assert spans_of(iterations) == [Span(0, 0, (2, 3, 4)), Span(1, 1, (2,))]


def test_no_iteration_needs_nothing() -> None:
    assert spans_of([]) == []
