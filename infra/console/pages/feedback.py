"""Somebody says whether a verdict was right."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import InputError, ServiceRefused, TopicMismatch
from irregulars.infra.console.pages.cells import incident_path
from irregulars.infra.console.pages.forms import read_own_form
from irregulars.infra.console.pages.incident import read_incident
from irregulars.infra.console.pages.rendering import console_of, visitor_of
from irregulars.infra.console.topics.feedback import say_on_topic


def feedback_routes() -> list[BaseRoute]:
    """Return the routes of this form."""
    return [Route("/feedback", feedback, methods=["POST"], name="feedback")]


async def feedback(request: Request) -> Response:
    """Keep somebody's word, and go back to the verdict."""
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
