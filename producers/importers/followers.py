"""Followers of each kind: traces and dumps that appear in a directory, logs that grow in one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Final
from zlib import crc32

from producers.importers.flight_recorder_job import job_of_dumps
from producers.importers.following import FileReader, FollowingSource, Piece, Stand
from producers.importers.imported import ImportedJob
from producers.importers.importing import naming, read_capture, read_dump_file, traces_among
from producers.importers.inspector_live import LiveLog
from producers.importers.kineto_job import job_of_captures
from producers.importers.nccl_inspector import MAX_LINE_BYTES
from streams.errors import InputError

_LOG: Final = logging.getLogger("irregulars.following")

SETTLE_S: Final = 2.0
"""A file that has not changed for so long is complete."""

MOST_PIECE_BYTES: Final = 4 << 20
"""Of logs, read at once."""

_MOST_UNSEEN: Final = 1000


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

    Parameters
    ----------
    kind
        As of `producers.importers.importing.KINDS`.
    directory
        Where the tool writes; may be made later.
    job
        Name of the job: no such file holds one.
    world_size
        How many ranks the job has. NCCL Inspector needs it: a process's rank in the communicator of that size is its
        global rank.
    position
        Where an earlier source of the same directory stood; None: from the beginning.
    interval_s
        From one look at the directory to the next, seconds.
    settle_s
        A trace or a dump that has not changed for so long is complete, seconds.
    ends_when_idle
        Whether the source ends when everything that is there was read.

    Raises
    ------
    InputError
        If the kind is unknown, the world size is missing, or the position is none of a followed source.
    """
    _require_known(kind)
    reader: FileReader
    if kind == "nccl-inspector":
        reader = LogReader(directory, job, _given(world_size))
    else:
        reader = NewFileReader(directory, job, _JOBS[kind], settle_s)
    return FollowingSource(
        reader,
        position=position,
        interval_s=interval_s,
        has_watermarks=kind != "nccl-inspector",
        ends_when_idle=ends_when_idle,
        world_size=world_size,
    )


def _require_known(kind: str) -> None:
    if kind not in ("kineto", "flight-recorder", "nccl-inspector"):
        raise InputError(f"kind must be one of kineto, flight-recorder, nccl-inspector; got {kind!r}")


def _given(world_size: int | None) -> int:
    if world_size is None:
        raise InputError("world_size must be given to follow nccl-inspector; got none")
    return world_size


def _job_of_traces(files: list[Path], job: str) -> ImportedJob:
    return job_of_captures((read_capture(path) for path in traces_among(files)), job, is_whole=False)


def _job_of_dump_files(files: list[Path], job: str) -> ImportedJob:
    found = [(dump, path) for path in files if (dump := read_dump_file(path)) is not None]
    if not found:
        raise InputError(f"{files[0]}: must be named after its rank, as _dump_3; got no number")
    dumps = {dump.rank: dump for dump, _ in found}
    dumped_ns = {dump.rank: path.stat().st_mtime_ns for dump, path in found}
    return job_of_dumps(dumps.values(), job, is_whole=False, dumped_ns=dumped_ns)


_JOBS: Final[Mapping[str, Callable[[list[Path], str], ImportedJob]]] = {
    "kineto": _job_of_traces,
    "flight-recorder": _job_of_dump_files,
}


