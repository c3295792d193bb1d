"""Files of other tools: found, opened, read within bounds, and recognised by how they begin."""

from __future__ import annotations

import codecs
import gzip
import logging
import re
import shlex
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

from irregulars.errors import InputError

_LOG: Final = logging.getLogger("irregulars.following")
GZIP_MAGIC: Final = b"\x1f\x8b"
_ENDINGS: Final = frozenset((
    ".bz2", ".err", ".gz", ".json", ".jsonl", ".log", ".out", ".pickle", ".pkl", ".pt", ".tar", ".tgz", ".trace",
    ".txt", ".xz", ".zip", ".zst",
))  # fmt: skip
# A number at the end of a word, and the word: the rank of rank3_step12 is 3, that of gpu-worker-11_0 is 0.
_WORD_NUMBER: Final = re.compile(r"(?:([A-Za-z]+)[-_.=]?)?(?<!\d)(\d+)(?![0-9A-Za-z])")
_OF_ALL: Final = re.compile(r"[-_.]?of[-_.]?\d+$")
_RANK_WORD: Final = re.compile(r"(?:^|[^A-Za-z])(?:rank|worker)[-_.]?\d", re.IGNORECASE)
_NO_RANKS: Final = frozenset(
    {"step", "steps", "iter", "iteration", "epoch", "pid", "of", "world", "size", "v", "job", "attempt", "restart"}
)
LAUNCH: Final = re.compile(r"attempt_(\d{1,6})")  # torchrun's folder of the logs of one start of a job
_MOST_DIGITS: Final = 6  # of a rank; longer numbers are times and processes
_HOST_NAME: Final = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)_\d{1,10}\.(?:\d+\.)?pt\.trace\.json(?:\.gz)?$"
)


def list_files(source: Path) -> list[Path]:
    """List the files to import: the file itself, or all files of a directory in the order of their names.

    Raises InputError if there is nothing, or nothing that can be read to its end, or the directory holds no file.
    """
    require_files(source)
    if not source.is_dir():
        return [source]
    try:
        found = sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{source}: must be a file or a directory of files; got: {error.strerror}") from None
    if not found:
        raise InputError(f"{source}: must hold files to import; got an empty directory")
    return found


def require_files(source: Path) -> None:
    """Raise InputError if there is nothing, or nothing that can be read to its end, as a pipe."""
    try:
        mode = source.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{source}: must be a file or a directory of files; got nothing") from None
    except OSError as error:
        raise InputError(f"{source}: must be a file or a directory of files; got: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{source}: must be a file or a directory of files; got a pipe, socket or device")


BREAKS: Final = (OSError, EOFError, zlib.error)
"""Errors with which a read meets the place where a file is cut or damaged."""


