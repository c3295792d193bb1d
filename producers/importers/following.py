"""Files of other tools as a source for the agent, which follows them as they grow and as new ones come.

A thread reads; `FollowingSource.poll` only returns rows that are read already. The rows of one reading are a
piece. Its name is the reader's position before and after it, so that a source's position is a number of rows into a
piece, and the same piece can be read again after a restart.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import msgspec

from irregulars.errors import InputError
from irregulars.messages.announcements import MAX_ANNOUNCEMENT_BYTES, Announcement, encode_announcement
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers.clog_job import LiveClog
from irregulars.producers.importers.flight_recorder import job_of_dumps
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import read_dump_file, read_kineto, traces_among
from irregulars.producers.importers.inspector_job import LiveLog
from irregulars.producers.importers.inspector_lines import MAX_LINE_BYTES
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order, event_times_ns, take_rows
from irregulars.producers.trace.directory import published_ns
from irregulars.producers.trace.foreign_files import GZIP_MAGIC, Directory, rank_of_name
from irregulars.validation import first_use

_LOG: Final = logging.getLogger("irregulars.following")
_WAIT_S: Final = 0.05
Stand = dict[str, Any]  # position of a reader: plain JSON values


class Piece(NamedTuple):
    """The result of one reading: rows of some ranks, and the reader's position before and after."""

    before: Stand
    after: Stand
    job: ImportedJob


# A piece with its records, which the reading thread computes so that polling never waits.
_Ready = tuple[Piece, list[Announcement], list[Batch]]
# Ranks of logs are announced once, as a job's monitors hold to the first announcement, and NCCL makes a communicator
# when it is first called. So the first pieces wait until rows came for this time without a new communicator, seconds.
ANNOUNCE_S: Final = 10.0
_MOST_IDLE_S: Final = 300.0  # the same where no rows come: the job may load its model, or its logs may be old
_MOST_HELD_S: Final = 60.0  # since the first rows came: what is held is lost where the job's end ends the agent
_MOST_HELD_ROWS: Final = 100_000  # in these pieces: more come of logs that are old


