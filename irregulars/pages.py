"""Small pages over HTTP from a thread of their own: metrics of an agent or a worker, and its signs of life."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from irregulars.errors import InputError

disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter would have a second series: its start

LOG: Final = logging.getLogger("irregulars.pages")
MOST_REQUESTS: Final = 16
"""Requests that are answered at a time: clients that reach the port must not cost us a thread for each connection."""

READ_S: Final = 5.0  # how long a client may take over each piece of its request, s; a page is asked for in one piece
_CLOSED_S: Final = 0.05  # the longest that `PageServer.close` waits for the loop to see it: half a second by default


@dataclass(frozen=True, slots=True)
class Page:
    """Answer to a request."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


MakePage = Callable[[], Page]


def text_page(text: str, status: int = 200) -> Page:
    """Return a page of plain text."""
    return Page(f"{text}\n".encode(), status)


def metrics_page(registry: CollectorRegistry) -> MakePage:
    """Return the page of a registry, to which those of this process (memory, CPU, start) are added."""
    ProcessCollector(registry=registry)
    return lambda: Page(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def parse_listen(text: str) -> tuple[str, int] | None:
    """Read ``host:port``, or ``off``, which gives `None`; raises `InputError`.

    >>> parse_listen("127.0.0.1:9465"), parse_listen("[::1]:0"), parse_listen("off")
    (('127.0.0.1', 9465), ('::1', 0), None)
    """
    host, sign, port = text.rpartition(":")
    if text == "off":
        return None
    if not sign or not host or not (port.isascii() and port.isdecimal()) or int(port) >= 1 << 16:
        raise InputError(f"metrics_listen must be host:port, port 0 for any free one, or off; got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class PageServer:
    """Serves some pages until it is closed; raises `InputError`.

    Parameters
    ----------
    host, port
        Where to listen; port 0: any free one.
    pages
        By path. A function is called for each request, in a thread of its own.
    takes_other_port
        Whether any free port will do where the given one is taken; else that is an error.
    """

    def __init__(
        self, host: str, port: int, pages: Mapping[str, MakePage], *, takes_other_port: bool = False
    ) -> None:
        try:
            self._server = _listen(host, port, takes_other_port)
        except (OSError, UnicodeError) as error:  # the latter: no name that a network knows
            reason = error.strerror if isinstance(error, OSError) else error
            text = f"metrics address must be one that we can listen on; got {reason} ({host}:{port})"
            raise InputError(text) from error
        self._host: Final = host
        self._server.pages = pages
        self._thread: Final = threading.Thread(
            target=self._server.serve_forever, args=(_CLOSED_S,), name="irregulars-pages", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where it listens, as ``http://host:port``."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _listen(host: str, port: int, takes_other_port: bool) -> _Server:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # The family, IPv4 or IPv6, is an attribute of socketserver's classes: it is read before the socket is made.
    kind = type("_ServerOfFamily", (_Server,), {"address_family": family})
    try:
        return cast("_Server", kind(address))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not takes_other_port:
            raise
        # An address of IPv6 has two more parts behind the port, flow and scope.
        return cast("_Server", kind((address[0], 0, *address[2:])))


class _Server(ThreadingHTTPServer):
    """Answers a bounded number of requests at a time, and asks no name server who it is."""

    daemon_threads = True
    pages: Mapping[str, MakePage]

    def __init__(self, address: Any) -> None:
        self.pages = {}
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # that of HTTPServer looks its own name up, which may take long

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, which would have given its place back
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client went away, and a traceback would not help."""


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_S

    def do_GET(self) -> None:
        self._send(self._page(), has_body=True)

    def do_HEAD(self) -> None:
        self._send(self._page(), has_body=False)

    def _page(self) -> Page:
        pages = cast(_Server, self.server).pages
        make = pages.get(self.path.partition("?")[0])
        if make is None:
            return text_page("\n".join(sorted(pages)), 200 if self.path == "/" else 404)
        try:
            return make()
        except Exception as error:  # whatever it is, the next request may be answered
            LOG.warning("event=page_failed path=%s error=%s reason=%r", self.path, type(error).__name__, str(error))
            return text_page("page could not be made; the log says why", 500)

    def _send(self, page: Page, *, has_body: bool) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if has_body:
            self.wfile.write(page.body)

    def version_string(self) -> str:
        return "irregulars"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no event."""