class Unpacked(gzip.GzipFile):
    """A gzip file of which a cut or damage takes nothing that comes before it: only the next read raises.

    The library's own `read` drops the bytes that it has when it meets the cut: of a log of 6 MiB, read in blocks of
    8 MiB, those are all.
    """

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes; raises one of `BREAKS` where a cut or damage comes first."""
        most = -1 if size is None else size
        found = bytearray()
        try:
            while len(found) != most and (part := self.read1(most - len(found))):
                found += part
        except BREAKS:
            if not found:
                raise
        return bytes(found)


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, whatever its name says: unpacked if it is gzipped, and texts of Windows as plain UTF-8.

    These are UTF-16 (PowerShell's), or begin with a mark. Raises InputError if the file is missing, and at the first
    read behind a cut or damage.
    """
    try:
        with path.open("rb") as raw:
            begin = raw.read(len(codecs.BOM_UTF8))
            raw.seek(len(begin) if begin == codecs.BOM_UTF8 else 0)
            if begin.startswith(GZIP_MAGIC):
                yield cast(IO[bytes], Unpacked(fileobj=raw))
            elif begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                yield cast(IO[bytes], codecs.EncodedFile(raw, "utf-8", "utf-16", "replace"))
            else:
                yield raw
    except BREAKS as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"{path}: must be complete and readable; got: {reason}") from None


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a file whole, unpacked.

    Raises InputError if it can't be read, is empty, or is larger than `most_bytes` when unpacked.
    """
    with open_plain(path) as stream:
        value = stream.read(most_bytes + 1)
        stream.read(1)  # of a file that is cut it raises, where the read before gave the part that is left
    if len(value) > most_bytes:
        raise InputError(f"{path}: must be at most {most_bytes} bytes when unpacked; got more")
    if not value.strip():
        raise InputError(f"{path}: must not be empty; got no content")
    return value


def rank_of_name(path: Path) -> int | None:
    """Read a rank off a file's name: the number after ``rank``, else the one at its end, else that after ``worker``.

    Where the name has none, that after ``rank`` in its folder's name counts, or torchrun's folder of a local rank.

    >>> names = "worker3_step_12.pt.trace.json", "_dump_12", "notes.txt", "host.1694128201545.pt.trace.json"
    >>> [rank_of_name(Path(name)) for name in names]
    [3, 12, None, None]
    >>> [rank_of_name(Path(name)) for name in ("nccl_trace_rank_gpu-worker-11_0", "train-worker-1_rank_7.json.gz")]
    [0, 7]
    >>> [rank_of_name(Path(name)) for name in ("run/rank_5/trace.json", "node-5/trace.json", "trace_3_of_8.json")]
    [5, None, 3]
    >>> rank_of_name(Path("none_x8kq/attempt_0/3/stderr.log"))
    3
    """
    stem = _OF_ALL.sub("", stem_of(path))
    words, around = _words_before_numbers(stem), _words_before_numbers(path.parent.name)
    ranks, ranks_around = ([int(match[2]) for word, match in own if word.endswith("rank")] for own in (words, around))
    ends = [int(match[2]) for word, match in words if match.end() == len(stem) and word not in _NO_RANKS]
    if LAUNCH.fullmatch(path.parent.parent.name) and re.fullmatch(r"\d{1,6}", path.parent.name):
        ranks_around = [int(path.parent.name)]
    workers = [int(match[2]) for word, match in words if word == "worker"]
    return next((numbers[-1] for numbers in (ranks, ends, workers, ranks_around) if numbers), None)


def _words_before_numbers(name: str) -> list[tuple[str, re.Match[str]]]:
    found = [match for match in _WORD_NUMBER.finditer(name) if len(match[2]) <= _MOST_DIGITS]
    return [((match[1] or "").lower(), match) for match in found]


def hosts_of_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Read hosts off names in the form that torch's ``tensorboard_trace_handler`` gives: HOST_PID.TIME.pt.trace.json.

    Empty unless all names have that form, and their hosts could be hosts.

    >>> names = Path("node-0_4711.1694128201545.pt.trace.json"), Path("gpu7.example_99.pt.trace.json.gz")
    >>> list(hosts_of_names(names).values())
    ['node-0', 'gpu7.example']
    >>> hosts_of_names([*names, Path("rank3.json")]), hosts_of_names([Path("rank3_17.pt.trace.json")])
    ({}, {})
    """
    found = {path: match[1] for path in paths if (match := _HOST_NAME.match(path.name)) is not None}
    is_plausible = len(found) == len(paths) and not any(_RANK_WORD.match(host) for host in found.values())
    return found if is_plausible else {}


def stem_of(path: Path) -> str:
    """Return a file's name without the endings of its format."""
    # One after the other: rank3.pt.trace.json.gz has four.
    while path.suffix.lower() in _ENDINGS:
        path = path.with_suffix("")
    return path.name


class Directory:
    """The files of a directory. Logs once that it can't be read, and once that it can again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = self._is_denied = False

    def changes(self) -> list[tuple[int, Path]]:
        """List its files, each with the time at which it last changed there.

        That is the time of the inode's change: a file that is moved in from elsewhere may keep its older time, and a
        clock that is ahead may have given it a later one.
        """
        try:
            paths = list(self._path.iterdir())
        except OSError as error:
            if not self._has_failed:
                _LOG.warning("event=directory_unreadable directory=%s reason=%r", self._path, error.strerror)
            self._has_failed = True
            return []
        if self._has_failed:
            _LOG.info("event=directory_back directory=%s", self._path)
        self._has_failed = False
        changes = []
        for path in paths:
            try:
                found = path.stat()
            except OSError as error:
                if isinstance(error, PermissionError) and not self._is_denied:
                    _LOG.warning("event=directory_unreadable directory=%s reason=%r", self._path, error.strerror)
                    self._is_denied = True
                continue  # else it was just removed
            if stat.S_ISREG(found.st_mode) and not path.name.startswith("."):
                changes.append((found.st_ctime_ns, path))
        return changes


_FILES_LOOKED_AT: Final = 8
# Of each file. Kineto writes the properties of all devices first, some hundred bytes each.
HEAD_BYTES: Final = 256 * 1024
# Kind of `irregulars import` to words of which its files have all of one group near their begin.
_SIGNS: Final[Mapping[str, tuple[tuple[bytes, ...], ...]]] = {
    "kineto": ((b'"traceEvents"',), (b'"distributedInfo"',), (b'"schemaVersion"', b'"deviceProperties"')),
    "nccl-inspector": ((b'"coll_perf"',), (b'"p2p_perf"',), (b'"dump_stats"',)),
    "flight-recorder": ((b"pg_config", b"version"), (b"pg_status", b"version"), (b"collective_seq_id",),
                        (b"seq_id", b"profiling_name")),
    "nccl-ras": (
        (b'"communicators"', b'"nccl_version"'), (b'"communicators"', b'"missing_ranks"'),
        (b"NCCL version ", b"Job summary", b"Communicators..."),
    ),
}  # fmt: skip
_NCCL_EXAMPLE: Final = (
    "a trace of NCCL's example profiler plugin, whose other plugin, Inspector, writes logs that are read"
)
# Files that are often taken for traces: words, all near the begin of such a file, and its description.
_OTHERS: Final = (
    ((b'"CommHash"', b'"ph"'), _NCCL_EXAMPLE),
    ((b'"cat": "PROXY"', b'"ph"'), _NCCL_EXAMPLE),
    ((b'"rocprofiler-sdk-tool"',), "a profile of rocprofv3, which does not tell ranks and groups"),
    ((b"[pytorch|profiler|execution_trace",), "an execution trace of PyTorch, which holds no times of the GPU"),
    ((b'"CPU functions"', b'"ph"'), "a trace of torch.autograd.profiler, which does not tell groups and sizes"),
    ((b'"XLA Ops"',), "a trace of XLA (JAX or TensorFlow), whose collectives are not those of PyTorch"),
    ((b'"Ascend Hardware"',), "a trace of Ascend's profiler, whose operators are not known here"),
    ((b'"viztracer_metadata"',), "a trace of VizTracer, which knows Python alone"),
    ((b"SQLite format 3\0",), "a SQLite database, as Nsight Systems exports one"),
)


def refuse_other_tools(head: bytes) -> None:
    """Raise InputError if a file that begins so is of a tool whose files can't be judged; the text names the tool."""
    found = next((what for words, what in _OTHERS if all(word in head for word in words)), None)
    if found is not None:
        rule = "must be of a tool that import reads, as torch.profiler"
        raise InputError(f"{rule}; got {found}, and can't be judged")


