"""A trace directory from the parts that the ranks of a training job wrote.

Each rank appends to a file of its own below ``parts/``; when the last has ended, they become the files of the
contract. After a crash: ``python -m irregulars.producers.torch_hook.trace_parts DIR``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from irregulars.errors import InputError, RecordError
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.printing import counted, printable
from irregulars.producers.publishing.batches import event_times_ns
from irregulars.producers.torch_hook.frames import END_BYTES, End, Frame, FrameReader, Lost, Waiting, is_ended
from irregulars.producers.trace.writer import write_trace

PARTS: Final = "parts"
_CHUNK_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"attempt-([0-9]{1,19})-rank-[0-9]{1,10}\.frames")


def part_path(directory: Path, attempt: int, rank: int) -> Path:
    """Return the path of a rank's part."""
    return directory / PARTS / f"attempt-{attempt}-rank-{rank}.frames"


def assemble_if_whole(directory: Path, world_size: int) -> bool:
    """Put the trace directory together if all ranks have ended; return whether this call did."""
    with _locked(directory):
        parts = _newest_parts(directory)
        if len(parts) < world_size or not all(_has_end(part) for part in parts):
            return False
        _assemble(directory, parts)
    return True


def assemble(directory: Path) -> int:
    """Put the trace directory together from the parts that are there; return the number of ranks.

    Raises InputError if there are no parts, or one is damaged.
    """
    if not _newest_parts(directory):  # before the lock, which makes the directory: a name may be misspelt
        raise InputError(f"{directory / PARTS}: must hold parts written by torch_comms; got none")
    with _locked(directory):
        parts = _newest_parts(directory)
        _assemble(directory, parts)
    return len(parts)


def _newest_parts(directory: Path) -> list[Path]:
    """Return the parts of the newest attempt that any rank began."""
    named = [(path, _NAME.fullmatch(path.name)) for path in sorted((directory / PARTS).glob("*.frames"))]
    attempts = {path: int(name[1]) for path, name in named if name is not None}
    newest = max(attempts.values(), default=0)
    return [path for path, attempt in attempts.items() if attempt == newest]


def _assemble(directory: Path, parts: list[Path]) -> None:
    announcements = []
    until_ns = 0
    for part in parts:
        announcement, lost_rows = None, 0
        for frame in _frames(part):
            if isinstance(frame, Announcement):
                announcement = frame
            elif isinstance(frame, (Lost, End)):
                lost_rows = frame.lost_rows
            # `UNKNOWN` is the least int64, so it is the maximum only where no row has an end.
            elif isinstance(frame, Batch) and len(frame) and (newest := event_times_ns(frame).max()) != UNKNOWN:
                until_ns = max(until_ns, int(newest))
        # A part begins with the announcement: without a whole one, its rank was killed before it wrote any row.
        if announcement is not None:
            announcements.append(replace(announcement, lost_rows=lost_rows))
    announcements = [replace(one, recorded_until_ns=until_ns or None) for one in announcements]
    # Written aside first: a failure meanwhile leaves all parts as they were.
    fresh = directory / ".assembled"
    write_trace(fresh, announcements, (batch for part in parts for batch in _batches(part)))
    for file in fresh.iterdir():
        file.replace(directory / file.name)
    fresh.rmdir()
    shutil.rmtree(directory / PARTS)


def _batches(part: Path) -> Iterator[Batch]:
    """Yield all rows; of a rank that was killed also the operators in which it hung."""
    waiting: Batch | None = None
    for frame in _frames(part):
        if isinstance(frame, Waiting):
            waiting = frame.batch
        elif isinstance(frame, End):
            waiting = None
        elif isinstance(frame, Batch):
            if waiting is not None and frame.header.schema == "commops":
                ended = set(_operators(frame))
                is_left = np.array([one not in ended for one in _operators(waiting)], dtype=bool)
                waiting = Batch(waiting.header, {name: own[is_left] for name, own in waiting.columns.items()})
            yield frame
    if waiting is not None and len(waiting):
        yield waiting


def _operators(batch: Batch) -> Iterator[tuple[int, ...]]:
    columns = (batch.columns[name].tolist() for name in ("communicator", "operator", "sequence", "peer"))
    return zip(*columns, strict=True)  # a process numbers its communicators once, so codes of two batches compare


def _frames(part: Path) -> Iterator[Frame]:
    """Yield the frames of a part, but for one that a killed rank left half-written at its end."""
    reader = FrameReader()
    with part.open("rb") as file:
        try:
            while chunk := file.read(_CHUNK_BYTES):
                yield from reader.feed(chunk)
        except RecordError as error:
            raise InputError(f"{part}: {error}") from error


def _has_end(part: Path) -> bool:
    """Whether the part's rank has ended. Each rank that ends asks this of all others, so only the tail is read."""
    with part.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - END_BYTES, 0))
        return is_ended(file.read())


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # Ranks may end at the same time, and one must assemble. The lock goes with its file, or with the process.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Assemble the directory that is named."""
    if len(arguments) != 1:
        print("usage: python -m irregulars.producers.torch_hook.trace_parts DIR", file=sys.stderr)
        return 2
    try:
        print(f"{arguments[0]}: {counted(assemble(Path(arguments[0])), 'rank')}")
    except (InputError, OSError) as error:
        print(f"irregulars: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
