"""The page of one verdict: what `irregulars show` shows, its history, and what people record of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import InputError, ServiceRefused, TopicMismatch
from irregulars.infra.console.cells import NAME, Table, incident_path, table_of
from irregulars.infra.console.kafka import say_on_topic
from irregulars.infra.console.rendering import Console, console_of, read_own_form, render, visitor_of
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.html_page import body_of
from irregulars.infra.showing.screen import Screen, gather
from irregulars.infra.showing.text_page import title_text
from irregulars.sinks.investigations import Answer, run
from irregulars.sinks.notices.opinions import WORDS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_OPEN_S: Final = 4.0
_CLOSED_S: Final = 60.0  # nothing new comes to a verdict that is closed, but what people say
_REVISIONS: Final = 200

_SAID: Final = """
SELECT who, is_right, said_at, note
FROM feedback FINAL
WHERE job = {job:String} AND verdict_id = {verdict_id:String}
ORDER BY said_at DESC
LIMIT 50"""

_HISTORY_COLUMNS: Final = (
    "revision", "seen_at", "event", "severity", "gpu_hours_lost", "device", "host", "gpu", "nic", "rank",
    "probability",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    """One opinion on a verdict: ``word`` is right, wrong or withdrawn."""

    who: str
    word: str
    said_s: float
    note: str


@dataclass(frozen=True, slots=True)
class Incident:
    """All of the page."""

    screen: Screen
    history: Answer

    @property
    def title(self) -> str:
        """Kind, job, state and urgency."""
        return title_text(self.screen)

    @property
    def body(self) -> Markup:
        """What `irregulars show --html` shows; its texts are escaped."""
        return Markup(body_of(self.screen))

    @property
    def revisions(self) -> Table:
        """The history as a table."""
        return table_of(self.history, _HISTORY_COLUMNS)


def incident_routes() -> list[BaseRoute]:
    """Return the routes of this page."""
    return [Route(f"/incidents/{{verdict_id:{NAME}}}", incident_page, name="incident")]


async def incident_page(request: Request) -> Response:
    """Show a verdict; a job's name leads to its newest one."""
    which, console = request.path_params["verdict_id"], console_of(request)
    try:
        found = await read_incident(console, which)
    except InputError:
        raise HTTPException(404, f"No verdict of the name {which!r} is stored.") from None
    verdict = found.screen.verdict
    if verdict.verdict_id != which:
        return RedirectResponse(incident_path(verdict.verdict_id), 303)
    said = await console.database.ask(("said", which), lambda client: words_on(client, verdict.job, which))
    asked = request.query_params.get("said")
    return render(request, "incident.html", incident=found, verdict=verdict, said=said,
                  thanks=asked if asked in WORDS else None, now_s=time.time())  # fmt: skip


async def read_incident(console: Console, which: str) -> Incident:
    """Return the page of a verdict. Raises `InputError` where it is not stored, and `ServiceError`."""
    verdict = await console.database.ask(("verdict", which), lambda client: find_verdict(client, which))
    if verdict is None:
        raise InputError(f"verdict must be one that is stored; got {which!r}")

    def read(client: Client) -> Incident:
        screen = gather(found_in_database(client, verdict, console.database.source, time.time_ns()))
        wanted = {"verdict_id": verdict.verdict_id, "limit": _REVISIONS}
        return Incident(screen, run(client, "suspicion_history", wanted))

    keep_s = _CLOSED_S if verdict.state == "closed" else _OPEN_S
    return await console.database.ask(("incident", verdict.verdict_id, verdict.revision), read, keep_s)


def words_on(client: Client, job: str, verdict_id: str) -> Sequence[Word]:
    """Return the opinions on a verdict, the newest first."""
    rows = client.query(_SAID, parameters={"job": job, "verdict_id": verdict_id}).result_rows
    return [
        Word(
            who,
            "withdrawn" if is_right is None else "right" if is_right else "wrong",
            said_at.replace(tzinfo=said_at.tzinfo or UTC).timestamp(),
            note,
        )
        for who, is_right, said_at, note in rows
    ]


def feedback_routes() -> list[BaseRoute]:
    """Return the routes of this form."""
    return [Route("/feedback", feedback, methods=["POST"], name="feedback")]


async def feedback(request: Request) -> Response:
    """Record an opinion on a verdict, and redirect to its page."""
    console, visitor = console_of(request), visitor_of(request)
    fields = await read_own_form(request)
    if not console.takes_feedback or console.kafka is None or visitor is None:
        raise HTTPException(403, "This console only reads. It takes feedback where console_feedback is true.")
    who = visitor.name if visitor.is_sure else fields.get("who", "").strip()
    if not who:
        raise InputError("name must be given with feedback; got none. Others read who said it")
    verdict_id = fields.get("verdict_id", "")
    verdict = (await read_incident(console, verdict_id)).screen.verdict
    if verdict.verdict_id != verdict_id:
        raise InputError(f"verdict must be given by its id; got {verdict_id!r}")
    said = (console.kafka, verdict, fields.get("word", ""), who, fields.get("note", ""))
    try:
        await asyncio.to_thread(say_on_topic, *said)
    except (ServiceRefused, TopicMismatch) as error:  # a topic that we may not describe looks like none
        raise HTTPException(
            403, f"{error}. Whoever runs the console can grant it: irregulars topics grant operator User:NAME"
        ) from None
    return RedirectResponse(f"{incident_path(verdict_id)}?said={fields['word']}#said", 303)
