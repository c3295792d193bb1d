"""A console that listens, in a thread: for browsers, screenshots and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from irregulars.infra.console.access import make_policy
from irregulars.infra.console.kafka import KafkaAddress
from irregulars.infra.console.server import ConsoleSettings, config_of, listen_on, make_app
from irregulars.sinks.connection import DatabaseSettings
from tests.infra.console.served_apps import serving


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
        policy = make_policy(("127.0.0.1", listening.getsockname()[1]))
        config = config_of(make_app(ConsoleSettings(database, policy, kafka, takes_feedback)))
        with serving(config, listening) as url:
            yield RunningConsole(url, policy.token or "")
