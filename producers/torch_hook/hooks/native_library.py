"""The native hook's library: where it is, how it is built, and how it is called.

It is compiled on demand (``python -m irregulars.producers.torch_hook.hooks.native_library``), against the torch that
is installed, on a machine that has a compiler; nothing is compiled when the package is installed. The file's name
holds the version of torch and a hash of the source, so that a library for another of either is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError, how_to_install
from irregulars.printing import printable
from irregulars.producers.torch_hook.hooks.ring import CAPACITY, ROW

SOURCE: Final = Path(__file__).with_name("hook.cpp")
DIRECTORY: Final = "TORCH_COMMS_NATIVE"  # environment variable: a directory of built libraries, or ``off``
_BUILD_S: Final = 600.0


def library_name() -> str:
    """Name the file for this torch, this machine and this source."""
    import torch

    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return f"irregulars-hook-torch{torch.__version__}-{platform.machine()}-{digest}.so"


def find_library() -> Path | None:
    """Find the built library; `None` where there is none, or it is switched off."""
    name = library_name()
    return next((directory / name for directory in _directories() if (directory / name).is_file()), None)


def _directories() -> Iterator[Path]:
    given = os.environ.get(DIRECTORY, "")
    if given == "off":
        return
    if given:
        yield Path(given)
    yield Path(__file__).parent  # an image whose builder compiled it into the package
    yield cache_directory()  # asked last: a user without a home has none


def cache_directory() -> Path:
    """Directory of a build that names none: this user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "irregulars"


def build_library(directory: Path | None = None) -> Path:
    """Compile the library for the installed torch; takes some ten seconds.

    `directory`: where to; default: this user's cache. Raises InputError if there is no compiler, or it refuses the
    source: this torch has no collective hooks, for example.
    """
    import torch

    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise InputError("a C++ compiler must be installed to build the hook; got none (CXX, c++, g++, clang++)")
    directory = directory or cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    root, target = Path(torch.__file__).parent, directory / library_name()
    include, abi = root / "include", int(torch.compiled_with_cxx11_abi())
    flags = ["-O2", "-std=c++20", "-shared", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    flags += [f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"]
    # In the same directory: only within one file system a rename replaces a file at once.
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        built = Path(scratch) / target.name
        libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
        command = [compiler, *flags, str(SOURCE), "-o", str(built), *libraries]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"the compiler must run; got {error} ({command[0]})") from None
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or [done.stderr.strip()]
            raise InputError(f"the compiler must take hook.cpp; got {' '.join(errors[0].split())} ({command[0]})")
        built.replace(target)  # whole or not at all: other ranks may be looking for it
    return target


class NativeHook:
    """Hooks in C++, with the reading side of the ring that they write into.

    Raises OSError if the library can't be loaded.
    """

    name = "native"

    def __init__(self, path: Path) -> None:
        self._library: Any = ctypes.CDLL(str(path))
        self._library.irregulars_take.restype = ctypes.c_uint64
        self._library.irregulars_errors.restype = ctypes.c_uint64
        self._library.irregulars_open_ring(ctypes.c_uint64(CAPACITY))
        # As many as the ring holds, so that one reading gets all; pages that no reading reaches take no memory.
        self._buffer = np.zeros(CAPACITY, dtype=ROW)
        self._dropped = ctypes.c_uint64()

    @property
    def ring(self) -> NativeHook:
        """The hook itself: its library holds the ring."""
        return self

    def attach(self, process_group: object, name: str, number: int, device: str) -> bool:
        """Add the hook to a process group; return whether it worked."""
        return int(self._library.irregulars_attach(name.encode(), ctypes.c_uint16(number), device.encode())) == 0

    def detach(self) -> None:
        """Do nothing: hooks in C++ hold no object of Python's, and another thread may be using them."""

    def enable(self, is_on: bool) -> None:
        """Switch recording on or off; hooks stay where they are."""
        self._library.irregulars_enable(int(is_on))

    def set_iteration(self, iteration: int) -> None:
        """Set the iteration of the operators that follow."""
        self._library.irregulars_set_iteration(ctypes.c_int64(iteration))

    def errors(self) -> tuple[int, str]:
        """Count the errors inside the hook, with the text of the first."""
        text = ctypes.create_string_buffer(500)
        count = self._library.irregulars_errors(text, ctypes.c_uint64(len(text)))
        return int(count), text.value.decode("utf-8", "replace")

    def ask_devices(self) -> None:
        """Do nothing: `take` asks them."""

    def take(self) -> np.ndarray:
        """Take the rows that ended since the last call."""
        self._library.irregulars_ask_devices()
        return self._read(is_open=False)

    def still_open(self) -> np.ndarray:
        """Copy the rows that have not ended."""
        return self._read(is_open=True)

    @property
    def dropped_rows(self) -> int:
        """Rows overwritten before they were taken."""
        return self._dropped.value

    def _read(self, is_open: bool) -> np.ndarray:
        target, size = ctypes.c_void_p(self._buffer.ctypes.data), ctypes.c_uint64(len(self._buffer))
        count = self._library.irregulars_take(target, size, int(is_open), ctypes.byref(self._dropped))
        return self._buffer[: int(count)].copy()


def main(arguments: list[str]) -> int:
    """Build the library; the one argument, if any, is the directory."""
    try:
        print(build_library(Path(arguments[0]) if arguments else None))
        return 0
    except ModuleNotFoundError:
        text = f"torch must be installed; got none. {how_to_install('torch')}"
    except (InputError, OSError) as error:
        text = printable(" ".join(str(error).split()))
    print(f"irregulars: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
