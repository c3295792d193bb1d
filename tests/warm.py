"""Commands as processes of their own that spend nothing on imports: copies of a process that has made them.

A command takes a second of a core for its imports, and tests start hundreds. `Popen` and `run` are those of
`subprocess` for ``python -m MODULE ...``: the copy has its own environment, folder and output, and is our child.
Tests of the process itself (its start, Ctrl-C in it, what it leaves) start one with `subprocess`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_IMPORTED: Final = (
    "clickhouse_connect", "encodings.idna", "irregulars.infra.cli", "irregulars.infra.doctor.diagnosis",
    "irregulars.infra.runs.analysis", "irregulars.infra.runs.node_agent", "irregulars.infra.wiring",
    "irregulars.producers.trace.source", "irregulars.sinks.clickhouse", "irregulars.sinks.notices.process",
    "irregulars.streams.worker.running", "numpy.ma", "pydantic", "rich.status", "rich.table", "tomllib",
    "typer._adapters",
)  # fmt: skip
_SET_CHILD_SUBREAPER: Final = 36
_LARGEST_BYTES: Final = 1 << 20
_LOCK: Final = threading.Lock()


class Popen(subprocess.Popen[Any]):
    """A command that is started as a copy; its first words must be ``python [-P] -m MODULE``."""

    def _execute_child(self, args: list[str], *others: Any) -> None:
        cwd, environment, pipes = others[4], others[5], others[9:15]
        descriptors = [own if own != -1 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        order = {"words": args[args.index("-m") + 1 :], "is_safe": "-P" in args, "cwd": str(cwd or Path.cwd())}
        order["environment"] = dict(os.environ if environment is None else environment)
        try:
            with _LOCK:  # orphans come to us meanwhile, and this copy shall be the only one
                connection = _template()
                _adopt_orphans(True)
                try:
                    socket.send_fds(connection, [json.dumps(order).encode()], descriptors)
                    self.pid = int(connection.recv(64))
                finally:
                    _adopt_orphans(False)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(command: list[str], *, timeout: float, check: bool = False, **options: Any) -> Any:
    """Run a command to its end, and return it as `subprocess.run` does, its output as text."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@functools.cache
def _template() -> socket.socket:
    """Start the process that is copied, which ends with its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_BYTES)
        words = [sys.executable, "-c", f"from tests.warm import serve; serve({theirs.fileno()})"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        template = subprocess.Popen(
            words, cwd=_ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def end() -> None:
        ours.close()
        template.wait()

    atexit.register(end)
    return ours


def _adopt_orphans(is_wanted: bool) -> None:
    """Let a process below us whose parent ends be our child (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def serve(descriptor: int) -> None:
    """Import what commands need; then start a copy for each order, until the other end is closed."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as connection:
        while True:
            data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_BYTES, 3)
            if not data:
                return
            reader, writer = os.pipe()
            if (between := os.fork()) == 0:  # it ends at once, so that the copy becomes the child of the tests
                if (pid := os.fork()) == 0:
                    break
                os.write(writer, str(pid).encode())
                os._exit(0)
            os.waitpid(between, 0)
            connection.send(os.read(reader, 64))
            for one in (reader, writer, *descriptors):
                os.close(one)
    _become(json.loads(data), descriptors)


def _become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Run the module of an order in this process, as Python would."""
    for number, given in enumerate(descriptors):
        os.dup2(given, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - the template's was another kind of file
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    first = [] if order["is_safe"] else [order["cwd"]]
    given_paths = order["environment"].get("PYTHONPATH")
    sys.path[:1] = [*first, *(given_paths.split(os.pathsep) if given_paths else ())]
    sys.argv[:] = order["words"]
    runpy.run_module(order["words"][0], run_name="__main__", alter_sys=True)
