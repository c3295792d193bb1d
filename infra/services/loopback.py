"""Ports on 127.0.0.1, where every service that Irregulars starts by itself listens."""

from __future__ import annotations

import random
import socket
from typing import Final

from irregulars.errors import InputError, ServiceUnavailable

HOST: Final = "127.0.0.1"

# Below Linux's range for outgoing connections (32768 and up). A client that keeps trying to reach a service which is
# down can be given the service's own port as its source, connect to itself, and keep the service from coming back.
_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 200


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 without a listener; raises `ServiceUnavailable` if there is none."""
    for port in random.sample(_PORTS, _TRIES):
        if is_free(port):
            return port
    raise ServiceUnavailable(f"a port of {HOST} must be free; got none in {_TRIES} tries. End what listens there")


def require_free(port: int, service: str) -> None:
    """Raise `InputError` if a process listens on `port` of 127.0.0.1 already."""
    if not is_free(port):
        raise InputError(f"port of {service} must be free; got {port}, which is taken on {HOST}. Choose another")


def is_free(port: int) -> bool:
    """Whether a service could listen on `port` of 127.0.0.1."""
    with socket.socket() as probe:
        # As servers do it: connections of the last owner that wait to be forgotten don't make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Whether a process accepts connections on `port` of 127.0.0.1."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True
