"""What surrounds the workers and can be broken: disks, clocks and the network.

A disk is a file system in memory, which root may mount and shrink on Linux. A clock steps by a library between a
process and the time of day, compiled by the machine itself. A gate stands before a service's port.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from irregulars.infra.runs.child_process import HOST, free_port

_BYTES: Final = 8 << 30
_LEFT_BYTES: Final = 256 << 10  # of a full disk: less than a second's writing


class Disk:
    """A file system of which its user sees nothing but the directory where it is mounted."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def fill(self, left_bytes: int = _LEFT_BYTES) -> None:
        """Leave no room but for a few writes, or for as many bytes."""
        self._resize(shutil.disk_usage(self.path).used + left_bytes)

    def mend(self) -> None:
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


_SOURCE: Final = Path(__file__).with_name("stepping_clock.c")
_OFFSET_BYTES: Final = 8


def can_compile() -> bool:
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
        path.write_bytes(bytes(_OFFSET_BYTES))

    def step(self, seconds: int) -> None:
        """Let it be that far from the machine's own, from now on."""
        with self._path.open("r+b") as file:
            file.write(seconds.to_bytes(_OFFSET_BYTES, "little", signed=True))

    def environment(self, library: Path) -> dict[str, str]:
        """Return what makes a process use this clock."""
        return {"LD_PRELOAD": str(library), "STEPPING_CLOCK": str(self._path)}


_CHUNK_BYTES: Final = 1 << 16


class Gates:
    """Forwards ports of 127.0.0.1 to others, from a thread of its own; a ``with`` block opens and closes all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._gates: list[Gate] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="gates", daemon=True)

    def open(self, target: int) -> Gate:
        gate = Gate(target)
        self._gates.append(gate)
        self._call(gate.listen())
        return gate

    def cut(self, gate: Gate) -> None:
        """Break the connections of a gate, and refuse new ones until `mend`."""
        self._call(gate.cut())

    def slow(self, gate: Gate, delay_s: float) -> None:
        """Let each piece of data take that much longer, until `mend`."""
        self._loop.call_soon_threadsafe(setattr, gate, "delay_s", delay_s)

    def silence(self, gate: Gate) -> None:
        """Let nothing through and break nothing, as a switch that died, until `mend`."""
        self._loop.call_soon_threadsafe(gate.is_open.clear)

    def mend(self, gate: Gate) -> None:
        self.slow(gate, 0.0)
        self._loop.call_soon_threadsafe(gate.is_open.set)
        self._call(gate.listen())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Gates:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _close(self) -> None:
        for gate in self._gates:
            await gate.cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Gate:
    """One port that leads to another; used by the thread of `Gates` alone."""

    def __init__(self, target: int) -> None:
        self.port: Final = free_port()
        self.delay_s = 0.0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Take connections; twice is fine."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, HOST, self.port)

    async def cut(self) -> None:
        """Take none, and break those that are open."""
        server, self._server = self._server, None
        if server is not None:
            for one in server.sockets:
                asyncio.get_running_loop().remove_reader(one)
            await asyncio.sleep(0)  # asyncio loses, unclosed, what it has accepted when its server closes
            server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._open |= ends  # before the far side: a cut meanwhile breaks this too
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target)
            ends.add(far_writer)
            self._open |= ends
            if writer.is_closing():
                far_writer.transport.abort()
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        except OSError:
            writer.transport.abort()
        finally:
            self._open -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self.is_open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()
