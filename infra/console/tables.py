"""Pages that are tables of the questions that ship."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import InputError, ServiceError
from irregulars.grouping import grouped
from irregulars.infra.console.database import ConsoleDatabase, newest_letters
from irregulars.infra.console.rendering import (
    NAME,
    Console,
    Table,
    console_of,
    host_path,
    incident_path,
    job_path,
    named,
    render,
    table_of,
)
from irregulars.messages.kinds import DEVICE_KINDS, PLACE
from irregulars.sinks.investigations import NEWEST, THEMES, Answer, Investigation, bind, run, shipped_investigations

_KEEP_S: Final = 5.0
_MOST_ROWS: Final = 500  # rows that a page asks for at most; `irregulars sql` gives more

_FIND: Final = """
SELECT kind, name FROM
(
    SELECT DISTINCT 'job' AS kind, toString(job) AS name FROM jobs
    UNION ALL
    SELECT DISTINCT 'host' AS kind, toString(assumeNotNull(host)) AS name FROM jobs WHERE host IS NOT NULL
    UNION ALL
    SELECT DISTINCT 'verdict' AS kind, verdict_id AS name FROM verdicts
)
WHERE positionCaseInsensitive(name, {text:String}) > 0
ORDER BY name != {text:String}, lower(name) != lower({text:String}), kind = 'verdict', length(name), name
LIMIT 50"""

_PATHS: Final[Mapping[str, Callable[[str], str]]] = {"job": job_path, "host": host_path, "verdict": incident_path}


async def questions_page(request: Request) -> Response:
    """List the questions."""
    shipped = sorted(shipped_investigations().values(), key=lambda one: THEMES.index(one.theme))
    themes = [(theme, list(own)) for theme, own in groupby(shipped, lambda one: one.theme)]
    return render(request, "questions.html", themes=themes)


async def question_page(request: Request) -> Response:
    """Ask one question, with the values that were given, and show the answer."""
    question = shipped_investigations().get(request.path_params["name"])
    if question is None:
        raise HTTPException(404, "No such question ships.")
    # A form sends its empty fields too.
    given = {name: value for name, value in request.query_params.items() if value != ""}
    values = _bounded(question, given)
    needs = [one for one in question.parameters if one.is_required and one.name not in values]
    answer, wrong = None, None
    if not needs:
        try:
            bind(question, values)
            key = ("question", question.name, tuple(sorted(values.items())))
            answer = await console_of(request).database.ask(
                key, lambda client: run(client, question.name, values), _KEEP_S
            )
        except InputError as error:
            wrong = str(error)
    return render(
        request, "question.html", 200 if wrong is None else 400, question=question, given=given, needs=needs,
        wrong=wrong, newest=NEWEST, chosen={} if answer is None else answer.chosen,
        table=None if answer is None else table_of(answer),
    )  # fmt: skip


def _bounded(question: Investigation, given: dict[str, str]) -> dict[str, str]:
    """Return the values, with no more rows than a page shows: the question's own limit may be above that too."""
    usual = {one.name: one.default for one in question.parameters}
    try:
        is_long = int(given.get("limit", usual.get("limit") or "0")) > _MOST_ROWS
    except ValueError:  # `bind` raises for it, with a text for people
        return given
    return {**given, "limit": str(_MOST_ROWS)} if is_long else given


async def search_page(request: Request) -> Response:
    """Find jobs, hosts and verdicts by a part of their name; an exact one is shown at once."""
    text = request.query_params.get("q", "").strip()[:500]
    if not text:
        return RedirectResponse("/questions", 303)
    rows = await console_of(request).database.ask(
        ("find", text), lambda client: client.query(_FIND, parameters={"text": text}).result_rows, _KEEP_S
    )
    found = [(kind, name, _PATHS[kind](name)) for kind, name in rows]
    # The question puts an exact name first.
    if found and (found[0][1] == text or len(found) == 1):
        return RedirectResponse(found[0][2], 303)
    return render(request, "search.html", text=text, found=found)


RANGES: Final = (1, 7, 30, 90, 365)  # days that can be chosen
_USUAL_DAYS: Final = 30
_MOST: Final = 1000  # devices that are added up to their hosts
_SHOWN: Final = 50
_SLOW_S: Final = 15.0

_DEVICE_COLUMNS: Final = (
    "device",
    "host",
    "expected_gpu_hours_lost",
    "verdicts",
    "jobs",
    "open_verdicts",
    "last_seen_at",
)

# Columns of `device_history` and `host_history` for which 1,024 pixels have room; a verdict's name holds its job's
_HISTORY_COLUMNS: Final = (
    "device", "kind", "state", "severity", "probability", "expected_gpu_hours_lost", "last_seen_at", "verdict_id",
)  # fmt: skip
_START_COLUMNS: Final = (
    "job", "attempt", "newest_at", "ranks", "verdicts", "kinds", "highest_probability", "expected_gpu_hours_lost",
)  # fmt: skip


