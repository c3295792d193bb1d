"""Sources: where announcements and batches come from, and the checks that every source passes.

A source is anything that has the four members of `Source`; no base class is needed. The publishing agent polls it
from one thread.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from irregulars.errors import InputError, PluginError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import BATCH_SCHEMAS, Batch, decode_batch, encode_batch
from irregulars.producers.publishing.batches import event_times_ns

Record = Announcement | Batch | Heartbeat
"""What a source gives. A heartbeat says what only the source knows: rows that it lost, a watermark without rows, and
that a rank has ended."""


class Source(Protocol):
    """What the agent asks of a source."""

    def poll(self, max_records: int) -> Sequence[Record]:
        """Give the next records, at most `max_records` announcements and rows; ``()`` = nothing yet. Never blocks.

        A rank's announcement comes before its batches and heartbeats. A heartbeat is only for what the agent can't
        know: ``lost_rows``, a watermark without rows, ``state="ended"``; the agent sends those of each second itself.
        Batches and their arrays are not changed afterwards.
        """
        ...

    def position(self) -> str:
        """Say in plain text where to resume: after the last record polled."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """Whether the source has ended for good; a live source always answers False."""
        ...

    def close(self) -> None:
        """Release all resources. The agent calls it at least once; a second call does nothing."""
        ...


def row_count(record: Record) -> int:
    """Return how much one record counts towards `max_records`: its rows, or 1 for an announcement or heartbeat."""
    return len(record) if isinstance(record, Batch) else 1


# --- checks ---------------------------------------------------------------------------------------------------------

_SEED: Final = 20_261_121
_MOST_ROWS: Final = 20_000
_POLL_LIMIT_S: Final = 0.5
_POLLS_IN_A_ROW: Final = 3  # one slow poll may have waited for a core of a busy machine
_DEADLINE_S: Final = 20.0
_CUTS: Final = (1, 7, 100, 1_000)


def check_source(open: Callable[[str | None], Source]) -> None:
    """Check that a source keeps the protocol. Ours and a stranger's pass the same checks.

    Parameters
    ----------
    open
        Opens the source on the same input each time, at a position or (`None`) at its beginning. Of an endless input
        the first 20,000 rows are checked. It should be fast: no pacing.

    Raises
    ------
    PluginError
        On the first broken rule, with the numbers.
    """
    whole = _read(open(None), random.Random(_SEED), limit=_MOST_ROWS)
    if not whole.announced or not whole.rows:
        raise PluginError(f"source must give announcements and rows; got {len(whole.announced)} and {whole.rows}")
    again = _read(open(None), random.Random(_SEED + 1), limit=_MOST_ROWS)
    _require_same(whole, again, "opened twice, the same input")
    for cut in _CUTS:
        _check_resume(open, whole, cut)


@dataclass
class _Reading:
    """All that was polled from one source, and what must hold about it."""

    announced: dict[tuple[str, int, int], Announcement] = field(default_factory=dict)
    batches: dict[tuple[str, int, int, str], list[Batch]] = field(default_factory=lambda: defaultdict(list))
    encoded: list[tuple[Batch, bytes]] = field(default_factory=list)
    rows: int = 0
    is_complete: bool = False

    def add(self, record: Record) -> None:
        if isinstance(record, Announcement):
            self.announced[record.job, record.attempt, record.rank] = record
        elif isinstance(record, Batch):
            self._add_batch(record)
        elif isinstance(record, Heartbeat):
            self._require_announced(record.job, record.attempt, record.rank)
        else:
            raise PluginError(f"poll must give announcements, batches and heartbeats; got {type(record).__name__}")

    def _require_announced(self, job: str, attempt: int, rank: int) -> Announcement:
        announced = self.announced.get((job, attempt, rank))
        if announced is None:
            raise PluginError(f"rank {rank} must be announced before its first batch; got none of it")
        return announced

    def _add_batch(self, batch: Batch) -> None:
        header = batch.header
        announced = self._require_announced(header.job, header.attempt, header.rank)
        if header.schema not in announced.sources:
            raise PluginError(f"batch must be of an announced source {announced.sources}; got {header.schema!r}")
        _check_columns(batch)
        before = self.batches[header.job, header.attempt, header.rank, header.schema]
        _check_header(batch, before)
        self.encoded.append((batch, _encode(batch)))
        before.append(batch)
        self.rows += len(batch)


def _read(source: Source, sizes: random.Random, limit: int, reading: _Reading | None = None) -> _Reading:
    reading, took_s = reading or _Reading(), _new_times()
    stop_s, last = time.monotonic() + _DEADLINE_S, reading.rows + limit
    try:
        while reading.rows < last and not source.is_exhausted:
            if time.monotonic() > stop_s:
                raise PluginError(f"source must give {limit} rows, or end, in {_DEADLINE_S} s; got {reading.rows}")
            for record in _poll(source, min(sizes.choice((1, 2, 50, 3_000)), last - reading.rows), took_s):
                reading.add(record)
        reading.is_complete = source.is_exhausted
        _check_end(source, reading)
    finally:
        source.close()
    try:
        source.close()
    except Exception as error:  # whatever a stranger's close raises, it is the same broken rule
        raise PluginError(f"close must do nothing a second time; got {type(error).__name__}: {error}") from error
    return reading


def _new_times() -> deque[float]:
    return deque(maxlen=_POLLS_IN_A_ROW)


def _poll(source: Source, max_records: int, took_s: deque[float]) -> Sequence[Record]:
    """Poll once; `took_s` holds how long the last polls took, and gets this one's time."""
    before_s = time.monotonic()
    polled = source.poll(max_records)
    took_s.append(time.monotonic() - before_s)
    if len(took_s) == _POLLS_IN_A_ROW and min(took_s) > _POLL_LIMIT_S:
        raise PluginError(
            f"poll must never block; got {min(took_s):.2f} s or more for each of {_POLLS_IN_A_ROW} polls in a row, "
            f"limit {_POLL_LIMIT_S} s"
        )
    if not isinstance(polled, Sequence):
        raise PluginError(f"poll must give a sequence, () for nothing yet; got {polled!r}")
    count = sum(row_count(record) for record in polled)
    if count > max_records:
        raise PluginError(f"poll must give at most max_records={max_records} records; got {count}")
    return polled


