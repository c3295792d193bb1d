"""TLS in front of a server that speaks none, as a company's proxy: our ClickHouse engine has no port for it."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration.certificates import Authority


@contextmanager
def behind_tls(url: str, authority: Authority, days: int = 2) -> Iterator[str]:
    """Yield an https URL on loopback that leads to the http `url`, with a certificate of `authority`."""
    certificate, key = authority.issue("database", days)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    inner = ("127.0.0.1", int(url.rpartition(":")[2]))

    class Front(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as outside,
                socket.create_connection(inner) as inside,
            ):
                back = threading.Thread(target=_pump, args=(inside, outside))
                back.start()
                _pump(outside, inside)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Front) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
