"""A disk fills up and has room again, a clock steps, a gate holds up: and all are mended."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from irregulars.infra.runs.child_process import HOST
from tests.chaos.surroundings import Clock, Gates, can_compile, can_mount, compile_library, disks

ROOM = bytes(1_000_000)


@pytest.mark.skipif(not can_mount(), reason="needs root, who may mount a disk")
def test_a_full_disk_takes_no_more_until_it_is_mended(tmp_path: Path) -> None:
    with disks(tmp_path, "database") as found:
        disk = found["database"]
        (disk.path / "before").write_bytes(ROOM)
        disk.fill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk.path / "meanwhile").write_bytes(ROOM)
        assert (disk.path / "before").read_bytes() == ROOM
        disk.mend()
        (disk.path / "after").write_bytes(ROOM)
    assert list((tmp_path / "database").iterdir()) == []


TOLD = """
import threading, time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "nobody", "log_level": 0})
def say():
    began_s = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    consumer.poll(0.05)
    print(round(time.time()), time.monotonic() - began_s, flush=True)
say()
input()
say()
"""


@pytest.mark.skipif(not can_compile(), reason="needs a C compiler (Debian: apt-get install gcc)")
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_the_time_of_day_steps_and_waiting_lasts_as_long_as_before(tmp_path: Path, seconds: int) -> None:
    library, clock = compile_library(tmp_path), Clock(tmp_path / "clock")
    assert library is not None
    environment = {**os.environ, **clock.environment(library)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TOLD], env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        before_s, before_took_s = map(float, process.stdout.readline().split())
        clock.step(seconds)
        after_s, after_took_s = map(float, process.communicate("\n", timeout=60)[0].split())
    assert after_s - before_s == pytest.approx(seconds, abs=60)
    assert 0.1 <= before_took_s < 60
    assert 0.1 <= after_took_s < 60


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


def test_a_gate_that_is_cut_while_many_knock_leaves_nothing_open() -> None:
    """What asyncio has accepted when its server closes is lost, and pytest makes that a failure."""
    is_over = threading.Event()

    def knock(port: int) -> None:
        while not is_over.is_set():
            with suppress(OSError), socket.create_connection((HOST, port), 1.0):
                pass

    with socket.create_server((HOST, 0)) as far, Gates() as gates:
        gate = gates.open(far.getsockname()[1])
        knocking = [threading.Thread(target=knock, args=(gate.port,)) for _ in range(3)]
        for thread in knocking:
            thread.start()
        for _ in range(100):
            gates.cut(gate)
            gates.mend(gate)
            time.sleep(0.005)
        is_over.set()
        for thread in knocking:
            thread.join()
