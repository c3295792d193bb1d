"""``irregulars show``: everything about one verdict on one screen."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.errors import InputError, ServiceError
from irregulars.infra.commands.options import Json, asks, print_json, settings_of, write_file
from irregulars.printing import say

_PATHS = ("/", "./", "../")  # so that a misspelt directory is not looked for in the database
_SHOWN_ID = re.compile(r"\[(\S.*?:\d+:\d+:\S+?)(?: revision \d+)?\]")

if TYPE_CHECKING:
    from irregulars.infra.settings import Settings
    from irregulars.infra.showing.found import Found


@asks("database")
def show(
    context: typer.Context,
    pasted: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VERDICT|JOB|DIR]",
            help="A verdict's id, a job (its newest), or a trace directory; default: the newest at work. "
            "An id may stand as screens and logs show it: [llama-7b:1:60:0].",
        ),
    ] = None,
    verdict_id: Annotated[
        str | None,
        typer.Option("--verdict", metavar="ID", help="Of a trace directory: which; default: the first of analyze."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the screen as one HTML file.")] = None,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the database.")] = 2,
    json: Json = False,
) -> None:
    """Show one verdict on one screen: device, cost, who waited for whom, what was ruled out, what to do.

    Reads ClickHouse; with the directory of a recorded job no database is needed: it is judged as analyze does. Ranges
    are told with their last iteration; in JSON fields say first and past_last.

    Example: irregulars show tests/recordings/gloo-slow-nic --html nic.html
    """
    settings = settings_of(context)
    which = named_by(pasted or ())
    if which is not None and (os.path.isdir(which) or which.startswith(_PATHS)):
        found = _of_recording(settings, Path(which), verdict_id, json, has_charts=html is not None)
    else:
        found = _of_database(settings, verdict_id or which or "", wait_s, json)
    if found is None:
        if html is not None:
            say(f"{html} not written: there is no verdict")
        return
    from irregulars.infra.showing.found import gather
    from irregulars.infra.wiring import runbook_url

    screen = gather(found, runbook_url(settings))
    if html is not None:
        from irregulars.infra.showing.html_page import page_of

        write_file("html", html, page_of(screen))
        say(f"{html} written")
    if json:
        print_json(screen.to_json())
    elif html is None:
        from irregulars.infra.showing.text_page import lines_of

        print("\n".join(lines_of(screen)))


def named_by(pasted: Sequence[str]) -> str | None:
    """Return the id, job or directory that was meant: ids are shown in brackets, with a revision behind them.

    >>> named_by(["[llama-7b:1:60:0", "revision", "1]"]), named_by(["[llama-7b:1:60:0]"]), named_by(["my job"])
    ('llama-7b:1:60:0', 'llama-7b:1:60:0', 'my job')

    Raises `InputError` if there are several arguments that are no such id.
    """
    text = " ".join(pasted)
    found = _SHOWN_ID.fullmatch(text)
    if found is None and len(pasted) > 1:
        raise InputError(f"verdict must be one id, job or directory; got {len(pasted)}: {text!r}")
    return (found[1] if found else text) or None


def _of_recording(
    settings: Settings, directory: Path, verdict_id: str | None, is_json: bool, *, has_charts: bool
) -> Found | None:
    """Judge a recording; where no verdict comes, print its analysis and return None."""
    from irregulars.infra.commands.analyze import read_and_report, show_analysis
    from irregulars.infra.runs.analysis import analysis_of, judge_trace
    from irregulars.infra.showing.from_database import found_in_recording
    from irregulars.infra.wiring import monitor_settings

    trace = read_and_report(directory)
    own = monitor_settings(settings, has_detectors=False)
    judgements, refused_rows = judge_trace(trace, own, fills_columns=has_charts)
    analysis = analysis_of(trace, judgements, refused_rows)
    if not analysis.verdicts:
        if is_json:
            print_json({"verdict": None, "analysis": analysis.to_json()})
        else:
            show_analysis(analysis)
        return None
    ids = [one.verdict_id for one in analysis.verdicts]
    if verdict_id is not None and verdict_id not in ids:
        raise InputError(f"verdict must be one of {', '.join(ids)}; got {verdict_id!r} ({directory})")
    verdict = analysis.verdicts[0 if verdict_id is None else ids.index(verdict_id)]
    return found_in_recording(str(directory), trace, judgements, verdict)


def _of_database(settings: Settings, which: str, wait_s: float, is_json: bool) -> Found | None:
    from irregulars.infra.showing.from_database import find_verdict, found_in_database
    from irregulars.infra.wiring import database_settings
    from irregulars.sinks.connection import connect, translated

    target = database_settings(settings, wait_s, is_reading=True)
    source = f"{target.database} on {target.address}"
    try:
        client = connect(target)
    except ServiceError as error:
        if not which:
            raise
        # A misspelt directory ends here too: the reason why a database was asked is part of the answer.
        text = f"{which!r} is no directory here, so a verdict or job of that name was looked for in the database"
        raise type(error)(f"{text}; {error}") from error
    try:
        with translated(target):
            verdict = find_verdict(client, which)
            if verdict is None:
                say(f"no verdict is stored in {source}")
                if is_json:
                    print_json({"verdict": None})
                return None
            return found_in_database(client, verdict, source, time.time_ns())
    finally:
        client.close()
