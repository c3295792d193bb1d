"""The page of one job: iteration times, heat map, verdicts, attempts."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.pages.cells import table_of
from irregulars.infra.console.pages.job_questions import SHOWN, Attempt, attempts_of, cells_of, newest_iterations
from irregulars.infra.console.pages.rendering import console_of, render
from irregulars.infra.console.pages.small_lines import pace_of
from irregulars.infra.showing.charts import extremes_of, heat_map, times_chart
from irregulars.infra.showing.found import Iteration
from irregulars.sinks.investigations import run

_IRREGULAR: Final = 50
_VERDICTS: Final = 50
_SLOW_S: Final = 10.0  # how long an answer that changes slowly is shared


def job_routes() -> list[BaseRoute]:
    """Return the routes of this page."""
    return [Route("/jobs/{job:path}", job_page, name="job")]


async def job_page(request: Request) -> Response:
    """Show a job, or one attempt of it."""
    job, console = request.path_params["job"], console_of(request)
    attempts = await console.database.ask(("attempts", job), lambda client: attempts_of(client, job))
    chosen = _chosen(attempts, request.query_params.get("attempt"))
    if chosen is None:
        raise HTTPException(404, f"No job of the name {job!r} is stored, or no such attempt of it.")
    start = (job, chosen.attempt)
    values = {"job": job, "attempt": chosen.attempt, "limit": _IRREGULAR}
    times, irregular, blamed = await asyncio.gather(
        console.database.ask(("times", start), lambda client: newest_iterations(client, [start], SHOWN)[start]),
        console.database.ask(("irregular", start), lambda client: run(client, "irregular_iterations", values)),
        console.database.ask(
            ("blamed", job), lambda client: run(client, "blamed", {"job": job, "limit": _VERDICTS}), _SLOW_S
        ),
    )
    around = _around(times)
    cells, bin_ranks = await console.database.ask(
        ("cells", start, around), lambda client: cells_of(client, *start, around, chosen.gpus), _SLOW_S
    )
    return render(
        request, "job.html", job=job, attempt=chosen, attempts=attempts, around=around,
        pace=pace_of(times[-120:]), times=times,
        chart=Markup(times_chart(times)) if times else None,
        heat=Markup(heat_map(cells, bin_ranks, ())) if cells else None,
        extremes=extremes_of(cells) if cells else "", bin_ranks=bin_ranks,
        verdicts=table_of(blamed, _VERDICT_COLUMNS), irregular=table_of(irregular),
        now_s=time.time(),
    )  # fmt: skip


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
