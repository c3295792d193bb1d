"""Clocks of workers that step: a library between a process and the time of day, compiled by the machine itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("stepping_clock.c")
_BYTES: Final = 8


def can_compile() -> bool:
    """Whether the machine has a C compiler."""
    return shutil.which("cc") is not None


def compile_library(folder: Path) -> Path | None:
    """Return the library, compiled into a folder; None without a compiler."""
    if not can_compile():
        return None
    library = folder / "stepping_clock.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


class Clock:
    """The time of day of one process, which reads from a file how far it is off."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        path.write_bytes(bytes(_BYTES))

    def step(self, seconds: int) -> None:
        """Let it be that far from the machine's own, from now on."""
        with self._path.open("r+b") as file:
            file.write(seconds.to_bytes(_BYTES, "little", signed=True))

    def environment(self, library: Path) -> dict[str, str]:
        """Return what makes a process use this clock."""
        return {"LD_PRELOAD": str(library), "STEPPING_CLOCK": str(self._path)}
