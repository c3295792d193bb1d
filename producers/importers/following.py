"""Files of other tools as a source for the agent, which follows them as they grow and as new ones come.

A thread reads; `FollowingSource.poll` only returns rows that are read already. The rows of one reading are a piece.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Final, Protocol
from zlib import crc32

from irregulars.errors import InputError
from irregulars.messages.announcements import MAX_ANNOUNCEMENT_BYTES, Announcement, encode_announcement
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers.flight_recorder import job_of_dumps
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import read_dump_file, read_kineto, traces_among
from irregulars.producers.importers.inspector_job import LiveLog
from irregulars.producers.importers.inspector_lines import MAX_LINE_BYTES
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order, event_times_ns
from irregulars.producers.publishing.sources import Record, take_records
from irregulars.producers.trace.directory import published_ns
from irregulars.producers.trace.foreign_files import GZIP_MAGIC, Directory, rank_of_name

_LOG: Final = logging.getLogger("irregulars.following")
_WAIT_S: Final = 0.05
# The records of a piece, which the reading thread computes so that polling never waits
_Piece = tuple[list[Announcement], list[Batch]]
# Ranks of logs are announced once, as a job's monitors hold to the first announcement, and NCCL makes a communicator
# when it is first called. So the first pieces wait until rows came for this time without a new communicator, seconds.
ANNOUNCE_S: Final = 10.0
_MOST_IDLE_S: Final = 300.0  # the same where no rows come: the job may load its model, or its logs may be old
_MOST_HELD_S: Final = 60.0  # since the first rows came: what is held is lost where the job's end ends the agent
_MOST_HELD_ROWS: Final = 100_000  # in these pieces: more come of logs that are old


class FileReader(Protocol):
    """Reads the new part of some files; called from one thread."""

    def read(self) -> ImportedJob | None:
        """Read the rows that have come since the last call; None: nothing yet."""
        ...


class FollowingSource:
    """Follows files; `follow` makes one for each kind.

    `interval_s`: time between two looks for new rows. `are_logs`: whether the files are logs: rows of a rank then may
    come in another order than that of their ends, and the first pieces wait for communicators, which logs name one by
    one. `ends_when_idle`: whether to end when everything that is there was read; else the source never ends.
    `world_size`: ranks that the job has, and that all log: one node sees its own alone. None: those seen.
    """

    def __init__(
        self,
        reader: FileReader,
        *,
        interval_s: float = 1.0,
        are_logs: bool = False,
        ends_when_idle: bool = False,
        world_size: int | None = None,
    ) -> None:
        self._reader, self._interval_s, self._are_logs = reader, interval_s, are_logs
        self._ends_when_idle, self._world_size = ends_when_idle, world_size
        self._announced: dict[int, tuple[str, ...]] = {}  # sources of each rank that was announced
        self._refused: set[int] = set()  # ranks whose refusal was logged
        self._records: deque[Record] = deque()  # of the piece that was taken last
        # For each rank and schema: rows taken, and the watermark
        self._totals: dict[tuple[int, str], tuple[int, int | None]] = {}
        self._held: deque[_Piece] = deque()  # pieces that were read, and not taken
        self._coming: dict[int, Announcement] = {}  # of ranks that were not announced: all that pieces told of them
        self._grown_s = time.monotonic()  # when they told of a communicator or a member last
        self._rows_s: float | None = None  # when the first rows came
        # Whether the first pieces wait for communicators that later ones tell
        self._is_holding = are_logs
        # One piece ahead of `poll`: a piece holds all rows of some traces or dumps.
        self._pieces: Queue[_Piece | None] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._is_over = False
        self._failure: InputError | None = None
        self._thread = threading.Thread(target=self._read, name="follower", daemon=True)
        self._thread.start()

    # --- the source -------------------------------------------------------------------------------------------------

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return records, at most `max_records` announcements and rows; raises `InputError` if reading failed."""
        if not self._records:
            self._take_piece()
        return take_records(self._records, max_records)

    def position(self) -> str:
        """Return an empty position: a restarted agent reads the files from their beginning."""
        return ""

    @property
    def is_exhausted(self) -> bool:
        """Whether everything was polled; always False unless the source ends when it is idle."""
        return self._is_over and not self._records and not self._held

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        # A reading that takes longer is left to the thread, which ends with the process.
        self._thread.join(timeout=10.0)

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read piece after piece, one ahead of `poll`; runs in the thread."""
        try:
            while not self._stop.is_set():
                job = self._reader.read()
                if job is not None:
                    self._put((list(job.announcements()), list(job.batches())))
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

    def _put(self, piece: _Piece | None) -> None:
        # In short waits: once the source is closed nothing takes a piece out of the queue.
        while not self._stop.is_set():
            try:
                self._pieces.put(piece, timeout=_WAIT_S)
                return
            except Full:
                continue

    def _take_piece(self) -> None:
        """Begin with the next piece; one of logs waits until its ranks can be announced."""
        if self._failure is not None:
            raise self._failure
        if self._is_holding or not self._held:
            has_rows = self._receive()
            if self._is_holding and self._held:
                self._is_holding = not (self._is_over or self._has_waited(has_rows))
        if self._is_holding or not self._held:
            return
        announcements, batches = self._held.popleft()
        # A rank is announced once; rows of a schema that its announcement does not name are left out.
        fresh = [self._coming.pop(one.rank) for one in announcements if one.rank in self._coming]
        if self._world_size is not None:
            fresh = [replace(one, world_size=self._world_size, logged_ranks=self._world_size) for one in fresh]
        fresh = [one for one in fresh if self._fits(one)]
        self._announced |= {one.rank: one.sources for one in fresh}
        named = [one for one in batches if one.header.schema in self._announced.get(one.header.rank, ())]
        self._records.extend(fresh)
        self._records.extend(map(self._counted, heapq.merge(*map(self._cut, named), key=published_ns)))

    def _receive(self) -> bool:
        """Hold the next piece that was read, and what it tells of ranks not announced yet; False: none came."""
        try:
            piece = self._pieces.get_nowait()
        except Empty:
            return False
        self._is_over = piece is None
        if piece is None:
            return False
        self._held.append(piece)
        for one in piece[0]:
            if one.rank in self._announced:
                continue
            known = self._coming[one.rank].communicators if one.rank in self._coming else ()
            by_id = {group.id: group for group in (*known, *one.communicators)}
            groups = tuple(by_id[id] for id in sorted(by_id))
            self._coming[one.rank] = replace(one, communicators=groups)
            self._grown_s = self._grown_s if groups == known else time.monotonic()
        self._rows_s = time.monotonic() if self._rows_s is None else self._rows_s
        return True

    def _has_waited(self, has_rows: bool) -> bool:
        """Whether the pieces that are held need not wait for more communicators."""
        now_s = time.monotonic()
        is_full = sum(len(batch) for _, own in self._held for batch in own) > _MOST_HELD_ROWS
        is_late = self._rows_s is not None and now_s - self._rows_s >= _MOST_HELD_S
        return is_full or is_late or now_s - self._grown_s >= (ANNOUNCE_S if has_rows else _MOST_IDLE_S)

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

    def _cut(self, batch: Batch) -> Iterator[Batch]:
        """Cut a batch behind its rank's earlier ones; rows that are older than the rank's watermark are left out."""
        rows, watermark_ns = self._totals.get((batch.header.rank, batch.header.schema), (0, None))
        if not self._are_logs and watermark_ns is not None:
            event_ns = event_times_ns(batch)
            is_late = (event_ns != UNKNOWN) & (event_ns <= watermark_ns)
            if is_late.any():
                _LOG.warning("event=late_rows_left_out rank=%d rows=%d", batch.header.rank, int(is_late.sum()))
                batch = Batch(batch.header, {n: c[~is_late] for n, c in batch.columns.items()})
        whole = Batch(replace(batch.header, rows_before=rows), batch.columns)
        for part in cut_in_order(whole, BATCH_ROWS, BATCH_SPAN_S):
            is_last = part.header.rows_before + len(part) == rows + len(batch)
            until_ns = batch.header.watermark_ns if is_last else part.header.watermark_ns  # later than its newest row
            yield Batch(replace(part.header, watermark_ns=until_ns), part.columns)

    def _counted(self, batch: Batch) -> Batch:
        """Count the rows of a batch that is cut; give it the watermark of its rank, which never falls."""
        own = batch.header
        _, before_ns = self._totals.get((own.rank, own.schema), (0, None))
        known = [ns for ns in (before_ns, own.watermark_ns) if ns is not None]
        until_ns = None if self._are_logs else max(known, default=None)
        self._totals[own.rank, own.schema] = own.rows_before + len(batch), until_ns
        return Batch(replace(own, watermark_ns=until_ns), batch.columns)


SETTLE_S: Final = 2.0  # time without a change after which a file is complete
# Longest wait of complete files for others that still change: one that never rests must not block the rest.
MOST_WAIT_S: Final = 60.0
MOST_PIECE_BYTES: Final = 4 << 20  # of logs, read at once
_MOST_UNSEEN: Final = 1000  # files that are not listed just now, and whose offsets are kept
KINDS: Final = ("kineto", "flight-recorder", "nccl-inspector")  # kinds of files that can be followed


def follow(
    kind: str,
    directory: Path,
    job: str,
    *,
    world_size: int | None = None,
    interval_s: float = 1.0,
    settle_s: float = SETTLE_S,
    ends_when_idle: bool = False,
) -> FollowingSource:
    """Follow the files of one kind in a directory, as a source for the agent.

    `kind`: one of `KINDS`. `world_size`: how many ranks the job has. NCCL Inspector
    needs it: a process's rank in the communicator of that size is its global rank. `settle_s`: time without a change
    after which a trace or a dump is complete, seconds. Raises InputError if the kind is unknown, or the world size
    is missing.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    reader: FileReader
    if kind == "kineto":
        reader = NewFileReader(directory, job, partial(read_kineto, is_whole=False), settle_s, traces_among)
    elif kind == "flight-recorder":
        read = partial(_job_of_dump_files, world_size=world_size or 0)
        # If no file is named like a dump, all are taken for some.
        named = lambda files: [path for path in files if rank_of_name(path) is not None] or files  # noqa: E731
        reader = NewFileReader(directory, job, read, settle_s, named)
    elif world_size is None:
        raise InputError("world_size must be given to follow nccl-inspector; got none")
    else:
        reader = LogReader(directory, job, LiveLog(job, world_size))
    return FollowingSource(
        reader, interval_s=interval_s, are_logs=isinstance(reader, LogReader),
        ends_when_idle=ends_when_idle, world_size=world_size,
    )  # fmt: skip


