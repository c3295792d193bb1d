"""Secrets that stand in files, as systemd's credentials and Kubernetes' mounted secrets do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from irregulars.errors import InputError

_MOST_BYTES: Final = 64 * 1024
"""A secret is a line: a larger file is another one, given by mistake."""


def read_secret(path: Path, setting: str) -> str:
    """Return what a file holds, without white space around it.

    Parameters
    ----------
    setting
        Name of the setting that names the file, for errors; they never show what it holds.

    Raises
    ------
    InputError
        If the file can't be read, or holds no text of one line.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{setting} must be a readable file; got {error.strerror} ({path})") from None
    secret = content.decode("utf-8", "replace").strip()
    if not secret or len(content) > _MOST_BYTES or "\n" in secret or "\ufffd" in secret or "\0" in secret:
        raise InputError(f"{setting} must be a file with one line of text; got {len(content)} bytes ({path})")
    return secret
