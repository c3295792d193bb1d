"""``irregulars analyze`` and ``explain``: judge a recorded job, and show why an iteration was judged so."""

from __future__ import annotations

import atexit
import gc
import math
import shlex
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.infra.commands.options import Json, open_console, plain, print_json, repeated, settings_of
from irregulars.printing import broken, counted, printable, say

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.infra.runs.analysis import Analysis
    from irregulars.messages.judgements import Verdict
    from irregulars.producers.trace.directory import Trace


_SUSPECTS_SHOWN = 3
_PARTS_SHOWN = 5
_PLACES_SHOWN = 8

_COLLECT_AFTER_OBJECTS = 70_000  # a hundred times Python's own


class Source(StrEnum):
    """Files of a trace directory that can be left aside."""

    commops = "commops"
    bandwidth = "bandwidth"
    iterations = "iterations"


def analyze(
    context: typer.Context,
    directory: Annotated[
        Path,
        typer.Argument(metavar="SRC", help="A trace directory, or what import reads: a file, folder or archive."),
    ],
    delta: Annotated[
        float | None, typer.Option(help="Irregular: longer than this times the mean of the window.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Iterations in the window.")] = None,
    without: Annotated[
        list[Source] | None,
        typer.Option(help="Leave a file aside, and tell what the others do; may stand several times."),
    ] = None,
    json: Json = False,
) -> None:
    """Judge a recorded job: which iterations were irregular, and which device is to blame.

    SRC may hold sub-folders, be a .tar, .tar.gz, .tgz or .zip, and mix kinds (dumps and logs of one job): they are
    recognised by content, and what was taken is said.
    Runs the stream's own monitors in one process, without Kafka or database, and gives the same verdicts.
    Status 0 whatever was found, 2 when the input is unusable. Without a log of operators (--without commops) the
    bandwidth of the NICs alone is judged: a NIC whose rate is steady and capped while others burst is found.

    Example: irregulars analyze tests/recordings/gloo-slow-nic --json

    Example: irregulars analyze dumps.tar.gz
    """
    from irregulars.infra.runs.analysis import analyze as judge
    from irregulars.infra.wiring import monitor_settings

    with _collecting_rarely():
        settings = monitor_settings(settings_of(context, delta=delta, window=window), has_detectors=False)
        analysis = judge(read_and_report(directory, without or ()), settings)
    if json:
        print_json(analysis.to_json())
    else:
        show_analysis(analysis)
        if analysis.verdicts:
            command = f"{repeated(context, delta=delta, window=window)} show {shlex.quote(printable(directory))}"
            print(f"\nOn one screen, with who waited for whom: {command}")


