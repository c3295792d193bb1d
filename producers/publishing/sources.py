"""Sources, from which announcements and batches come, and the checks that every source passes.

A source is anything that has the four members of `Source`; no base class is needed. The publishing agent polls it
from one thread.
"""

from __future__ import annotations

import random
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from irregulars.errors import InputError, PluginError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import BATCH_SCHEMAS, Batch, Header, decode_batch, encode_batch
from irregulars.producers.publishing.batches import event_times_ns, take_rows

# An element of a source. A heartbeat carries the facts that only the source knows: rows that it lost, a watermark
# without rows, the end of a rank.
Record = Announcement | Batch | Heartbeat
T = TypeVar("T", Record, Batch | Heartbeat)
# State of a source's heartbeat whose rank is no longer there, without an end: it was killed. It is never sent: the
# agent forgets the rank, and workers find it silent, as they find one that published from its own process.
GONE: Final = "gone"
# A rank in one start of its job: job, attempt, rank, start, and the time since which it has this place.
RankKey = tuple[str, int, int, str | None, int | None]


class Process(NamedTuple):
    """A rank's process on this host."""

    pid: int
    connection: socket.socket | None = None  # over which it sends records

    def ask_profile(self) -> socket.socket | None:
        """Ask it to run its profiler; return where its answer comes; None: it can't be asked. Any thread may ask."""
        if self.connection is None:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.connection, [b"profile"], [theirs.fileno()])
        return ours


def key_of(own: Announcement | Heartbeat | Header) -> RankKey:
    """Return the key of the rank that a record is of."""
    return own.job, own.attempt, own.rank, own.start, own.since_ns


class Source(Protocol):
    """A source as the agent uses it."""

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return the next records, at most `max_records` announcements and rows; ``()`` = nothing yet. Never blocks.

        A rank's announcement comes before its batches and heartbeats. A heartbeat is only for facts that the agent
        can't know: ``lost_rows``, a watermark without rows, ``state="ended"`` or `GONE`; the agent sends those of
        each second itself. Batches and their arrays are not changed afterwards.
        """
        ...

    def position(self) -> str:
        """Return the position after the last record polled, at which to resume, as plain text."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """Whether the source has ended for good; a live source always returns False."""
        ...

    def close(self) -> None:
        """Release all resources. The agent calls it at least once; a second call does nothing."""
        ...


class PassingSource:
    """Passes on everything of another source. Base of those that pace, watch or fill in its records."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def poll(self, max_records: int) -> Sequence[Record]:
        """Poll the source."""
        return self._source.poll(max_records)

    def position(self) -> str:
        """Return the position of the source."""
        return self._source.position()

    @property
    def is_exhausted(self) -> bool:
        """Whether the source has ended."""
        return self._source.is_exhausted

    @property
    def closed_connections(self) -> int:
        """Connections that the source closed because of the bytes that came over them."""
        return getattr(self._source, "closed_connections", 0)

    @property
    def processes(self) -> Mapping[RankKey, Process]:
        """Processes of this host that the source's ranks are."""
        return getattr(self._source, "processes", {})

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def row_count(record: Record) -> int:
    """Return how much one record counts towards `max_records`: its rows, or 1 for an announcement or heartbeat."""
    return len(record) if isinstance(record, Batch) else 1


def take_records(queue: deque[T], most: int) -> list[T]:
    """Take records from the front of a queue, at most this number of announcements and rows; a batch may be cut."""
    taken: list[T] = []
    while queue and most > 0:
        record = queue.popleft()
        if isinstance(record, Batch) and len(record) > most:
            queue.appendleft(take_rows(record, most, len(record)))
            record = take_rows(record, 0, most)
        most -= row_count(record)
        taken.append(record)
    return taken


# --- checks ---------------------------------------------------------------------------------------------------------

_SEED: Final = 20_261_121
_MOST_ROWS: Final = 20_000
_POLL_LIMIT_S: Final = 0.5
_POLLS_IN_A_ROW: Final = 3  # one slow poll may have waited for a core of a busy machine
_DEADLINE_S: Final = 20.0
_CUTS: Final = (1, 7, 100, 1_000)


