"""``irregulars plugins``: the installed detectors, their checks, and a new one from a template."""

from __future__ import annotations

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from irregulars.infra.commands.options import Json, print_json, program
from irregulars.printing import printable

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
    if json:
        reads = list(made.reads)
        print_json({"detector": detector, "level": made.level, "against": made.against, "reads": reads})
    else:
        print(f"{detector} passes {len(CHECKS)} checks: scores {made.level}s against {made.against}, "
              f"reads {', '.join(made.reads)}")  # fmt: skip


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
    """Describe the detector of an entry point, or why it can't be made."""
    from irregulars.detectors.plugins.loading import load_detector
    from irregulars.errors import PluginError

    try:
        made = load_detector(name, is_checked=False)()
    except PluginError as error:
        return {"name": name, "target": target, "level": None, "against": None, "about": f"unusable: {error}"}
    about = (type(made).__doc__ or "").strip().splitlines()
    return {
        "name": name,
        "target": target,
        "level": made.level,
        "against": made.against,
        "about": about[0] if about else "",
    }
