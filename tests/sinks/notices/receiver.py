"""A local HTTP server that keeps what it is sent, and answers as it is told."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast


@dataclass(frozen=True)
class Request:
    """What came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What is answered."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()


CLOSING = (("Connection", "close"),)
"""Headers of a server that is away, with all of its connections, as soon as it is stopped."""

Answering = Callable[[Request], Reply]


class Receiver:
    """Listens on a port of this machine, usually any free one, until the end of a ``with``."""

    def __init__(
        self, answer: Answering = lambda _: Reply(), tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.requests: list[Request] = []
        self.answer = answer
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.receiver = self
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def bodies(self) -> list[Any]:
        return [one.json() for one in self.requests]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that was killed went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        receiver = cast(_Server, self.server).receiver
        request = Request(self.path, dict(self.headers.items()), body, self.command)
        receiver.requests.append(request)
        reply = receiver.answer(request)
        self.send_response(reply.status)
        for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_PATCH = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
