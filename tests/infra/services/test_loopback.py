from __future__ import annotations

import socket
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.child_process import HOST, answers, free_port, is_free, require_free


def test_a_free_port_can_be_listened_on_and_no_client_gets_it_by_chance() -> None:
    port = free_port()
    with socket.create_server((HOST, port)):
        assert not is_free(port)
        assert answers(port)
    assert not answers(port)
    first_given_to_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < first_given_to_clients or first_given_to_clients < 20_000


def test_a_port_is_free_again_right_after_its_connections_closed() -> None:
    port = free_port()
    with socket.create_server((HOST, port)) as server, socket.create_connection((HOST, port)):
        server.accept()[0].close()  # the server closes first: its side waits to be forgotten
    assert is_free(port)


def test_a_taken_port_is_named() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(InputError, match=f"port of the thing must be free; got {port}, .*Choose another"):
            require_free(port, "the thing")
