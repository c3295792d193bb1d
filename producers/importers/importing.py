"""Import files of other tools as a trace directory: one reader for each kind, around its parser.

`take_anything` takes any files of one job: kinds are recognised by content, and the files taken are named. Evidence
of a hang (dumps, watchdog lines, answers of RAS) is joined. Where it shows operators that never ended it is judged;
else the recording that times operators and covers most ranks is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

import orjson

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.printing import counted
from irregulars.producers.importers.fabric import Fabric
from irregulars.producers.importers.flight_recorder import NOTE_TIMES, Dump, job_of_dumps, load_plain, read_dump
from irregulars.producers.importers.gathering import TRACE, Gathered, gather
from irregulars.producers.importers.groups import ProcessGroup
from irregulars.producers.importers.identity import SECOND, Claim, LeftOut, identify, read_each
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.inspector_job import OperationTable, job_of_operations
from irregulars.producers.importers.inspector_lines import MAX_LINE_BYTES, Connection, LogParser, Process
from irregulars.producers.importers.kineto_job import job_of_captures, none_usable
from irregulars.producers.importers.kineto_kernels import measure
from irregulars.producers.importers.kineto_trace import WANTED, Capture, EventReader, TraceParser
from irregulars.producers.importers.ras_answers import MAX_ANSWER_BYTES, split_answers
from irregulars.producers.importers.ras_records import job_of_answers
from irregulars.producers.importers.watchdog import NOTE_SIZE, WatchdogLog
from irregulars.producers.trace.directory import write_trace
from irregulars.producers.trace.foreign_files import (
    HEAD_BYTES,
    hosts_of_names,
    list_files,
    open_plain,
    rank_of_name,
    read_bounded,
    refuse_other_tools,
    stem_of,
)
from irregulars.producers.trace.job_file import RankLocation
from irregulars.validation import nearest
from irregulars.words import name_ranks

MAX_PICKLE_BYTES: Final = 64 << 20
MAX_JSON_BYTES: Final = 16 << 20  # of one dump. A byte of JSON may become 25 of memory; 20,000 entries take 12 MB.


def import_trace(
    kind: str,
    source: Path,
    directory: Path,
    job: str | None = None,
    hosts: Mapping[int, str] | None = None,
    fabric: Fabric | None = None,
) -> ImportedJob:
    """Read the files of `source`, a file or a directory, and write a trace directory (contract, section 1).

    `kind`: one of `KINDS`. `job`: name of the job; by default that of the source. `hosts`: host of a rank; it wins
    over the one in the files. `fabric`: the switches, where they are known. Raises InputError if the kind is
    unknown, files are unusable, or the directory can't be written; one line that names the file.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}{nearest(kind, KINDS)}")
    with TemporaryDirectory(prefix="irregulars-import-") as scratch:
        with naming_members(Path(scratch)):
            found = gather(source, Path(scratch))
            files = found.files.get(kind) or list_files(source)
            imported = KINDS[kind](files, job or name_of_job(source))
        left_out = [replace_names(one, Path(scratch)) for one in (*found.left_out, *imported.left_out)]
        imported = replace(imported, left_out=tuple(left_out))
    if directory.resolve() == source.resolve():
        raise InputError(f"{directory}: must be another directory than the source; got the same")
    places = {rank: imported.places.get(rank, RankLocation()) for rank in imported.ranks}
    places = {rank: replace(one, host=(hosts or {}).get(rank, one.host)) for rank, one in places.items()}
    write_imported(replace(imported, places=places), directory, fabric)
    return imported


def replace_names(one: LeftOut, scratch: Path) -> LeftOut:
    """Name a member of an archive by the archive and its path in there."""
    return one._replace(name=shown(one.name, scratch), reason=shown(one.reason, scratch))


