"""Asks NCCL's RAS service over TCP.

The service listens in each process of a job, on ``localhost:28028`` unless ``NCCL_RAS_ADDR`` says otherwise, and
speaks for the whole job, in lines of text: ``CLIENT PROTOCOL n`` is answered by ``SERVER PROTOCOL n``, ``SET FORMAT
json`` by ``OK`` (since NCCL 2.28.7), and ``STATUS`` by one answer, after which the service closes the connection.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from irregulars.errors import InputError
from irregulars.producers.nccl_ras.answers import MAX_ANSWER_BYTES

PORT: Final = 28028

PROTOCOL: Final = 2
"""As in NCCL 2.24 to 2.31. A service of another one is asked all the same, as NCCL's own client does."""

ASKING_S: Final = 20.0
"""An answer may take as long. The service itself gives a process that does not answer 5 s, and some time on top."""

_MOST_LINE_BYTES: Final = 1024
_CHUNK_BYTES: Final = 1 << 16


class RasAway(Exception):
    """No service can be reached there: no job runs, it has not begun to communicate, or it has no RAS."""


class RasClient:
    """Asks one service, each time over a connection of its own.

    Parameters
    ----------
    host, port
        Where it listens.
    asking_s
        How long an answer may take, from the connection to its last byte.
    """

    def __init__(self, host: str = "localhost", port: int = PORT, asking_s: float = ASKING_S) -> None:
        self._host, self._port, self._asking_s = host, port, asking_s

    def ask(self) -> bytes:
        """Return one answer, as JSON.

        Raises
        ------
        RasAway
            If nobody listens there, or the service ends before it has answered.
        InputError
            If what answers is no RAS service, one that knows no JSON, or its answer is too long.
        """
        until_s = time.monotonic() + self._asking_s
        try:
            with socket.create_connection((self._host, self._port), timeout=self._asking_s) as connection:
                return _Conversation(connection, until_s, f"{self._host}:{self._port}").ask()
        except OSError as error:  # timeouts are too
            raise RasAway(f"{self._host}:{self._port}: {error.strerror or error}") from error


class _Conversation:
    """One connection to a service."""

    def __init__(self, connection: socket.socket, until_s: float, where: str) -> None:
        self._connection, self._until_s, self._where = connection, until_s, where
        self._rest = b""

    def ask(self) -> bytes:
        greeting = self._command(f"CLIENT PROTOCOL {PROTOCOL}")
        if not greeting.upper().startswith(b"SERVER PROTOCOL "):
            raise InputError(
                f"{self._where} must be NCCL's RAS service, which says SERVER PROTOCOL; got {greeting[:60]!r}"
            )
        accepted = self._command("SET FORMAT json")
        if accepted.upper() != b"OK":
            raise InputError(
                f"{self._where}: RAS must answer in JSON, as NCCL does since 2.28.7; got {accepted[:60]!r} "
                "(an older NCCL answers in text alone)"
            )
        self._send("STATUS")
        return self._read_to_end()

    def _command(self, command: str) -> bytes:
        self._send(command)
        while b"\n" not in self._rest:
            if len(self._rest) > _MOST_LINE_BYTES:
                raise InputError(f"{self._where} must answer in lines; got {self._rest[:60]!r}")
            self._rest += self._receive_some()
        line, _, self._rest = self._rest.partition(b"\n")
        return line.strip()

    def _send(self, command: str) -> None:
        self._set_timeout()
        self._connection.sendall(f"{command}\n".encode())

    def _read_to_end(self) -> bytes:
        parts, size = [self._rest], len(self._rest)
        while chunk := self._receive():
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise InputError(f"{self._where}: RAS answer must be at most {MAX_ANSWER_BYTES} bytes; got more")
        return b"".join(parts)

    def _receive_some(self) -> bytes:
        chunk = self._receive()
        if not chunk:
            raise ConnectionResetError("it closed the connection before it answered")
        return chunk

    def _receive(self) -> bytes:
        self._set_timeout()
        return self._connection.recv(_CHUNK_BYTES)

    def _set_timeout(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its answer took too long")
        self._connection.settimeout(left_s)