class NewFileReader:
    """Reads files that are new in a directory, those of all ranks together: groups are found from all of them.

    New is by the time of the last change, which is also where the reader stands. Files that can't be read are logged
    and left out.
    """

    def __init__(
        self, directory: Path, job: str, read: Callable[[list[Path], str], ImportedJob], settle_s: float
    ) -> None:
        self._directory, self._job, self._read, self._settle_s = directory, job, read, settle_s
        self._refused_ns = -1  # up to then nothing could be read: it is not tried again

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read all files that changed last between two times; see `producers.importers.following.FileReader`."""
        first_ns = max(int(before.get("changed_ns", -1)), self._refused_ns)
        past_ns = time.time_ns() if after is None else int(after["changed_ns"])
        found = {path: at for at, path in _changes(self._directory) if first_ns < at <= past_ns}
        if not found:
            return None
        newest_ns = max(found.values())
        if after is None and newest_ns > time.time_ns() - round(self._settle_s * 1e9):
            return None  # more of this capture may come
        job = self._read_all(sorted(found, key=lambda path: path.name))
        if job is None:
            self._refused_ns = newest_ns
            return None
        return Piece(before, after or {"changed_ns": newest_ns}, job)

    def _read_all(self, files: list[Path]) -> ImportedJob | None:
        try:
            return self._read(files, self._job)
        except InputError as error:
            if len(files) == 1:
                _LOG.warning("event=file_refused reason=%s", error)
                return None
            reason = str(error)
        good = [path for path in files if self._read_all([path]) is not None]
        if len(good) == len(files):
            _LOG.warning("event=files_refused files=%d reason='must be of one job: %s'", len(files), reason)
        return self._read_all(good) if 0 < len(good) < len(files) else None


def _changes(directory: Path) -> list[tuple[int, Path]]:
    """Files of a directory, with the time of their last change."""
    try:
        paths = [path for path in directory.iterdir() if path.is_file() and not path.name.startswith(".")]
        return [(path.stat().st_mtime_ns, path) for path in paths]
    except OSError:
        return []  # not made yet, or a file was just removed


class LogReader:
    """Reads what was appended to the logs of a directory, across rotation.

    A file that was renamed goes on where it was; one whose first line changed, or that became shorter, begins anew.
    """

    def __init__(self, directory: Path, job: str, world_size: int) -> None:
        self._directory, self._job, self._world_size = directory, job, world_size

    def read(self, before: Stand, after: Stand | None) -> Piece | None:
        """Read up to `MOST_PIECE_BYTES` of each file; see `producers.importers.following.FileReader`."""
        while True:
            stand, job = self._advance(before, after)
            if job is not None:
                return Piece(before, after or stand, job)
            if after is not None or stand["offsets"] == before.get("offsets", {}):
                return None
            before = stand

    def _advance(self, before: Stand, after: Stand | None) -> tuple[Stand, ImportedJob | None]:
        """Read a part of each file; give where the reader stands then, and the rows."""
        live = LiveLog(self._job, self._world_size, before.get("live", {}))
        known: dict[str, int] = before.get("offsets", {})
        offsets: dict[str, int] = {}
        for name, path in _named_files(self._directory):
            limit = None if after is None else after["offsets"].get(name, 0)
            with naming(path):
                offsets[name] = self._read_file(path, name, known.get(name, 0), limit, live)
        offsets |= _unseen(known, offsets)
        job = live.job()
        return {"offsets": offsets, "live": live.state()}, job

    def _read_file(self, path: Path, name: str, offset: int, limit: int | None, live: LiveLog) -> int:
        """Read complete lines from an offset on; return where to go on."""
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < offset:
                    offset = 0
                end = min(size, offset + MOST_PIECE_BYTES) if limit is None else limit
                return _read_lines(stream, name, offset, end, live)
        except OSError:
            return offset  # it was just removed


def _unseen(known: Mapping[str, int], seen: Mapping[str, int]) -> dict[str, int]:
    """Where we are in files that were not seen: one that is renamed just then will be there again.

    At most `_MOST_UNSEEN`, for most of them are gone.
    """
    return dict(islice(((name, offset) for name, offset in known.items() if name not in seen), _MOST_UNSEEN))


def _read_lines(stream: IO[bytes], name: str, offset: int, end: int, live: LiveLog) -> int:
    stream.seek(offset)
    while offset < end:
        line = stream.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            break  # it is being written
        live.add(name, line)
        offset += len(line)
    return offset


def _named_files(directory: Path) -> list[tuple[str, Path]]:
    """Files by what they keep when renamed: the inode, and the first line, since inodes are used again."""
    named = []
    for _, path in _changes(directory):
        try:
            with path.open("rb") as stream:
                first = stream.readline(MAX_LINE_BYTES)
                if first.endswith(b"\n"):
                    named.append((f"{os.fstat(stream.fileno()).st_ino}-{crc32(first):08x}", path))
        except OSError:
            continue  # it was just removed
    return sorted(named)
