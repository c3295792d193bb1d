"""Files of other tools as a source for the agent, which follows them as they grow and as new ones come.

A thread reads; `FollowingSource.poll` only returns rows that are read already. The rows of one reading are a
piece. Its name is the reader's position before and after it, so that a source's position is a number of rows into a
piece, and the same piece can be read again after a restart.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, Full, Queue
from typing import Any, Final, NamedTuple, Protocol

from irregulars.errors import InputError
from irregulars.messages.announcements import MAX_ANNOUNCEMENT_BYTES, Announcement, encode_announcement
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order, event_times_ns, take_rows
from irregulars.producers.trace.directory import published_ns

_LOG: Final = logging.getLogger("irregulars.following")
_WAIT_S: Final = 0.05

Stand = dict[str, Any]  # position of a reader: plain JSON values


class Piece(NamedTuple):
    """The result of one reading: rows of some ranks, and the reader's position before and after."""

    before: Stand
    after: Stand
    job: ImportedJob


class _Ready(NamedTuple):
    """A piece with its records, which the reading thread computes so that polling never waits."""

    piece: Piece
    announcements: list[Announcement]
    batches: list[Batch]


class FileReader(Protocol):
    """Reads the new part of some files; called from one thread."""

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read the rows since `before`; None: nothing yet. With `after` given, read that piece again."""
        ...


@dataclass(slots=True)
class _Progress:
    """Content of a source's position."""

    # before, after: The piece that rows are taken from; `after` is None before there is one
    before: Stand = field(default_factory=dict)
    after: Stand | None = None
    rows: int = 0  # rows taken of it
    announced: dict[str, list[str]] = field(default_factory=dict)  # sources of each rank that was announced
    # For each rank and schema, before that piece: rows taken, and the watermark
    totals: dict[str, list[int | None]] = field(default_factory=dict)

    def to_text(self) -> str:
        names = self.__slots__
        return json.dumps({name: getattr(self, name) for name in names}, separators=(",", ":"), sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> _Progress:
        try:
            values = json.loads(text)
            progress = cls(**values)
            is_good = all(isinstance(getattr(progress, n), dict) for n in ("before", "announced", "totals"))
            is_good &= type(progress.rows) is int and isinstance(progress.after, (dict, type(None)))
        except (ValueError, TypeError, RecursionError):
            is_good = False
        if not is_good:
            raise InputError(f"position must be one of a followed source; got {text[:80]!r}")
        return progress


class FollowingSource:
    """Follows files; `producers.importers.followers` makes one for each kind.

    `interval_s`: time between two looks for new rows. `has_watermarks`: whether a rank's rows come in order of their
    ends, piece after piece. `ends_when_idle`: whether to end when everything that is there was read; else the source
    never ends. `world_size`: ranks that the job has, and that all log: one node sees its own alone. None: those seen.
    """

    def __init__(
        self,
        reader: FileReader,
        *,
        position: str | None = None,
        interval_s: float = 1.0,
        has_watermarks: bool = False,
        ends_when_idle: bool = False,
        world_size: int | None = None,
    ) -> None:
        self._reader, self._interval_s, self._has_watermarks = reader, interval_s, has_watermarks
        self._ends_when_idle, self._world_size = ends_when_idle, world_size
        self._progress = _Progress() if position is None else _Progress.of_text(position)
        self._waiting: list[Announcement] = []
        self._refused: set[int] = set()  # ranks whose refusal was logged
        self._batches: Iterator[Batch] = iter(())
        self._next: Batch | None = None
        self._totals: dict[str, list[int | None]] = dict(self._progress.totals)
        self._pieces: Queue[_Ready | None] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._is_over = False
        self._failure: InputError | None = None
        self._thread = threading.Thread(target=self._read, name="follower", daemon=True)
        self._thread.start()

    # --- the source -------------------------------------------------------------------------------------------------

    def poll(self, max_records: int) -> Sequence[Announcement | Batch]:
        """Return records, at most `max_records` announcements and rows; raises `InputError` if reading failed."""
        if self._next is None and not self._waiting:
            self._take_piece()
        polled: list[Announcement | Batch] = []
        for announcement in self._waiting[:max_records]:
            self._progress.announced[str(announcement.rank)] = list(announcement.sources)
            polled.append(announcement)
        del self._waiting[: len(polled)]
        room = max_records - len(polled)
        while room > 0 and self._next is not None:
            batch = self._take_rows(room)
            polled.append(batch)
            room -= len(batch)
        return polled

    def position(self) -> str:
        """Return where to resume: after the last record polled."""
        return self._progress.to_text()

    @property
    def is_exhausted(self) -> bool:
        """Whether everything was polled; always False unless the source ends when it is idle."""
        return self._is_over and self._next is None and not self._waiting

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(timeout=10.0)

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read piece after piece, one ahead of `poll`; runs in the thread."""
        before, after = dict(self._progress.before), self._progress.after
        try:
            while not self._stop.is_set():
                piece = self._reader.read(before, after)
                if piece is not None:
                    before, after = piece.after, None
                    self._put(_Ready(piece, list(piece.job.announcements()), list(piece.job.batches())))
                elif self._ends_when_idle:
                    self._put(None)
                    return
                else:
                    self._stop.wait(self._interval_s)
        except InputError as error:
            self._failure = error
        except Exception as error:  # the thread must not end silently: `poll` raises it
            _LOG.exception("event=follower_failed")
            self._failure = InputError(f"followed files must be readable; got {type(error).__name__}: {error}")

    def _put(self, ready: _Ready | None) -> None:
        while not self._stop.is_set():
            try:
                self._pieces.put(ready, timeout=_WAIT_S)
                return
            except Full:
                continue

    def _take_piece(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            ready = self._pieces.get_nowait()
        except Empty:
            return
        if ready is None:
            self._is_over = True
            return
        piece = ready.piece
        is_resumed = self._progress.after == piece.after and self._progress.rows > 0
        skipped = self._progress.rows if is_resumed else 0
        if not is_resumed:
            self._progress.totals = {key: list(total) for key, total in self._totals.items()}
        self._progress.before, self._progress.after, self._progress.rows = piece.before, piece.after, 0
        known = self._progress.announced
        fresh = [one for one in ready.announcements if str(one.rank) not in known]
        if self._world_size is not None:
            fresh = [replace(one, world_size=self._world_size, logged_ranks=self._world_size) for one in fresh]
        self._waiting = [one for one in fresh if self._fits(one)]
        sources = {**known, **{str(a.rank): list(a.sources) for a in self._waiting}}
        batches = [b for b in ready.batches if b.header.schema in sources.get(str(b.header.rank), ())]
        parts = (_cut(batch) for batch in self._in_order(batches))
        self._batches = heapq.merge(*parts, key=published_ns)
        self._next = next(self._batches, None)
        while skipped > 0 and self._next is not None:
            skipped -= len(self._take_rows(skipped))

    def _fits(self, announcement: Announcement) -> bool:
        """Return whether a message can hold an announcement; if not, log it once, as its rank is left out.

        A damaged file can name a communicator of any ranks, and the agent must not end with one rank.
        """
        size_bytes = len(encode_announcement(announcement))
        if size_bytes <= MAX_ANNOUNCEMENT_BYTES:
            return True
        if announcement.rank not in self._refused:
            self._refused.add(announcement.rank)
            rule = f"its announcement must be at most {MAX_ANNOUNCEMENT_BYTES} bytes; got {size_bytes}"
            _LOG.warning("event=rank_refused job=%s rank=%d reason=%r", announcement.job, announcement.rank, rule)
        return False

    def _in_order(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Append each batch to its rank's earlier ones; leave out rows that are older than the rank's watermark."""
        for batch in batches:
            rows, watermark_ns = self._total(batch)
            if self._has_watermarks and watermark_ns is not None:
                event_ns = event_times_ns(batch)
                is_late = (event_ns != UNKNOWN) & (event_ns <= watermark_ns)
                if is_late.any():
                    _LOG.warning("event=late_rows_left_out rank=%d rows=%d", batch.header.rank, int(is_late.sum()))
                    batch = Batch(batch.header, {n: c[~is_late] for n, c in batch.columns.items()})
            if len(batch):
                yield Batch(replace(batch.header, rows_before=rows), batch.columns)

    def _total(self, batch: Batch) -> tuple[int, int | None]:
        rows, watermark_ns = self._totals.get(_key(batch), [0, None])
        return rows or 0, watermark_ns

    def _take_rows(self, most: int) -> Batch:
        batch = self._next
        assert batch is not None
        taken = batch if most >= len(batch) else take_rows(batch, 0, most)
        rest = len(batch) - len(taken)
        self._next = take_rows(batch, len(taken), len(batch)) if rest else next(self._batches, None)
        until_ns = None
        if self._has_watermarks:  # a watermark never falls; a rank that never had one gets none
            known = [ns for ns in (self._total(batch)[1], taken.header.watermark_ns) if ns is not None]
            until_ns = max(known, default=None)
        taken = Batch(replace(taken.header, watermark_ns=until_ns), taken.columns)
        self._totals[_key(taken)] = [taken.header.rows_before + len(taken), taken.header.watermark_ns]
        self._progress.rows += len(taken)
        return taken


def _cut(batch: Batch) -> Iterator[Batch]:
    """Cut a batch. The last part keeps the batch's watermark, which may be later than its newest row."""
    for part in cut_in_order(batch, BATCH_ROWS, BATCH_SPAN_S):
        is_last = part.header.rows_before + len(part) == batch.header.rows_before + len(batch)
        until_ns = batch.header.watermark_ns if is_last else part.header.watermark_ns
        yield Batch(replace(part.header, watermark_ns=until_ns), part.columns)


def _key(batch: Batch) -> str:
    return f"{batch.header.rank}/{batch.header.schema}"
