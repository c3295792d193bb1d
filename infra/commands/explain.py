"""``irregulars explain``: why one iteration was judged as it was."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from irregulars.infra.commands.options import Json, print_json, settings_of
from irregulars.printing import printable


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
    from irregulars.infra.commands.analyze import read_and_report
    from irregulars.infra.configuration.wiring import monitor_settings
    from irregulars.infra.runs.explained import explain_iteration, explanation_lines

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
