"""Cutting batches by rows, by event time and by bytes; counts and watermarks of headers stay true in every part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.records import UNKNOWN, Batch, encode_batch

BATCH_ROWS: Final = 1_500  # about 64 KiB of operators: where Kafka and Faust carry most rows per second
BATCH_SPAN_S: Final = 1.0  # event time of one batch at most, for which a verdict may wait
_LONGEST_S: Final = 1e9
_LATEST: Final = np.iinfo(np.int64).max


def event_times_ns(batch: Batch) -> np.ndarray:
    """Return the event time of each row, ns since the epoch: end of an operator or iteration, time of a sample.

    Returns int64, `UNKNOWN` where a row has no such time: an operator that never ended, or that has no start.
    """
    columns = batch.columns
    return columns["time_ns"] if "time_ns" in columns else ends_ns(columns["start_ns"], columns["elapsed_ns"])


def ends_ns(start_ns: np.ndarray, elapsed_ns: np.ndarray) -> np.ndarray:
    """Return when rows ended; `elapsed_ns` is float64, exact to the nanosecond up to `bounds.MOST_EXACT`."""
    is_known = (start_ns != UNKNOWN) & ~np.isnan(elapsed_ns)
    return np.where(is_known, start_ns + np.where(is_known, elapsed_ns, 0).astype(np.int64), UNKNOWN)


def take_rows(batch: Batch, first: int, past: int) -> Batch:
    """Take rows ``[first, past)`` as a batch that goes out after rows ``[0, first)`` and before the rest.

    Its watermark is the batch's own, or just before the earliest row of the rest if that is less.
    """
    columns = {name: column[first:past] for name, column in batch.columns.items()}
    header = replace(batch.header, rows_before=batch.header.rows_before + first)
    if header.watermark_ns is not None and past < len(batch):
        rest = event_times_ns(batch)[past:]
        earliest_ns = int(np.where(rest == UNKNOWN, _LATEST, rest).min())
        header = replace(header, watermark_ns=min(header.watermark_ns, earliest_ns - 1))
    return Batch(header, columns)


def cut_in_order(batch: Batch, max_rows: int, max_span_s: float) -> Iterator[Batch]:
    """Cut rows that are in order of event time into batches of at most `max_rows` and `max_span_s` of event time.

    Rows without event time, which come last, are taken with the last that have one.
    """
    event_ns = event_times_ns(batch)
    known = int(np.count_nonzero(event_ns != UNKNOWN))
    if len(batch) <= max_rows and max_span_s == math.inf:
        yield batch  # its watermark is its newest event
        return
    span_ns = round(min(max_span_s, _LONGEST_S) * 1e9)
    first = 0
    while first < len(batch):
        past = min(first + max_rows, len(batch))
        if first < known:
            late = int(np.searchsorted(event_ns[:known], event_ns[first] + span_ns, side="right"))
            past = min(past, late) if late < known else past
        # As `take_rows`, in constant time: the largest so far is the last one, the earliest of the rest the next.
        header = replace(batch.header, rows_before=batch.header.rows_before + first, watermark_ns=None)
        last = min(past, known) - 1
        if last >= 0:
            newest = int(event_ns[last])
            is_shared = last + 1 < known and int(event_ns[last + 1]) == newest
            header = replace(header, watermark_ns=newest - 1 if is_shared else newest)
        yield Batch(header, {name: column[first:past] for name, column in batch.columns.items()})
        first = past


def encode_in_parts(
    batch: Batch, limit_bytes: int, encode: Callable[[Batch], bytes] = encode_batch
) -> Iterator[tuple[Batch, bytes]]:
    """Encode a batch, cut into as many parts as it takes for each to stay below `limit_bytes`.

    Raises InputError if a single row is larger than that.
    """
    value = encode(batch)
    if len(value) < limit_bytes:
        yield batch, value
        return
    if len(batch) < 2:
        rule = f"below {limit_bytes} bytes"
        raise InputError(
            f"one row of {batch.header.schema} must be {rule}; got {len(value)} (rank {batch.header.rank})"
        )
    half = len(batch) // 2
    for first, past in ((0, half), (half, len(batch))):
        yield from encode_in_parts(_with_used_names(take_rows(batch, first, past)), limit_bytes, encode)


def _with_used_names(batch: Batch) -> Batch:
    # Names may be most of the bytes, so that halving the rows alone would not end.
    name = next((name for name in ("communicator", "device") if name in batch.columns), None)
    if name is None:
        return batch
    used, codes = np.unique(batch.columns[name], return_inverse=True)
    header = replace(batch.header, names=tuple(batch.header.names[code] for code in used.tolist()))
    return Batch(header, {**batch.columns, name: codes.astype(np.uint16)})