async def devices_page(request: Request) -> Response:
    """Show the devices on which time was lost within a range of days."""
    database, days = console_of(request).database, days_of(request.query_params.get("days"))
    devices, switches, offenders = await asyncio.gather(
        ask(database, "time_lost_by_device", days=days, limit=_MOST),
        ask(database, "cost_by_switch", days=days, limit=_SHOWN),
        ask(database, "repeat_offenders", days=days, limit=_SHOWN),
    )
    shown = Answer(devices.columns, devices.rows[:_SHOWN], devices.chosen, devices.empty)
    return render(
        request, "devices.html", days=days, ranges=RANGES, devices=table_of(shown, _DEVICE_COLUMNS),
        losses=[float(row["expected_gpu_hours_lost"] or 0) for row in named(shown)],
        hosts=hosts_of(named(devices))[:_SHOWN], switches=table_of(switches), offenders=table_of(offenders),
        total=sum(float(row["expected_gpu_hours_lost"] or 0) for row in named(devices)),
        left_out=max(0, len(devices.rows) - _SHOWN),
    )  # fmt: skip


async def device_page(request: Request) -> Response:
    """Show the history of one device, by its place."""
    given = {name: value for name, value in request.query_params.items() if name in PLACE}
    if not any(given.get(kind.named_by[0]) for kind in DEVICE_KINDS.values() if kind.named_by):
        raise HTTPException(404, "A device is found by its host, or is a switch.")
    values: dict[str, Any] = dict(given)
    history = await ask(console_of(request).database, "device_history", **values)
    shown = table_of(history, _HISTORY_COLUMNS)
    title = " ".join(f"{DEVICE_KINDS[name].noun} {value}" for name, value in given.items() if name != "host")
    return render(request, "device.html", title=title or "all devices", host=given.get("host"),
                  history=shown, starts=None)  # fmt: skip


async def host_page(request: Request) -> Response:
    """Show which jobs ran on a host, and which verdicts accuse it or a device on it."""
    host, database = request.path_params["host"], console_of(request).database
    starts, history = await asyncio.gather(
        ask(database, "host_history", host=host), ask(database, "device_history", host=host)
    )
    if not host or not (starts.rows or history.rows):
        raise HTTPException(404, f"No host of the name {host!r} is known: no job ran on it, no verdict accuses it.")
    return render(request, "device.html", title=f"host {host}", host=None, starts=table_of(starts, _START_COLUMNS),
                  history=table_of(history, _HISTORY_COLUMNS))  # fmt: skip


async def ask(database: ConsoleDatabase, question: str, keep_s: float = _SLOW_S, **values: Any) -> Answer:
    """Run a question that ships. Raises `InputError` for values that do not fit, and `ServiceError`."""
    key = (question, tuple(sorted(values.items())))
    return await database.ask(key, lambda client: run(client, question, values), keep_s)


def days_of(text: str | None) -> int:
    """Return the days that were chosen, of `RANGES`.

    >>> days_of("7"), days_of(None), days_of("hostile")
    (7, 30, 30)
    """
    return next((days for days in RANGES if str(days) == text), _USUAL_DAYS)


def hosts_of(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the loss of each host's devices, the costliest host first; devices without a host are left out. Pure."""
    by_host = grouped((row["host"], row) for row in devices if row["host"] is not None)
    found = [
        {"host": host, "gpu_hours": sum(float(one["expected_gpu_hours_lost"] or 0) for one in own),
         "devices": len(own), "open_verdicts": sum(int(one["open_verdicts"]) for one in own)}
        for host, own in by_host.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one["gpu_hours"], one["host"]))


_LETTERS: Final = 50
_SILENT_JOBS: Final = 3
_HEALTH_KEPT_S: Final = 4.0

Letters = tuple[int, list[dict[str, Any]]]


async def pipeline_page(request: Request) -> Response:
    """Show the pipeline's state; each part reports by itself that its service is away."""
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
        answer = await ask(database, "pipeline_health", _HEALTH_KEPT_S)
        jobs = [row["job"] for row in named(answer) if row["silent_ranks"]][:_SILENT_JOBS]
        silent = await asyncio.gather(*(ask(database, "silent_ranks", _HEALTH_KEPT_S, job=job) for job in jobs))
    except ServiceError as error:
        return None, [], str(error)
    return table_of(answer), list(zip(jobs, map(table_of, silent), strict=True)), None


async def _of_kafka(console: Console) -> tuple[Letters | None, str | None]:
    kafka = console.kafka
    if kafka is None:
        return None, "This console was told to leave Kafka alone (--no-kafka)."

    async def read() -> Letters:
        # Kafka's client blocks: in a thread of its own it holds no other page up.
        return await asyncio.to_thread(newest_letters, kafka, _LETTERS)

    try:
        return await console.answers.get("letters", read, _HEALTH_KEPT_S), None
    except ServiceError as error:
        return None, str(error)


ROUTES: Final[Sequence[BaseRoute]] = (
    Route("/devices", devices_page, name="devices"),
    Route("/devices/history", device_page, name="device"),
    Route(f"/hosts/{{host:{NAME}}}", host_page, name="host"),
    Route("/pipeline", pipeline_page, name="pipeline"),
    Route("/questions", questions_page, name="questions"),
    Route("/questions/{name}", question_page, name="question"),
    Route("/search", search_page, name="search"),
)
