"""Followers of each kind: traces and dumps that appear in a directory, logs that grow in one."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

from irregulars.errors import InputError
from irregulars.producers.importers.clog_live import LiveClog
from irregulars.producers.importers.flight_recorder import job_of_dumps
from irregulars.producers.importers.following import FileReader, FollowingSource, Piece, Stand
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import read_capture, read_dump_file, traces_among
from irregulars.producers.importers.inspector_job import LiveLog
from irregulars.producers.importers.inspector_lines import MAX_LINE_BYTES
from irregulars.producers.importers.kineto_job import job_of_captures
from irregulars.producers.trace.foreign_files import GZIP_MAGIC, Directory, rank_of_name

_LOG: Final = logging.getLogger("irregulars.following")

SETTLE_S: Final = 2.0  # a file that has not changed for so long is complete
MOST_WAIT_S: Final = 60.0
"""Longest wait of complete files for others that still change: one that never rests must not block the rest."""

MOST_PIECE_BYTES: Final = 4 << 20  # of logs, read at once
_MOST_UNSEEN: Final = 1000

KINDS: Final = ("kineto", "flight-recorder", "nccl-inspector", "clog")  # kinds of files that can be followed


class LiveRows(Protocol):
    """Turns the lines of several logs into rows, from one reading to the next."""

    def add(self, file: str, line: bytes) -> None:
        """Take in a line of a file; raises `InputError` if nothing more of the file can be used."""

    def refuse(self, file: str) -> None:
        """Expect no more lines of a file; those before it count."""

    def job(self) -> ImportedJob | None:
        """Return the rows read so far as a job; None if there are none."""

    def skipped(self) -> Mapping[str, int]:
        """Return the number of unusable lines and calls, by reason."""

    def state(self, files: Container[str]) -> dict[str, Any]:
        """Return the state for the next reading, of these files alone, as JSON values."""


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
    communicator is taken as the one of all ranks. `position`: where an earlier source of the same directory stood;
    None: from the beginning. `settle_s`: a trace or a dump that has not changed for so long is complete, seconds.
    Raises InputError if the kind is unknown, the world size is missing, or the position is none of a followed source.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    reader: FileReader
    if kind == "kineto":
        reader = NewFileReader(directory, job, _job_of_traces, settle_s, traces_among)
    elif kind == "flight-recorder":
        reader = NewFileReader(directory, job, _job_of_dump_files, settle_s, _dumps_among)
    elif kind == "clog":
        reader = LogReader(directory, job, partial(LiveClog, job, world_size))
    elif world_size is None:
        raise InputError("world_size must be given to follow nccl-inspector; got none")
    else:
        reader = LogReader(directory, job, partial(LiveLog, job, world_size))
    return FollowingSource(
        reader,
        position=position,
        interval_s=interval_s,
        has_watermarks=kind in ("kineto", "flight-recorder"),
        ends_when_idle=ends_when_idle,
        world_size=world_size,
    )


def _job_of_traces(files: list[Path], job: str) -> ImportedJob:
    return job_of_captures((read_capture(path) for path in traces_among(files)), job, is_whole=False)


def _job_of_dump_files(files: list[Path], job: str) -> ImportedJob:
    found = [(dump, path) for path in files if (dump := read_dump_file(path)) is not None]
    if not found:
        raise InputError(f"{files[0]}: must be named after its rank, as _dump_3; got no number")
    dumps = {dump.rank: dump for dump, _ in found}
    dumped_ns = {dump.rank: path.stat().st_mtime_ns for dump, path in found}
    return job_of_dumps(dumps.values(), job, is_whole=False, dumped_ns=dumped_ns)


def _dumps_among(files: list[Path]) -> list[Path]:
    """Keep the files that are named like dumps; if none is, keep all files."""
    return [path for path in files if rank_of_name(path) is not None] or files


class NewFileReader:
    """Reads new files of a directory, those of all ranks together, since process groups show only across ranks.

    New is by the time of the last change, which is also where the reader stands. Files that can't be read are logged
    and left out.
    """

    def __init__(
        self,
        directory: Path,
        job: str,
        read: Callable[[list[Path], str], ImportedJob],
        settle_s: float,
        choose: Callable[[list[Path]], list[Path]] = list,
        most_wait_s: float = MOST_WAIT_S,
    ) -> None:
        self._directory, self._job, self._read, self._settle_s = Directory(directory), job, read, settle_s
        self._choose, self._most_wait_s = choose, most_wait_s
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
            is_late = min(found.values()) < now_ns - round((self._settle_s + self._most_wait_s) * 1e9)
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
        good = [path for path in files if self._read_all([path]) is not None]
        if len(good) == len(files):
            _LOG.warning("event=files_refused files=%d reason='must be of one job: %s'", len(files), reason)
        return self._read_all(good) if 0 < len(good) < len(files) else None


class LogReader:
    """Reads the lines appended to the logs of a directory, across rotation.

    A file that was renamed goes on where it was; one whose first line changed, or that became shorter, begins anew.
    One that can't be used is logged and left out from there on: the others go on, and its earlier lines count.

    `open_live`: makes the object that adds the lines, of its state after the reading before.
    """

    def __init__(self, directory: Path, job: str, open_live: Callable[[Mapping[str, Any]], LiveRows]) -> None:
        self._directory, self._job, self._open_live = Directory(directory), job, open_live
        self._left_out: Counter[str] = Counter()
        self._foreign: set[Path] = set()  # files of which it was said that they can't be read
        self._empty: tuple[Stand, Stand] | None = None  # from the first to the second there were no rows

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read up to `MOST_PIECE_BYTES` of each file; see `producers.importers.following.FileReader`."""
        at = self._empty[1] if after is None and self._empty and self._empty[0] is before else before
        while True:
            stand, job = self._advance(at, after)
            if job is not None:
                return Piece(at, after or stand, job)
            if after is not None or _place_of(stand) == _place_of(at):
                self._empty = before, at
                return None
            at = stand

    def _advance(self, before: Stand, after: Stand | None) -> tuple[Stand, ImportedJob | None]:
        """Read a part of each file; give where the reader stands then, and the rows."""
        live = self._open_live(before.get("live", {}))
        known, refused = _place_of(before)
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
        self._log_left_out(live.skipped(), job)
        return {"offsets": offsets, "refused": sorted(refused & offsets.keys()), "live": live.state(offsets)}, job

    def _log_left_out(self, skipped: Mapping[str, int], job: ImportedJob | None) -> None:
        """Log how many lines were unusable: at the first, tenth, hundredth … of each kind."""
        unusable = 0 if job is None else sum(rows.unusable for rows in job.ranks.values())
        for reason, count in [*skipped.items(), ("rows with impossible values", unusable)]:
            before, self._left_out[reason] = self._left_out[reason], self._left_out[reason] + count
            if len(str(before)) < len(str(self._left_out[reason])) or (count and not before):
                _LOG.warning("event=records_left_out job=%s records=%d reason=%r", self._job, before + count, reason)

    def _named_files(self) -> list[tuple[str, Path]]:
        """Return the files keyed by inode and first line: both survive renaming, and an inode alone may be reused."""
        named = []
        for _, path in self._directory.changes():
            try:
                with path.open("rb") as stream:
                    first = stream.readline(MAX_LINE_BYTES)
                    if first.startswith(GZIP_MAGIC):  # its rows were read as they were written, before it was packed
                        continue
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
