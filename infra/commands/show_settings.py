"""``irregulars settings``: the settings in force."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import typer

from irregulars.infra.commands.options import Json, print_json, settings_of


def show_settings(context: typer.Context, json: Json = False) -> None:
    """Print the settings in force, from defaults, file, environment and --set; passwords stay hidden.

    Example: irregulars --set delta=1.2 settings
    """
    settings = settings_of(context)
    values = {one.name: _shown(one, getattr(settings, one.name)) for one in dataclasses.fields(settings)}
    if json:
        print_json(values)
        return
    for one in dataclasses.fields(settings):
        print(f"{one.name:<22} {values[one.name]}")


def _shown(one: dataclasses.Field[Any], value: Any) -> Any:
    if one.metadata["is_secret"]:
        return "hidden" if value else None
    return str(value) if isinstance(value, Path) else value
