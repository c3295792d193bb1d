"""TOML files that people write: read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from irregulars.errors import InputError


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
    import tomllib  # most calls read no such file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} must be readable; got {error.strerror} ({path})") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise InputError(f"{what} must be TOML; got {str(error).splitlines()[0]} ({path})") from error
