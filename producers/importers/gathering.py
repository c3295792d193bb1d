"""Files that people have of a job, found and sorted by kind: a file, folders, archives, in any mixture.

Kinds are recognised by content (`producers.trace.foreign_files`). An archive is unpacked into a folder of the
caller's, member by member: only plain files, under names of our own making, and within the bounds below. So is a
file packed with xz, bzip2 or zstd, as an archive of one member; gzip is unpacked where files are read.
"""

from __future__ import annotations

import bz2
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

import pyarrow as pa

from irregulars.errors import InputError
from irregulars.producers.importers.identity import LeftOut
from irregulars.producers.trace.foreign_files import LAUNCH, kinds_of_file, rank_of_name, require_files

try:
    from lzma import LZMAError
    from lzma import open as open_xz
except ImportError:  # a Python built without liblzma

    class LZMAError(Exception):  # type: ignore[no-redef]
        """Never raised."""

    def open_xz(_path: Path) -> IO[bytes]:  # type: ignore[no-redef]
        """Refuse a file."""
        raise OSError("xz, which this Python can't read")


MOST_FILES: Final = 100_000  # of a source, archives included: a rank of the largest jobs known writes one or two
MOST_BYTES: Final = 16 << 30  # that all archives of a source unpack to; a full disk stops more than this program
MOST_DEPTH: Final = 16  # folders in folders, and archives in archives
_CHUNK_BYTES: Final = 1 << 16  # of its last member a cut archive loses at most as much
_NUMBERS: Final = re.compile(r"\d+")
TRACE: Final = "trace"  # a trace directory, kept by its folder


@dataclass(slots=True)
class Gathered:
    """Files of a source by kind, each kind in the order of names."""

    files: dict[str, list[Path]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)  # files of no kind that we know: scripts, notes, pictures
    seen: int = 0
    unpacked_bytes: int = 0

    def leave_out(self, path: Path, reason: str) -> None:
        """Leave out a file, with the rank in its name."""
        self.left_out.append(LeftOut(str(path), reason.removeprefix(f"{path}: "), rank_of_name(path)))


def gather(source: Path, scratch: Path) -> Gathered:
    """Find the files of a source and sort them by kind.

    `scratch`: an empty folder for the members of archives; the caller removes it. Raises InputError if the source is
    none, or holds more than the bounds above.
    """
    require_files(source)
    found = Gathered()
    _take(source, scratch, found, 0)
    # A cut file may lack all signs of its kind, and has the name of its siblings' kind. A log without is of a rank
    # that did not wait.
    names = {_NUMBERS.sub("N", path.name): kind for kind, files in found.files.items() for path in files}
    for path in list(found.unknown):
        kind = names.get(_NUMBERS.sub("N", path.name))
        if kind == "watchdog":
            found.unknown.remove(path)
            found.files[kind].append(path)
        elif kind is not None and rank_of_name(path) is not None:
            found.unknown.remove(path)
            found.leave_out(path, "must be of the kind that its name says; got none")
    return found


def _take(path: Path, scratch: Path, found: Gathered, depth: int) -> None:
    if depth > MOST_DEPTH:
        found.left_out.append(LeftOut(str(path), f"lies more than {MOST_DEPTH} folders deep"))
    elif path.is_dir():
        _take_folder(path, scratch, found, depth)
    else:
        _take_file(path, scratch, found, depth)


def _take_folder(folder: Path, scratch: Path, found: Gathered, depth: int) -> None:
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        found.left_out.append(LeftOut(str(folder), str(error.strerror)))
        return
    # All files beside it are the trace directory's own: it is used as it is.
    if any(path.name == "job.json" for path in inside):
        found.files.setdefault(TRACE, []).append(folder)
        return
    attempts = {path: int(told[1]) for path in inside if (told := LAUNCH.fullmatch(path.name))}
    newest = max(attempts.values(), default=0)
    for path in inside:
        if attempts.get(path, newest) < newest:
            found.left_out.append(LeftOut(str(path), "of an earlier start of the job"))
        elif path.is_symlink() and path.is_dir():  # it may lead back up
            found.left_out.append(LeftOut(str(path), "a link to a folder"))
        else:
            _take(path, scratch, found, depth + 1)


