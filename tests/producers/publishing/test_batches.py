from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import decode_batches
from irregulars.messages.device_events import DeviceEvent, batch_of, events_of
from irregulars.messages.records import UNKNOWN, Batch, Header, decode_batch
from irregulars.producers.publishing.batches import (
    MAX_ROWS,
    Bundler,
    cut_in_order,
    encode_in_parts,
    encode_together,
    event_times_ns,
    take_rows,
)
from tests.streams.lockstep_job import iteration_batch, operator_batch


def samples(times_ns: list[int], names: tuple[str, ...] = ("eth0",)) -> Batch:
    count = len(times_ns)
    columns = {
        "time_ns": np.array(times_ns, dtype=np.int64), "path": np.zeros(count, dtype=np.uint8),
        "device": (np.arange(count) % len(names)).astype(np.uint16),
        "tx_bytes_per_s": np.arange(count, dtype=np.float64), "rx_bytes_per_s": np.full(count, np.nan),
    }  # fmt: skip
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


def test_a_small_batch_is_one_message_and_a_row_above_the_limit_is_refused() -> None:
    batch = samples([1, 2, 3])
    ((part, value),) = encode_in_parts(batch, 10_000)
    assert part is batch
    assert len(decode_batch(value, "bandwidth")) == 3
    with pytest.raises(InputError, match=r"one row of bandwidth must be below 2000 bytes; got \d+ \(rank 3\)"):
        list(encode_in_parts(samples([1], names=("x" * 3_000,)), 2_000))


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


def test_names_that_no_row_uses_are_left_out_where_there_are_more_of_them_than_rows() -> None:
    told = [{"iteration": 1, "start_ns": 0, "elapsed_ns": 1.0}]
    names = [tuple(f"{rank}-{number}" for number in range(40_000)) for rank in range(2)]
    ((part, _),) = encode_in_parts(iteration_batch(0, told, names=names[0]), 10_000)
    assert part.header.names == ()
    # Of both ranks together there are more than a column can tell apart.
    ((_, value),) = encode_together([batch(rank, names=names[rank]) for rank in range(2)], 10_000)
    parts = decode_batches(value, "commops")
    assert [part.header.names[part.columns["communicator"][0]] for part in parts] == ["0-0", "1-0"]


def test_parts_of_events_name_the_same_texts() -> None:
    events = [DeviceEvent(n, 3, "process_exit", "host", f"gpu{n}", n or None, f"{n:0>200}") for n in range(50)]
    parts, values = zip(*encode_in_parts(batch_of(events, Header("events", "job", 0, 3)), 4_000), strict=True)
    assert all(len(value) < 4_000 for value in values)
    assert [one for part in parts for one in events_of(part)] == events
    assert [one for value in values for one in events_of(decode_batch(value, "events"))] == events


GROUP = "node-1/0"


def batch(rank: int, rows: int = 1, **header: Any) -> Batch:
    return operator_batch(
        rank, [{"iteration": 1, "start_ns": n, "elapsed_ns": 1.0} for n in range(rows)], group=GROUP, **header
    )


def ranks_of(bundles: Iterable[Sequence[Batch]]) -> list[list[int]]:
    return [[one.header.rank for one in batches] for batches in bundles]


@pytest.fixture
def bundler() -> Bundler:
    made = Bundler(0.25)
    for rank in range(3):
        made.announce(Announcement("lockstep", 1, rank, 3, 3, (), group=GROUP))
    return made


def test_a_bundle_is_complete_with_the_last_rank_of_the_group_that_is_here(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(batch(2), 0.0)) == []
    assert ranks_of(bundler.add(batch(1), 0.0)) == [[0, 2, 1]]
    assert ranks_of(bundler.take_all()) == []
    bundler.forget(Heartbeat("lockstep", 1, 2, state="ended"), GROUP)
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(batch(1), 0.0)) == [[0, 1]]
    # A resumed source does not announce again.
    assert ranks_of(Bundler(0.25).add(batch(0), 0.0)) == [[0]]


def test_what_has_waited_for_long_enough_goes_out(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0), 10.0)) == []
    assert ranks_of(bundler.take_due(10.2)) == []
    assert ranks_of(bundler.take_due(10.25)) == [[0]]


def test_a_second_batch_of_a_rank_never_overtakes_the_first(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(batch(1), 0.0)) == []
    (sent,) = bundler.add(batch(0, rows_before=1), 0.0)
    assert [(one.header.rank, one.header.rows_before) for one in sent] == [(0, 0), (1, 0)]
    assert ranks_of(bundler.take_all()) == [[0]]


def test_schemas_and_attempts_do_not_mix(bundler: Bundler) -> None:
    told = [{"iteration": 1, "start_ns": 0, "elapsed_ns": 1.0}]
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(iteration_batch(1, told, group=GROUP), 0.0)) == []
    assert ranks_of(bundler.add(batch(1, attempt=2), 0.0)) == [[1]]  # of an attempt that nobody announced
    assert sorted(ranks_of(bundler.take_all())) == [[0], [1]]


def test_a_bundle_is_bounded(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0, MAX_ROWS - 1), 0.0)) == []
    assert ranks_of(bundler.add(batch(1, 2), 0.0)) == [[0]]
    assert ranks_of(bundler.add(batch(2, MAX_ROWS), 0.0)) == [[1], [2]]


def test_bundles_fit_into_a_message_however_large_the_batches_are() -> None:
    batches = [batch(rank, 60 * (rank + 1)) for rank in range(4)]
    sent = list(encode_together(batches, 6_000))
    assert all(len(value) < 6_000 for _, value in sent)
    parts = [one for _, value in sent for one in decode_batches(value, "commops")]
    for rank, whole in enumerate(batches):
        own = [part for part in parts if part.header.rank == rank]
        assert [part.header.rows_before for part in own] == [sum(map(len, own[:n])) for n in range(len(own))]
        assert sum(map(len, own)) == len(whole)
    with pytest.raises(InputError, match="one row of commops must be below 500 bytes"):
        list(encode_together(batches, 500))