_SEARCHED_BYTES: Final = 8 << 20  # of a log at once
# Words of which a log of a training job that hung, or that checks itself, has one anywhere: lines of the watchdogs of
# PyTorch and TorchComms, of HCCL, gloo and NCCL, and of the checks of Megatron and torchtitan.
CHECK_SIGNS: Final = (
    b"| MnRtt/Rnk: ", b"nexpected result ", b" jobID=", b" in local grad norm", b"SDC replay mismatch: ",
)  # fmt: skip
LOG_SIGNS: Final = (
    b"atchdog", b"onitoredBarrier", b"ast enqueued", b"etected mismatch between collectives",
    b"borting process due to", b"in blocking wait", b"EI0002:", b"gloo/transport/", b"NCCL WARN", b"opCount",
    b"Last error:", b"first observed failure", b"CL communicator and retr", b"seconds waiting for clients",
    b"srun: error: ", b"[TC][rank=", b"tore based barrier on rank: ", b"client socket has timed out",
    b" Child process with PID ",
    *CHECK_SIGNS,
)  # fmt: skip


def kind_of_files(source: Path) -> str | None:
    """Return the kind under which `irregulars import` reads a file, or the files of a directory; None: unknown."""
    with suppress(InputError):
        for path in list_files(source)[:_FILES_LOOKED_AT]:
            with suppress(InputError):
                kinds = kinds_of_file(path)
                if kinds:
                    return kinds[0]
    return None


def how_to_import(source: Path) -> str:
    """Return advice on importing files that were taken for a trace directory; empty where they are unknown.

    >>> how_to_import(Path("/nowhere"))
    ''
    """
    kind = kind_of_files(source)
    if kind is None:
        return ""
    return f". It looks like {kind}; run: irregulars import {kind} {shlex.quote(str(source))} job/"


def kinds_of_file(path: Path) -> tuple[str, ...]:
    """Return the kind of one file by its content; empty: of none. Raises InputError if it can't be read.

    A text with answers of RAS may be a training log as well, and then is of both kinds.
    """
    with open_plain(path) as stream:
        head = stream.read(HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
        try:
            refuse_other_tools(head)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if head.lstrip()[:1] == b"[" and b'"ph"' in head:  # Chrome's format as a list of events
            return ("kineto",)
        groups = ((kind, group) for kind, all_groups in _SIGNS.items() for group in all_groups)
        found = tuple(kind for kind, group in groups if all(word in head for word in group))[:1]
        if found not in ((), ("nccl-ras",)) or b"\0" in head:
            return found
        overlap = max(map(len, LOG_SIGNS))
        while head:  # a text may hold lines of a watchdog far down
            if any(sign in head for sign in LOG_SIGNS):
                return (*found, "watchdog")
            # A word may be cut by the end of a block.
            more = stream.read(_SEARCHED_BYTES)
            head = head[-overlap:] + more if more else b""
        return found