def _take_file(path: Path, scratch: Path, found: Gathered, depth: int) -> None:
    found.seen += 1
    if found.seen > MOST_FILES:
        raise InputError(f"{path}: must be among at most {MOST_FILES} files; got more")
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return  # reading a pipe or a device might block for ever
        if path.stat().st_size == 0:
            found.leave_out(path, "empty")
            return
        members, inside = _members(path), Path(path.name)
        if members is None:  # as if unpacked where it is: folders may name its rank
            around = Path(os.path.abspath(path)).parent  # names no `..`, which would lead out of `scratch`
            members, inside = _packed(path), Path(around.parent.name, around.name)
        kinds = kinds_of_file(path) if members is None else ()
    except OSError as error:
        found.leave_out(path, str(error.strerror))
        return
    except InputError as error:
        found.leave_out(path, str(error))
        return
    if members is not None:
        # `shown` in importing.py takes this folder out of texts; the count keeps archives of one name apart.
        folder = scratch / f"{len(found.files)}-{found.seen}" / inside
        _unpack(path, folder, found, members)
        if folder.is_dir():
            _take_folder(folder, scratch, found, depth + 1)
    elif not kinds:
        found.unknown.append(path)
    for kind in kinds:
        found.files.setdefault(kind, []).append(path)


# --- archives -------------------------------------------------------------------------------------------------------

_Member = tuple[str, IO[bytes]]


def _members(path: Path) -> Iterator[_Member] | None:
    """Return the plain files of an archive, each with its name and content; None where it is no archive."""

    def of_zip() -> Iterator[_Member]:
        with zipfile.ZipFile(path) as archive:
            for one in archive.infolist():
                # Archives of Windows have no mode: 0.
                is_plain = stat.S_IFMT(one.external_attr >> 16) in (0, stat.S_IFREG)
                if not one.is_dir() and is_plain:
                    with archive.open(one) as stream:
                        yield one.filename, stream

    def of_tar() -> Iterator[_Member]:
        with tarfile.open(path, "r:*") as archive:
            for one in archive:
                stream = archive.extractfile(one) if one.isreg() else None
                if stream is not None:
                    yield one.name, stream
            # `tarfile` takes the end of the file for the end of the archive, which is a block of zeros.
            if archive.fileobj is not None and archive.fileobj.tell() < archive.offset + tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it ends without an end mark")

    if zipfile.is_zipfile(path):
        return of_zip()
    # Looking unpacks its begin: a gzip file that is cut raises here, and is reported when its kind is read.
    try:
        return of_tar() if tarfile.is_tarfile(path) else None
    except (tarfile.TarError, EOFError, zlib.error, LZMAError):
        return None


def _packed(path: Path) -> Iterator[_Member] | None:
    """Return the one member of a packed file; None where it is none."""

    def member(unpack: Callable[[Path], Any]) -> Iterator[_Member]:
        with unpack(path) as stream:
            yield path.stem, stream

    with path.open("rb") as file:
        head = file.read(10)
    return next((member(unpack) for sign, unpack in _PACKED.items() if re.match(sign, head)), None)


_PACKED: Final[dict[bytes, Callable[[Path], Any]]] = {
    rb"\xfd7zXZ\0": open_xz,
    rb"BZh\d1AY&SY": bz2.open,
    rb"\x28\xb5\x2f\xfd": lambda path: pa.input_stream(str(path), compression="zstd"),
}


def _unpack(path: Path, folder: Path, found: Gathered, members: Iterator[_Member]) -> None:
    """Write the members of an archive; a broken one gives those before its damage."""
    try:
        for count, (name, stream) in enumerate(members):
            if found.seen + count > MOST_FILES:
                raise InputError(f"{path}: must hold at most {MOST_FILES} files; got more")
            # Parts of the member's path that can only lie below the folder, and fit into its names
            parts = [part[-200:].replace("\0", "") for part in PurePosixPath(name.replace("\\", "/")).parts]
            safe = [part for part in parts if part not in ("", "/", ".", "..")][-MOST_DEPTH:]
            target = folder.joinpath(*(safe or ["member"]))
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                while chunk := stream.read(_CHUNK_BYTES):
                    found.unpacked_bytes += len(chunk)
                    if found.unpacked_bytes > min(MOST_BYTES, shutil.disk_usage(folder).free):
                        raise InputError(f"{path}: must unpack to at most {MOST_BYTES} bytes, and to what the disk "
                                         "has free; got more")  # fmt: skip
                    out.write(chunk)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, LZMAError, OSError, RuntimeError,
            NotImplementedError, ValueError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        found.left_out.append(LeftOut(str(path), f"must be a complete archive; got: {reason}"))