class FileReader(Protocol):
    """Reads the new part of some files; called from one thread."""

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read the rows since `before`; None: nothing yet. With `after` given, read that piece again."""
        ...


class _Progress(msgspec.Struct, forbid_unknown_fields=True):
    """Content of a source's position."""

    # before, after: The piece that rows are taken from; `after` is None before there is one
    before: Stand = msgspec.field(default_factory=dict)
    after: Stand | None = None
    rows: int = 0  # rows taken of it
    announced: dict[str, list[str]] = msgspec.field(default_factory=dict)  # sources of each rank that was announced
    # For each rank and schema, before that piece: rows taken, and the watermark
    totals: dict[str, list[int | None]] = msgspec.field(default_factory=dict)

    def to_text(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def of_text(cls, text: str) -> _Progress:
        try:
            with first_use(cls):
                return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise InputError(f"position must be one of a followed source; got {text[:80]!r}") from None


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
        position: str | None = None,
        interval_s: float = 1.0,
        are_logs: bool = False,
        ends_when_idle: bool = False,
        world_size: int | None = None,
    ) -> None:
        self._reader, self._interval_s, self._are_logs = reader, interval_s, are_logs
        self._ends_when_idle, self._world_size = ends_when_idle, world_size
        self._progress = _Progress() if position is None else _Progress.of_text(position)
        self._waiting: list[Announcement] = []
        self._refused: set[int] = set()  # ranks whose refusal was logged
        self._batches: Iterator[Batch] = iter(())
        self._next: Batch | None = None
        self._totals: dict[str, list[int | None]] = dict(self._progress.totals)
        self._held: deque[_Ready] = deque()  # pieces that were read, and not taken
        self._coming: dict[int, Announcement] = {}  # of ranks that were not announced: all that pieces told of them
        self._grown_s = time.monotonic()  # when they told of a communicator or a member last
        self._rows_s: float | None = None  # when the first rows came
        # Whether the first pieces wait for communicators that later ones tell
        self._is_holding = are_logs and not self._progress.announced
        # One piece ahead of `poll`: a piece holds all rows of some traces or dumps.
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
        return self._is_over and self._next is None and not self._waiting and not self._held

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        # A reading that takes longer is left to the thread, which ends with the process.
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
                    self._put((piece, list(piece.job.announcements()), list(piece.job.batches())))
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
        # In short waits: once the source is closed nothing takes a piece out of the queue.
        while not self._stop.is_set():
            try:
                self._pieces.put(ready, timeout=_WAIT_S)
                return
            except Full:
                continue

    def _take_piece(self) -> None:
        if self._failure is not None:
            raise self._failure
        has_rows = False
        if self._is_holding or not self._held:
            with suppress(Empty):
                ready = self._pieces.get_nowait()
                self._is_over, has_rows = ready is None, ready is not None
                self._held.extend([ready] if ready is not None else [])
        # Communicators of this piece are added to those of earlier ones, for ranks that were not announced yet.
        for one in self._held[-1][1] if has_rows else ():
            if str(one.rank) in self._progress.announced:
                continue
            known = self._coming[one.rank].communicators if one.rank in self._coming else ()
            by_id = {group.id: group for group in (*known, *one.communicators)}
            groups = tuple(by_id[id] for id in sorted(by_id))
            self._coming[one.rank] = replace(one, communicators=groups)
            self._grown_s = self._grown_s if groups == known else time.monotonic()
        if self._is_holding and self._held:
            if has_rows and self._rows_s is None:
                self._rows_s = time.monotonic()
            waited_s = time.monotonic() - self._grown_s
            is_full = sum(len(batch) for _, _, own in self._held for batch in own) > _MOST_HELD_ROWS
            has_all = waited_s >= (ANNOUNCE_S if has_rows else _MOST_IDLE_S)
            has_all |= self._rows_s is not None and time.monotonic() - self._rows_s >= _MOST_HELD_S
            self._is_holding = not (self._is_over or is_full or has_all)
        if self._is_holding or not self._held:
            return
        piece, announcements, ready_batches = self._held.popleft()
        # The first rows of a piece that an earlier source began have left; the totals kept are those before it.
        is_resumed = self._progress.after == piece.after and self._progress.rows > 0
        skipped = self._progress.rows if is_resumed else 0
        if not is_resumed:
            self._progress.totals = {key: list(total) for key, total in self._totals.items()}
        self._progress.before, self._progress.after, self._progress.rows = piece.before, piece.after, 0
        # A rank is announced once; rows of a schema that its announcement does not name are left out.
        fresh = [self._coming.pop(one.rank) for one in announcements if one.rank in self._coming]
        if self._world_size is not None:
            fresh = [replace(one, world_size=self._world_size, logged_ranks=self._world_size) for one in fresh]
        self._waiting = [one for one in fresh if self._fits(one)]
        sources = {**self._progress.announced, **{str(a.rank): list(a.sources) for a in self._waiting}}
        batches = [b for b in ready_batches if b.header.schema in sources.get(str(b.header.rank), ())]
        self._batches = heapq.merge(*map(self._cut, batches), key=published_ns)
        self._next = next(self._batches, None)
        # Taking the rows again, and dropping them, brings the totals to where the earlier source was.
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

    def _cut(self, batch: Batch) -> Iterator[Batch]:
        """Cut a batch behind its rank's earlier ones; rows that are older than the rank's watermark are left out."""
        rows, watermark_ns = self._total(batch)
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
        if not self._are_logs:  # a watermark never falls; a rank that never had one gets none
            known = [ns for ns in (self._total(batch)[1], taken.header.watermark_ns) if ns is not None]
            until_ns = max(known, default=None)
        taken = Batch(replace(taken.header, watermark_ns=until_ns), taken.columns)
        self._totals[_key(taken)] = [taken.header.rows_before + len(taken), taken.header.watermark_ns]
        self._progress.rows += len(taken)
        return taken


def _key(batch: Batch) -> str:
    return f"{batch.header.rank}/{batch.header.schema}"


