"""The pipeline's own health: are jobs heard and judged, which ranks are silent, what could not be used."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import ServiceError
from irregulars.infra.console.kafka import newest_letters
from irregulars.infra.console.pages.cells import Table, table_of
from irregulars.infra.console.pages.jobs_now import named
from irregulars.infra.console.pages.rendering import Console, console_of, render
from irregulars.sinks.investigations import run

_LETTERS: Final = 50
_SILENT_JOBS: Final = 3
_KEEP_S: Final = 4.0

Letters = tuple[int, list[dict[str, Any]]]


def pipeline_routes() -> list[BaseRoute]:
    """Return the routes of this page."""
    return [Route("/pipeline", pipeline_page, name="pipeline")]


async def pipeline_page(request: Request) -> Response:
    """Show how the pipeline does; each part says for itself where its service is away."""
    console = console_of(request)
    (health, silent, database_trouble), (letters, kafka_trouble) = await asyncio.gather(
        _of_database(console), _of_kafka(console)
    )
    return render(
        request, "pipeline.html", 200 if database_trouble is None else 503, health=health, silent=silent,
        database_trouble=database_trouble, letters=letters, kafka_trouble=kafka_trouble,
        alerts_trouble=None if console.alerts is None else console.alerts.trouble, now_s=time.time(),
        shown_letters=_LETTERS,
    )  # fmt: skip


async def _of_database(console: Console) -> tuple[Table | None, list[tuple[str, Table]], str | None]:
    database = console.database
    try:
        answer = await database.ask("pipeline_health", lambda client: run(client, "pipeline_health"), _KEEP_S)
        jobs = [row["job"] for row in named(answer) if row["silent_ranks"]][:_SILENT_JOBS]
        silent = await asyncio.gather(*(_silent_ranks(console, job) for job in jobs))
    except ServiceError as error:
        return None, [], str(error)
    return table_of(answer), list(zip(jobs, silent, strict=True)), None


async def _silent_ranks(console: Console, job: str) -> Table:
    answer = await console.database.ask(
        ("silent_ranks", job), lambda client: run(client, "silent_ranks", {"job": job}), _KEEP_S
    )
    return table_of(answer)


async def _of_kafka(console: Console) -> tuple[Letters | None, str | None]:
    kafka = console.kafka
    if kafka is None:
        return None, "This console was told to leave Kafka alone (--no-kafka)."

    async def read() -> Letters:
        return await asyncio.to_thread(newest_letters, kafka, _LETTERS)

    try:
        return await console.answers.get("letters", read, _KEEP_S), None
    except ServiceError as error:
        return None, str(error)
