"""The process: it listens, says where, and ends cleanly."""

from __future__ import annotations

import errno
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from irregulars.errors import InputError

_STOP_S: Final = 3
_IDLE_S: Final = 30
_MOST_CONNECTIONS: Final = 512
"""Connections that are served at a time; whoever comes then is told 503 at once."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Our certificate and its key (PEM), for https."""

    certificate_file: Path
    key_file: Path


def listen_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0: any free one.

    Raises
    ------
    InputError
        If the address can't be listened on.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"console_listen must be an address of this machine; got {error} ({host}:{port})") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        taken = " Name another port: --listen 127.0.0.1:8322" if error.errno == errno.EADDRINUSE else ""
        raise InputError(
            f"console_listen must be an address that we can listen on; got {error.strerror} ({host}:{port}).{taken}"
        ) from None
    return found


def config_of(app: ASGIApp, certificate: Certificate | None = None) -> uvicorn.Config:
    """Return how we serve. No header says from where a request comes: by that address proxies are known."""
    return uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="on", ws="none",
        timeout_graceful_shutdown=_STOP_S, timeout_keep_alive=_IDLE_S, limit_concurrency=_MOST_CONNECTIONS,
        ssl_certfile=None if certificate is None else str(certificate.certificate_file),
        ssl_keyfile=None if certificate is None else str(certificate.key_file),
    )  # fmt: skip


class _Server(uvicorn.Server):
    """uvicorn, but a signal that ended it cleanly is not raised again: that would make a failure of it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def loaded(app: ASGIApp, certificate: Certificate | None = None) -> uvicorn.Config:
    """Return how we serve, with the certificate read: what is wrong with it is told before we say where we are.

    Raises
    ------
    InputError
        If the certificate or its key can't be used.
    """
    config = config_of(app, certificate)
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one too
        raise InputError(
            f"console_certificate_file and console_key_file must be a certificate and its key (PEM); got {error}"
        ) from None
    return config


def serve(config: uvicorn.Config, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _Server(config).run(sockets=[listening])
