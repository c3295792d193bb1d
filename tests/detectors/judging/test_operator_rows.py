"""From batches that were read back to the rows of whole iterations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.judging.iteration_rows import (
    IterationRows,
    IterationSpan,
    join_rows,
    spans_of,
    split_by_iteration,
)
from irregulars.detectors.judging.operator_rows import gather_rows
from irregulars.messages.evidence import COLUMNS, Evidence, concatenate
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import UNKNOWN
from tests.stored_states import stored
from tests.streams.evidence_rows import MS, T0, evidence_of
from tests.streams.lockstep_job import operator_batch

CODES = {"dp": 1, "tp": 0}


def op(iteration: int, start: int, **values: Any) -> dict[str, Any]:
    return {
        "communicator": "tp",
        "iteration": iteration,
        "start_ns": start,
        "elapsed_ns": 5.0,
        "sequence": start,
        **values,
    }


def span(start_ns: int, past_ns: int) -> IterationSpan:
    return IterationSpan(start_ns, past_ns, last_end_ns=1_000)


def test_rows_of_batches() -> None:
    # Rows of other iterations and ranks are left out
    batches = [operator_batch(rank, [op(1, 10), op(2, 20), op(3, 30)]) for rank in (0, 1, 2)]
    rows = gather_rows(batches, CODES, {(0, 1): span(0, 19), (0, 2): span(20, 29), (1, 3): span(30, 39)})
    assert list(zip(rows["rank"].tolist(), rows["iteration"].tolist(), strict=True)) == [(0, 1), (0, 2), (1, 3)]
    # Communicators have the jobs codes
    batches = [operator_batch(0, [op(1, 10, communicator="dp"), op(1, 11)]), operator_batch(1, [op(1, 10)])]
    rows = gather_rows(batches, CODES, {(0, 1): span(0, 99), (1, 1): span(0, 99)})
    assert rows["communicator"].tolist() == [1, 0, 0]
    # Rows without an iteration belong to the one in which they start
    batch = operator_batch(0, [op(UNKNOWN, start) for start in (9, 10, 19, 20, 35)])
    rows = gather_rows([batch], CODES, {(0, 1): span(10, 20), (0, 2): span(20, 30)})
    assert list(zip(rows["start_ns"].tolist(), rows["iteration"].tolist(), strict=True)) == [
        (10, 1),
        (19, 1),
        (20, 2),
    ]
    # No batches are no rows with all columns
    rows = gather_rows([], CODES, {(0, 1): span(0, 9)})
    assert all(len(column) == 0 for column in rows.values())
    assert rows.keys() == gather_rows([operator_batch(0, [op(1, 10)])], CODES, {(0, 1): span(0, 99)}).keys()
    # A batch of a rank that nobody asked for is no error
    assert len(gather_rows([operator_batch(7, [op(1, 10)])], CODES, {(0, 1): span(0, 99)})["rank"]) == 0
    # Unknown lengths stay unknown
    rows = gather_rows([operator_batch(0, [op(1, 10, elapsed_ns=np.nan)])], CODES, {(0, 1): span(0, 99)})
    assert np.isnan(rows["elapsed_ns"]).all()


@given(data=st.data())
def test_any_order_and_copies_of_rows_and_batches_give_the_same_rows(data: st.DataObject) -> None:
    own = [op(data.draw(st.integers(1, 2)), start) for start in range(data.draw(st.integers(1, 8)))]
    spans = {(0, 1): span(0, 99), (0, 2): span(0, 99)}
    copies = data.draw(st.permutations(own + data.draw(st.lists(st.sampled_from(own), max_size=4))))
    cut = data.draw(st.integers(0, len(copies)))
    parts = [part for part in (copies[:cut], copies[cut:], copies[:cut]) if part]
    one = gather_rows([operator_batch(0, own)], CODES, spans)
    other = gather_rows([operator_batch(0, part, sort=False) for part in parts], CODES, spans)
    order = np.argsort(other["sequence"])
    for name, column in one.items():
        np.testing.assert_array_equal(other[name][order], column, err_msg=name)


def test_rows_that_end_late() -> None:
    # Rows that end after the last operator of the evidence are left out
    batch = operator_batch(0, [op(1, 10, elapsed_ns=5), op(1, 12, sequence=2, elapsed_ns=500)])
    rows = gather_rows([batch], CODES, {(0, 1): IterationSpan(0, 99, last_end_ns=15)})
    assert rows["start_ns"].tolist() == [10]
    # Of an operator that was told before and after its end the end counts
    batches = [
        operator_batch(0, [op(1, 10, sequence=3, elapsed_ns=np.nan), op(1, 50, sequence=4, elapsed_ns=np.nan)]),
        operator_batch(0, [op(1, 12, sequence=3, elapsed_ns=70.0)]),
    ]
    rows = gather_rows(batches, CODES, {(0, 1): span(0, 99)})
    told = dict(zip(rows["sequence"].tolist(), rows["elapsed_ns"].tolist(), strict=True))
    assert told == {3: 70.0, 4: pytest.approx(np.nan, nan_ok=True)}


def with_offsets(evidence: Evidence, offsets: list[list[int]]) -> Evidence:
    flat = np.array([one for own in offsets for one in own], dtype=np.int64)
    counts = np.array([len(own) for own in offsets], dtype=np.int64)
    return replace(evidence, offsets=Ragged(counts, {"offset": flat}))


def rows_of(*pieces: Evidence) -> IterationRows:
    joined = concatenate(pieces)
    (rows,) = split_by_iteration(joined, np.ones(len(joined), dtype=bool))
    return rows


def test_evidence_is_split_by_iteration() -> None:
    # Evidence is split by iteration with the offsets of each row
    evidence = concatenate(
        [with_offsets(evidence_of(0, {5: 10, 4: 11}), [[1, 2], [3]]), with_offsets(evidence_of(1, {5: 12}), [[9]])]
    )
    parts = list(split_by_iteration(evidence, np.array([True, True, True])))
    assert [part.number for part in parts] == [4, 5]
    assert [list(part.rank_offsets()) for part in parts] == [[(0, 0, (3,))], [(0, 0, (1, 2)), (1, 0, (9,))]]
    # Only kept rows are split
    evidence = with_offsets(evidence_of(0, {4: 10, 5: 11, 6: 12}), [[1], [2, 3], []])
    parts = list(split_by_iteration(evidence, np.array([False, True, True])))
    assert [(part.number, part.offsets["offset"].tolist()) for part in parts] == [(5, [2, 3]), (6, [])]
    assert list(split_by_iteration(evidence, np.zeros(3, dtype=bool))) == []


@pytest.mark.parametrize("ranks", [[0, 1, 3, 7], [7, 0, 3, 1]])
def test_the_rows_of_some_ranks_are_found_in_any_order(ranks: list[int]) -> None:
    rows = rows_of(*(with_offsets(evidence_of(rank, {4: 10 + rank}), [[rank, 9]]) for rank in ranks))
    found = rows.only({3, 0, 5})
    assert found.columns["rank"].tolist() == [rank for rank in ranks if rank in (0, 3)]
    assert [offsets for _, _, offsets in found.rank_offsets()] == [(rank, 9) for rank in ranks if rank in (0, 3)]


def test_times_of_joined_rows() -> None:
    # Joined rows are in order of ranks whatever came first
    parts = [
        rows_of(with_offsets(evidence_of(rank, {5: rank}), [[rank, rank + 100][: rank % 3]])) for rank in range(5)
    ]
    for order in ([4, 0, 3, 1, 2], [0, 1, 2, 3, 4]):
        joined = join_rows([parts[at] for at in order])
        assert joined.columns["rank"].tolist() == [0, 1, 2, 3, 4]
        expected = [(rank, 0, tuple([rank, rank + 100][: rank % 3])) for rank in range(5)]
        assert list(joined.rank_offsets()) == expected
    # The time of the job is that of its slowest rank from its first start
    rows = rows_of(evidence_of(0, {5: 10}), evidence_of(1, {5: 30}, operators=3), evidence_of(2, {5: 20}))
    assert (rows.elapsed_ns, rows.start_ns, len(rows)) == (30 * MS, T0 + 500 * MS, 3)
    # The period counts what ranks work before their first operator
    free_ns = T0 + 100 * MS
    rows = rows_of(*(evidence_of(rank, {5: 10 + rank}, entry_ns=free_ns) for rank in range(3)))
    assert rows.period_ns == 411 * MS  # of the middle rank: from 100 to 500 ms it worked, then its operators ran
    assert rows_of(evidence_of(0, {5: 10})).period_ns == 10 * MS  # since when it was free is not known
    assert rows_of(evidence_of(0, {5: 10}, entry_ns=T0 + 505 * MS)).period_ns == 10 * MS
    # A start that nobody knows is unknown
    rows = rows_of(evidence_of(0, {5: 10}))
    rows.columns["start_ns"][:] = UNKNOWN
    assert rows.start_ns == UNKNOWN


@pytest.mark.parametrize(("phases", "expected"), [
    ((None, None), "train"),
    (("train", None), "train"),
    (("train", "eval"), "eval"),
    ((None, "checkpoint"), "checkpoint"),
])  # fmt: skip
def test_the_phase_is_what_any_rank_gave(phases: tuple[str | None, str | None], expected: str) -> None:
    assert rows_of(*[evidence_of(rank, {5: 10}, phase=phase) for rank, phase in enumerate(phases)]).phase == expected


def test_entries_and_snapshots() -> None:
    # A rank enters when it was free or when its iteration began
    rows = rows_of(evidence_of(0, {5: 10}, entry_ns=77), evidence_of(1, {5: 10}))
    assert list(rows.entries()) == [((0, 5), 77), ((1, 5), T0 + 500 * MS)]
    assert dict(rows.spans())[1, 5][:2] == (T0 + 500 * MS, T0 + 510 * MS)
    # Rows survive a snapshot
    rows = rows_of(with_offsets(evidence_of(0, {5: 10}), [[3, 4]]), with_offsets(evidence_of(1, {5: 10}), [[]]))
    back = stored(rows)
    assert list(back.rank_offsets()) == list(rows.rank_offsets())
    for name in COLUMNS:
        np.testing.assert_array_equal(back.columns[name], rows.columns[name])


@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=3, max_size=3), min_size=1, max_size=3))
def test_spans_name_each_batch_once(offsets: list[list[list[int]]]) -> None:
    iterations = [
        rows_of(
            *[
                with_offsets(evidence_of(rank, {n: 10}, partition=rank % 2), [own])
                for rank, own in enumerate(of_ranks)
            ]
        )
        for n, of_ranks in enumerate(offsets)
    ]
    spans = spans_of(iterations)
    assert [(span.rank, span.partition) for span in spans] == [(0, 0), (1, 1), (2, 0)]
    for span in spans:
        assert list(span.offsets) == sorted({one for of_ranks in offsets for one in of_ranks[span.rank]})


def with_patterns(evidence: Evidence, name: str, shares: list[float]) -> Evidence:
    """Two patterns: one on a communicator, and the whole."""
    count = len(shares)
    columns = dict(evidence.patterns.columns) | {
        "communicator": np.array([0, -1][:count]),
        "operator": np.array([3, -1][:count]),
        **{key: np.array(shares) for key in ("share", "tx_mean", "tx_deviation", "rx_mean", "rx_deviation")},
    }
    return replace(evidence, names=(name,), patterns=Ragged(np.array([count]), columns))


def test_patterns_of_ranks_come_with_the_job_s_codes_of_communicators() -> None:
    pieces = [with_patterns(evidence_of(rank, {5: 10}), name, [0.5, 1.0]) for rank, name in ((0, "a"), (1, "b"))]
    rows = join_rows([rows_of(piece) for piece in reversed(pieces)])
    found = rows.behaviour({"b": 7, "a": 4})
    assert list(zip(found.rank.tolist(), found.communicator.tolist(), strict=True)) == [
        (0, 4),
        (0, -1),
        (1, 7),
        (1, -1),
    ]
    assert found.share.tolist() == [0.5, 1.0, 0.5, 1.0]
    assert rows.only([1]).behaviour({"b": 7, "a": 4}).communicator.tolist() == [7, -1]


def test_rows_without_patterns_or_ranks() -> None:
    # Patterns on a communicator that nobody knows are left out
    rows = rows_of(with_patterns(evidence_of(0, {5: 10}), "a", [0.5, 1.0]))
    assert rows.behaviour({}).communicator.tolist() == [-1]
    back = stored(rows)
    assert back.behaviour({"a": 1}).communicator.tolist() == [1, -1]
    # No ranks have no offsets, and no iterations no spans
    rows = rows_of(with_offsets(evidence_of(0, {5: 10}), [[1, 2]]))
    assert spans_of([rows.only(set())]) == []
    assert spans_of([]) == []
