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


def test_it_asks_as_nccl_s_own_client_does() -> None:
    with PlayedServer(PlayedJob()) as server:
        assert len(read_answer(ask(server)).communicators) == 3
    assert server.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]


def test_a_service_of_another_protocol_is_asked_all_the_same() -> None:
    with PlayedServer(PlayedJob(), protocol=3) as server:
        assert len(read_answer(ask(server)).communicators) == 3


def test_an_answer_in_pieces_is_put_together() -> None:
    def slowly(connection: socket.socket, answer: bytes) -> None:
        for at in range(0, len(answer), 997):
            connection.sendall(answer[at : at + 997])
            time.sleep(0.001)

    with PlayedServer(PlayedJob()) as server:
        server.sends = slowly
        assert len(read_answer(ask(server)).communicators) == 3


def test_nccl_without_json_is_named() -> None:
    with PlayedServer(PlayedJob()) as server:
        server.knows_json = False
        with pytest.raises(InputError, match=r"must answer in JSON, .* since 2\.28\.7; got b'ERROR: Unknown"):
            ask(server)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"\n", b"\0" * 3000])
def test_what_is_no_ras_is_named(greeting: bytes) -> None:
    with PlayedServer(PlayedJob()) as server:
        server.greeting = greeting
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{server.port} must"):
            ask(server)


def test_nobody_there_is_no_error_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RasAway, match="refused"):
        RasClient("127.0.0.1", port).ask()
    with pytest.raises(RasAway):
        RasClient("no-such-host.invalid", port).ask()


def test_a_service_that_ends_before_it_answers_is_away() -> None:
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
