"""The process: it listens, says where, and ends cleanly."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from irregulars import stopping
from irregulars.errors import InputError
from irregulars.infra.console.access.addresses import Network, is_in, neighbourhood_of
from irregulars.infra.console.serving.connections import LIMITS_S, BoundedConfig, BoundedConnection, Phase
from irregulars.infra.console.serving.crowd import MOST, Crowd

_STOP_S: Final = 3
_BACKLOG: Final = 128
"""Connections that the kernel keeps for us, and that we accept at a time before the `Crowd` lets others go."""


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
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        taken = " Name another port: --listen 127.0.0.1:8322" if error.errno == errno.EADDRINUSE else ""
        raise InputError(
            f"console_listen must be an address that we can listen on; got {error.strerror} ({host}:{port}).{taken}"
        ) from None
    return found


def config_of(
    app: ASGIApp, proxies: Sequence[Network] = (), certificate: Certificate | None = None,
    limits_s: Mapping[Phase, float | None] = LIMITS_S,
) -> BoundedConfig:  # fmt: skip
    """Return how we serve. uvicorn reads no header that says from where a request comes: the `Gate` does.

    Raises
    ------
    OSError
        If the certificate or its key can't be used.
    """
    crowd: Crowd[BoundedConnection] = Crowd(
        lambda address: None if is_in(address, proxies) else neighbourhood_of(address)
    )
    return BoundedConfig(
        app, crowd=crowd, tls=None if certificate is None else _tls_of(certificate), limits_s=limits_s,
        log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="on", ws="none",
        timeout_graceful_shutdown=_STOP_S, timeout_keep_alive=int(LIMITS_S[Phase.IDLE] or 0), backlog=_BACKLOG,
        limit_concurrency=MOST + 1,  # where all are being answered the crowd lets nobody go: 503 for who comes then
    )  # fmt: skip


def _tls_of(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate_file, certificate.key_file)
    return context


class _Server(uvicorn.Server):
    """uvicorn, with our handler of signals: its own raises them again at the end, and makes a failure of it."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return stopping.on_stop(self.end_soon)

    def end_soon(self) -> None:
        """End as soon as what is being answered is answered, or `_STOP_S` is over."""
        self.should_exit = True


def loaded(
    app: ASGIApp, proxies: Sequence[Network] = (), certificate: Certificate | None = None
) -> BoundedConfig:  # fmt: skip
    """Return how we serve, with the certificate read: what is wrong with it is told before we say where we are.

    Raises
    ------
    InputError
        If the certificate or its key can't be used.
    """
    try:
        config = config_of(app, proxies, certificate)
    except OSError as error:  # ssl.SSLError is one too
        raise InputError(
            f"console_certificate_file and console_key_file must be a certificate and its key (PEM); got {error}"
        ) from None
    config.load()
    return config


def serve(config: uvicorn.Config, listening: socket.socket) -> None:
    """Serve until a signal asks to stop."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _Server(config).run(sockets=[listening])
