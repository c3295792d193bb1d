"""The console put together, and the process that serves it: application, metrics, errors, files, uvicorn."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import irregulars
from irregulars import stopping
from irregulars.errors import InputError, IrregularsError, ServiceRefused
from irregulars.infra.console import handbook, incident, jobs, tables
from irregulars.infra.console.access import AccessPolicy, Gate, Sessions, make_policy, path_of
from irregulars.infra.console.database import ConsoleDatabase, KafkaAddress, RecentAlerts, SharedAnswers
from irregulars.infra.console.heat_routes import heat_map_routes
from irregulars.infra.console.rendering import RUNBOOK, Console, Login, make_templates, render
from irregulars.infra.settings import Settings
from irregulars.infra.showing.html_page import themed
from irregulars.infra.wiring import database_settings, kafka_security
from irregulars.printing import printable
from irregulars.sinks.alerts import LEAST_SEVERITY
from irregulars.sinks.connection import DatabaseSettings


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Settings of a console."""

    database: DatabaseSettings
    policy: AccessPolicy
    kafka: KafkaAddress | None = None  # alerts, dead letters and feedback; None: Kafka is left alone
    takes_feedback: bool = False  # people may say if a verdict was right, and mute it, which publishes to Kafka
    silence_s: float = 600.0  # without a message a job counts as over
    runbook_url: str = RUNBOOK
    least_severity: str = LEAST_SEVERITY  # less urgent verdicts gave no alert: the workers' alert_least_severity


def make_app(settings: ConsoleSettings) -> ASGIApp:
    """Return the application: a request is measured, passes the gate, and then finds its page."""
    metrics, sessions = ConsoleMetrics(), Sessions(settings.policy.secret)
    database = ConsoleDatabase(settings.database, metrics.count_answer)
    alerts = None if settings.kafka is None else RecentAlerts(settings.kafka, metrics.alerts.inc)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if alerts is not None:
            alerts.start()
        yield
        if alerts is not None:
            alerts.close()
        database.close()

    routes = [
        Route("/healthz", _healthz), Route("/metrics", metrics.page), Route("/static/charts.css", _charts_css),
        Mount("/static", _StaticFiles(packages=_FOLDERS), name="static"),
        *Login(settings.policy, sessions, metrics.wrong_tokens.inc).routes(),
        *heat_map_routes(database), *jobs.ROUTES, *incident.ROUTES, *tables.ROUTES, *handbook.ROUTES,
    ]  # fmt: skip
    handlers: Mapping[Any, Any] = {HTTPException: _of_http, IrregularsError: _of_ours, Exception: _of_bug}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    # Starlette would lead /devices/ to a whole address, with http behind a proxy that speaks TLS.
    app.router.redirect_slashes = False
    app.state.console = Console(
        database=database, kafka=settings.kafka, alerts=alerts, answers=SharedAnswers(),
        takes_feedback=settings.takes_feedback and settings.kafka is not None, silence_s=settings.silence_s,
        runbook_url=settings.runbook_url, least_severity=settings.least_severity,
        templates=make_templates(), version=irregulars.__version__,
    )  # fmt: skip
    return metrics.measured(Gate(app, settings.policy, sessions))


async def _healthz(request: Request) -> Response:
    """Answer while the process runs. Whether the database answers is shown on the pages and in the metrics."""
    return PlainTextResponse("ok\n")


