"""A recording with all its times moved by one amount, which changes no verdict: only when it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from irregulars.messages.records import SCHEMAS, UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace

_TIMES: Final = ("start_ns", "time_ns")
"""Columns that hold ns since the epoch; all others hold lengths of time, or none."""


def span_ns(trace: Trace) -> tuple[int, int] | None:
    """Return the first and the last time of a trace, ns since the epoch; None: it holds no known time."""
    known = [one for one in _times(trace) if len(one)]
    if not known:
        return None
    newest = max(int(one.max()) for one in known)
    return min(int(one.min()) for one in known), max(newest, trace.recorded_until_ns or newest)


def moved(trace: Trace, by_ns: int) -> Trace:
    """Return the trace as if it had been recorded `by_ns` later; what is not known stays so.

    >>> from irregulars.producers.trace.directory import Trace
    >>> moved(Trace("a", 0, 1, "shared", 100, (), {}), 5).recorded_until_ns
    105
    """
    batches: dict[str, Any] = {schema: _moved_batches(trace.batches(schema), by_ns) for schema in SCHEMAS}
    announcements = tuple(
        replace(one, recorded_until_ns=_moved_time(one.recorded_until_ns, by_ns)) for one in trace.announcements
    )
    until_ns = _moved_time(trace.recorded_until_ns, by_ns)
    return replace(trace, announcements=announcements, recorded_until_ns=until_ns, **batches)


def _times(trace: Trace) -> Iterator[np.ndarray]:
    for schema in SCHEMAS:
        for batch in trace.batches(schema).values():
            for name in _TIMES:
                if name in batch.columns:
                    times_ns = batch.columns[name]
                    yield times_ns[times_ns != UNKNOWN]


def _moved_batches(batches: Mapping[int, Batch], by_ns: int) -> dict[int, Batch]:
    return {rank: _moved_batch(batch, by_ns) for rank, batch in batches.items()}


def _moved_batch(batch: Batch, by_ns: int) -> Batch:
    columns = {
        name: np.where(column == UNKNOWN, column, column + by_ns) if name in _TIMES else column
        for name, column in batch.columns.items()
    }
    header = replace(batch.header, watermark_ns=_moved_time(batch.header.watermark_ns, by_ns))
    return Batch(header, columns)


def _moved_time(time_ns: int | None, by_ns: int) -> int | None:
    return None if time_ns is None else time_ns + by_ns
