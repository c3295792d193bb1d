"""The first page: what is wrong now, and how every job does."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import ServiceError
from irregulars.infra.console.pages.job import JobStart, Pace, newest_iterations, pace_of
from irregulars.infra.console.pages.rendering import Console, console_of, render
from irregulars.sinks.investigations import Answer, run

_MOST_JOBS: Final = 200
_MOST_INCIDENTS: Final = 100
_STALE_S: Final = 60.0  # seconds after which a job that was heard before counts as late: most iterations take less
_URGENCY: Final = {"page": 0, "ticket": 1, "note": 2}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job, as a line."""

    row: Row  # what `jobs_now` says
    pace: Pace | None  # its newest iterations; None: none is judged yet
    cost: float | None  # GPU-hours an hour that its open verdicts cost; None: not known, or none is open
    seen_s: float | None  # when its newest iteration began, seconds since the epoch
    state: str  # ``running``, ``late`` (no word for a minute) or ``silent`` (it counts as over)


@dataclass(frozen=True, slots=True)
class Now:
    """All of the page."""

    incidents: Sequence[Row]
    jobs: Sequence[JobLine]
    empty: str
    no_jobs: str

    @property
    def heard(self) -> Sequence[JobLine]:
        """Jobs that run, or have something open."""
        return [one for one in self.jobs if one.state != "silent" or one.row["open_verdicts"]]

    @property
    def silent(self) -> Sequence[JobLine]:
        """Jobs that were not heard for long, and have nothing open: they are over."""
        return [one for one in self.jobs if one.state == "silent" and not one.row["open_verdicts"]]

    @property
    def in_short(self) -> str:
        """The page in one sentence, for titles and screen readers."""
        pages = sum(one["severity"] == "page" for one in self.incidents)
        late = sum(one.state == "late" for one in self.jobs)
        parts = [_count(len(self.incidents), "open incident")]
        parts += [_count(pages, "page")] if pages else []
        parts.append(f"{_count(sum(one.state != 'silent' for one in self.jobs), 'job')} heard")
        parts += [f"{late} late"] if late else []
        return ", ".join(parts)


def jobs_now_routes() -> list[BaseRoute]:
    """Return the routes of this page."""
    return [Route("/", jobs_now_page, name="now")]


async def jobs_now_page(request: Request) -> Response:
    """Show what is wrong now, and how every job does; of a database that is away what the alerts told."""
    console = console_of(request)
    alerts = [] if console.alerts is None else console.alerts.newest(8)
    try:
        now = await read_now(console)
    except ServiceError as error:
        return render(request, "jobs_now.html", 503, now=None, trouble=str(error), alerts=alerts)
    return render(request, "jobs_now.html", now=now, trouble=None, alerts=alerts)


async def read_now(console: Console) -> Now:
    """Return the page's values. Raises `ServiceError`."""
    database = console.database
    jobs, incidents = await asyncio.gather(
        database.ask("jobs_now", lambda client: run(client, "jobs_now", {"limit": _MOST_JOBS})),
        database.ask("open_now", lambda client: run(client, "open_now", {"limit": _MOST_INCIDENTS})),
    )
    starts = tuple((row["job"], row["attempt"]) for row in named(jobs))
    newest = await database.ask(("newest", starts), lambda client: newest_iterations(client, starts))
    return now_of(jobs, incidents, newest, time.time(), console.silence_s)


def now_of(
    jobs: Answer, incidents: Answer, newest: Mapping[JobStart, Sequence[Any]], now_s: float, silence_s: float
) -> Now:
    """Put the answers together; the most urgent jobs come first, then those that were heard last. Pure."""
    open_ones = named(incidents)
    lines = [
        JobLine(
            row,
            pace_of(newest.get((row["job"], row["attempt"]), ())),
            _cost(row["job"], open_ones),
            seen_s := seconds(row["last_seen_at"]),
            _state(seen_s, now_s, silence_s),
        )
        for row in named(jobs)
    ]
    lines.sort(key=_order)
    return Now(open_ones, lines, incidents.empty, jobs.empty)


def named(answer: Answer) -> list[dict[str, Any]]:
    """Return the rows of an answer by the names of its columns."""
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def seconds(value: datetime | None) -> float | None:
    """Return a moment of the database as seconds since the epoch."""
    return None if value is None else value.replace(tzinfo=value.tzinfo or UTC).timestamp()


def _order(line: JobLine) -> tuple[int, float, float]:
    urgency = _URGENCY.get(str(line.row["severity"]), len(_URGENCY)) if line.row["open_verdicts"] else len(_URGENCY)
    return urgency, -(line.cost or 0.0), -(line.seen_s or 0.0)


def _cost(job: str, incidents: Sequence[Row]) -> float | None:
    known = [one["gpu_hours_per_hour"] for one in incidents if one["job"] == job]
    told = [float(one) for one in known if one is not None and math.isfinite(one)]
    return sum(told) if told else None


def _state(seen_s: float | None, now_s: float, silence_s: float) -> str:
    if seen_s is None or now_s - seen_s > silence_s:
        return "silent"
    return "late" if now_s - seen_s > _STALE_S else "running"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
