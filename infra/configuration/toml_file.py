"""TOML files that people write: read, or refused in one line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from irregulars.errors import InputError

_LONGEST: Final = 80


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Parameters
    ----------
    what
        The file in the text of an error.

    Raises
    ------
    InputError
        If it can't be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} must be readable; got {error.strerror} ({path})") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise InputError(f"{what} must be TOML; got {str(error).splitlines()[0]} ({path})") from error


def shown(value: object) -> str:
    """Print a value for the text of an error: in bounded length, without the credentials of an address."""
    try:
        text = re.sub(r"//[^/@]*@", "//…@", repr(value))
    except ValueError:  # Python prints no such number
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
