"""A network that can be cut, slowed and silent: every client reaches a service through a gate of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from irregulars.infra.runs.child_process import HOST, free_port

_CHUNK_BYTES: Final = 1 << 16


class Gates:
    """Forwards ports of 127.0.0.1 to others, from a thread of its own; a ``with`` block opens and closes all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._gates: list[Gate] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="gates", daemon=True)

    def open(self, target: int) -> Gate:
        """Open a gate before the service on port `target`."""
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
        """Let everything through again, at once."""
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
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self.is_open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()
