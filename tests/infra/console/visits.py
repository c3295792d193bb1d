"""A console that listens on this machine, and a browser without eyes that visits it: httpx, on a real connection."""

from __future__ import annotations

import html
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from irregulars.infra.console.access import AccessPolicy, make_policy
from irregulars.infra.console.database import KafkaAddress
from irregulars.infra.console.server import ConsoleSettings, config_of, listen_on, make_app
from irregulars.sinks.connection import DatabaseSettings

NOWHERE = DatabaseSettings("http://127.0.0.1:1", "nobody", "", "none")
"""A database that does not answer: port 1 refuses at once."""

PAGE = {"accept": "text/html"}


@dataclass(frozen=True, slots=True)
class Visit:
    """A console and somebody's browser, which keeps cookies."""

    client: httpx.Client
    token: str

    @property
    def url(self) -> str:
        """Where the console listens."""
        return str(self.client.base_url).rstrip("/")

    @property
    def link(self) -> str:
        """The link that logs in."""
        return f"{self.url}/login#{self.token}"

    def log_in(self, name: str = "ann") -> httpx.Response:
        return self.client.post("/login", data={"token": self.token, "name": name})

    def get(self, path: str, headers: Mapping[str, str] = PAGE) -> httpx.Response:
        """Ask for a page; a redirect is not followed."""
        return self.client.get(path, headers=headers)

    def csrf(self, path: str) -> str:
        """Return the word against other sites of a page's forms."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.get(path).text)
        assert found is not None
        return found[1]

    def raw(self, request: bytes) -> bytes:
        """Send bytes as no browser would, and return the answer."""
        url = self.client.base_url
        with socket.create_connection((url.host, url.port or 0), timeout=60) as connection:
            connection.sendall(request)
            pieces = []
            while piece := connection.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)


@contextmanager
def visit(
    database: DatabaseSettings = NOWHERE, kafka: KafkaAddress | None = None, *, takes_feedback: bool = False,
    **access: Any,
) -> Iterator[Visit]:  # fmt: skip
    """Serve a console until the block ends; `access` goes to `make_policy`. Nobody is logged in yet."""
    with listen_on("127.0.0.1", 0) as listening:
        policy = make_policy(("127.0.0.1", listening.getsockname()[1]), **access)
        with visit_of(ConsoleSettings(database, policy, kafka, takes_feedback), listening, policy) as found:
            yield found


@contextmanager
def visit_of(settings: ConsoleSettings, listening: socket.socket, policy: AccessPolicy) -> Iterator[Visit]:
    """Serve this console on this socket."""
    config = config_of(make_app(settings))
    with serving(config, listening) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield Visit(client, policy.token or "")


def text_of(answer: httpx.Response) -> str:
    """Return what people read of a page, blanks run together."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


_START_S = 60.0


@contextmanager
def serving(config: uvicorn.Config, listening: socket.socket) -> Iterator[str]:
    """Serve on a socket that listens; yields the address."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + _START_S
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