def _check_columns(batch: Batch) -> None:
    names, lengths = set(BATCH_SCHEMAS[batch.header.schema].names), {len(column) for column in batch.columns.values()}
    if set(batch.columns) != names:
        raise PluginError(f"columns must be {sorted(names)}; got {sorted(batch.columns)}")
    if len(lengths) != 1 or lengths == {0}:
        raise PluginError(f"columns must have one length above 0; got {sorted(lengths)}")


def _check_header(batch: Batch, before: Sequence[Batch]) -> None:
    header, rows = batch.header, sum(map(len, before))
    where = f"{header.schema} of rank {header.rank}, row {rows}"
    if header.rows_before != rows:
        raise PluginError(f"rows_before must be {rows}, the rows polled before; got {header.rows_before} ({where})")
    watermark_ns = before[-1].header.watermark_ns if before else None
    if watermark_ns is None:
        return
    if header.watermark_ns is None or header.watermark_ns < watermark_ns:
        raise PluginError(f"watermark_ns must not fall below {watermark_ns}; got {header.watermark_ns} ({where})")
    event_ns = event_times_ns(batch)
    late_ns = event_ns[(event_ns >= 0) & (event_ns <= watermark_ns)]
    if late_ns.size:
        rule = f"above the watermark {watermark_ns} that was promised before"
        raise PluginError(f"event times must be {rule}; got {late_ns[0]} ({where})")


def _encode(batch: Batch) -> bytes:
    try:
        value = encode_batch(batch)
        decode_batch(value, batch.header.schema)
    except (InputError, TypeError, ValueError, OverflowError) as error:
        raise PluginError(
            f"batch must encode as {batch.header.schema}; got {type(error).__name__}: {error}"
        ) from error
    return value


def _check_end(source: Source, reading: _Reading) -> None:
    if not isinstance(source.position(), str) or source.position() != source.position():
        raise PluginError(f"position must be one text while nothing is polled; got {source.position()!r}")
    if reading.is_complete and len(_poll(source, 10, _new_times())):
        raise PluginError("poll must give () once is_exhausted is True; got more records")
    for batch, value in reading.encoded:
        if encode_batch(batch) != value:
            raise PluginError(f"batches must not change after they were polled; got other rows in {batch.header}")


def _check_resume(open: Callable[[str | None], Source], whole: _Reading, cut: int) -> None:
    if cut >= whole.rows:
        return
    source = open(None)
    reading, took_s = _Reading(), _new_times()
    try:
        while reading.rows < cut:
            for record in _poll(source, cut - reading.rows, took_s):
                reading.add(record)
        position = source.position()
    finally:
        source.close()
    surplus = 1 if whole.is_complete else 0  # so that rows which come twice are seen
    resumed = _read(open(position), random.Random(_SEED), whole.rows - reading.rows + surplus, reading)
    _require_same(whole, resumed, f"resumed at {position!r}, the rest, each row once")


def _require_same(expected: _Reading, found: _Reading, what: str) -> None:
    if expected.announced != found.announced:
        raise PluginError(f"source must give, {what}; got other announcements")
    if expected.is_complete and expected.rows != found.rows:
        raise PluginError(f"source must give, {what}: {expected.rows} rows; got {found.rows}")
    for key in expected.batches.keys() | found.batches.keys():
        wanted, given = _columns(expected.batches.get(key, ())), _columns(found.batches.get(key, ()))
        common = min((len(next(iter(c.values()))) if c else 0) for c in (wanted, given))
        for name in wanted.keys() & given.keys():
            if not np.array_equal(wanted[name][:common], given[name][:common]):
                raise PluginError(f"source must give, {what}; got another {name} in {key[3]} of rank {key[2]}")


def _columns(batches: Sequence[Batch]) -> dict[str, np.ndarray]:
    """All rows of `batches`, names instead of codes, so that batch borders don't matter."""
    if not batches:
        return {}
    return {name: np.concatenate([_plain(batch, name) for batch in batches]) for name in batches[0].columns}


def _plain(batch: Batch, name: str) -> np.ndarray:
    column = batch.columns[name]
    if name in ("communicator", "device"):
        return np.array(batch.header.names, dtype=object)[column]
    return np.where(np.isnan(column), -1.0, column) if column.dtype.kind == "f" else column
