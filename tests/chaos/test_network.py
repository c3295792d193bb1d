"""A gate lets through, holds up and refuses what it is told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from irregulars.infra.runs.child_process import HOST
from tests.chaos.network import Gates


@pytest.fixture
def echo() -> Iterator[int]:
    """Port of a service that sends back what one connection after the other sends."""
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            with suppress(TimeoutError):
                connection, _ = server.accept()
                with connection:
                    answer(connection)

    def answer(connection: socket.socket) -> None:
        connection.settimeout(60)
        with suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)

    with socket.create_server((HOST, 0)) as server:
        server.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        is_over.set()
        thread.join(5)


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"hello\n")
    return connection.recv(100)


def is_broken(connection: socket.socket) -> bool:
    try:
        return ask(connection) == b""
    except OSError:
        return True


def test_a_gate_can_be_cut_slowed_and_mended(echo: int) -> None:
    with Gates() as gates:
        gate = gates.open(echo)
        with socket.create_connection((HOST, gate.port), timeout=60) as before:
            assert ask(before) == b"hello\n"
            gates.slow(gate, 0.2)
            began_s = time.monotonic()
            assert ask(before) == b"hello\n"
            assert time.monotonic() - began_s >= 0.2
            gates.cut(gate)
            assert is_broken(before)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, gate.port), timeout=60)
        gates.mend(gate)
        with socket.create_connection((HOST, gate.port), timeout=60) as after:
            assert ask(after) == b"hello\n"


def test_a_silent_gate_breaks_nothing_and_lets_nothing_through(echo: int) -> None:
    with Gates() as gates:
        gate = gates.open(echo)
        with socket.create_connection((HOST, gate.port), timeout=60) as connection:
            assert ask(connection) == b"hello\n"
            gates.silence(gate)
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                ask(connection)
            gates.mend(gate)
            connection.settimeout(60)
            assert connection.recv(100) == b"hello\n"
