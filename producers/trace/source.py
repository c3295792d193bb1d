"""A recorded trace as a source: published as its training job would have, at any pace.

`moved` shifts all times of a recording by one amount, which changes no verdict but its time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement
from irregulars.messages.bundles import group_of
from irregulars.messages.records import TRACE_SCHEMAS, UNKNOWN, Batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, take_rows
from irregulars.producers.trace.directory import Trace, published_ns, trace_batches

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


_POSITION: Final = re.compile(r"announcements=(\d+) rows=(\d+)")


class TraceSource:
    """Replays a trace: its announcements at once, then each batch when it was complete in the recorded job.

    `speed`: 1 replays as recorded, 2 twice as fast, 0 as fast as it is polled. `position`: that of an earlier source
    of the same trace; the pace starts anew there. Raises InputError if `speed` is no number of at least 0, or
    `position` is of another kind of source, or past the trace's end.
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
        self._trace, self._speed, self._clock_s = trace, speed, clock_s
        self._groups: Final = {one.rank: group_of(one.host, one.rank) for one in trace.announcements}
        self._announced, self._rows = 0, 0
        self._batches: Iterator[Batch] = trace_batches(trace, max_rows, max_span_s)
        self._next = next(self._batches, None)
        if position is not None:
            match = _POSITION.fullmatch(position)
            if match is None:
                raise InputError(f"position must be 'announcements=N rows=N'; got {position!r}")
            self._announced, rows = int(match[1]), int(match[2])
            # A batch that was polled in part is cut at the same row.
            while self._next is not None and self._rows < rows:
                self._take(self._next, rows - self._rows)
            if self._rows < rows or self._announced > len(trace.announcements):
                raise InputError(
                    f"position must lie within the trace; got {position!r}, and it has {self.position()}"
                )
        self._latest_ns = trace.recorded_until_ns or 0
        self._first_ns = 0 if self._next is None else self._due_ns(self._next)
        self._started_s: float | None = None

    def poll(self, max_records: int) -> Sequence[Announcement | Batch]:
        """Return the records that are due, at most `max_records` announcements and rows."""
        if self._started_s is None:
            self._started_s = self._clock_s()
        polled: list[Announcement | Batch] = [
            replace(one, group=self._groups[one.rank])
            for one in self._trace.announcements[self._announced : self._announced + max_records]
        ]
        self._announced += len(polled)
        room = max_records - len(polled)
        passed_ns = (self._clock_s() - self._started_s) * self._speed * 1e9
        while room > 0 and self._next is not None:
            if self._speed and self._due_ns(self._next) - self._first_ns > passed_ns:
                break
            batch = self._take(self._next, room)
            polled.append(batch)
            room -= len(batch)
        return polled

    def position(self) -> str:
        """Return where to resume: after the last record polled."""
        return f"announcements={self._announced} rows={self._rows}"

    @property
    def is_exhausted(self) -> bool:
        """Whether the whole trace was polled."""
        return self._next is None and self._announced == len(self._trace.announcements)

    def close(self) -> None:
        """Do nothing: the trace is in memory, and its owner's."""

    def _take(self, batch: Batch, most: int) -> Batch:
        taken = batch if most >= len(batch) else take_rows(batch, 0, most)
        taken = replace(taken, header=replace(taken.header, group=self._groups.get(taken.header.rank)))
        rest = len(batch) - len(taken)
        self._next = take_rows(batch, len(taken), len(batch)) if rest else next(self._batches, None)
        self._rows += len(taken)
        return taken

    def _due_ns(self, batch: Batch) -> int:
        # Operators that never ended have no time of their own: they come when recording stops, or after the rest.
        if batch.header.watermark_ns is not None:
            self._latest_ns = max(self._latest_ns, published_ns(batch))
            return published_ns(batch)
        return self._latest_ns
