"""Metrics of the console itself; they tell nothing of jobs, so that they need no login."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from irregulars.errors import InputError

_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ConsoleMetrics:
    """What the console counts."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self._pages: Final = Histogram(
            "irregulars_console_page_seconds", "Time to answer a request", ("page", "status"), buckets=_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self._database: Final = Histogram(
            "irregulars_console_database_seconds", "Time of a question to the database, its turn included",
            ("outcome",), buckets=_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.wrong_tokens: Final = Counter(
            "irregulars_console_wrong_tokens", "Wrong tokens that somebody tried to log in with",
            registry=self.registry,
        )  # fmt: skip
        self.alerts: Final = Counter(
            "irregulars_console_alerts", "Alerts that were read from their topic", registry=self.registry
        )

    def count_answer(self, seconds: float, error: BaseException | None) -> None:
        """Note one question to the database. One that can't be asked is no failure of the database."""
        outcome = "answered" if error is None else "refused" if isinstance(error, InputError) else "failed"
        self._database.labels(outcome).observe(seconds)

    async def page(self, request: Request) -> Response:
        """Return all of it in Prometheus's text format."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def measured(self, app: ASGIApp, clock: Callable[[], float] = time.perf_counter) -> ASGIApp:
        """Return an application that measures each request of another one."""

        async def measure(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            begun_s, status = clock(), 500

            async def note_status(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, note_status)
            finally:
                self._pages.labels(_name(scope), str(status)).observe(clock() - begun_s)

        return measure


def _name(scope: Scope) -> str:
    """Return the name of the page that answered; never its path, which holds names of jobs."""
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "other") if endpoint is not None else "none"
