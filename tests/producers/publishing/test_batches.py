from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.messages.records import UNKNOWN, Batch, Header, decode_batch
from irregulars.producers.publishing.batches import cut_in_order, encode_in_parts, event_times_ns, take_rows


def samples(times_ns: list[int], names: tuple[str, ...] = ("eth0",)) -> Batch:
    count = len(times_ns)
    columns = {
        "time_ns": np.array(times_ns, dtype=np.int64),
        "path": np.zeros(count, dtype=np.uint8),
        "device": (np.arange(count) % len(names)).astype(np.uint16),
        "tx_bytes_per_s": np.arange(count, dtype=np.float64),
        "rx_bytes_per_s": np.full(count, np.nan),
    }
    return Batch(Header("bandwidth", "job", 0, 3, watermark_ns=max(times_ns, default=None), names=names), columns)


def assert_parts(whole: Batch, parts: list[Batch]) -> None:
    """All rows once and in order; counts and watermarks true."""
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(np.concatenate([part.columns[name] for part in parts]), column)
    rows = whole.header.rows_before
    for place, part in enumerate(parts):
        assert part.header.rows_before == rows
        rows += len(part)
        later = [int(event_times_ns(rest).min()) for rest in parts[place + 1 :]]
        assert part.header.watermark_ns is None or all(part.header.watermark_ns < time_ns for time_ns in later)
    assert parts[-1].header.watermark_ns == whole.header.watermark_ns


@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=40), past=st.integers(1, 39))
def test_taking_rows_keeps_counts_and_watermarks_true_in_any_order(times: list[int], past: int) -> None:
    batch = samples(times)
    past = min(past, len(batch))
    parts = [take_rows(batch, 0, past), take_rows(batch, past, len(batch))]
    assert_parts(batch, [part for part in parts if len(part)])


@given(
    times=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    max_rows=st.integers(1, 20),
    max_span_ns=st.integers(1, 30),
)
def test_cutting_keeps_bounds_counts_and_watermarks(times: list[int], max_rows: int, max_span_ns: int) -> None:
    batch = samples(sorted(times))
    parts = list(cut_in_order(batch, max_rows, max_span_ns / 1e9))
    assert_parts(batch, parts)
    assert all(len(part) <= max_rows for part in parts)
    assert all(np.ptp(event_times_ns(part)) <= max_span_ns for part in parts)


def test_operators_without_an_end_have_no_event_time() -> None:
    columns = {"start_ns": np.array([5, UNKNOWN, 7]), "elapsed_ns": np.array([10.0, 10.0, np.nan])}
    assert event_times_ns(Batch(Header("commops", "job", 0, 0), columns)).tolist() == [15, UNKNOWN, UNKNOWN]


def test_a_small_batch_is_one_message() -> None:
    batch = samples([1, 2, 3])
    ((part, value),) = encode_in_parts(batch, 10_000)
    assert part is batch
    assert len(decode_batch(value, "bandwidth")) == 3


@pytest.mark.parametrize("rows", [2, 999, 10_000])
def test_a_large_batch_is_parted_below_the_limit(rows: int) -> None:
    batch = samples(list(range(rows)), names=tuple(f"device-{i}" for i in range(100)))
    batch = Batch(dataclasses.replace(batch.header, rows_before=70), batch.columns)
    parts, values = zip(*encode_in_parts(batch, 3_000), strict=True)
    assert all(len(value) < 3_000 for value in values)
    decoded = [decode_batch(value, "bandwidth") for value in values]
    devices = [part.header.names[code] for part in decoded for code in part.columns["device"].tolist()]
    assert devices == [f"device-{i % 100}" for i in range(rows)]
    assert [part.header for part in decoded] == [part.header for part in parts]
    assert [part.header.rows_before for part in parts] == [
        70 + sum(map(len, parts[:place])) for place in range(len(parts))
    ]


def test_a_row_above_the_limit_is_refused() -> None:
    with pytest.raises(InputError, match=r"one row of bandwidth must be below 2000 bytes; got \d+ \(rank 3\)"):
        list(encode_in_parts(samples([1], names=("x" * 3_000,)), 2_000))