SETTLE_S: Final = 2.0  # time without a change after which a file is complete
# Longest wait of complete files for others that still change: one that never rests must not block the rest.
MOST_WAIT_S: Final = 60.0
MOST_PIECE_BYTES: Final = 4 << 20  # of logs, read at once
_MOST_UNSEEN: Final = 1000  # files that are not listed just now, and whose offsets are kept
KINDS: Final = ("kineto", "flight-recorder", "nccl-inspector", "clog")  # kinds of files that can be followed
LiveRows = LiveClog | LiveLog  # Turns the lines of several logs into rows, from one reading to the next


def follow(
    kind: str,
    directory: Path,
    job: str,
    *,
    world_size: int | None = None,
    position: str | None = None,
    interval_s: float = 1.0,
    settle_s: float = SETTLE_S,
    ends_when_idle: bool = False,
) -> FollowingSource:
    """Follow the files of one kind in a directory, as a source for the agent.

    `kind`: as of `producers.importers.importing.KINDS`. `world_size`: how many ranks the job has. NCCL Inspector
    needs it: a process's rank in the communicator of that size is its global rank. Without it clog's first
    communicator is taken as the one of all ranks. `position`: that of an earlier source of the same directory; None:
    from the beginning. `settle_s`: time without a change after which a trace or a dump is complete, seconds.
    Raises InputError if the kind is unknown, the world size is missing, or the position is none of a followed source.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    reader: FileReader
    if kind == "kineto":
        reader = NewFileReader(directory, job, partial(read_kineto, is_whole=False), settle_s, traces_among)
    elif kind == "flight-recorder":
        # If no file is named like a dump, all are taken for some.
        named = lambda files: [path for path in files if rank_of_name(path) is not None] or files  # noqa: E731
        reader = NewFileReader(directory, job, _job_of_dump_files, settle_s, named)
    elif kind == "clog":
        reader = LogReader(directory, job, partial(LiveClog, job, world_size))
    elif world_size is None:
        raise InputError("world_size must be given to follow nccl-inspector; got none")
    else:
        reader = LogReader(directory, job, partial(LiveLog, job, world_size))
    return FollowingSource(
        reader, position=position, interval_s=interval_s, are_logs=isinstance(reader, LogReader),
        ends_when_idle=ends_when_idle, world_size=world_size,
    )  # fmt: skip


def _job_of_dump_files(files: list[Path], job: str) -> ImportedJob:
    found = [(dump, path) for path in files if (dump := read_dump_file(path)).rank >= 0]
    if not found:
        raise InputError(f"{files[0]}: must be named after its rank, as _dump_3; got no number")
    dumps = {dump.rank: dump for dump, _ in found}
    dumped_ns = {dump.rank: path.stat().st_mtime_ns for dump, path in found}
    return job_of_dumps(dumps.values(), job, is_whole=False, dumped_ns=dumped_ns)


class NewFileReader:
    """Reads new files of a directory, those of all ranks together, since process groups show only across ranks.

    Files are new by the time of their last change, which is also the reader's position. Files that can't be read are
    logged and left out.
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
        self._refused_ns = -1  # up to then nothing could be read: it is not tried again

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read all files that changed last between two times; see `producers.importers.following.FileReader`."""
        first_ns = max(int(before.get("changed_ns", -1)), self._refused_ns)
        found = self._found(first_ns) if after is None else self._found(first_ns, int(after["changed_ns"]))
        if not found:
            return None
        newest_ns = max(found.values())
        job = self._read_all(sorted(found, key=lambda path: path.name))
        if job is None:
            self._refused_ns = newest_ns
            return None
        for one in job.left_out:
            _LOG.warning("event=file_refused reason=%s: %s", one.name, one.reason)
        unusable = sum(rows.unusable for rows in job.ranks.values())
        unusable_rows = {"rows with impossible values": unusable} if unusable else {}
        for reason, count in {**job.skipped, **unusable_rows}.items():
            _LOG.warning("event=records_left_out job=%s records=%d reason=%r", job.job, count, reason)
        return Piece(before, after or {"changed_ns": newest_ns}, job)

    def _found(self, first_ns: int, past_ns: int | None = None) -> dict[Path, int]:
        """Files that changed last between two times; with no end those that are complete, once no more may come."""
        changes = {path: at for at, path in self._directory.changes() if at > first_ns}
        changes = {path: changes[path] for path in self._choose(list(changes))}
        now_ns = time.time_ns()
        settled_ns = now_ns - round(self._settle_s * 1e9) if past_ns is None else past_ns
        found = {path: at for path, at in changes.items() if at <= settled_ns}
        if past_ns is None and found and len(found) < len(changes):  # more of this capture may come
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

    `open_live`: makes the object that adds the lines, from its state after the reading before.
    """

    def __init__(self, directory: Path, job: str, open_live: Callable[[Mapping[str, Any]], LiveRows]) -> None:
        self._directory, self._job, self._open_live = Directory(directory), job, open_live
        self._left_out: Counter[str] = Counter()
        self._foreign: set[Path] = set()  # files that were logged as unreadable
        self._empty: tuple[Stand, Stand] | None = None  # from the first to the second there were no rows

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read up to `MOST_PIECE_BYTES` of each file; see `producers.importers.following.FileReader`."""
        # Lines without rows are not read again and again: the caller passes the same object until a piece has come.
        at = self._empty[1] if after is None and self._empty and self._empty[0] is before else before
        while True:
            stand, job = self._advance(at, after)
            if job is not None:
                return Piece(at, after or stand, job)
            # Without rows it goes on only as long as there are new lines.
            if after is not None or _place_of(stand) == _place_of(at):
                self._empty = before, at
                return None
            at = stand

    def _advance(self, before: Stand, after: Stand | None) -> tuple[Stand, ImportedJob | None]:
        """Read a part of each file; return the reader's new position, and the rows."""
        live = self._open_live(before.get("live", {}))
        known, refused = _place_of(before)
        # A piece that is read again ends before the line for which a file was refused: only its position names it.
        refused_later = set() if after is None else _place_of(after)[1]
        offsets: dict[str, int] = {}
        for name, path in self._named_files():
            limit = None if after is None else after["offsets"].get(name, 0)
            offsets[name] = known.get(name, 0)
            if name not in refused:
                offsets[name], is_refused = self._read_file(path, name, offsets[name], limit, live)
                if is_refused or name in refused_later:
                    refused.add(name)
                    live.refuse(name)
        # A file that is being renamed is missing from this listing and comes back; most of the others are gone.
        unseen = ((name, offset) for name, offset in known.items() if name not in offsets)
        offsets |= dict(islice(unseen, _MOST_UNSEEN))
        job = live.job()
        unusable = 0 if job is None else sum(rows.unusable for rows in job.ranks.values())
        for reason, count in [*live.skipped().items(), ("rows with impossible values", unusable)]:
            # At the first, tenth, hundredth … of each kind
            before_count, self._left_out[reason] = self._left_out[reason], self._left_out[reason] + count
            if len(str(before_count)) < len(str(self._left_out[reason])) or (count and not before_count):
                told = before_count + count
                _LOG.warning("event=records_left_out job=%s records=%d reason=%r", self._job, told, reason)
        return {"offsets": offsets, "refused": sorted(refused & offsets.keys()), "live": live.state(offsets)}, job

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

    def _read_file(self, path: Path, name: str, offset: int, limit: int | None, live: LiveRows) -> tuple[int, bool]:
        """Read complete lines from an offset on; return where to go on, and whether that line can't be used."""
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                offset = 0 if size < offset else offset
                end = min(size, offset + MOST_PIECE_BYTES) if limit is None else limit
                stream.seek(offset)
                at = offset
                while at < end:
                    line = stream.readline(MAX_LINE_BYTES)
                    if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                        break  # it is being written
                    try:
                        live.add(name, line)
                    except InputError as error:
                        _LOG.warning("event=file_refused reason='%s: %s'", path, error)
                        return at, True
                    at += len(line)
                return at, False
        except OSError:
            return offset, False  # it was just removed


def _place_of(stand: Stand) -> tuple[dict[str, int], set[str]]:
    """Return how far each file was read, and which files are left out: they can't be used from there on."""
    return stand.get("offsets", {}), set(stand.get("refused", ()))
