"""A gate before a broker that makes it refuse the first request for a partition, as a leader in the making does."""

from __future__ import annotations

import asyncio
import struct
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from typing import Final

from irregulars.infra.runs.child_process import HOST

_PRODUCE: Final = 0
_OTHERS_S: Final = 0.5  # in which a client that sends more without waiting has sent it


class RefusingGate:
    """Forwards whole requests and responses, and lets no produce request for `topic` through that is the first.

    That one goes to the broker under the name of a topic that does not exist, and its refusal comes back under the
    right name, after `_OTHERS_S`: a client that waits for no answer has sent its next request by then.
    """

    def __init__(self, port: int, target: int, topic: str) -> None:
        self.port = port
        self._target = target
        self._name = topic.encode()
        self._wrong_name = b"x" * len(self._name)
        self.refused = 0

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with await asyncio.start_server(self._connect, HOST, self.port) as server:
            await server.serve_forever()

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        refused: set[int] = set()
        with suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(
                self._requests(reader, far_writer, refused), self._responses(far_reader, writer, refused)
            )
        writer.close()
        far_writer.close()

    async def _requests(self, reader: StreamReader, writer: StreamWriter, refused: set[int]) -> None:
        while True:
            frame = await _read_frame(reader)
            kind, _, correlation = struct.unpack_from(">hhi", frame)
            if kind == _PRODUCE and self._name in frame and not self.refused:
                self.refused += 1
                refused.add(correlation)
                frame = frame.replace(self._name, self._wrong_name)
            _write_frame(writer, frame)

    async def _responses(self, reader: StreamReader, writer: StreamWriter, refused: set[int]) -> None:
        while True:
            frame = await _read_frame(reader)
            if struct.unpack_from(">i", frame)[0] in refused:
                await asyncio.sleep(_OTHERS_S)
                frame = frame.replace(self._wrong_name, self._name)
            _write_frame(writer, frame)


async def _read_frame(reader: StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _write_frame(writer: StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)
