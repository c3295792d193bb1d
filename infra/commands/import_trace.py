"""``irregulars import``: turn files of other tools into a trace directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.infra.commands.options import Json, open_console, print_json, program
from irregulars.printing import counted

if TYPE_CHECKING:
    from irregulars.infra.runs.trace_reports import LateRank
    from irregulars.producers.importers.imported import ImportedJob
    from irregulars.producers.trace.directory import Trace

_COLLECTIVES_LISTED = 10_000
_LATE_SHOWN = 8
_HOST = re.compile(r"([^=\s]{1,200})=(\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)")
_RUN = re.compile(r"(\d+)(?:-(\d+))?")


def import_trace(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="kineto, flight-recorder, nccl-inspector, clog or nccl-ras.")
    ],
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A file, or a directory of files; .gz is unpacked.")],
    out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="The trace directory to write.")],
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job; default: of SRC.")] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST=RANKS", help="Where ranks live, as node-1=8-15; stands once for each host."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Turn files of another tool into a trace directory, for irregulars analyze OUT_DIR.

    Shows who arrived last in the collectives, which durations alone tell, and what the source can't tell.
    Status 2 when the input is unusable.

    Example: irregulars import kineto traces/ job/ && irregulars analyze job/

    Example: irregulars import flight-recorder dumps/ hung/ && irregulars analyze hung/

    Example: irregulars import nccl-inspector nccl-inspector-4711/ job/

    Example: irregulars import clog clogs/ job/

    Example: irregulars import nccl-ras answers/ hung/ && irregulars analyze hung/
    """
    from irregulars.infra.runs.trace_reports import arrivals_of, collectives_json, late_ranks
    from irregulars.producers.importers.importing import import_trace as read
    from irregulars.producers.trace.directory import read_trace

    imported = read(kind, source, out, job, hosts_of(hosts or ()))
    trace = read_trace(out)
    arrivals, names = arrivals_of(trace)
    late = [one for one in late_ranks(arrivals, names) if one.waited_s]
    if json:
        found = _summary(imported, trace) | {"late_ranks": [one._asdict() for one in late]}
        print_json(found | {"collectives": collectives_json(arrivals, names, _COLLECTIVES_LISTED)})
    else:
        _show(out, _summary(imported, trace), late)


def hosts_of(options: Sequence[str]) -> dict[int, str]:
    """Return the host of each rank that options name.

    >>> hosts_of(["node-0=0-1", "node-1=2,5"])
    {0: 'node-0', 1: 'node-0', 2: 'node-1', 5: 'node-1'}

    Raises `InputError` if an option has another form, or a rank two hosts.
    """
    from irregulars.errors import InputError

    found: dict[int, str] = {}
    for one in options:
        match = _HOST.fullmatch(one)
        if match is None:
            raise InputError(f"host must be HOST=RANKS, as node-1=8-15 or node-1=8,9; got {one!r}")
        for first, last in _RUN.findall(match[2]):
            for rank in range(int(first), int(last or first) + 1):
                if found.setdefault(rank, match[1]) != match[1]:
                    raise InputError(f"host of rank {rank} must be one; got {found[rank]!r} and {match[1]!r}")
    return found


def _summary(imported: ImportedJob, trace: Trace) -> dict[str, Any]:
    from irregulars.producers.trace.iterations import has_marks

    return {
        "job": imported.job,
        "world_size": imported.world_size,
        "clock": imported.clock,
        "ranks": len(imported.ranks),
        "communicators": len(imported.communicators),
        "operators": sum(map(len, trace.commops.values())),
        "iterations": len({n for batch in trace.iterations.values() for n in batch.columns["iteration"].tolist()}),
        "iterations_marked": has_marks(trace),
        "skipped": dict(imported.skipped),
        "unusable_rows": sum(rows.unusable for rows in imported.ranks.values()),
        "notes": list(imported.notes),
    }


def _show(out: Path, summary: dict[str, Any], late: list[LateRank]) -> None:
    console = open_console()
    # The contract has null where the source knows no iteration: so it stays for analyze and replay to infer.
    iterations = (
        counted(summary["iterations"], "iteration") if summary["iterations_marked"] else "no iterations marked"
    )
    console.print(
        f"{out}: {summary['ranks']} of {counted(summary['world_size'], 'rank')}, "
        f"{counted(summary['operators'], 'operator')} on {counted(summary['communicators'], 'communicator')}, "
        f"{iterations}, clock {summary['clock']}",
        markup=False,
    )
    for one in late[:_LATE_SHOWN]:
        console.print(
            f"  {one.operator} on {one.communicator}: rank {one.rank} was last in {one.last_in} of "
            f"{one.collectives}, and was waited for {one.waited_s * 1e3:.3g} ms",
            markup=False,
        )
    for reason, count in summary["skipped"].items():
        console.print(f"Left out: {count} × {reason}", markup=False)
    if summary["unusable_rows"]:
        console.print(f"Left out: {counted(summary['unusable_rows'], 'row')} with impossible values", markup=False)
    if not summary["iterations_marked"]:
        console.print("Iterations: they are inferred from the operators when it is read.", markup=False)
    for note in summary["notes"]:
        console.print(f"Note: {note}.", markup=False)
    console.print(f"Next: {program()} analyze {out}", markup=False)