def shown(text: str, scratch: Path) -> str:
    """Take the folder into which archives were unpacked out of a text.

    >>> shown("/tmp/x/0-1/b.tar.gz/node0/rank_0: is cut", Path("/tmp/x"))
    'b.tar.gz/node0/rank_0: is cut'
    """
    return re.sub(rf"{re.escape(str(scratch))}/\d+-\d+/", "", text)


@contextmanager
def naming_members(scratch: Path) -> Iterator[None]:
    """Put the names that people know into an error's text."""
    try:
        yield
    except InputError as error:
        raise InputError(shown(str(error), scratch)) from None


def write_imported(imported: ImportedJob, directory: Path, fabric: Fabric | None = None) -> None:
    """Write a trace directory; InputError if that is not possible. `fabric`: the switches, where they are known."""
    try:
        write_trace(directory, map((fabric or Fabric()).place, imported.announcements()), imported.batches())
    except OSError as error:
        raise InputError(f"{directory}: must be a directory that can be written; got {error.strerror}") from None


def name_of_job(source: Path) -> str:
    """Name a job after its files."""
    return re.sub(r"[^\w.-]+", "-", stem_of(source.resolve())).strip("-.") or "imported"


@contextmanager
def naming(*files: Path) -> Iterator[None]:
    """Put the file's name, of several that of their folder, before an error's text."""
    try:
        yield
    except InputError as error:
        path, text = files[0].parent if len(files) > 1 else files[0], str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None


# --- flight recorder ------------------------------------------------------------------------------------------------


def read_hang(files: Mapping[str, list[Path]], job: str) -> ImportedJob:
    """Join dumps and lines of watchdogs, each a list of files by its kind; a rank with a dump needs no lines."""
    log = WatchdogLog()

    def read_log_file(path: Path) -> str | None:
        with naming(path), open_plain(path) as stream:
            return log.read(stream, rank_of_name(path))

    groups: dict[ProcessGroup, ProcessGroup] = {}  # equal ones once: each of 10,000 dumps lists all ranks of the job

    def share_groups(dump: Dump) -> Dump:
        return replace(dump, groups={name: groups.setdefault(one, one) for name, one in dump.groups.items()})

    of_dumps, of_logs = (files.get(kind, []) for kind in _JOINED)
    read, broken = read_each(of_dumps, read_dump_file, in_parallel=True, keep=share_groups)
    who = identify([Claim(path, dump.own_rank, dump.digest, dump.world_size) for path, dump in read])
    dumps = [replace(read[at][1], rank=rank) for rank, at in who.ranks.items()]
    read_logs, broken_logs = read_each(of_logs, read_log_file)
    broken += broken_logs
    cut = [f"{path.name} breaks off, and its lines before count: {reason}" for path, reason in read_logs if reason]
    known = {group for dump in dumps for group in dump.groups.values()}
    with_dump = {dump.rank for dump in dumps}
    told = [one for one in log.dumps(known) if one.rank not in with_dump]
    if not dumps and not told and who.left_out:
        raise InputError(f"{who.left_out[0].name}: {who.left_out[0].reason}")
    if not dumps and not told:
        reports = log.reports.job(job, log.world_size)
        if reports is not None:
            return replace(reports, left_out=broken, notes=(*cut, *reports.notes))
        rule = "must hold a line of a watchdog, or of Megatron's or torchtitan's checks, that names a rank"
        raise InputError(f"{(of_logs or of_dumps)[0]}: {rule}; {'; '.join(('got none', *cut, *log.notes))}")
    imported = job_of_dumps([*dumps, *told], job, size=log.world_size)
    of_dumps_alone = (NOTE_TIMES, *(() if log.world_size or all(one.ranks for one in known) else (NOTE_SIZE,)))
    notes = dict.fromkeys((*cut, *who.notes, *(of_dumps_alone if dumps else ()), *log.notes))
    # NCCL's lines name hosts and GPUs, which dumps do not.
    places = {**imported.places, **log.nccl.places(imported.world_size)}
    return replace(
        imported, left_out=(*broken, *who.left_out), notes=tuple(notes),
        places={rank: places[rank] for rank in imported.places}, skipped={**imported.skipped, **log.skipped},
    )  # fmt: skip


