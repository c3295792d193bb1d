"""The page of one job: iteration times, heat map, verdicts, attempts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.pages.rendering import render


def job_routes() -> list[BaseRoute]:
    """Return the routes of this page."""
    return [Route("/jobs/{job:path}", job_page, name="job")]


async def job_page(request: Request) -> Response:
    """Show a job."""
    job = request.path_params["job"]
    attempt = int(request.query_params.get("attempt", 0))
    return render(request, "job.html", job=job, attempt=attempt, around="")
