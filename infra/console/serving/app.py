"""The console as an ASGI application: its parts, and in which order a request passes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import irregulars
from irregulars.infra.console.access.failures import Failures
from irregulars.infra.console.access.gate import Gate
from irregulars.infra.console.access.policy import AccessPolicy
from irregulars.infra.console.access.sessions import Sessions
from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.console.heat_map.routes import heat_map_routes
from irregulars.infra.console.pages.devices import device_routes
from irregulars.infra.console.pages.feedback import feedback_routes
from irregulars.infra.console.pages.incident import incident_routes
from irregulars.infra.console.pages.job import job_routes
from irregulars.infra.console.pages.jobs_now import jobs_now_routes
from irregulars.infra.console.pages.login import Login
from irregulars.infra.console.pages.pipeline import pipeline_routes
from irregulars.infra.console.pages.questions import question_routes
from irregulars.infra.console.pages.rendering import Console, make_templates
from irregulars.infra.console.serving.errors import error_handlers
from irregulars.infra.console.serving.metrics import ConsoleMetrics
from irregulars.infra.console.shared_answers import SharedAnswers
from irregulars.infra.console.static_files import read_static_files, static_route
from irregulars.infra.console.topics.kafka_address import KafkaAddress
from irregulars.infra.console.topics.recent_alerts import RecentAlerts
from irregulars.sinks.connection import DatabaseSettings


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What a console needs.

    Parameters
    ----------
    database
        The database that it reads.
    policy
        Who gets in.
    kafka
        Where alerts, dead letters and feedback are; None: Kafka is left alone.
    takes_feedback
        Whether people may say if a verdict was right, which writes to Kafka.
    silence_s
        Seconds without a word after which a job counts as over.
    """

    database: DatabaseSettings
    policy: AccessPolicy
    kafka: KafkaAddress | None = None
    takes_feedback: bool = False
    silence_s: float = 600.0


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
        Route("/healthz", _healthz), Route("/metrics", metrics.page), static_route(read_static_files()),
        *Login(settings.policy, sessions, Failures(), metrics.wrong_tokens.inc).routes(),
        *heat_map_routes(database), *jobs_now_routes(), *job_routes(), *incident_routes(), *feedback_routes(),
        *device_routes(), *pipeline_routes(), *question_routes(),
    ]  # fmt: skip
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=error_handlers())
    # Starlette would lead /devices/ to a whole address, with http behind a proxy that speaks TLS.
    app.router.redirect_slashes = False
    app.state.console = Console(
        database=database, kafka=settings.kafka, alerts=alerts, answers=SharedAnswers(),
        takes_feedback=settings.takes_feedback and settings.kafka is not None, silence_s=settings.silence_s,
        templates=make_templates(), version=irregulars.__version__,
    )  # fmt: skip
    return metrics.measured(Gate(app, settings.policy, sessions))


async def _healthz(request: Request) -> Response:
    """Say that the process answers; whether the database does, its pages and metrics tell."""
    return PlainTextResponse("ok\n")
