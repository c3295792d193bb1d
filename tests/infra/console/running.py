"""A console that listens, in a thread: for browsers, screenshots and benchmarks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from irregulars.infra.console.access.policy import make_policy
from irregulars.infra.console.serving.app import ConsoleSettings, make_app
from irregulars.infra.console.serving.server import config_of, listen_on
from irregulars.infra.console.topics.kafka_address import KafkaAddress
from irregulars.sinks.connection import DatabaseSettings


@dataclass(frozen=True, slots=True)
class RunningConsole:
    """Where it listens, and the token that lets in."""

    url: str
    token: str

    @property
    def link(self) -> str:
        """The link that logs in."""
        return f"{self.url}/login#{self.token}"


@contextmanager
def running_console(
    database: DatabaseSettings, kafka: KafkaAddress | None = None, *, takes_feedback: bool = False
) -> Iterator[RunningConsole]:
    """Serve a console on a free port of this machine until the block ends."""
    with listen_on("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        policy = make_policy(("127.0.0.1", port))
        app = make_app(ConsoleSettings(database, policy, kafka, takes_feedback))
        server = uvicorn.Server(config_of(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.started
        try:
            yield RunningConsole(f"http://127.0.0.1:{port}", policy.token or "")
        finally:
            server.should_exit = True
            thread.join(10)
