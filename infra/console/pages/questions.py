"""The questions that ship, by what they are about, each with its parameters; and one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import InputError
from irregulars.infra.console.pages.cells import host_path, incident_path, job_path, table_of
from irregulars.infra.console.pages.rendering import console_of, render
from irregulars.sinks.investigations import NEWEST, THEMES, Investigation, bind, run, shipped_investigations

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


def question_routes() -> list[BaseRoute]:
    """Return the routes of these pages."""
    return [
        Route("/questions", questions_page, name="questions"),
        Route("/questions/{name}", question_page, name="question"),
        Route("/search", search_page, name="search"),
    ]


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
    except ValueError:  # `bind` says what is wrong with it
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
    if found and (found[0][1] == text or len(found) == 1):
        return RedirectResponse(found[0][2], 303)
    return render(request, "search.html", text=text, found=found)
