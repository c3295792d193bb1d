"""Files and directories that their owner alone can read, and files that hold a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from irregulars.errors import InputError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_directory(path: Path, *, is_ours: bool = False) -> None:
    """Make a directory, mode 0700, and those above it that are missing; raises `OSError`.

    `is_ours`: whether the directory is for us alone: then one that an older release left open is closed. One that
    people name may be ``/tmp``, and stays as it is.
    """
    # One by one: with `parents=True` those above it would get the usual mode. Another process may make one meanwhile.
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(20, "Not a directory", os.fspath(path))
    if is_ours and found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file, mode 0600, at no time readable by anybody else; raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # one that was there before keeps its mode otherwise
        file.write(content)


def replace_private_file(path: Path, content: bytes) -> None:
    """Write a file, mode 0600, whole or not at all: a crash leaves the old one; raises `OSError`."""
    make_private_directory(path.parent)
    fresh = path.with_name(f"{path.name}.new")
    write_private_file(fresh, content)
    fresh.replace(path)


_MOST_BYTES: Final = 64 * 1024  # a secret is a line: a larger file is another one, given by mistake


def read_secret(path: Path, setting: str) -> str:
    """Return the secret in a file, as systemd's credentials and Kubernetes' mounted secrets have it, stripped.

    `setting`: name of the setting that names the file, for errors; they never show the secret.

    Raises `InputError` if the file can't be read, or holds no text of one line.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{setting} must be a readable file; got {error.strerror} ({path})") from None
    # Bytes that are no UTF-8 become U+FFFD, and are refused below: an error of decoding would quote them.
    secret = content.decode("utf-8", "replace").strip()
    if not secret or len(content) > _MOST_BYTES or "\n" in secret or "\ufffd" in secret or "\0" in secret:
        raise InputError(f"{setting} must be a file with one line of text; got {len(content)} bytes ({path})")
    return secret