def _job_of_dump_files(files: list[Path], job: str, world_size: int = 0) -> ImportedJob:
    found = [(dump, path) for path in files if (dump := read_dump_file(path)).rank >= 0]
    if not found:
        raise InputError(f"{files[0]}: must be named after its rank, as _dump_3; got no number")
    dumps = {dump.rank: dump for dump, _ in found}
    dumped_ns = {dump.rank: path.stat().st_mtime_ns for dump, path in found}
    return job_of_dumps(dumps.values(), job, size=world_size, is_whole=False, dumped_ns=dumped_ns)


class NewFileReader:
    """Reads new files of a directory, those of all ranks together, since process groups show only across ranks.

    Files are new by the time of their last change. Files that can't be read are logged and left out.
    """

    def __init__(
        self,
        directory: Path,
        job: str,
        read: Callable[[list[Path], str], ImportedJob],
        settle_s: float,
        choose: Callable[[list[Path]], list[Path]] = list,
    ) -> None:
        self._directory, self._job, self._read, self._settle_s = Directory(directory), job, read, settle_s
        self._choose = choose
        self._read_ns = -1  # files that changed until then were read, or can't be

    def read(self) -> ImportedJob | None:
        """Read all files that have changed since the last call; see `FileReader`."""
        found = self._found()
        if not found:
            return None
        self._read_ns = max(found.values())
        job = self._read_all(sorted(found, key=lambda path: path.name))
        if job is None:
            return None
        for one in job.left_out:
            _LOG.warning("event=file_refused reason=%s: %s", one.name, one.reason)
        unusable = sum(rows.unusable for rows in job.ranks.values())
        unusable_rows = {"rows with impossible values": unusable} if unusable else {}
        for reason, count in {**job.skipped, **unusable_rows}.items():
            _LOG.warning("event=records_left_out job=%s records=%d reason=%r", job.job, count, reason)
        return job

    def _found(self) -> dict[Path, int]:
        """Return new files that are complete, once no more of them may come, with the times of their last changes."""
        changes = {path: at for at, path in self._directory.changes() if at > self._read_ns}
        changes = {path: changes[path] for path in self._choose(list(changes))}
        now_ns = time.time_ns()
        found = {path: at for path, at in changes.items() if at <= now_ns - round(self._settle_s * 1e9)}
        if found and len(found) < len(changes):  # more of this capture may come
            is_late = min(found.values()) < now_ns - round((self._settle_s + MOST_WAIT_S) * 1e9)
            return found if is_late else {}
        return found

    def _read_all(self, files: list[Path]) -> ImportedJob | None:
        try:
            return self._read(files, self._job)
        except (InputError, OSError) as error:  # the latter: it was just removed
            if len(files) == 1:
                _LOG.warning("event=file_refused reason=%s", error)
                return None
            reason = str(error)
        # Each by itself finds the files at fault. Where each is good, they do not fit together, and none is used.
        good = [path for path in files if self._read_all([path]) is not None]
        if len(good) == len(files):
            _LOG.warning("event=files_refused files=%d reason='must be of one job: %s'", len(files), reason)
        return self._read_all(good) if 0 < len(good) < len(files) else None


