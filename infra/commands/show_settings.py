"""``irregulars settings``: what is in force."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import typer

from irregulars.infra.commands.options import Json, print_json, settings_of
from irregulars.infra.configuration.settings import FIELDS


def show_settings(context: typer.Context, json: Json = False) -> None:
    """Print the settings in force, from defaults, file, environment and --set; passwords stay hidden.

    Example: irregulars --set delta=1.2 settings
    """
    settings = settings_of(context)
    values = {name: _shown(name, getattr(settings, name)) for name in FIELDS}
    if json:
        print_json(values)
        return
    for one in dataclasses.fields(settings):
        print(f"{one.name:<22} {values[one.name]}")


def _shown(name: str, value: Any) -> Any:
    if FIELDS[name].metadata["is_secret"]:
        return "hidden" if value else None
    return str(value) if isinstance(value, Path) else value