def read_dump_file(path: Path) -> Dump:
    """Read one dump; its rank is -1 where neither the file nor its name holds it."""
    with naming(path):
        value = read_bounded(path, MAX_PICKLE_BYTES)
        is_json = value.lstrip()[:1] in (b"{", b"[")
        if is_json and len(value) > MAX_JSON_BYTES:
            raise InputError(f"must be at most {MAX_JSON_BYTES} bytes as JSON; got {len(value)}")
        try:
            told = orjson.loads(value) if is_json else load_plain(value)
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise InputError(f"must be complete JSON; got: {' '.join(str(error).split())[:160]}") from None
        return replace(read_dump(told, rank_of_name(path)), digest=blake2b(value, digest_size=16).digest())


# --- Kineto ---------------------------------------------------------------------------------------------------------


def read_kineto(files: list[Path], job: str, *, is_whole: bool = True) -> ImportedJob:
    """Read traces, one after the other; a host that a trace does not name is read off the file's name.

    `is_whole`: whether they are all of the job's. Raises InputError as well if two processes call themselves one rank
    at the same time.
    """
    traces = traces_among(files)
    hosts = hosts_of_names(traces)
    read, broken = read_each(traces, read_capture, in_parallel=True)
    if not any(one.calls for _, one in read):
        with naming(*files):
            raise none_usable(one.skipped for _, one in read)
    broken += [LeftOut(str(path), "holds no collective", rank_of_name(path)) for path, one in read if one.is_bare]
    read = [(path, one) for path, one in read if not one.is_bare]
    who = identify([Claim(path, one.rank, one.digest, one.world_size, one.span_ns) for path, one in read])
    # Two processes of one time are two ranks: without one of them the job would be judged wrongly.
    second = next((one for one in who.left_out if one.reason.startswith(SECOND.format(rank=one.rank))), None)
    if second is not None:
        other = second.reason.rpartition(": ")[2]
        raise InputError(
            f"{second.name}: ranks must be told apart by the files' names, as rank-5.json; got two processes that "
            f"call themselves rank {second.rank} at the same time, the other in {other}"
        )
    of_rank = [(rank, at) for rank, first in who.ranks.items() for at in (first, *who.later.get(rank, ()))]
    own = ((rank, *read[at]) for rank, at in of_rank)
    captures = [replace(one, rank=rank, host=one.host or hosts.get(path)) for rank, path, one in own]
    if not captures:
        rule = "distributedInfo.rank must be a rank, or the file's name end in one, as rank-3.json"
        raise InputError(f"{files[0]}: {rule}; got neither")
    imported = job_of_captures(captures, job, is_whole=is_whole)
    profiles = grouped((rank, profile) for rank, at in of_rank if (profile := read[at][1].profile) is not None)
    events = {rank: measure(rank, imported.ranks[rank], own) for rank, own in profiles.items()}
    left_out, notes = (*broken, *who.left_out), (*who.notes, *imported.notes)
    return replace(imported, left_out=left_out, notes=notes, events=events)


def traces_among(files: list[Path]) -> list[Path]:
    """Keep the files that are named like traces; if none is, keep all files."""
    return [path for path in files if _TRACE_NAME.search(path.name)] or files


def read_capture(path: Path) -> Capture:
    """Read one trace block by block: it is never in memory as a whole."""
    parser = TraceParser()
    with naming(path), open_plain(path) as stream:
        refuse_other_tools(stream.read(HEAD_BYTES))
        stream.seek(0)
        reader = EventReader(stream, WANTED)
        for event in reader.read():
            parser.add(event)
        return parser.capture(reader.properties(), reader.unreadable)


# --- NCCL Inspector -------------------------------------------------------------------------------------------------


