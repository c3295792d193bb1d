"""Files and directories that their owner alone can read: they hold passwords, or what a training job does."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_directory(path: Path, *, is_ours: bool = False) -> None:
    """Make a directory, mode 0700, and those above it that are missing.

    Parameters
    ----------
    is_ours
        Whether the directory is for us alone: then one that an older release left open is closed. One that people
        name may be ``/tmp``, and stays as it is.

    Raises
    ------
    OSError
        If it can't be made.
    """
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(20, "Not a directory", os.fspath(path))
    if is_ours and found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file, mode 0600, at no time readable by anybody else.

    Raises
    ------
    OSError
        If it can't be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # one that was there before keeps its mode otherwise
        file.write(content)
