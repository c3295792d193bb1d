"""A recorded trace as a source: published as its training job would have, at any pace.

`moved` shifts all times of a recording by one amount, which changes no verdict but its time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement
from irregulars.messages.bundles import group_of
from irregulars.messages.records import TRACE_SCHEMAS, UNKNOWN, Batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, take_rows
from irregulars.producers.trace.directory import Trace, trace_batches

# Columns that hold ns since the epoch; all others hold lengths of time, or none.
_TIMES: Final = ("start_ns", "time_ns", "pause_start_ns")


def span_ns(trace: Trace) -> tuple[int, int] | None:
    """Return the first and the last time of a trace, ns since the epoch; None: it holds no known time."""
    columns = [
        c for schema in TRACE_SCHEMAS for batch in trace.batches(schema).values() for c in batch.columns.items()
    ]
    times = [times_ns[times_ns != UNKNOWN] for name, times_ns in columns if name in _TIMES]
    known = [one for one in times if len(one)]
    if not known:
        return None
    newest = max(int(one.max()) for one in known)
    return min(int(one.min()) for one in known), max(newest, trace.recorded_until_ns or newest)


def moved(trace: Trace, by_ns: int) -> Trace:
    """Return the trace as if it had been recorded `by_ns` later; unknown times stay unknown.

    >>> from irregulars.producers.trace.directory import Trace
    >>> moved(Trace("a", 0, 1, "shared", 100, (), {}), 5).recorded_until_ns
    105
    """

    def later(time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns + by_ns

    def moved_batch(batch: Batch) -> Batch:
        columns = {
            name: np.where(column == UNKNOWN, column, column + by_ns) if name in _TIMES else column
            for name, column in batch.columns.items()
        }
        return Batch(replace(batch.header, watermark_ns=later(batch.header.watermark_ns)), columns)

    batches: dict[str, Any] = {
        schema: {rank: moved_batch(batch) for rank, batch in trace.batches(schema).items()}
        for schema in TRACE_SCHEMAS
    }
    announcements = (replace(one, recorded_until_ns=later(one.recorded_until_ns)) for one in trace.announcements)
    until_ns = later(trace.recorded_until_ns)
    return replace(trace, announcements=tuple(announcements), recorded_until_ns=until_ns, **batches)


_POSITION: Final = re.compile(r"records=(\d{1,18})", re.ASCII)
_Timed = tuple[int, Announcement | Batch]  # a record, and the time at which it is due, ns


class TimedSource:
    """Gives records when their time has come. Base of recorded and of simulated jobs as sources.

    `records`: each with its time, in order. `position`: a value that `position` returned: go on after it. Raises
    InputError if it is none, or behind the last record.
    """

    def __init__(self, records: Iterator[_Timed], position: str | None) -> None:
        self._records, self._next = records, next(records, None)
        self._polled = self._cut = 0  # records and rows so far; rows of the next batch among them
        found = _POSITION.fullmatch("records=0" if position is None else position)
        if found is None:
            raise InputError(f"position must be records=N; got {position!r}")
        wanted = int(found[1])
        while self._polled < wanted and self._next is not None:
            self._take(self._next[1], wanted - self._polled)
        if self._polled < wanted:
            has = f"it has {self._polled} records"
            raise InputError(f"position must lie in the job it was made with; got {position!r}, and {has}")

    def poll(self, max_records: int) -> Sequence[Announcement | Batch]:
        """Return the next announcements and rows whose time has come; ``()``: nothing yet, or nothing any more."""
        until_ns, room = self._until_ns(), max_records
        polled: list[Announcement | Batch] = []
        while room > 0 and self._next is not None and self._next[0] <= until_ns:
            before = self._polled
            polled.append(self._take(self._next[1], room))
            room -= self._polled - before
        return tuple(polled)

    def position(self) -> str:
        """Return where a new source of the same records would go on after the last one polled."""
        return f"records={self._polled}"

    @property
    def is_exhausted(self) -> bool:
        """Whether everything was polled."""
        return self._next is None

    def close(self) -> None:
        """Drop the records that were not polled."""
        self._next, self._records = None, iter(())

    def _until_ns(self) -> float:
        """Return the time up to which records are due just now."""
        raise NotImplementedError

    def _take(self, record: Announcement | Batch, most: int) -> Announcement | Batch:
        """Take one record, or as many rows of it as there is room for."""
        length = len(record) if isinstance(record, Batch) else 1
        first, past = self._cut, min(self._cut + most, length)
        self._polled += past - first
        self._cut = past if past < length else 0
        if past == length:
            self._next = next(self._records, None)
        return take_rows(record, first, past) if isinstance(record, Batch) and past - first < length else record


class TraceSource(TimedSource):
    """Replays a trace: its announcements at once, then each batch when it was complete in the recorded job.

    `speed`: 1 replays as recorded, 2 twice as fast, 0 as fast as it is polled. `position`: as of `TimedSource`; the
    pace starts anew there. Raises InputError if `speed` is no number of at least 0 as well.
    """

    def __init__(
        self,
        trace: Trace,
        speed: float = 1.0,
        *,
        position: str | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        max_rows: int = BATCH_ROWS,
        max_span_s: float = BATCH_SPAN_S,
    ) -> None:
        if not (math.isfinite(speed) and speed >= 0):
            raise InputError(f"speed must be a number of at least 0; got {speed!r}; 0 replays as fast as possible")
        self._speed, self._clock_s = speed, clock_s
        groups = {one.rank: group_of(one.host, one.rank) for one in trace.announcements}
        batches = _timed(trace, trace_batches(trace, max_rows, max_span_s))
        first = next(batches, None)
        begin_ns = 0 if first is None else first[0]
        records: Iterator[_Timed] = chain(
            ((begin_ns, one) for one in trace.announcements), filter(None, [first]), batches
        )
        super().__init__(((due_ns, _grouped(one, groups)) for due_ns, one in records), position)
        self._begin_ns = 0 if self._next is None else self._next[0]
        self._started_s: float | None = None  # at the first poll

    def _until_ns(self) -> float:
        now_s = self._clock_s()
        self._started_s = now_s if self._started_s is None else self._started_s
        passed_ns = (now_s - self._started_s) * self._speed * 1e9
        return self._begin_ns + passed_ns if self._speed else math.inf


def _timed(trace: Trace, batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
    latest_ns = trace.recorded_until_ns or 0
    for batch in batches:
        due_ns = batch.header.watermark_ns
        latest_ns = max(latest_ns, due_ns or 0)
        # Operators that never ended have no time of their own: they come when recording stops, or after the rest.
        yield latest_ns if due_ns is None else due_ns, batch


def _grouped(record: Announcement | Batch, groups: Mapping[int, str | None]) -> Announcement | Batch:
    if isinstance(record, Announcement):
        return replace(record, group=groups[record.rank])
    return replace(record, header=replace(record.header, group=groups.get(record.header.rank)))
