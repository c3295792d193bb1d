"""From batches that were read back to the rows of whole iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.judging.iteration_rows import IterationSpan
from irregulars.detectors.judging.operator_rows import gather_rows
from irregulars.messages.records import UNKNOWN
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
