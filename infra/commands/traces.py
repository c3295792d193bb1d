"""Trace directories: ``irregulars import`` and ``simulate`` write one, ``replay`` publishes one."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars import stopping
from irregulars.errors import InputError
from irregulars.infra.commands.options import Json, asks, open_console, print_json, program, settings_of
from irregulars.printing import counted, say

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.infra.runs.trace_reports import LateRank
    from irregulars.producers.importers.imported import ImportedJob
    from irregulars.producers.publishing.agent import Progress
    from irregulars.producers.simulator.settings import SimulatorSettings
    from irregulars.producers.trace.directory import Trace


# Seconds without an acknowledgement until a warning: a broker in good health takes a fraction of one
QUIET_S = 10.0

_FIRST_ROWS = 16


@asks("kafka")
def replay(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A trace directory: job.json and commops.*")],
    speed: Annotated[
        float, typer.Option(help="1: as recorded; 10: ten times as fast; 0: as fast as Kafka goes.")
    ] = 1,
    job: Annotated[str | None, typer.Option(help="Call the job so; default: the name in job.json.")] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Start number of the job.")] = None,
    is_moving: Annotated[
        bool | None,
        typer.Option(
            "--now/--keep-times",
            help="Move its times to now, or leave them; default: move those that lie in the future.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Publish a trace directory to Kafka, at the pace of the recorded job.

    Ctrl-C or SIGTERM ends it cleanly: what was read is delivered.

    A simulated job begins on 2027-01-15, so that it is the same each time. Where that lies in the future, its times
    are moved: it begins now, or with --speed 0 it has just ended. Real recordings keep theirs without --now.

    Example: irregulars replay tests/recordings/gloo-slow-nic --speed 0
    """
    from irregulars.infra.commands.analyze import rows_left_out
    from irregulars.infra.wiring import agent_settings
    from irregulars.kafka.broker import REFUSED_S
    from irregulars.producers.publishing.agent import Agent
    from irregulars.producers.trace.directory import read_trace
    from irregulars.producers.trace.iterations import number_iterations
    from irregulars.producers.trace.source import TraceSource

    settings = settings_of(context)
    trace = read_trace(directory)
    if trace.rejected.count:
        say(rows_left_out(trace))
    numbered = number_iterations(trace)
    if numbered.report:
        say(numbered.report)
    shifted = in_time(rename_job(numbered.trace, job, attempt), time.time_ns(), is_moving, ends_now=speed == 0)
    source = TraceSource(shifted, speed)
    waiting = Acknowledged(settings.kafka_bootstrap)
    agent = Agent(
        source, replace(agent_settings(settings), refused_s=REFUSED_S), waiting.note if json else waiting.show
    )
    with stopping.on_stop(agent.stop), waiting:
        done = agent.run()
    if json:
        print_json({"announcements": done.announcements, "batches": done.batches, "rows": done.rows,
                    "delivered_messages": done.delivered_messages, "reason": done.reason})  # fmt: skip
        return
    if sys.stderr.isatty():
        print(file=sys.stderr)
    sent = f"{counted(done.announcements, 'announcement')} and {counted(done.rows, 'row')} delivered"
    print(f"{done.reason}: {sent} in {counted(done.batches, 'batch', 'batches')}")


