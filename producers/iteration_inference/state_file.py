"""The state of an inference in a file, so that iteration numbers continue after the agent restarts.

Its checksum is in it: what a broken disk or a hand has changed must not be taken for numbers of iterations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

from irregulars.errors import InputError
from irregulars.private_files import make_private_directory, write_private_file
from irregulars.state_codec import decode_state, encode_state

T = TypeVar("T")

STATE_VERSION: Final = 3
"""Raise it with each change of a state's classes but a new field with a default; versions 1 and 2 were JSON."""


def write_state(path: Path, state: Any) -> None:
    """Write a state; whole or not at all.

    Raises
    ------
    OSError
        If it can't be written there.
    """
    make_private_directory(path.parent)
    fresh = path.with_name(f"{path.name}.new")
    write_private_file(fresh, encode_state(state, STATE_VERSION))
    fresh.replace(path)


def read_state(path: Path, kind: type[T]) -> T | None:
    """Read what `write_state` wrote; None where there is no file.

    Raises
    ------
    InputError
        If the file can't be read, is none of ours, is damaged, or is of another version.
    """
    try:
        return decode_state(path.read_bytes(), kind, STATE_VERSION)
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        raise InputError(f"{path}: {error}") from error
