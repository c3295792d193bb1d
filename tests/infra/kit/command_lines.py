"""Command lines that stand in files of the kit, parsed as ``irregulars`` itself parses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from irregulars.infra.cli import app

WITH_VALUE = ("--set", "--config")  # options before the command's name; each takes a value


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values of the command's parameters, without running it; a wrong line raises click's error."""
    program, *rest = arguments
    assert program == "irregulars"
    while rest[0] in WITH_VALUE:
        rest = rest[2:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    values: dict[str, Any] = command.make_context(command.name, rest).params
    return values