def address_of(settings: Settings) -> tuple[str, int]:
    """Return host and port; raises `InputError` if the port is none."""
    host, sign, port = settings.console_listen.rpartition(":")
    if not sign or int(port) >= 1 << 16:
        raise InputError(f"console_listen must be host:port; got {settings.console_listen!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the certificate; None: we speak plain HTTP. Raises `InputError` where one of two files is missing."""
    certificate, key = settings.console_certificate_file, settings.console_key_file
    if (certificate is None) != (key is None):
        raise InputError("console_certificate_file and console_key_file must be set together; got one of them")
    return None if certificate is None or key is None else (certificate, key)


def policy_of(settings: Settings, address: tuple[str, int]) -> AccessPolicy:
    """Return who gets in; raises `InputError` where that would not be safe."""
    return make_policy(
        address, token_file=settings.console_token_file, user_header=settings.console_user_header,
        proxies=settings.console_proxies, proxy_secret_file=settings.console_proxy_secret_file,
        names=settings.console_hosts,
        is_encrypted=settings.console_certificate_file is not None, takes_plain=settings.console_plain_http,
    )  # fmt: skip


def console_settings_of(settings: Settings, policy: AccessPolicy, *, reads_kafka: bool = True) -> ConsoleSettings:
    """Return the settings of the application. Raises `InputError` where a file of a secret can't be read."""
    security = kafka_security(settings, is_asking=False) if reads_kafka else {}
    kafka = KafkaAddress(settings.kafka_bootstrap, settings.topics(), security) if reads_kafka else None
    database = database_settings(settings, is_reading=True)
    return ConsoleSettings(
        database, policy, kafka, settings.console_feedback, settings.silence_s, settings.runbook_url or RUNBOOK,
        settings.alert_least_severity,
    )  # fmt: skip


_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ConsoleMetrics:
    """Metrics of the console."""

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
        """Count one question to the database. One that can't be asked is no failure of the database."""
        outcome = "answered" if error is None else "refused" if isinstance(error, InputError) else "failed"
        self._database.labels(outcome).observe(seconds)

    async def page(self, request: Request) -> Response:
        """Return all of it in Prometheus's text format."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def measured(self, app: ASGIApp) -> ASGIApp:
        """Return an application that measures each request of another one."""

        async def measure(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            # 500 stays where the application raises before it has answered.
            begun_s, status = time.perf_counter(), 500

            async def note_status(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, note_status)
            finally:
                # By the function and not by the address: addresses hold names, and would make labels without end.
                endpoint = scope.get("endpoint")
                self._pages.labels(
                    getattr(endpoint, "__name__", "other") if endpoint is not None else "none", str(status)
                ).observe(time.perf_counter() - begun_s)

        return measure


LOG: Final = logging.getLogger("irregulars.console")

_TO_DO: Final[Mapping[int, str]] = {
    404: "The name may be misspelt, or what it names is no longer stored. Search finds jobs, hosts and verdicts.",
    503: "This page tries again by itself. Alerts go their own way meanwhile: irregulars alerts follows them.",
    500: "The console's log says more. Please report it.",
}


async def _of_http(request: Request, error: HTTPException) -> Response:
    # Starlette's own errors have the bare phrase of the status as their text, which tells people little.
    is_plain = error.detail == HTTPStatus(error.status_code).phrase
    return _answer(request, error.status_code, "There is no such page." if is_plain and error.status_code == 404
                   else error.detail, error.headers)  # fmt: skip


async def _of_ours(request: Request, error: IrregularsError) -> Response:
    if isinstance(error, InputError):
        return _answer(request, 400, str(error))
    to_do = "Check clickhouse_reader_user and its rights." if isinstance(error, ServiceRefused) else None
    if request.method == "POST":
        to_do = "Go back, and send it again when the service answers: the same word twice counts once."
    return _answer(request, 503, str(error), {"Retry-After": "5"}, to_do)


async def _of_bug(request: Request, error: Exception) -> Response:
    # Starlette raises it again behind us, and uvicorn logs the traceback.
    LOG.error("event=page_failed page=%s error=%s", printable(path_of(request)), type(error).__name__)
    return _answer(request, 500, "This page could not be made: that is a fault of the console.")


def _answer(
    request: Request, status: int, text: str, headers: Mapping[str, str] | None = None, to_do: str | None = None
) -> Response:
    # Scripts ask these addresses: an HTML page is no answer to them.
    if path_of(request).startswith("/api/"):
        return JSONResponse({"error": text}, status, dict(headers or {}))
    title = HTTPStatus(status).phrase
    answer = render(request, "error.html", status, code=status, title=title, text=text,
                    to_do=to_do or _TO_DO.get(status, ""))  # fmt: skip
    answer.headers.update(headers or {})
    return answer


# Folders whose files stand under ``/static/``; of one name in several the first counts
_FOLDERS: Final[list[str | tuple[str, str]]] = [
    ("irregulars.infra.console", "static"),
    ("irregulars.infra.console", "heat_map/static"),
]


class _StaticFiles(StaticFiles):
    """A browser asks for them each time, and gets 304 where it has the newest."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


async def _charts_css(request: Request) -> Response:
    return Response(themed(), headers={"Cache-Control": "no-cache"}, media_type="text/css")


_STOP_S: Final = 3
_IDLE_S: Final = 30
_BACKLOG: Final = 128
# Connections and requests at a time; more are answered with 503. Files that a process may open are 1,024 in most
# places; the database needs some too.
_MOST: Final = 512


Certificate = tuple[Path, Path]  # our certificate and its key (PEM), for https


def listen_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0: any free one. Raises `InputError` if the address can't be listened on."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"console_listen must be an address of this machine; got {error} ({host}:{port})") from None
    try:
        # Else connections of a console that has just ended would block the port for a minute.
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


def config_of(app: ASGIApp, certificate: Certificate | None = None) -> uvicorn.Config:
    """Return how we serve, with the certificate read: a fault in it shows before our address is printed.

    Raises `InputError` if the certificate or its key can't be used.
    """
    # No `proxy_headers`: uvicorn would replace the client's address, by which proxies are believed, by a header.
    config = uvicorn.Config(
        app, http="h11", loop="asyncio", ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, limit_concurrency=_MOST, timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S, backlog=_BACKLOG,
        ssl_certfile=None if certificate is None else certificate[0],
        ssl_keyfile=None if certificate is None else certificate[1],
        ssl_keyfile_password="-",  # refuses a key with a passphrase, which OpenSSL would else ask for on the terminal
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one too
        raise InputError(
            "console_certificate_file and console_key_file must be a certificate and its key (PEM), without a "
            f"passphrase; got {error}"
        ) from None
    return config


class _Server(uvicorn.Server):
    """uvicorn, with our handler of signals: its own raises them again at the end, and makes a failure of it."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return stopping.on_stop(self.end_soon)

    def end_soon(self) -> None:
        """End once all requests in progress are answered, or after `_STOP_S`."""
        self.should_exit = True


def serve(config: uvicorn.Config, listening: socket.socket) -> None:
    """Serve until a signal asks to stop."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _Server(config).run(sockets=[listening])
