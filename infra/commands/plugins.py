"""``irregulars plugins`` and ``backtest``: installed detectors, new ones, and how good a detector is."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import Json, asks, print_json, print_result, program, settings_of, write_file
from irregulars.printing import counted, printable, printable_lines

if TYPE_CHECKING:
    from irregulars.detectors.plugins.protocol import Level as FrameLevel
    from irregulars.infra.runs.scoring import JobFrames
    from irregulars.infra.settings import Settings


_MISSED_SHOWN = 20

plugins = typer.Typer(
    help="Detector plug-ins: which are there, whether they are right, and new ones.\n\n"
    "Example: irregulars plugins new nic_drift",
    no_args_is_help=True,
)


class Level(StrEnum):
    """Meaning of a row of a detector's frames."""

    rank = "rank"
    operator = "operator"


@plugins.command("list")
def list_plugins(json: Json = False) -> None:
    """List the installed entry points of the group irregulars.detectors, and what each does.

    Example: irregulars plugins list --json
    """
    from irregulars.detectors.plugins.loading import installed_detectors

    found = [_described(name, target) for name, target in installed_detectors().items()]
    if json:
        print_json(found)
        return
    width = max((len(one["name"]) for one in found), default=0)
    columns = shutil.get_terminal_size().columns
    for one in found:
        compared = f"{one['level'] or '-'}, {one['against'] or '-'}"
        line = printable(f"{one['name']:<{width}}  {compared:<15}  {one['about']}")
        # A line is cut to the terminal; in a file or pipe it stays whole.
        print(line if len(line) <= columns or not sys.stdout.isatty() else f"{line[: columns - 1]}…")
    print("\nAlso models of libraries: river:anomaly.HalfSpaceTrees(), sklearn:ensemble.IsolationForest()")


@plugins.command()
def check(
    detector: Annotated[
        str,
        typer.Argument(
            help="An entry point's name, package.module:Name, river:… or sklearn:…; options in brackets. Modules of "
            "the working directory are found."
        ),
    ],
    json: Json = False,
) -> None:
    """Run all checks of the protocol on a detector; status 2 and one line where it fails.

    Example: irregulars plugins check "our_plugins.nic:NicDrift(half_life_iterations=40)"
    """
    from irregulars.detectors.plugins.checks import CHECKS
    from irregulars.detectors.plugins.loading import load_from_here

    made = load_from_here(detector, is_checked=True)()
    found = {"detector": detector, "level": made.level, "against": made.against, "reads": list(made.reads)}
    passed = f"{detector} passes {len(CHECKS)} checks: scores {made.level}s against {made.against}"
    print_result(json, found, [f"{passed}, reads {', '.join(made.reads)}"])


@plugins.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the module and its folder, as nic_drift.")],
    level: Annotated[Level, typer.Option(help="What it scores.")] = Level.rank,
) -> None:
    """Write the package of a detector to begin with: it passes its check and its test as it is.

    Example: irregulars plugins new nic_drift && cd nic_drift && irregulars plugins check nic_drift:NicDrift
    """
    from irregulars.infra.commands.new_package import class_name, write_package

    for path in write_package(name, level.value, Path()):
        print(path)
    kind = f"{name}:{class_name(name)}"
    print(f"\nNext: cd {name} && {program()} plugins check {kind}")


def _described(name: str, target: str) -> dict[str, Any]:
    from irregulars.detectors.plugins.loading import load_detector
    from irregulars.errors import PluginError

    known = {"name": name, "target": target}
    try:
        made = load_detector(name, is_checked=False)()
    except PluginError as error:
        return {**known, "level": None, "against": None, "about": f"unusable: {error}"}
    about = (type(made).__doc__ or "").strip().partition("\n")[0]
    return {**known, "level": made.level, "against": made.against, "about": about}