def check_source(open: Callable[[str | None], Source]) -> None:
    """Check that a source keeps the protocol. Ours and a stranger's pass the same checks.

    `open`: opens the source on the same input each time, at a position or (`None`) at its beginning. Of an endless
    input the first 20,000 rows are checked. A source with an empty position begins anew, and is not resumed. It
    should be fast: no pacing. Raises PluginError on the first broken rule, with the numbers.
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
    """All records that were polled from one source, and the rules that must hold for each."""

    announced: dict[tuple[str, int, int], Announcement] = field(default_factory=dict)
    batches: dict[tuple[str, int, int, str], list[Batch]] = field(default_factory=lambda: defaultdict(list))
    encoded: list[tuple[Batch, bytes]] = field(default_factory=list)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=_POLLS_IN_A_ROW))
    rows: int = 0
    is_complete: bool = False
    position: str = ""

    def poll(self, source: Source, max_records: int) -> Sequence[Record]:
        """Poll once, and check the time that it takes and the number of records."""
        before_s = time.monotonic()
        polled = source.poll(max_records)
        self.took_s.append(time.monotonic() - before_s)
        if len(self.took_s) == _POLLS_IN_A_ROW and min(self.took_s) > _POLL_LIMIT_S:
            found = f"{min(self.took_s):.2f} s or more for each of {_POLLS_IN_A_ROW} polls in a row"
            raise PluginError(f"poll must never block; got {found}, limit {_POLL_LIMIT_S} s")
        if not isinstance(polled, Sequence):
            raise PluginError(f"poll must give a sequence, () for nothing yet; got {polled!r}")
        count = sum(row_count(record) for record in polled)
        if count > max_records:
            raise PluginError(f"poll must give at most max_records={max_records} records; got {count}")
        return polled

    def add(self, record: Record) -> None:
        if isinstance(record, Announcement):
            self.announced[record.job, record.attempt, record.rank] = record
        elif isinstance(record, Batch):
            header = record.header
            announced = self._require_announced(header.job, header.attempt, header.rank)
            if header.schema not in announced.sources:
                raise PluginError(f"batch must be of an announced source {announced.sources}; got {header.schema!r}")
            names = set(BATCH_SCHEMAS[header.schema].names)
            lengths = {len(column) for column in record.columns.values()}
            if set(record.columns) != names:
                raise PluginError(f"columns must be {sorted(names)}; got {sorted(record.columns)}")
            if len(lengths) != 1 or lengths == {0}:
                raise PluginError(f"columns must have one length above 0; got {sorted(lengths)}")
            before = self.batches[header.job, header.attempt, header.rank, header.schema]
            _check_header(record, before)
            try:
                value = encode_batch(record)
                decode_batch(value, header.schema)
            except (InputError, TypeError, ValueError, OverflowError) as error:
                found = f"{type(error).__name__}: {error}"
                raise PluginError(f"batch must encode as {header.schema}; got {found}") from error
            self.encoded.append((record, value))
            before.append(record)
            self.rows += len(record)
        elif isinstance(record, Heartbeat):
            self._require_announced(record.job, record.attempt, record.rank)
        else:
            raise PluginError(f"poll must give announcements, batches and heartbeats; got {type(record).__name__}")

    def _require_announced(self, job: str, attempt: int, rank: int) -> Announcement:
        announced = self.announced.get((job, attempt, rank))
        if announced is None:
            raise PluginError(f"rank {rank} must be announced before its first batch; got none of it")
        return announced


def _check_header(batch: Batch, before: Sequence[Batch]) -> None:
    header, rows = batch.header, sum(map(len, before))
    where = f"{header.schema} of rank {header.rank}, row {rows}"
    if header.rows_before != rows:
        raise PluginError(f"rows_before must be {rows}, the rows polled before; got {header.rows_before} ({where})")
    watermark_ns = before[-1].header.watermark_ns if before else None
    # No watermark has promised anything yet.
    if watermark_ns is None:
        return
    if header.watermark_ns is None or header.watermark_ns < watermark_ns:
        raise PluginError(f"watermark_ns must not fall below {watermark_ns}; got {header.watermark_ns} ({where})")
    event_ns = event_times_ns(batch)
    # Rows without event time have `UNKNOWN`, which is negative: a watermark does not promise anything of them.
    late_ns = event_ns[(event_ns >= 0) & (event_ns <= watermark_ns)]
    if late_ns.size:
        rule = f"above the watermark {watermark_ns} that was promised before"
        raise PluginError(f"event times must be {rule}; got {late_ns[0]} ({where})")


def _read(source: Source, sizes: random.Random, limit: int, reading: _Reading | None = None) -> _Reading:
    reading = reading or _Reading()
    # Polls of the source before, if any, are not in a row with those of this one.
    reading.took_s.clear()
    stop_s, last = time.monotonic() + _DEADLINE_S, reading.rows + limit
    try:
        while reading.rows < last and not source.is_exhausted:
            if time.monotonic() > stop_s:
                raise PluginError(f"source must give {limit} rows, or end, in {_DEADLINE_S} s; got {reading.rows}")
            for record in reading.poll(source, min(sizes.choice((1, 2, 50, 3_000)), last - reading.rows)):
                reading.add(record)
        reading.is_complete = source.is_exhausted
        reading.position = source.position()
        if not isinstance(reading.position, str) or source.position() != reading.position:
            raise PluginError(f"position must be one text while nothing is polled; got {reading.position!r}")
        if reading.is_complete and len(_Reading().poll(source, 10)):
            raise PluginError("poll must give () once is_exhausted is True; got more records")
        for batch, value in reading.encoded:
            if encode_batch(batch) != value:
                raise PluginError(f"batches must not change after they were polled; got other rows in {batch.header}")
    finally:
        source.close()
    try:
        source.close()
    except Exception as error:  # of a stranger's class: whichever it is, it breaks the same rule
        raise PluginError(f"close must do nothing a second time; got {type(error).__name__}: {error}") from error
    return reading


def _check_resume(open: Callable[[str | None], Source], whole: _Reading, cut: int) -> None:
    # The input is too short to be cut there.
    if cut >= whole.rows:
        return
    reading = _read(open(None), random.Random(_SEED), cut)
    if not reading.position:
        return
    position, surplus = reading.position, int(whole.is_complete)  # so that rows which come twice are seen
    resumed = _read(open(position), random.Random(_SEED), whole.rows - reading.rows + surplus, reading)
    _require_same(whole, resumed, f"resumed at {position!r}, the rest, each row once")


def _require_same(expected: _Reading, found: _Reading, rule: str) -> None:
    if expected.announced != found.announced:
        raise PluginError(f"source must give, {rule}; got other announcements")
    if expected.is_complete and expected.rows != found.rows:
        raise PluginError(f"source must give, {rule}: {expected.rows} rows; got {found.rows}")
    for key in expected.batches.keys() | found.batches.keys():
        wanted, given = _columns(expected.batches.get(key, ())), _columns(found.batches.get(key, ()))
        # Readings of an endless input end at different rows: the shorter one counts.
        common = min((len(next(iter(c.values()))) if c else 0) for c in (wanted, given))
        for name in wanted.keys() & given.keys():
            if not np.array_equal(wanted[name][:common], given[name][:common]):
                raise PluginError(f"source must give, {rule}; got another {name} in {key[3]} of rank {key[2]}")


def _columns(batches: Sequence[Batch]) -> dict[str, np.ndarray]:
    """Return all rows of `batches`, names instead of codes, so that borders of batches don't matter."""
    found: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        for name, column in batch.columns.items():
            if name in ("communicator", "device"):
                column = np.array(batch.header.names, dtype=object)[column]
            elif column.dtype.kind == "f":
                column = np.where(np.isnan(column), -1.0, column)  # NaN != NaN
            found.setdefault(name, []).append(column)
    return {name: np.concatenate(columns) for name, columns in found.items()}