class LogReader:
    """Reads the lines appended to the logs of a directory, across rotation.

    A file that was renamed goes on where it was; one whose first line changed, or that became shorter, begins anew.
    One that can't be used is logged and left out from there on: the others go on, and its earlier lines count.
    """

    def __init__(self, directory: Path, job: str, live: LiveLog) -> None:
        self._directory, self._job, self._live = Directory(directory), job, live
        self._offsets: dict[str, int] = {}  # how far each file was read
        self._refused: set[str] = set()  # files that can't be used from there on
        self._left_out: Counter[str] = Counter()
        self._foreign: set[Path] = set()  # files that were logged as unreadable

    def read(self) -> ImportedJob | None:
        """Read up to `MOST_PIECE_BYTES` of each file; see `FileReader`."""
        while True:
            before = self._offsets, len(self._refused)
            job = self._advance()
            # Without rows it goes on only as long as there are new lines.
            if job is not None or before == (self._offsets, len(self._refused)):
                return job

    def _advance(self) -> ImportedJob | None:
        offsets: dict[str, int] = {}
        for name, path in self._named_files():
            offsets[name] = self._offsets.get(name, 0)
            if name not in self._refused:
                offsets[name], is_refused = self._read_file(path, name, offsets[name])
                if is_refused:
                    self._refused.add(name)
        # A file that is being renamed is missing from this listing and comes back; most of the others are gone.
        unseen = ((name, offset) for name, offset in self._offsets.items() if name not in offsets)
        self._offsets = offsets | dict(islice(unseen, _MOST_UNSEEN))
        self._refused &= self._offsets.keys()
        job = self._live.job()
        unusable = 0 if job is None else sum(rows.unusable for rows in job.ranks.values())
        for reason, count in [*self._live.skipped().items(), ("rows with impossible values", unusable)]:
            # At the first, tenth, hundredth … of each kind
            before_count, self._left_out[reason] = self._left_out[reason], self._left_out[reason] + count
            if len(str(before_count)) < len(str(self._left_out[reason])) or (count and not before_count):
                told = before_count + count
                _LOG.warning("event=records_left_out job=%s records=%d reason=%r", self._job, told, reason)
        self._live.end_reading(self._offsets)
        return job

    def _named_files(self) -> list[tuple[str, Path]]:
        """Return the files keyed by inode and first line: both survive renaming, and an inode alone may be reused."""
        named = []
        for _, path in self._directory.changes():
            try:
                with path.open("rb") as stream:
                    first = stream.readline(MAX_LINE_BYTES)
                    if first.startswith(GZIP_MAGIC):  # its rows were read as they were written, before it was packed
                        continue
                    # A first line that is still being written gives the file no name yet: it would change.
                    if first.endswith(b"\n"):
                        named.append((f"{os.fstat(stream.fileno()).st_ino}-{crc32(first):08x}", path))
                    elif len(first) == MAX_LINE_BYTES and path not in self._foreign:
                        self._foreign.add(path)
                        _LOG.warning("event=file_refused reason='%s: must hold lines; got a longer one'", path)
            except OSError as error:
                if isinstance(error, PermissionError) and path not in self._foreign:
                    self._foreign.add(path)
                    _LOG.warning("event=file_refused reason='%s: must be readable; got %s'", path, error.strerror)
        return sorted(named)

    def _read_file(self, path: Path, name: str, offset: int) -> tuple[int, bool]:
        """Read complete lines from an offset on; return where to go on, and whether that line can't be used."""
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                offset = 0 if size < offset else offset
                end = min(size, offset + MOST_PIECE_BYTES)
                stream.seek(offset)
                at = offset
                while at < end:
                    line = stream.readline(MAX_LINE_BYTES)
                    if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                        break  # it is being written
                    try:
                        self._live.add(name, line)
                    except InputError as error:
                        _LOG.warning("event=file_refused reason='%s: %s'", path, error)
                        return at, True
                    at += len(line)
                return at, False
        except OSError:
            return offset, False  # it was just removed
