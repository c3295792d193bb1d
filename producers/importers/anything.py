"""Whatever people have of one job, as a trace directory: kinds are told by content, and what was taken is said.

Evidence of a hang (dumps, watchdog lines, answers of RAS) is joined. Where it shows operators that never ended it is
judged; else the recording that times operators and covers most ranks is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.printing import counted
from irregulars.producers.importers.gathering import TRACE, Gathered, gather
from irregulars.producers.importers.identity import LeftOut
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import (
    KINDS,
    name_of_job,
    naming_members,
    read_hang,
    replace_names,
    with_hosts,
    write_imported,
)
from irregulars.words import name_ranks

_JOINED: Final = ("flight-recorder", "watchdog")  # kinds of which `read_hang` makes one job
_HANG_KINDS: Final = (*_JOINED, "nccl-ras")
_NAMED_LEFT_OUT: Final = 3  # files; more are counted
_NOUNS: Final[Mapping[str, str]] = {
    "flight-recorder": "flight recorder dump", "watchdog": "training log", "nccl-ras": "RAS answer file",
    "kineto": "Kineto trace", "nccl-inspector": "NCCL Inspector log", "clog": "clog log", TRACE: "trace directory",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """A trace directory to judge, and what it was made of."""

    directory: Path
    lines: tuple[str, ...] = ()  # at most six, for people


def take_anything(source: Path, scratch: Path, hosts: Mapping[int, str] | None = None) -> Taken:
    """Make a trace directory of a source: a file, a folder with sub-folders or an archive, of one kind or several.

    `scratch`: an empty folder; the caller removes it when the trace was read. `hosts`: hosts that people named.
    Raises InputError if nothing in it can be judged.
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
    order = [*hung, *([TRACE] if traces else []), *timed, *jobs]
    chosen, others = order[0], [kind for kind in dict.fromkeys(order[1:]) if kind != order[0]]
    if chosen == TRACE:
        return Taken(traces[0], _lines(source, found, None, TRACE, others, left_out))
    job = jobs[chosen]
    left_out += [replace_names(one, unpacked) for one in job.left_out]
    write_imported(with_hosts(job, hosts or {}), made)
    return Taken(made, _lines(source, found, job, chosen, others, left_out))


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
            failed.append(LeftOut(f"{counted(len(files), _NOUNS[kind])}", str(error)))
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
