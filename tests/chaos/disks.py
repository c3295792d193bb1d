"""Disks of our own that fill up: each a file system in memory, which root may mount and shrink on Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Final

_BYTES: Final = 8 << 30
_LEFT_BYTES: Final = 256 << 10  # of a full disk: less than a second's writing


class Disk:
    """A file system of which its user sees nothing but the directory where it is mounted."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def fill(self) -> None:
        """Leave no room but for a few writes."""
        self._resize(shutil.disk_usage(self.path).used + _LEFT_BYTES)

    def mend(self) -> None:
        """Give back all room."""
        self._resize(_BYTES)

    def _resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self.path))


@cache
def can_mount() -> bool:
    """Whether this process may mount a disk: root of a container often may not."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="irregulars-mount-") as folder:
        try:
            _mount(Path(folder))
        except subprocess.CalledProcessError:
            return False
        _run("umount", "--lazy", folder)
    return True


@contextmanager
def disks(folder: Path, *names: str) -> Iterator[dict[str, Disk]]:
    """Mount a disk at each of these names in a folder; without the right to do so plain directories, and no disk."""
    with ExitStack() as stack:
        found: dict[str, Disk] = {}
        for name in names if can_mount() else ():
            path = folder / name
            path.mkdir(mode=0o700)
            _mount(path)
            stack.callback(_run, "umount", "--lazy", str(path))
            found[name] = Disk(path)
        yield found


def _mount(path: Path) -> None:
    _run("mount", "-t", "tmpfs", "-o", f"size={_BYTES},mode=0700", "irregulars-chaos", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
