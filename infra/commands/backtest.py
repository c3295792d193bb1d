"""``irregulars backtest``: how good a detector is on jobs whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import (
    ClickHouseUrl,
    Database,
    Json,
    print_json,
    require_writable,
    settings_of,
    write_file,
)
from irregulars.printing import counted, printable, printable_lines

if TYPE_CHECKING:
    from irregulars.detectors.plugins.protocol import Level
    from irregulars.infra.backtesting.backtest import Result
    from irregulars.infra.backtesting.frames import JobFrames
    from irregulars.infra.configuration.settings import Settings


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
    clickhouse_url: ClickHouseUrl = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Score a detector on jobs whose truth is known, beside the detectors of its level that ship.

    It is given what a monitor would give it. An alarm is a rank that scores 1 or more in 4 of 6 iterations. Precision
    and recall count ranks and iterations, delay is in iterations, false alarms are those per 1,000 iterations.

    Example: irregulars backtest "river:anomaly.HalfSpaceTrees()" tests/recordings

    Example: irregulars backtest our_plugins.nic:NicDrift --job llama-7b --plot nic_drift.svg
    """
    if bool(recordings) == bool(job):
        raise InputError(
            "backtest must have recordings or --job NAME, one of both; got " + ("both" if job else "none")
        )
    if plot is not None and plot.suffix != ".svg":
        raise InputError(f"plot must be a file that ends in .svg; got {str(plot)!r}")
    if plot is not None:
        require_writable("plot", plot)
    settings = settings_of(context, clickhouse_url=clickhouse_url, clickhouse_database=database)
    results = _results(settings, detector, recordings or [], job, is_alone=is_alone)
    from irregulars.infra.backtesting.backtest import draw, text_table

    if plot is not None:
        write_file("plot", plot, draw(results, f"Backtest on {job or 'recordings'}"))
    if json:
        print_json({"truth": "verdicts" if job else "labels", "results": [one.to_json() for one in results]})
        return
    print(printable_lines(text_table(results)))
    counts = results[0].counts
    truth = f"{counted(counts.iterations, 'iteration')}, {counted(counts.faults, 'fault')}"
    print(f"\n{truth}. Alarm: 1 or more in 4 of 6 iterations.")
    if job:
        print(f"Truth: what Irregulars judged of {printable(job)}, right or wrong; not what was true.")
    if plot is not None:
        print(f"Picture: {printable(str(plot))}")


def _results(
    settings: Settings, detector: str, recordings: list[Path], job: str | None, *, is_alone: bool
) -> list[Result]:
    from irregulars.detectors.plugins.loading import load_from_here
    from irregulars.infra.backtesting.backtest import backtest as run
    from irregulars.infra.backtesting.backtest import shipped_detectors

    make = load_from_here(detector)  # checked, unless it ships, as a worker does
    level: Level = make().level
    detectors = {detector: make} if is_alone else {detector: make} | shipped_detectors(level)
    jobs = _recorded(settings, recordings, level) if job is None else _stored(settings, job, level)
    return run(detectors, jobs)


def _recorded(settings: Settings, recordings: list[Path], level: Level) -> Iterator[JobFrames]:
    from irregulars.infra.backtesting.recorded import find_recordings, read_recording
    from irregulars.infra.configuration.wiring import monitor_settings

    own = monitor_settings(settings, has_detectors=False)
    for path in find_recordings(recordings):
        yield read_recording(path, level, own)


def _stored(settings: Settings, job: str, level: Level) -> Iterator[JobFrames]:
    from irregulars.infra.backtesting.recorded import read_stored_job
    from irregulars.infra.configuration.wiring import database_settings
    from irregulars.sinks.connection import connected

    if level != "rank":
        raise InputError(
            "detector must score ranks where --job is given, since the database keeps operators of suspect "
            f"iterations alone; got level {level}. Backtest it on recordings"
        )
    target = database_settings(settings, is_reading=True)
    with connected(target) as client:
        yield read_stored_job(client, job)