def read_nccl_inspector(files: list[Path], job: str) -> ImportedJob:
    """Read logs of processes."""
    table = OperationTable()
    skipped, dropped, waited_us = Counter[str](), Counter[Process](), dict[Connection, Sequence[int]]()

    def read(path: Path) -> None:
        parser, before = LogParser(), len(table)
        try:
            with naming(path), open_plain(path) as stream:
                for operation in filter(None, map(parser.parse, bounded_lines(stream))):
                    table.add(operation)
        except InputError:
            # The file is left out as a whole, so the operators before its bad line go too.
            table.cut(before)
            raise
        skipped.update(parser.skipped)
        dropped.update(parser.dropped)
        waited_us.update(parser.waited_us)

    _, left_out = read_each(files, read)
    if not len(table) and left_out:
        raise InputError(f"{left_out[0].name}: {left_out[0].reason}")
    with naming(*files):
        imported = job_of_operations(table, dropped, skipped, job, waited_us)
    return replace(imported, left_out=left_out)


def bounded_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; InputError if a line is longer than any that NCCL Inspector writes."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise InputError(f"lines must be at most {MAX_LINE_BYTES} bytes; got a longer one")
        yield line


# --- NCCL RAS -------------------------------------------------------------------------------------------------------


def read_nccl_ras(files: list[Path], job: str) -> ImportedJob:
    """Read saved answers of NCCL's RAS service, one or several in a file, in JSON or in text."""
    read, left_out = read_each(files, lambda path: split_answers(read_bounded(path, MAX_ANSWER_BYTES)))
    answers = [answer for _, own in read for answer in own]
    with naming(*files):
        return replace(job_of_answers(answers, job), left_out=left_out)


_TRACE_NAME: Final = re.compile(r"\.json(\.gz)?$|\.trace\b", re.IGNORECASE)
# Kinds of files, each with the function that reads them.
KINDS: Final[Mapping[str, Callable[[list[Path], str], ImportedJob]]] = {
    "kineto": read_kineto,
    "flight-recorder": lambda files, job: read_hang({"flight-recorder": files}, job),
    "nccl-inspector": read_nccl_inspector,
    "nccl-ras": read_nccl_ras,
    "watchdog": lambda files, job: read_hang({"watchdog": files}, job),
}


# --- anything that people have --------------------------------------------------------------------------------------

_JOINED: Final = ("flight-recorder", "watchdog")  # kinds of which `read_hang` makes one job
_HANG_KINDS: Final = (*_JOINED, "nccl-ras")
_NAMED_LEFT_OUT: Final = 3  # files; more are counted
_NOUNS: Final[Mapping[str, str]] = {
    "flight-recorder": "flight recorder dump", "watchdog": "training log", "nccl-ras": "RAS answer file",
    "kineto": "Kineto trace", "nccl-inspector": "NCCL Inspector log", TRACE: "trace directory",
}  # fmt: skip


def take_anything(source: Path, scratch: Path) -> tuple[Path, tuple[str, ...]]:
    """Make a trace directory of a source: a file, a folder with sub-folders or an archive, of one kind or several.

    Return its folder, and at most six lines for people about the files that it was made of. `scratch`: an empty
    folder; the caller removes it when the trace was read. Raises InputError if nothing in it can be judged.
    """
    unpacked, made = scratch / "unpacked", scratch / "made"
    unpacked.mkdir()
    with naming_members(unpacked):
        found = gather(source, unpacked)
        jobs, left_out = _read_all(found, name_of_job(source))
    left_out = [replace_names(one, unpacked) for one in (*found.left_out, *left_out)]
    traces = found.files.get(TRACE, [])
    if len(traces) > 1:
        names = ", ".join(str(path.relative_to(source)) if path != source else "." for path in traces[:4])
        raise InputError(f"{source}: must hold one trace directory; got {len(traces)} ({names}): name one of them")
    if not traces and not jobs:
        raise InputError(_nothing_usable(source, found, left_out))
    hung = [kind for kind, job in jobs.items() if kind in _HANG_KINDS and job.has_open]
    timed = sorted((kind for kind in jobs if kind not in _HANG_KINDS), key=lambda kind: -len(jobs[kind].ranks))
    # The first one is judged. Last comes evidence of a hang in which all has ended: it times nothing.
    chosen, *others = dict.fromkeys([*hung, *([TRACE] if traces else []), *timed, *jobs])
    job = jobs.get(chosen)
    if job is not None:  # a trace directory is used as it is
        left_out += [replace_names(one, unpacked) for one in job.left_out]
        write_imported(job, made)
    return traces[0] if job is None else made, _lines(source, found, job, chosen, others, left_out)