def read_and_report(directory: Path, without: Collection[str] = ()) -> Trace:
    """Read a trace directory, or any source that an importer reads; report the rows left out on standard error."""
    from irregulars.infra.runs.trace_reports import report_traffic
    from irregulars.producers.trace.directory import read_trace
    from irregulars.producers.trace.iterations import number_iterations

    # A trace directory of ours is read in place; anything else is converted first.
    if directory.is_dir() and any((directory / name).exists() for name in ("job.json", "parts")):
        trace = read_trace(directory, without=without)
    else:
        from irregulars.producers.importers.importing import take_anything

        with TemporaryDirectory(prefix="irregulars-analyze-") as scratch:
            made, lines = take_anything(directory, Path(scratch))
            for line in lines:
                say(printable(line))
            trace = read_trace(made, without=without)
    if trace.rejected.count:
        say(f"{rows_left_out(trace)}; the first reasons:")
        for reason in trace.rejected.reasons:
            print(f"  {printable(reason)}", file=sys.stderr)
    numbered = number_iterations(trace)
    if numbered.report:
        say(numbered.report)
    for line in report_traffic(trace):
        say(line)
    return numbered.trace


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Collect cycles after a hundred times as many new objects as Python does: judging makes hardly any cycles.

    At Python's own pace, and with another collection of everything when the process ends, this was a sixth of the
    time that a small recording took.
    """
    before = gc.get_threshold()
    gc.freeze()  # what was imported stays until the end
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        # Python collects once more at its end: frozen objects are not visited then.
        atexit.register(gc.freeze)


def rows_left_out(trace: Trace) -> str:
    """Return the words that count the rows left out."""
    count = trace.rejected.count
    return f"{counted(count, 'row')} {'was' if count == 1 else 'were'} left out"


def show_analysis(analysis: Analysis) -> None:
    """Print an analysis for people."""
    from irregulars.messages.kinds import STANDSTILLS

    console = open_console()
    ranges = analysis.irregular_ranges
    count = sum(one.is_irregular is True for one in analysis.iterations)
    within = "within " if count < sum(past - first for first, past in ranges) else ""  # they join over regular ones
    shown = ", ".join(str(first) if past - first == 1 else f"{first} to {past - 1}" for first, past in ranges)
    places = f" ({within}{shown})" if shown else ""
    judged = f"{counted(len(analysis.iterations), 'iteration')}, {count} of them irregular{places}"
    console.print(f"[bold]{plain(analysis.job)}[/bold]: {judged}")
    if analysis.lost_rows:
        lost = sorted(analysis.lost_rows.items(), key=lambda one: (-one[1], one[0]))
        more = f" and {counted(len(lost) - _PLACES_SHOWN, 'more rank')}" if len(lost) > _PLACES_SHOWN else ""
        shown = ", ".join(f"rank {rank} lacks {rows}" for rank, rows in lost[:_PLACES_SHOWN])
        console.print(f"Rows that were lost before they were read: {shown}{more}.")
    if analysis.unjudged_reason is not None:
        console.print(f"Cannot judge, because {plain(analysis.unjudged_reason)}.")
        for late in analysis.late_ranks[:_PARTS_SHOWN]:
            console.print(f"Counted all the same: {plain(late.text())}.")
    elif not analysis.verdicts:
        why = ": no cause was clear at once, or seen often enough" if analysis.parts else ""
        console.print(f"Nobody to blame{why}.")
    # A cause that was seen in more regular iterations than irregular ones has become usual for the window.
    lasting = [one for one in analysis.verdicts if one.has_healthy_past and one.kind not in STANDSTILLS]
    ids = {one.verdict_id for one in lasting}
    seen = [one for one in analysis.iterations if not ids.isdisjoint(one.verdict_ids)]
    if sum(one.is_irregular is False for one in seen) > sum(one.is_irregular is True for one in seen):
        console.print(
            "Irregular: longer than delta times the window before, which learns what lasts. Slow, in the evidence: "
            "longer than the job's noise explains, against the time before the verdict."
        )
    for verdict in analysis.verdicts:
        _show_verdict(console, verdict)
    _show_irregular(console, analysis)


def _show_irregular(console: Console, analysis: Analysis) -> None:
    """Print the parts of irregular iterations without a verdict; and who was last, where no verdict is possible."""
    from irregulars.words import duration

    parts = analysis.parts
    if parts:
        console.print("\nIrregular without a verdict, by what took most beyond its usual time:")
    for part in parts[:_PARTS_SHOWN]:
        more = ", …" if len(part.iterations) > _PLACES_SHOWN else ""
        where = ", ".join(map(str, part.iterations[:_PLACES_SHOWN])) + more
        print(broken(f"  {len(part.iterations)} ({where}): {printable(part.text())}", sys.stdout, "    "))
    if len(parts) > _PARTS_SHOWN:
        console.print(f"  {sum(len(part.iterations) for part in parts[_PARTS_SHOWN:])} of other kinds: see --json")
    is_too_short = all(one.is_irregular is None for one in analysis.iterations)
    if analysis.last is not None and (parts or is_too_short):
        rank, count, of, by_ns = analysis.last
        console.print(f"Rank {rank} worked longest in {count} of {of} iterations, typically by {duration(by_ns)}.")


def _show_verdict(console: Console, verdict: Verdict) -> None:
    from irregulars.messages.kinds import STANDSTILLS
    from irregulars.sinks.advice import name_device, usual_of
    from irregulars.words import percent, span

    # An iteration that never ends is no multiple of the others
    is_told = verdict.kind not in STANDSTILLS and not math.isnan(verdict.delta)
    times = f": {verdict.delta:.2f} times {usual_of(verdict)}" if is_told else ""
    lost = f", {verdict.lost_s:.2f} s lost" if verdict.lost_s else ""
    urgency = f" ({verdict.severity})" if verdict.severity else ""
    head = broken(f"{verdict.kind} in {span(verdict.iterations)}{times}{lost}{urgency}", sys.stdout, "  ")
    console.print(f"\n[bold red]{verdict.kind}[/bold red]{head.removeprefix(verdict.kind)}")
    for suspect in verdict.suspects[:_SUSPECTS_SHOWN]:
        device = printable(name_device(suspect))
        print(broken(f"  {percent(suspect.probability):>4}  {device}", sys.stdout, " " * 8))
    print(broken(f"  {printable(verdict.evidence)}", sys.stdout, "    "))


def explain(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="DIR", help="A trace directory: job.json and commops.*.")],
    iteration: Annotated[int, typer.Option(help="Which iteration, in the job's own numbering.")],
    rank: Annotated[int | None, typer.Option(min=0, help="Also what this rank did in it.")] = None,
    json: Json = False,
) -> None:
    """Explain why one iteration was judged as it was: its time, where that went, and the verdicts that hold it.

    The recording is judged as analyze does; all that is printed is what the judge knew.

    Example: irregulars explain tests/recordings/gloo-slow-nic --iteration 70 --rank 1
    """
    from irregulars.infra.runs.analysis import explain_iteration, explanation_lines
    from irregulars.infra.wiring import monitor_settings

    settings = monitor_settings(settings_of(context), has_detectors=False)
    explained = explain_iteration(read_and_report(source), iteration, rank, settings)
    if json:
        print_json(explained.to_json())
        return
    width = shutil.get_terminal_size().columns
    for line in explanation_lines(explained):
        indent = " " * (len(line) - len(line.lstrip()))
        text = textwrap.fill(printable(line.strip()), width, initial_indent=indent, subsequent_indent=f"{indent}  ",
                             break_on_hyphens=False)  # fmt: skip
        print(text)
