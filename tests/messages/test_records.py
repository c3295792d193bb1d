"""Batches on the wire: what is sent comes back, and what is unknown stays unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.records import (
    BATCH_SCHEMAS,
    PHASE_UNKNOWN,
    UNKNOWN,
    Batch,
    Header,
    check_version,
    decode_batch,
    encode_batch,
)

WHOLE = st.integers(0, 1 << 53)
VALUES: dict[str, Any] = {
    "communicator": st.integers(0, 1), "operator": st.integers(0, 10), "sequence": st.integers(0, 2**32 - 1),
    "peer": st.just(UNKNOWN) | st.integers(0, 2**28 - 1), "start_ns": st.just(UNKNOWN) | st.integers(0, 2**62),
    "elapsed_ns": st.just(np.nan) | WHOLE.map(float), "size_bytes": st.just(np.nan) | WHOLE.map(float),
    "iteration": st.just(UNKNOWN) | st.integers(-(2**61), 2**61),
}  # fmt: skip


@st.composite
def operators(draw: st.DrawFn) -> Batch:
    rows = draw(st.lists(st.tuples(*VALUES.values()), min_size=1, max_size=6))
    columns = dict(zip(VALUES, map(np.array, zip(*rows, strict=True)), strict=True))
    header = Header("commops", "j", 2, 7, draw(st.integers(0, 99)), draw(st.none() | WHOLE), ("tp", "δ"))
    return Batch(header, columns)


@given(operators())
def test_operators_come_back_as_they_went(batch: Batch) -> None:
    back = decode_batch(encode_batch(batch), "commops")
    assert back.header == batch.header
    assert list(back.columns) == BATCH_SCHEMAS["commops"].names
    for name, column in batch.columns.items():
        np.testing.assert_array_equal(back.columns[name], column, err_msg=name)


def test_what_an_iteration_does_not_say_stays_unknown() -> None:
    columns = {
        "iteration": np.array([3]), "start_ns": np.array([5]), "elapsed_ns": np.array([7.0]),
        "phase": np.array([PHASE_UNKNOWN], np.uint8), "loss": np.array([np.nan]), "grad_norm": np.array([np.nan]),
        "tokens": np.array([np.nan]),
    }  # fmt: skip
    back = decode_batch(encode_batch(Batch(Header("iterations", "j", 1, 0), columns)), "iterations")
    assert back.columns["phase"].tolist() == [PHASE_UNKNOWN]
    assert np.isnan([back.columns[name][0] for name in ("loss", "grad_norm", "tokens")]).all()


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_version_that_we_do_not_read_is_refused(version: object) -> None:
    check_version({"schema": "jobs", "version": 1}, "jobs")
    with pytest.raises(RecordError, match="version must be 1 to 1"):
        check_version({"schema": "jobs", "version": version}, "jobs")


def test_a_batch_of_another_schema_is_refused() -> None:
    columns = {"time_ns": [1], "path": [0], "device": [0], "tx_bytes_per_s": [1.0], "rx_bytes_per_s": [1.0]}
    batch = Batch(Header("bandwidth", "j", 1, 0, names=("nic",)), {n: np.array(v) for n, v in columns.items()})
    with pytest.raises(RecordError, match="schema must be 'commops'; got 'bandwidth'"):
        decode_batch(encode_batch(batch), "commops")