def _read_all(found: Gathered, name: str) -> tuple[dict[str, ImportedJob], list[LeftOut]]:
    """Read all kinds; one that can't be read as a whole is left out if another one can."""
    jobs: dict[str, ImportedJob] = {}
    failed: list[LeftOut] = []
    together: dict[str, list[Path]] = {kind: found.files[kind] for kind in _JOINED if kind in found.files}
    for kind, files in found.files.items():
        if kind == TRACE or (kind in together and kind != next(iter(together))):
            continue
        try:
            jobs[kind] = read_hang(together, name) if kind in together else KINDS[kind](files, name)
        except InputError as error:
            failed.append(LeftOut(counted(len(files), _NOUNS[kind]), str(error)))
    return jobs, failed


def _nothing_usable(source: Path, found: Gathered, left_out: list[LeftOut]) -> str:
    kinds = "a trace directory, or files of " + ", ".join(KINDS)
    if left_out:
        first = left_out[0]
        more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        reason = first.reason if str(source) in first.reason else f"{first.name}: {first.reason}"
        return reason + more if reason.startswith(str(source)) else f"{source}: {reason}{more}"
    headless = next((one for one in found.unknown if one.name.startswith("commops.")), None)
    if headless is not None:
        return f"{headless.parent / 'job.json'}: must be there, it describes the job of {headless.name}; got none"
    got = f"{counted(len(found.unknown), 'file')} of no kind that is known" if found.unknown else "no file"
    return f"{source}: must hold {kinds}; got {got}"


def _lines(
    source: Path, found: Gathered, job: ImportedJob | None, chosen: str, others: list[str], left_out: list[LeftOut]
) -> tuple[str, ...]:
    together = _JOINED if chosen in _JOINED else ()
    taken = [chosen, *(kind for kind in together if kind != chosen and kind in found.files)]
    parts = [counted(len(found.files[kind]), _NOUNS[kind]) for kind in taken]
    lines = []
    if job is not None:
        of = f" of {job.world_size}" if job.world_size else ""
        silent = sorted(set(range(job.world_size)) - job.ranks.keys())
        lacking = f"; nothing of {name_ranks(silent)}" if silent else ""
        lines.append(f"took {' and '.join(parts)}: {counted(len(job.ranks), 'rank')}{of}{lacking}")
    rest = [kind for kind in others if kind not in taken]
    if rest or found.unknown:
        aside = [counted(len(found.files[kind]), _NOUNS[kind]) for kind in rest]
        aside += [f"{counted(len(found.unknown), 'file')} of other kinds"] if found.unknown else []
        lines.append(f"left aside: {', '.join(aside)}")
    for one in left_out[:_NAMED_LEFT_OUT]:
        lines.append(f"left out {one.name}: {one.reason}".replace(f"{source}/", ""))
    if len(left_out) > _NAMED_LEFT_OUT:
        lines[-1] += f" (and {counted(len(left_out) - _NAMED_LEFT_OUT, 'more file')})"
    if job is not None and job.skipped:
        skipped = ", ".join(f"{count} × {reason}" for reason, count in list(job.skipped.items())[:2])
        lines.append(f"not used: {skipped}")
    lines += [f"note: {note}" for note in (job.notes if job is not None else ())]
    return tuple(lines[:6])
