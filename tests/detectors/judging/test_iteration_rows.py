"""Evidence rows of one iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from irregulars.detectors.judging.iteration_rows import IterationRows, split_by_iteration
from irregulars.messages.evidence import concatenate
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import PAUSES, PHASES
from tests.streams.evidence_rows import MS, evidence_of

COLLECTION, LOADER, WRITE = map(PAUSES.index, ("garbage_collection", "data_loader", "checkpoint_write"))


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


def rows_with(*pauses: tuple[int, int, float, float], work_ms: float = 0.0) -> IterationRows:
    """Return an iteration of 100 ms of two ranks; pauses: rank, cause, begin and length in ms."""
    evidence = concatenate([evidence_of(rank, {7: 100.0}, work_ns=work_ms * MS) for rank in range(2)])
    (rows,) = split_by_iteration(evidence, np.ones(2, dtype=bool))
    rank, cause, begin_ms, ms = (np.array(column) for column in zip(*sorted(pauses), strict=True))
    start_ns = rows.columns["start_ns"]
    times = {"start_ns": start_ns[0] + (begin_ms * MS).astype(np.int64), "elapsed_ns": (ms * MS).astype(np.int64)}
    columns = {**rows.columns, "last_end_ns": start_ns + 100 * MS}
    return replace(rows, columns=columns, pauses=Ragged(np.bincount(rank, minlength=2), {"cause": cause, **times}))


def test_pauses_of_one_cause_that_overlap_count_once() -> None:
    """Four threads load data for 25 ms each, at about the same time: that is no 100 ms."""
    loading = [(1, LOADER, 10.0 + at, 25.0) for at in range(4)]
    found = rows_with(*loading, (1, COLLECTION, 15.0, 25.0), (0, LOADER, -10.0, 30.0), (0, LOADER, 95.0, 30.0))
    times = found.pause_times(None).table(np.arange(2))
    assert times[:, LOADER].tolist() == [25.0 * MS, 28.0 * MS]  # of rank 0 as far as it lies inside
    assert times[:, COLLECTION].tolist() == [0.0, 25.0 * MS]


def test_ranks_that_report_other_pauses_alone_wrote_for_as_long_as_they_worked() -> None:
    assert rows_with((1, COLLECTION, 10.0, 5.0), work_ms=80.0).writes([]).elapsed_ns.tolist() == [80.0 * MS] * 2
    wrote = rows_with((1, COLLECTION, 10.0, 5.0), (1, WRITE, 20.0, 30.0), work_ms=80.0)
    assert wrote.writes([]).elapsed_ns.tolist() == [0.0, 30.0 * MS]


def test_a_rank_that_is_slow_now_does_not_write_for_longer() -> None:
    def worked(*ms: float) -> IterationRows:
        rows = rows_with((0, LOADER, 0.0, 0.0))
        return replace(rows, columns={**rows.columns, "work_ns": np.array(ms) * MS}, pauses=None)

    usual, slow, now = worked(10.0, 10.0), worked(10.0, 60.0), worked(30.0, 80.0)
    assert now.writes([usual], [usual]).elapsed_ns.tolist() == [20.0 * MS, 70.0 * MS]
    assert now.writes([usual], [slow]).elapsed_ns.tolist() == [20.0 * MS, 20.0 * MS]
    wrote = np.full(2, PHASES.index("checkpoint"), np.uint8)
    assert now.writes([usual], [replace(slow, columns={**slow.columns, "phase": wrote})]).elapsed_ns[1] == 70.0 * MS
