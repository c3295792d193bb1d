"""The RAS client against a server that speaks the protocol, and against all that may listen there instead."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from irregulars.errors import InputError
from irregulars.producers.importers import ras_answers as client
from irregulars.producers.importers.ras_answers import RasAway, RasClient, read_answer
from tests.producers.importers.played_server import PlayedJob, PlayedServer


def ask(server: PlayedServer, asking_s: float = 10.0) -> bytes:
    return RasClient("127.0.0.1", server.port, asking_s).ask()


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_asks_as_nccl_s_own_client_does_whatever_the_service_s_protocol(protocol: int) -> None:
    with PlayedServer(PlayedJob()) as server:
        server.replies["CLIENT PROTOCOL 2"] = b"SERVER PROTOCOL %d\n" % protocol
        assert len(read_answer(ask(server)).communicators) == 3
    assert server.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]


def test_an_answer_in_pieces_is_put_together() -> None:
    def slowly(connection: socket.socket, answer: bytes) -> None:
        for at in range(0, len(answer), 997):
            connection.sendall(answer[at : at + 997])
            time.sleep(0.001)

    with PlayedServer(PlayedJob()) as server:
        server.sends = slowly
        assert len(read_answer(ask(server)).communicators) == 3


@pytest.mark.parametrize(("command", "reply", "error"), [
    ("SET FORMAT JSON", b"ERROR: Unknown\n", r": RAS must answer in JSON, .* since 2\.28\.7; got b'ERROR"),
    *(("CLIENT PROTOCOL 2", one, " must") for one in (b"HTTP/1.1 400 Bad Request\r\n", b"\n", b"\0" * 3000)),
])  # fmt: skip
def test_nccl_without_json_and_what_is_no_ras_are_named(command: str, reply: bytes, error: str) -> None:
    with PlayedServer(PlayedJob()) as server:
        server.replies[command] = reply
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{server.port}{error}"):
            ask(server)


def test_nobody_there_or_one_who_ends_before_the_answer_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RasAway, match="refused"):
        RasClient("127.0.0.1", port).ask()
    with pytest.raises(RasAway):
        RasClient("no-such-host.invalid", port).ask()
    with PlayedServer() as server, pytest.raises(RasAway, match="closed the connection"):
        ask(server)


def test_a_service_that_says_nothing_is_left_after_a_while() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, and nobody reads
        began_s = time.monotonic()
        with pytest.raises(RasAway, match=r"timed out|too long"):
            RasClient("127.0.0.1", listener.getsockname()[1], 0.3).ask()
        assert time.monotonic() - began_s < 30


def test_drops_of_an_answer_do_not_keep_it_longer() -> None:
    stop = threading.Event()

    def drip(connection: socket.socket, answer: bytes) -> None:
        while not stop.wait(0.02):
            connection.sendall(b" ")

    with PlayedServer(PlayedJob()) as server:
        server.sends = drip
        with pytest.raises(RasAway, match=r"timed out|too long"):
            ask(server, 0.4)
        stop.set()


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1 << 20)

    def flood(connection: socket.socket, answer: bytes) -> None:
        while True:
            connection.sendall(b"{" * (1 << 16))

    with PlayedServer(PlayedJob()) as server:
        server.sends = flood
        with pytest.raises(InputError, match="must be at most 1048576 bytes"):
            ask(server)
