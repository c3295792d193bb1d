"""Templates: Jinja with escaping always on, and the words of `irregulars show` as filters.

A page that is live has a block ``live``. The browser asks for the same address again, with the header ``X-Live``, and
gets that block alone. Where the block has elements with ``data-part``, the browser puts each in the place of its own
element of that name, if it changed; everything between them stays, as charts do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from irregulars.infra.console.access import Visitor, path_of, same_word
from irregulars.infra.console.cells import device_path, host_path, incident_path, job_path
from irregulars.infra.console.database import ConsoleDatabase, SharedAnswers
from irregulars.infra.console.kafka import KafkaAddress, RecentAlerts
from irregulars.printing import printable
from irregulars.words import age, amount, duration, moment, name_kind, span

LIVE_S: Final = 2  # seconds between two looks of a page that is open


@dataclass(frozen=True, slots=True)
class Console:
    """What pages are made of."""

    database: ConsoleDatabase
    # kafka, alerts: The topics, and the newest alerts; None: the console was told to leave Kafka alone
    kafka: KafkaAddress | None
    alerts: RecentAlerts | None
    answers: SharedAnswers  # of Kafka, shared as those of the database are
    takes_feedback: bool  # whether people may say if a verdict was right
    silence_s: float  # seconds without a word after which a job counts as over
    templates: Environment
    version: str


def console_of(request: Request) -> Console:
    """Return the console of a request."""
    console: Console = request.app.state.console
    return console


def visitor_of(request: Request) -> Visitor | None:
    """Return who asks; None before the login."""
    visitor: Visitor | None = request.scope.get("visitor")
    return visitor


def is_part(request: Request) -> bool:
    """Return whether a browser asks for the live part of a page that it has."""
    return "x-live" in request.headers


def make_templates() -> Environment:
    """Return the environment of all templates."""
    environment = Environment(
        loader=PackageLoader("irregulars.infra.console"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {
        "job_path": job_path, "incident_path": incident_path, "host_path": host_path, "device_path": device_path,
        "live_s": LIVE_S,
    }  # fmt: skip
    environment.filters |= {
        "plain": printable, "age": age, "amount": amount, "duration": duration, "kind": name_kind, "moment": moment,
        "span": span,
    }  # fmt: skip
    return environment


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page, or, where that was asked for, its live part."""
    console = console_of(request)
    page = console.templates.get_template(template)
    context = {"request": request, "console": console, "visitor": visitor_of(request), "path": path_of(request)}
    if not (is_part(request) and "live" in page.blocks):
        return HTMLResponse(page.render(**context, **values), status)
    part = "".join(page.blocks["live"](page.new_context({**context, **values}))).encode()
    tag = f'"{hashlib.sha256(part).hexdigest()[:20]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return HTMLResponse(part, status, {"ETag": tag})


_MOST_BYTES: Final = 16 * 1024
_MOST_FIELDS: Final = 20


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of one that comes twice the last."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise HTTPException(413, "This form is too long.")
    except ClientDisconnect:  # the browser went or was too slow: no fault of ours to be logged
        raise HTTPException(408, "This form did not arrive whole.") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, "This form can't be read.") from None


async def read_own_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of ours made for this visitor; of any other answer with 403."""
    fields, visitor = await read_form(request), visitor_of(request)
    if visitor is None or not same_word(fields.get("csrf", ""), visitor.csrf):
        raise HTTPException(403, "This form is not one that was made for you. Load its page again, and send it anew.")
    return fields