@asks("database")
def backtest(
    context: typer.Context,
    detector: Annotated[
        str, typer.Argument(help="As in the settings: a name, package.module:Name, river:…, sklearn:…")
    ],
    recordings: Annotated[
        list[Path] | None,
        typer.Argument(help="Recorded or simulated jobs with a label.json, or folders that hold some."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", help="A job in ClickHouse instead: what was judged and blamed there is the truth."),
    ] = None,
    is_alone: Annotated[bool, typer.Option("--alone", help="Without the detectors that ship.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write precision and recall as a picture (.svg).")
    ] = None,
    json: Json = False,
) -> None:
    """Score a detector on jobs whose truth is known, beside the detectors of its level that ship.

    It is given what a monitor would give it. An alarm is a rank that scores 1 or more in 4 of 6 iterations. Precision
    and recall count ranks and iterations, delay is in iterations, false alarms are those per 1,000 iterations.

    Example: irregulars backtest "river:anomaly.HalfSpaceTrees()" tests/recordings/bench

    Example: irregulars backtest our_plugins.nic:NicDrift --job llama-7b --plot nic_drift.svg
    """
    from irregulars.detectors.plugins.loading import load_from_here
    from irregulars.infra.runs.backtest import backtest as run
    from irregulars.infra.runs.backtest import draw, shipped_detectors, text_table

    if bool(recordings) == bool(job):
        raise InputError(
            "backtest must have recordings or --job NAME, one of both; got " + ("both" if job else "none")
        )
    if plot is not None and plot.suffix != ".svg":
        raise InputError(f"plot must be a file that ends in .svg; got {str(plot)!r}")
    if plot is not None:
        # Before the backtest, which may take minutes.
        write_file("plot", plot, None)
    settings = settings_of(context)
    make = load_from_here(detector)  # checked, unless it ships, as a worker does
    level: FrameLevel = make().level
    detectors = {detector: make} if is_alone else {detector: make} | shipped_detectors(level)
    jobs = _recorded(settings, recordings or [], level) if job is None else _stored(settings, job, level)
    results = run(detectors, jobs)
    if plot is not None:
        write_file("plot", plot, draw(results, f"Backtest on {job or 'recordings'}"))
    if json:
        print_json({"truth": "verdicts" if job else "labels", "results": [one.to_json() for one in results]})
        return
    print(printable_lines(text_table(results)))
    counts = results[0].counts
    truth = f"{counted(counts.iterations, 'iteration')}, {counted(counts.faults, 'fault')}"
    print(f"\n{truth}. Alarm: 1 or more in 4 of 6 iterations.")
    if missed := results[0].missed():
        left = len(missed) - _MISSED_SHOWN
        shown = ", ".join(missed[:_MISSED_SHOWN]) + (f" and {left} more (see --json)" if left > 0 else "")
        print(textwrap.fill(printable(f"A fault was missed in {shown}."), 80, break_on_hyphens=False))
    if job:
        print(f"Truth: what Irregulars judged of {printable(job)}, right or wrong; not what was true.")
    if plot is not None:
        print(f"Picture: {printable(str(plot))}")


def _recorded(settings: Settings, recordings: list[Path], level: FrameLevel) -> Iterator[JobFrames]:
    from irregulars.infra.runs.backtest import find_recordings, read_recording
    from irregulars.infra.wiring import monitor_settings

    own = monitor_settings(settings, has_detectors=False)
    # One after the other, so that one job is in memory at a time.
    for path in find_recordings(recordings):
        yield read_recording(path, level, own)


def _stored(settings: Settings, job: str, level: FrameLevel) -> Iterator[JobFrames]:
    from irregulars.infra.runs.backtest import read_stored_job
    from irregulars.infra.wiring import database_settings
    from irregulars.sinks.connection import connected

    if level != "rank":
        raise InputError(
            "detector must score ranks where --job is given, since the database keeps operators of suspect "
            f"iterations alone; got level {level}. Backtest it on recordings"
        )
    target = database_settings(settings, is_reading=True)
    with connected(target) as client:
        yield read_stored_job(client, job)
