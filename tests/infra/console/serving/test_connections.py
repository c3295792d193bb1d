"""Connections that say nothing, little, or too slowly: they go, and everybody else is served meanwhile."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from irregulars.infra.console.serving.connections import Phase
from irregulars.infra.console.serving.crowd import MOST, MOST_OF_ONE
from irregulars.infra.console.serving.server import Certificate, config_of, listen_on
from tests.infra.console.visits import visit
from tests.integration.certificates import Authority

Address = tuple[str, int]

SILENT = 600
LIMIT_S = 0.4
"""For connections that must end."""

PATIENT_S = 2.0
"""For connections that must stay: a busy machine may hold one up for a second in a place where it should not wait."""

LATE_S = 60.0
"""A connection that must end has ended by then; one that stays is seen to stay for a little longer than its limit."""

LARGE = b"x" * 20_000_000
"""More than the kernel keeps for both ends of a connection."""

GET = b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, after a while, or with much."""
    if scope["type"] == "lifespan":
        for what in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{what}.complete"})
        return
    more = scope["method"] == "POST"
    while more:
        more = (message := await receive()).get("more_body", False) and message["type"] == "http.request"
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * PATIENT_S)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE if scope["path"] == "/large" else b"small"})


@contextmanager
def served(
    limit_s: float, certificate: Certificate | None = None, receiving_s: float | None = None
) -> Iterator[Address]:
    """Serve `pages` with a limit for each phase but that of making an answer, until the block ends."""
    limits_s = dict.fromkeys((Phase.SENDING, Phase.IDLE), limit_s) | {Phase.ANSWERING: None}
    limits_s[Phase.RECEIVING] = receiving_s or limit_s
    with listen_on("127.0.0.1", 0) as listening:
        server = uvicorn.Server(config_of(pages, (), certificate, limits_s))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join(10)


def connect(address: Address, source: str = "") -> socket.socket:
    return socket.create_connection(address, timeout=LATE_S, source_address=(source, 0) if source else None)


def assert_answered(connection: socket.socket) -> None:
    answer = b""
    while not answer.endswith(b"small\r\n0\r\n\r\n"):
        piece = connection.recv(4096)
        assert piece, answer
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ")


def ends_after_s(connection: socket.socket) -> float:
    """Read until the other end closes; return how long that took."""
    begun_s = time.monotonic()
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - begun_s


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with served(LIMIT_S) as found:
        yield found


@pytest.fixture(scope="module")
def patient() -> Iterator[Address]:
    with served(PATIENT_S) as found:
        yield found


# --- too many -------------------------------------------------------------------------------------------------------


@pytest.fixture
def _many_files() -> Iterator[None]:
    """Both ends of all connections are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_files")
@pytest.mark.parametrize("spread", [1, 6, SILENT], ids=["one address", "six addresses", "an address each"])
def test_a_fresh_visitor_gets_a_page_while_silent_connections_stand(spread: int) -> None:
    with visit() as visitor, ExitStack() as stack:
        url = visitor.client.base_url
        silent = [
            stack.enter_context(
                connect((url.host, url.port or 0), f"127.1.{at % spread // 250}.{at % spread % 250 + 1}")
            )
            for at in range(SILENT)
        ]
        begun_s = time.monotonic()
        for _ in range(3):
            assert visitor.raw(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").startswith(
                b"HTTP/1.1 200 "
            )
        assert time.monotonic() - begun_s < LATE_S
        standing = sum(not is_closed(one) for one in silent)
        assert standing <= min(MOST, MOST_OF_ONE * spread)
        assert standing > 100  # none was refused before it was silent for long


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# --- too slow -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab"]
)
def test_a_request_that_does_not_arrive_ends(address: Address, said: bytes) -> None:
    begun_s = time.monotonic()
    with connect(address) as connection:
        connection.sendall(said)
        assert ends_after_s(connection) < LATE_S
    assert time.monotonic() - begun_s > LIMIT_S / 2


def test_a_byte_now_and_then_does_not_make_it_longer(address: Address) -> None:
    with connect(address) as connection:
        begun_s = time.monotonic()
        while not is_closed(connection) and time.monotonic() - begun_s < LATE_S:
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(b"G")
            time.sleep(LIMIT_S / 4)
        assert time.monotonic() - begun_s < LATE_S


def test_one_that_has_had_its_answer_ends_a_while_later(patient: Address) -> None:
    """It stays from one request to the next, together for longer than the limit."""
    with connect(patient) as connection:
        for _ in range(3):
            connection.sendall(GET)
            assert_answered(connection)
            time.sleep(0.4 * PATIENT_S)
        assert ends_after_s(connection) < LATE_S


def test_a_slow_head_after_an_answer_ends_too(patient: Address) -> None:
    with connect(patient) as connection:
        connection.sendall(GET)
        assert_answered(connection)
        connection.sendall(b"GET / HT")
        assert ends_after_s(connection) < LATE_S


def test_an_answer_may_take_long_to_make(patient: Address) -> None:
    with connect(patient) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert_answered(connection)


def test_an_answer_that_is_not_taken_ends() -> None:
    with served(LIMIT_S, receiving_s=LATE_S) as address, connect(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(5 * LIMIT_S)
        taken = 0
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                taken += len(piece)
        assert 0 < taken < len(LARGE)


def test_an_answer_that_is_taken_slowly_comes_whole(patient: Address) -> None:
    with connect(patient) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        taken, begun_s = 0, time.monotonic()
        while piece := connection.recv(200_000):
            taken += len(piece)
            time.sleep(PATIENT_S / 40)
        assert taken > len(LARGE)
        assert time.monotonic() - begun_s > 2 * PATIENT_S


def test_behind_a_certificate_a_handshake_that_does_not_come_ends_and_others_are_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    trusting = ssl.create_default_context(cafile=authority.certificate)
    with served(PATIENT_S, Certificate(*authority.issue("console"))) as address, ExitStack() as stack:
        silent = [stack.enter_context(connect(address)) for _ in range(MOST_OF_ONE + 20)]
        silent[-1].sendall(b"\x16\x03\x01")
        silent[-2].sendall(GET)  # no TLS at all
        with connect(address) as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
            encrypted.sendall(GET)
            assert_answered(encrypted)
            assert ends_after_s(encrypted) < LATE_S
        for one in silent:
            assert ends_after_s(one) < LATE_S
