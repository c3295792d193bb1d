"""The page of one job: iteration times, heat map, verdicts, attempts."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Any, Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.names import NAME
from irregulars.infra.console.pages.cells import table_of
from irregulars.infra.console.pages.job_questions import (
    NEWEST,
    SHOWN,
    Attempt,
    JobStart,
    attempts_of,
    cells_of,
    newest_iterations,
)
from irregulars.infra.console.pages.rendering import Console, console_of, is_part, render
from irregulars.infra.console.pages.small_lines import pace_of
from irregulars.infra.showing.charts import extremes_of, heat_map, times_chart
from irregulars.infra.showing.found import Iteration
from irregulars.sinks.investigations import Answer, run

_IRREGULAR: Final = 50
_VERDICTS: Final = 50
_SLOW_S: Final = 10.0  # how long an answer that changes slowly is shared


def job_routes() -> list[BaseRoute]:
    """Return the routes of this page."""
    return [Route(f"/jobs/{{job:{NAME}}}", job_page, name="job")]


async def job_page(request: Request) -> Response:
    """Show a job, or one attempt of it; or only the parts that change while it runs."""
    job, console = request.path_params["job"], console_of(request)
    attempts = await console.database.ask(("attempts", job), lambda client: attempts_of(client, job))
    chosen = _chosen(attempts, request.query_params.get("attempt"))
    if chosen is None:
        raise HTTPException(404, f"No job of the name {job!r} is stored, or no such attempt of it.")
    shown = NEWEST if is_part(request) else SHOWN
    times, irregular, blamed = await _asked(console, (job, chosen.attempt), shown)
    charts = {} if is_part(request) else await _charts(console, (job, chosen.attempt), times, chosen.gpus)
    return render(
        request, "job.html", job=job, attempt=chosen, attempts=attempts, pace=pace_of(times[-NEWEST:]),
        verdicts=table_of(blamed, _VERDICT_COLUMNS), blamed=_name_of(blamed),
        verdict_count=_count_of_verdicts(blamed), irregular=table_of(irregular),
        is_running=chosen is attempts[0] and _is_running(chosen, console.silence_s), **charts,
    )  # fmt: skip


async def _asked(console: Console, start: JobStart, shown: int) -> tuple[list[Iteration], Answer, Answer]:
    """Return the newest iterations, the irregular ones, and the verdicts."""
    ask, (job, attempt) = console.database.ask, start
    values, of_job = {"job": job, "attempt": attempt, "limit": _IRREGULAR}, {"job": job, "limit": _VERDICTS}
    return await asyncio.gather(
        ask(("times", start, shown), lambda client: newest_iterations(client, [start], shown)[start]),
        ask(("irregular", start), lambda client: run(client, "irregular_iterations", values)),
        ask(("blamed", job), lambda client: run(client, "blamed", of_job), _SLOW_S),
    )


async def _charts(console: Console, start: JobStart, times: list[Iteration], gpus: int) -> dict[str, Any]:
    """Return what the page shows until the browser has drawn its own charts, or instead of them."""
    around = _around(times)
    cells, bin_ranks = await console.database.ask(
        ("cells", start, around), lambda client: cells_of(client, *start, around, gpus), _SLOW_S
    )
    return {
        "around": around, "times": times, "chart": Markup(times_chart(times)) if times else None,
        "heat": Markup(heat_map(cells, bin_ranks, ())) if cells else None,
        "extremes": extremes_of(cells) if cells else "", "bin_ranks": bin_ranks,
    }  # fmt: skip


def _name_of(blamed: Answer) -> str:
    """Return a text that is another one when a verdict has come or was revised: charts then look at their marks."""
    return f"{zlib.crc32(repr(blamed.rows).encode()):08x}"


def _count_of_verdicts(blamed: Answer) -> int:
    """Of which each has a row for each of its suspects."""
    at = blamed.columns.index("verdict_id")
    return len({row[at] for row in blamed.rows})


def _is_running(attempt: Attempt, silence_s: float) -> bool:
    return attempt.last_s is None or time.time() - attempt.last_s < silence_s


_VERDICT_COLUMNS: Final = (
    "severity", "state", "verdict_id", "kind", "device", "host", "gpu", "nic", "rank", "probability",
    "first_iteration", "gpu_hours_lost", "evidence",
)  # fmt: skip


def _chosen(attempts: list[Attempt], wanted: str | None) -> Attempt | None:
    if wanted is None:
        return attempts[0] if attempts else None
    return next((one for one in attempts if str(one.attempt) == wanted), None)


def _around(times: list[Iteration]) -> int:
    """Return the iteration to look at: the newest irregular stretch's first, else the newest of all."""
    if not times:
        return 0
    first = None
    for one in reversed(times):
        if one.is_irregular:
            first = one.iteration
        elif first is not None and first - one.iteration > _HOLE:
            break
    return times[-1].iteration if first is None else first


_HOLE: Final = 5
"""Regular iterations between two irregular ones of one stretch at most."""
