"""Settings as far as they can be used, with what is wrong with the rest: for whoever looks for mistakes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from irregulars.errors import InputError
from irregulars.infra.configuration.settings import (
    CONFIG_VARIABLE,
    Settings,
    check_flags,
    load_settings,
    settings_file,
    single_faults,
)
from irregulars.toml_tables import read_toml


@dataclass(frozen=True, slots=True)
class LenientSettings:
    """What came of it."""

    settings: Settings | None  # those in force without what is refused; None: the rest does not fit together either
    refused: tuple[str, ...] = ()  # what is wrong, one text each
    file: Path | None = None  # the file in force; None: there is none
    names: tuple[str, ...] = ()  # what stands in it


def load_leniently(
    flags: Mapping[str, object],
    config: Path | None,
    environment: Mapping[str, str] = os.environ,
    others: Collection[str] = (),
) -> LenientSettings:
    """Read the settings as `load_settings` does, without those of file and environment that it would refuse.

    Parameters
    ----------
    others
        Names in the file that are no settings: somebody else reads them.

    Raises
    ------
    InputError
        If the call is wrong: a flag, or a file that it names and that can't be read.
    """
    check_flags(flags)
    file = settings_file(config, environment)
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    if file is not None:
        try:
            values = read_toml(file, "settings file")
        except InputError as error:
            if config is not None:
                raise
            unreadable.append(str(error))
    faults = single_faults({name: value for name, value in values.items() if name not in others}, file, environment)
    usable = {name: text for name, text in environment.items() if name not in faults}
    if unreadable:
        usable[CONFIG_VARIABLE] = os.devnull
    refused = (*unreadable, *faults.values())
    try:
        left_out = (*others, *(name for name in faults if name in values))
        settings = load_settings(flags, config, usable, left_out)
    except InputError as error:  # each for itself is right, and they don't fit together
        return LenientSettings(None, (*refused, str(error)), file, tuple(values))
    return LenientSettings(settings, refused, file, tuple(values))