def in_time(trace: Trace, now_ns: int, is_moving: bool | None, *, ends_now: bool) -> Trace:
    """Return a trace with its times moved to now, and print that; `is_moving` None: only if they lie in the future.

    `ends_now`: whether it ends now; else it begins now.
    """
    from irregulars.producers.trace.source import moved, span_ns

    span = span_ns(trace)
    if span is None or is_moving is False or (is_moving is None and span[1] <= now_ns):
        return trace
    by_ns = now_ns - (span[1] if ends_now else span[0])
    begin = datetime.fromtimestamp(span[0] // 10**9, UTC)
    days = f"{abs(by_ns) / 86_400e9:.1f} days {'earlier' if by_ns < 0 else 'later'}"
    which = f"times that begin at {begin:%Y-%m-%d %H:%M:%S}Z"
    say(f"{which} are moved to now, {days}; --keep-times leaves them as they are")
    return moved(trace, by_ns)


def rename_job(trace: Trace, job: str | None, attempt: int | None) -> Trace:
    """Give a trace another job name or start number (`None`: keep it), and its rows the id of its start."""
    from irregulars.messages.records import TRACE_SCHEMAS

    names: dict[str, Any] = {
        "job": trace.job if job is None else job,
        "attempt": trace.attempt if attempt is None else attempt,
    }
    names_of_rows = {**names, "start": start_of_recording(trace)}
    batches: dict[str, Any] = {
        schema: {
            rank: replace(batch, header=replace(batch.header, **names_of_rows))
            for rank, batch in trace.batches(schema).items()
        }
        for schema in TRACE_SCHEMAS
    }
    announcements = tuple(replace(announcement, **names_of_rows) for announcement in trace.announcements)
    return replace(trace, announcements=announcements, **names, **batches)


def start_of_recording(trace: Trace) -> str:
    """Return an id of the start that was recorded: a recording that is sent twice is the same start, and counts once.

    It is made of who took part and where, and of each rank's first operators.
    """
    from irregulars.messages.announcements import encode_announcement

    digest = blake2b(digest_size=16)
    for announcement in trace.announcements:
        digest.update(encode_announcement(announcement))
    for batch in trace.commops.values():
        digest.update(batch.columns["start_ns"][:_FIRST_ROWS].tobytes())
    return digest.hexdigest()


class Acknowledged:
    """Warns when Kafka has acknowledged nothing for `QUIET_S`, or has not answered at all. Use it as a context.

    `bootstrap`: Brokers that must acknowledge.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        # Below 0, so that the first report of progress renews the wait too, though it may have delivered nothing.
        self._delivered = -1
        self.timer = self._start()

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()

    def note(self, progress: Progress) -> None:
        """Wait again from now on, if more was acknowledged."""
        if progress.delivered_messages > self._delivered:
            self._delivered = progress.delivered_messages
            self.timer.cancel()
            self.timer = self._start()
            self.timer.start()

    def show(self, progress: Progress) -> None:
        """Show the progress as well, on a terminal."""
        self.note(progress)
        if sys.stderr.isatty():
            print(f"\r{progress.rows:,} rows published", end="", file=sys.stderr, flush=True)

    def _start(self) -> threading.Timer:
        # A timer runs once: each acknowledgement cancels it and starts another.
        timer = threading.Timer(QUIET_S, self._complain)
        timer.daemon = True
        return timer

    def _complain(self) -> None:
        text = f"NOTHING WAS ACKNOWLEDGED by Kafka at {self._bootstrap} within {QUIET_S:g} s"
        say(f"{text}; is it there, and is anything else in its way?")


_FAULT_HELP = (
    "What goes wrong: KIND:KEY=VALUE,…; may stand several times. See below. Times: from, to, shape (lasting, spike, "
    "fluctuating, from_start, and ramp or sawtooth with over=ITERATIONS). Strength: factor, add_ms or spread, or "
    "excess=0.2: the mean iteration gets 20 % longer."
)


def simulate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The trace directory to write.")],
    shape: Annotated[
        str,
        typer.Option(help="A start: pipeline, ddp, fsdp, hybrid, interleaved, cp_ring, moe, shared_nics, unlogged."),
    ] = "pipeline",
    presets: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            help="How untidy the job is: default, tidy, suite, untidy, field, off_clocks; may stand several times.",
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Length of the run.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="All randomness comes from it.")] = 0,
    faults: Annotated[list[str] | None, typer.Option("--fault", metavar="FAULT", help=_FAULT_HELP)] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting of the job, as dp=8; may stand several times. See below."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate a training job, and write what its ranks log as a trace directory, with the truth in label.json.

    A job begins as its shape, becomes as untidy as the presets say, and has the settings that are given by --set.
    The same call writes the same bytes. Status 2 if the job or a fault is not possible.

    Example: irregulars simulate out --fault slow_nic:rank=17,from=60,to=80,excess=0.3

    Example: irregulars simulate out --set dp=32 --set pp=8 --set tp=8 --iterations 55 --preset suite
    --fault slow_rank:rank=5,from=30,to=50,excess=0.1,shape=fluctuating

    Example: irregulars simulate out --preset untidy --preset off_clocks --fault hang:rank=9,from=100

    Example: irregulars simulate out --shape fsdp --set dp=128 --preset field
    --fault slow_rank:rank=5,from=60,factor=1.5,shape=ramp,over=20
    """
    from irregulars.producers.simulator.faults import parse_fault
    from irregulars.producers.simulator.settings import SimulatorSettings, with_preset, with_shape, with_values

    job = with_shape(SimulatorSettings(iterations=iterations, seed=seed), shape)
    for preset in presets or ():
        job = with_preset(job, preset)
    job = with_values(job, assignments or ())
    job = replace(job, faults=tuple(parse_fault(fault) for fault in faults or ()))
    label = _write(out, job, open_console(is_error=True))
    if json:
        print_json(label)
    else:
        _show_simulated(open_console(), out, job, label)


def print_keys(formatter: Any) -> None:
    """Add the kinds of ``--fault`` and the keys of ``--set`` to the help of the command."""
    from irregulars.producers.simulator.faults import FAULT_KINDS
    from irregulars.producers.simulator.settings import described_keys

    with formatter.section("Kinds of --fault, with their keys"):
        keys = {name: (" and ".join(kind.places), " or ".join(kind.strengths)) for name, kind in FAULT_KINDS.items()}
        formatter.write_dl([(name, "; ".join(filter(None, of_kind))) for name, of_kind in keys.items()])
    with formatter.section("Keys of --set, with their defaults"):
        formatter.write_dl(list(described_keys()), col_max=34)


def _write(out: Path, job: SimulatorSettings, console: Console) -> dict[str, Any]:
    from rich.progress import Progress

    from irregulars.producers.simulator.source import simulate_trace

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(_size(job), total=job.iterations)
        try:
            return simulate_trace(out, job, on_part=lambda past: progress.update(task, completed=past))
        except OSError as error:
            rule = "OUT must be a directory that can be written"
            raise InputError(f"{rule}; got {error.strerror or error} ({error.filename or out})") from error


def _size(job: SimulatorSettings) -> str:
    return f"{counted(job.world_size, 'rank')}, {counted(job.iterations, 'iteration')}"


def _show_simulated(console: Console, out: Path, job: SimulatorSettings, label: dict[str, Any]) -> None:
    console.print(f"{out}: {_size(job)}", markup=False)
    for fault in label.get("faults", ()):
        first, past = fault["iterations"]
        excess = fault["excess_ratio"]
        effect = "the job hangs" if excess is None else f"{excess:+.1%} iteration time"
        ranks = ", ".join(map(str, fault["ranks"][:8])) + (", …" if len(fault["ranks"]) > 8 else "")
        where = f" on rank {ranks}" if ranks else ""
        console.print(f"  {fault['fault']}{where} in iterations {first} to {past - 1}: {effect}", markup=False)
    console.print(f"Next: {program()} analyze {out}", markup=False)


_COLLECTIVES_LISTED = 10_000
_LATE_SHOWN = 8
_ROWS_SHOWN = 64  # of ranks, and of communicators with their operators; JSON has all
_HOST = re.compile(r"([^=\s]{1,200})=(\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)")
_RUN = re.compile(r"(\d+)(?:-(\d+))?")


def import_trace(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="kineto, flight-recorder, nccl-inspector or nccl-ras.")],
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A file, or a directory of files; .gz is unpacked.")],
    out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="The trace directory to write.")],
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job; default: of SRC.")] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST=RANKS", help="Where ranks live, as node-1=8-15; stands once for each host."
        ),
    ] = None,
    fabric: Annotated[
        Path | None,
        typer.Option(help="Which switch each host is below: from ibnetdiscover, Slurm's topology.conf, or a table."),
    ] = None,
    is_measuring: Annotated[
        bool, typer.Option("--metrics", help="Measure each rank, and tell those that are unlike their peers.")
    ] = False,
    json: Json = False,
) -> None:
    """Turn files of another tool into a trace directory, for irregulars analyze OUT_DIR.

    Shows who arrived last in the collectives, which durations alone tell, and what the source can't tell.
    Status 2 when the input is unusable.

    Example: irregulars import kineto traces/ job/ && irregulars analyze job/

    Example: irregulars import flight-recorder dumps/ hung/ && irregulars analyze hung/

    Example: irregulars import nccl-inspector nccl-inspector-4711/ job/

    Example: irregulars import nccl-ras answers/ hung/ && irregulars analyze hung/

    Example: irregulars import kineto traces/ job/ --metrics
    """
    from irregulars.infra.runs.trace_reports import arrivals_of, collectives_json, late_ranks, measure_trace
    from irregulars.producers.importers.fabric import read_fabric
    from irregulars.producers.importers.importing import import_trace as read
    from irregulars.producers.trace.directory import read_trace

    switches = None if fabric is None else read_fabric(fabric)
    imported = read(kind, source, out, job, hosts_of(hosts or ()), switches)
    trace = read_trace(out)
    metrics = measure_trace(trace) if is_measuring else None
    arrivals, names = arrivals_of(trace)
    late = [one for one in late_ranks(arrivals, names) if one.waited_s]
    if json:
        found = _summary(imported, trace) | {"late_ranks": [one._asdict() for one in late]}
        found |= {} if metrics is None else {"metrics": metrics.to_json()}
        print_json(found | {"collectives": collectives_json(arrivals, names, _COLLECTIVES_LISTED)})
    else:
        _show_imported(out, _summary(imported, trace), late, [] if metrics is None else metrics.lines(_ROWS_SHOWN))


