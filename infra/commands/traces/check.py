"""``irregulars check``: judge a recording again under changes that must alter no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.infra.commands.options import Json, open_console, plain, print_json, settings_of
from irregulars.infra.commands.traces.analyze import report_rejected

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.infra.checking.check import Check, Outcome

_CHANGED = 1


def check(
    context: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A trace directory: job.json and commops.*; import makes one."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--change", metavar="NAME", help="Only this one; may stand several times.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="All chance in the changes comes from it.")] = 0,
    is_streamed: Annotated[
        bool, typer.Option("--streamed", help="Hand the changed recordings over batch by batch, as to a worker.")
    ] = False,
    is_listed: Annotated[bool, typer.Option("--list", help="List the changes, and check nothing.")] = False,
    json: Json = False,
) -> None:
    """Judge a recording again under changes that must alter no verdict.

    Times are rounded, clocks run apart, rows are lost, ranks have other numbers, healthy ranks join, and so on. Kind,
    device, ranks and iterations of each verdict must stay: one that does not is not to be relied on. Status 0 if all
    do, 1 if a verdict changed, 2 when the input is unusable. Takes about thirty times as long as analyze.

    Example: irregulars check tests/recordings/gloo-slow-nic

    Example: irregulars check job/ --change round-10us --change row-loss --seed 7 --json
    """
    if is_listed:
        _show_list(json)
        return
    if directory is None:
        from irregulars.errors import InputError

        raise InputError("DIR must be a trace directory; got none. See: irregulars check --help")
    made, names = _prepare(context, directory, changes, seed, is_streamed)
    outcomes = list(_with_progress(made.run(names), len(names)))
    if json:
        print_json({"job": made.job, "seed": seed, "verdicts": [charge.to_json() for charge in made.charges],
                    "changes": [outcome.to_json() for outcome in outcomes]})  # fmt: skip
    else:
        _show(open_console(), made, outcomes)
    if any(outcome.is_changed for outcome in outcomes):
        raise typer.Exit(_CHANGED)


def _prepare(
    context: typer.Context, directory: Path, changes: Sequence[str] | None, seed: int, is_streamed: bool
) -> tuple[Check, list[str]]:
    """Read and judge the recording as it is."""
    from irregulars.infra.checking.changed import Delivery
    from irregulars.infra.checking.changes import CHANGES
    from irregulars.infra.checking.check import Check, require_change
    from irregulars.infra.checking.recording import recording_of
    from irregulars.infra.configuration.wiring import monitor_settings
    from irregulars.producers.trace.directory import read_trace
    from irregulars.producers.trace.job_file import read_job

    names = list(dict.fromkeys(changes or CHANGES))
    for name in names:
        require_change(name)
    settings = monitor_settings(settings_of(context))
    trace = read_trace(directory)
    report_rejected(trace)
    recording = recording_of(read_job(directory), trace)
    return Check(recording, settings, seed=seed, delivery=Delivery() if is_streamed else None), names


def _with_progress(outcomes: Iterator[Outcome], count: int) -> Iterator[Outcome]:
    """Pass outcomes on; a terminal sees how far it is."""
    from rich.progress import Progress

    console = open_console(is_error=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("judging", total=count)
        for outcome in outcomes:
            progress.update(task, advance=1, description=outcome.name)
            yield outcome


def _show_list(is_json: bool) -> None:
    from irregulars.infra.checking.changes import CHANGES

    if is_json:
        print_json({name: {"about": change.about, "needs": change.needs or None} for name, change in CHANGES.items()})
        return
    for name, change in CHANGES.items():
        print(f"{name:<24} {change.about}" + (f" (needs {change.needs})" if change.needs else ""))


def _show(console: Console, made: Check, outcomes: Sequence[Outcome]) -> None:
    console.print(f"[bold]{plain(made.job)}[/bold]: {plain(_said(made.charges))}")
    for outcome in outcomes:
        _show_outcome(console, outcome)
    applied = [outcome for outcome in outcomes if outcome.does_apply]
    changed = sum(outcome.is_changed for outcome in applied)
    console.print(f"Verdicts changed under {changed} of {len(applied)} changes.")


def _show_outcome(console: Console, outcome: Outcome) -> None:
    from irregulars.infra.checking.changes import CHANGES

    change = CHANGES[outcome.name]
    if not outcome.does_apply:
        console.print(f"  {outcome.name:<24} does not apply: it needs {change.needs}", markup=False)
    elif not outcome.is_changed:
        console.print(f"  {outcome.name:<24} same", markup=False)
    else:
        console.print(f"  [bold red]{outcome.name:<24} CHANGED[/bold red]: {change.about}")
        console.print(f"    {_said(outcome.gone)} → {_said(outcome.new)}", markup=False)


def _said(charges: Sequence[object]) -> str:
    return "; ".join(map(str, charges)) or "no verdict"
