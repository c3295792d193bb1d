"""Makes recordings one after the other: each in a process of its own, with everything that it needs and leaves."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError, ServiceUnavailable
from tests.benchmarks.recordings.children import Child
from tests.benchmarks.recordings.conducting import LIMIT_S, conduct
from tests.benchmarks.recordings.finishing import finish
from tests.benchmarks.recordings.priority import come_first
from tests.benchmarks.recordings.ranks import NICE
from tests.benchmarks.recordings.recording import Recording

PROGRAMS: Final = ("ip", "tc", "nsenter")
_IMPORTED_ONCE: Final = (
    "torch._dynamo",
    "tests.benchmarks.recordings.jobs",
    "irregulars.producers.torch_hook.session",
)
"""What the ranks need later: they are forks, and start at once."""

_POLL_S: Final = 0.05


def require_machine() -> None:
    """Raise `InputError` unless recordings can be made here: root on one Linux machine, with torch."""
    if not sys.platform.startswith("linux"):
        raise InputError(f"recordings must be made on Linux (network namespaces, tc); got {sys.platform}")
    if os.geteuid() != 0:
        rule = "made by root (network namespaces, tc, cgroups)"
        raise InputError(f"recordings must be {rule}; got user {os.geteuid()}")
    come_first(NICE)
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} must be installed; not found (Debian: iproute2, util-linux)")
    try:
        for module in _IMPORTED_ONCE:
            import_module(module)
    except ModuleNotFoundError:
        raise InputError("torch must be installed to make recordings; it is not (make torch)") from None


def build_hook() -> str:
    """Build the native hook unless it is there; return which one will serve."""
    from irregulars.producers.torch_hook.hooks.native_library import build_library, find_library

    if find_library() is None:
        try:
            os.environ["TORCH_COMMS_NATIVE"] = str(build_library(Path("build/torch-hook")).parent)
        except InputError as error:
            logging.getLogger("irregulars.recordings").warning("event=hook hook=python reason=%r", str(error))
    return "python" if find_library() is None else "native"


def make(recording: Recording, out: Path) -> dict[str, Any]:
    """Make one recording below `out`, where it takes the place of one of the same name; return its label.

    Raises
    ------
    ServiceUnavailable
        If the job failed, with its last words.
    """
    with tempfile.TemporaryDirectory(prefix="irregulars-recording-") as scratch:
        directory = Path(scratch)
        conductor = Child(lambda: _conduct(recording, directory), directory / "conductor.log", signal.SIGTERM)
        try:
            _wait(conductor, recording.name)
        finally:
            conductor.end()
        if conductor.status != 0:
            raise ServiceUnavailable(f"{recording.name} must be recorded; it was not: {conductor.last_words()}")
        fresh = directory / "fresh"
        label = finish(recording, directory, fresh, np.load(directory / "reference.npy"))
        shutil.rmtree(out / recording.name, ignore_errors=True)
        shutil.copytree(fresh, out / recording.name)
    return label


def _conduct(recording: Recording, directory: Path) -> None:
    board = conduct(recording, directory)
    np.save(directory / "reference.npy", board.reference_ns)


def _wait(conductor: Child, name: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S + 30
    while conductor.status is None:
        if time.monotonic() > deadline_s:
            raise ServiceUnavailable(f"{name} must end within {LIMIT_S:g} s; its conductor did not")
        time.sleep(_POLL_S)
