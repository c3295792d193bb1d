"""``irregulars plugins``: what is there, and whether it keeps the promises of its protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from irregulars.infra.commands.options import Json, print_json

plugins = typer.Typer(help="Detector plug-ins: which are there, and whether they are right.", no_args_is_help=True)


@plugins.command("list")
def list_plugins(json: Json = False) -> None:
    """List the installed entry points of the group irregulars.detectors."""
    from irregulars.detectors.plugins.loading import installed_detectors

    found = installed_detectors()
    if json:
        print_json(found)
        return
    for name, target in found.items():
        print(f"{name:<24} {target}")


@plugins.command()
def check(
    detector: Annotated[
        str, typer.Argument(help="An entry point's name or package.module:Name, options in brackets.")
    ],
    json: Json = False,
) -> None:
    """Run all checks of the protocol on a detector; status 2 and one line where it fails.

    Example: irregulars plugins check "our_plugins.nic:NicDrift(half_life_iterations=40)"
    """
    from irregulars.detectors.plugins.checks import CHECKS
    from irregulars.detectors.plugins.loading import load_detector

    made = load_detector(detector, is_checked=True)()
    if json:
        reads = list(made.reads)
        print_json({"detector": detector, "level": made.level, "against": made.against, "reads": reads})
    else:
        print(f"{detector} passes {len(CHECKS)} checks: scores {made.level}s against {made.against}, "
              f"reads {', '.join(made.reads)}")  # fmt: skip
