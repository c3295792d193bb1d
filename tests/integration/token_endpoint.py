"""An OAuth server of the tests, which may be away."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from irregulars.infra.runs.child_process import HOST, free_port
from tests.integration.secured_kafka import SecuredKafka


class TokenServer:
    """Gives a token to each user who says the broker's password; at one address over all starts and stops.

    Attributes
    ----------
    url
        Of the token endpoint.
    expires_in_s
        How long its tokens may be used.
    asked
        How often a token was asked for.
    """

    def __init__(self, broker: SecuredKafka, expires_in_s: int = 600) -> None:
        self._broker = broker
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None
        self._serving: threading.Thread | None = None
        self.expires_in_s = expires_in_s
        self.asked = 0
        self.url = f"http://{HOST}:{self._port}/token"

    def start(self) -> None:
        """Answer from now on."""
        owner = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                basic = self.headers["Authorization"].removeprefix("Basic ")
                answer = owner.answer(*base64.b64decode(basic).decode().split(":", 1))
                self.send_response(200 if answer["access_token"] else 401)
                body = json.dumps(answer).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, self._port), Endpoint)
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._serving.start()

    def stop(self) -> None:
        """Be away from now on. Twice is fine."""
        if self._server is not None and self._serving is not None:
            self._server.shutdown()
            self._serving.join()
            self._server.server_close()
            self._server = None

    def answer(self, user: str, secret: str) -> dict[str, object]:
        """What it says to `user`; a wrong secret gets no token."""
        self.asked += 1
        is_known = secret == self._broker.password
        token = self._broker.signer.token(user, self.expires_in_s) if is_known else None
        return {"access_token": token, "expires_in": self.expires_in_s}