def hosts_of(options: Sequence[str]) -> dict[int, str]:
    """Return the host of each rank that options name.

    >>> hosts_of(["node-0=0-1", "node-1=2,5"])
    {0: 'node-0', 1: 'node-0', 2: 'node-1', 5: 'node-1'}

    Raises `InputError` if an option has another form, or a rank two hosts.
    """
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
        "left_out": [one._asdict() for one in imported.left_out],
    }


def _show_imported(out: Path, summary: dict[str, Any], late: list[LateRank], measured: Iterable[str]) -> None:
    # The contract has null where the source knows no iteration: so it stays for analyze and replay to infer.
    iterations = (
        counted(summary["iterations"], "iteration") if summary["iterations_marked"] else "no iterations marked"
    )
    lines = [
        f"{out}: {summary['ranks']} of {counted(summary['world_size'], 'rank')}, "
        f"{counted(summary['operators'], 'operator')} on {counted(summary['communicators'], 'communicator')}, "
        f"{iterations}, clock {summary['clock']}",
        *(f"  {one.text()}" for one in late[:_LATE_SHOWN]),
        *measured,
        *(f"Left out {one['name']}: {one['reason']}" for one in summary["left_out"][:_LATE_SHOWN]),
        *(f"Left out: {count} × {reason}" for reason, count in summary["skipped"].items()),
    ]
    if summary["unusable_rows"]:
        lines.append(f"Left out: {counted(summary['unusable_rows'], 'row')} with impossible values")
    if not summary["iterations_marked"]:
        lines.append("Iterations: they are inferred from the operators when it is read.")
    lines += [*(f"Note: {note}." for note in summary["notes"]), f"Next: {program()} analyze {out}"]
    console = open_console()
    for line in lines:
        console.print(line, markup=False)
