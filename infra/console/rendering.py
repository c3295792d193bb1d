"""Templates: Jinja with escaping always on, and the words of `irregulars show` as filters.

A page that is live has a block ``live``. The browser asks for the same address again, with the header ``X-Live``, and
gets that block alone. Where the block has elements with ``data-part``, the browser puts each in the place of its own
element of that name, if it changed; everything between them stays, as charts do.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.access import (
    SESSION_S,
    AccessPolicy,
    Sessions,
    Visitor,
    address_of,
    own_path,
    path_of,
    same_word,
)
from irregulars.infra.console.database import ConsoleDatabase, KafkaAddress, RecentAlerts, SharedAnswers
from irregulars.infra.showing.html_page import unbroken
from irregulars.messages.kinds import device_kind
from irregulars.printing import printable
from irregulars.sinks.investigations import Answer
from irregulars.words import age, amount, duration, moment, name_kind, name_ranks, percent, span

RUNBOOK: Final = "/docs/runbook"  # where the console serves it
LIVE_S: Final = 2  # seconds between two requests of an open page


@dataclass(frozen=True, slots=True)
class Console:
    """The values that all pages share."""

    database: ConsoleDatabase
    # kafka, alerts: The topics, and the newest alerts; None: the console was told to leave Kafka alone
    kafka: KafkaAddress | None
    alerts: RecentAlerts | None
    answers: SharedAnswers  # of Kafka, shared as those of the database are
    takes_feedback: bool  # whether people may say if a verdict was right, and mute it
    silence_s: float  # seconds without a message after which a job counts as over
    runbook_url: str  # where people find what to do
    least_severity: str  # verdicts that are less urgent gave no alert
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
    # StrictUndefined: a misspelt name in a template is an error, and not an empty text.
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
        "span": span, "unbroken": lambda text: Markup(unbroken(text)),
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
    # An open page asks every two seconds, and mostly nothing has changed.
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return HTMLResponse(part, status, {"ETag": tag})


# Our forms have a few short fields, and anybody who reaches the console can post the one of the login.
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


# In a route, ``{job:irregulars_name}``: a name that `piece_of` wrote, slashes and line breaks included
NAME: Final = "irregulars_name"

_DOTS: Final = (".", "..")


def piece_of(name: str) -> str:
    """Return a name as one piece of an address.

    Browsers take a piece ``.`` or ``..`` for a step up, encoded or not, so these get a slash, which the route drops.

    >>> piece_of("a/b"), piece_of("..")
    ('a%2Fb', '..%2F')
    """
    return quote(f"{name}/" if name in _DOTS else name, safe="")


class _Name(PathConvertor):
    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value[:-1] if value[:-1] in _DOTS and value[-1] == "/" else value


register_url_convertor(NAME, _Name())


NONE: Final = "–"

_LABELS: Final[Mapping[str, str]] = {
    "world_size": "GPUs", "hosts": "Hosts", "last_seen_at": "Last seen", "recent_iteration_s": "Iteration, s",
    "irregular_iterations": "Irregular", "open_verdicts": "Open", "gpu_hours_lost": "GPU-hours lost",
    "gpu_hours_per_hour": "GPU-hours an hour", "verdict_id": "Verdict", "times_usual": "× usual",
    "expected_gpu_hours_lost": "GPU-hours lost", "expected_lost_s": "Seconds lost", "probability": "How sure",
    "some_jobs": "Some jobs", "gpu": "GPU", "nic": "NIC", "xids": "Xids", "newest_at": "Newest iteration",
    "newest_stored_at": "Stored", "behind_s": "Behind, s", "iterations_without_all_ranks": "Lack ranks",
    "lost_rows": "Rows lost", "elapsed_s": "Took, s", "usual_s": "Usual, s", "verdict_ids": "Verdicts",
    "ranks_reported": "Ranks", "recovers_ratio": "Would come back", "started_at": "Began", "lost_s": "Seconds lost",
    "past_last_iteration": "Past last", "first_iteration": "First iteration", "begun_at": "Began", "seen_at": "Seen",
    "newest_iteration_of_job": "Job is at", "last_iteration": "Last iteration", "part": "Took longest",
    "part_s": "That took, s", "part_usual_s": "That, usual, s", "last_rank": "Worked longest",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str  # what people read
    href: str | None = None  # where it leads; None: nowhere
    kind: str = ""  # a class of the style sheet, for severities and states; empty: none
    time_s: float | None = None  # seconds since the epoch where it is a moment: pages then say how long ago it was


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column: its name in the answer, its label, and whether its values are numbers."""

    name: str
    label: str
    is_number: bool


@dataclass(frozen=True, slots=True)
class Table:
    """An answer to be shown; ``empty`` explains an answer without rows."""

    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    empty: str


def table_of(answer: Answer, columns: Sequence[str] | None = None) -> Table:
    """Return an answer as a table, of all columns or of those named, in their order."""
    places = [answer.columns.index(one) for one in columns or answer.columns if one in answer.columns]
    heads = []
    for at in places:
        kinds = {type(row[at]) for row in answer.rows if row[at] is not None}
        is_number = bool(kinds) and all(issubclass(kind, int | float) and kind is not bool for kind in kinds)
        heads.append(Head(answer.columns[at], label_of(answer.columns[at]), is_number))
    rows = [[cell_of(head.name, row[head.name], row) for head in heads] for row in named(answer)]
    return Table(heads, rows, answer.empty)


def named(answer: Answer) -> list[dict[str, Any]]:
    """Return the rows of an answer by the names of its columns."""
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def seconds(value: datetime | None) -> float | None:
    """Return a moment of the database, which gives UTC without a zone, as seconds since the epoch."""
    return None if value is None else value.replace(tzinfo=value.tzinfo or UTC).timestamp()


def label_of(name: str) -> str:
    """Return what people call a column.

    >>> label_of("gpu_hours_lost"), label_of("close_reason")
    ('GPU-hours lost', 'Close reason')
    """
    text = name.replace("_", " ")
    return _LABELS.get(name, text[:1].upper() + text[1:])


def cell_of(name: str, value: Any, row: Mapping[str, Any]) -> Cell:
    """Return the cell of one value; its link follows from the other values of the row.

    >>> cell_of("probability", 0.914, {}).text, cell_of("job", "a b", {}).href, cell_of("nic", None, {}).text
    ('91%', '/jobs/a%20b', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)) or value == [] or value == ():
        return Cell(NONE)
    if isinstance(value, datetime):
        time_s = seconds(value) or 0.0
        return Cell(moment(int(time_s) * 10**9), time_s=time_s)
    text = _TEXTS.get(name, _plain_text)(value)
    return Cell(text, _link(name, value, row), _KINDS.get(name, lambda value: "")(value))


def job_path(job: str, attempt: int | None = None, page: str = "jobs") -> str:
    """Return the address of a job's page, or of that of its transfers."""
    return f"/{page}/{piece_of(job)}{'' if attempt is None else f'?attempt={attempt}'}"


def incident_path(verdict_id: str) -> str:
    """Return the address of an incident's page."""
    return f"/incidents/{piece_of(verdict_id)}"


def host_path(host: str) -> str:
    """Return the address of a host's history."""
    return f"/hosts/{piece_of(host)}"


def device_path(row: Mapping[str, Any]) -> str | None:
    """Return the address of a device's history; None: it can't be told from others.

    >>> device_path({"device": "nic", "host": "node-3", "nic": "mlx5_1"})
    '/devices/history?host=node-3&nic=mlx5_1'
    """
    kind = device_kind(row.get("device_kind", row.get("device")))
    told = [f"{name}={quote(str(row[name]), safe='')}" for name in kind.named_by if row.get(name) is not None]
    if not told or row.get(kind.named_by[0]) is None:
        return None
    return host_path(str(row["host"])) if kind.is_whole_host else f"/devices/history?{'&'.join(told)}"


def _link(name: str, value: Any, row: Mapping[str, Any]) -> str | None:
    if name == "job":
        return job_path(str(value))
    if name == "verdict_id":
        return incident_path(str(value))
    if name == "verdict_ids" and len(value) == 1:
        return incident_path(str(value[0]))
    if name == "host":
        return host_path(str(value))
    if name == "device":
        return device_path(row)
    return None


def _plain_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain_text(one) for one in value)
    return printable(value)


_TEXTS: Final[Mapping[str, Callable[[Any], str]]] = {
    **dict.fromkeys(
        ("probability", "highest_probability", "told_probability", "cause_share"), lambda value: percent(float(value))
    ),
    **dict.fromkeys(("recovers_ratio", "right_share"), lambda value: f"{float(value):.0%}"),
    **dict.fromkeys(("kind", "cause"), lambda value: name_kind(printable(value))),
    **dict.fromkeys(
        ("gpu_hours_lost", "gpu_hours_per_hour", "expected_gpu_hours_lost"), lambda value: amount(float(value))
    ),
    **dict.fromkeys(("attempt", "rank", "iteration", "gpu"), str),
    "kinds": lambda value: ", ".join(map(name_kind, value)),
    "ranks": lambda value: name_ranks(value).partition(" ")[2],
    "xids": lambda value: ", ".join(map(str, value)),
}
_KINDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "severity": lambda value: f"badge {value}" if value in ("page", "ticket", "note") else "",
    "state": lambda value: f"badge {value}" if value in ("open", "closed") else "",
    "verdict_id": lambda value: "code",
}


class Login:
    """The pages ``/login`` and ``/logout``."""

    def __init__(self, policy: AccessPolicy, sessions: Sessions, note_wrong: Callable[[], None]) -> None:
        self._policy = policy
        self._sessions = sessions
        self._note_wrong = note_wrong

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/login", self.page, name="login"),
            Route("/login", self.enter, methods=["POST"]),
            Route("/session", self.session, name="session"),
            Route("/logout", self.leave, methods=["POST"], name="logout"),
        ]

    async def page(self, request: Request) -> Response:
        """Show the form."""
        return self._form(request, wanted=request.query_params.get("next", "/"))

    async def session(self, request: Request) -> Response:
        """Answer 204 to a logged-in visitor. A link from another site comes without the cookie, this call with it."""
        return Response(status_code=204)

    async def enter(self, request: Request) -> Response:
        """Log a visitor in who has the token."""
        fields, token = await read_form(request), self._policy.token
        if token is None or not same_word(fields.get("token", "").strip(), token):
            # No pause before the answer: requests that wait would leave no room for others.
            self._note_wrong()
            wrong = "That is not the token. It stands in the console's own output, or in console_token_file."
            return self._form(request, 403, wrong=wrong, wanted=fields.get("next", "/"))
        answer = RedirectResponse(own_path(fields.get("next", "/")), 303)
        cookie = self._sessions.cookie(fields.get("name", "").strip(), time.time())
        # Any proxy's header sets `secure`, also where a token lets people in and no proxy is believed: no site can
        # make a browser send it, and a client that forges it only gets a cookie that travels less.
        answer.set_cookie(
            self._policy.cookie, cookie, max_age=SESSION_S, httponly=True, samesite="strict",
            secure=self._policy.is_encrypted or request.headers.get("x-forwarded-proto") == "https",
        )  # fmt: skip
        return answer

    async def leave(self, request: Request) -> Response:
        """Log a visitor out."""
        await read_own_form(request)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(self._policy.cookie, httponly=True, samesite="strict")
        return answer

    def _form(self, request: Request, status: int = 200, *, wrong: str | None = None, wanted: str = "/") -> Response:
        return render(
            request, "login.html", status, wrong=wrong, wanted=own_path(wanted),
            has_token=self._policy.token is not None, header=self._policy.user_header, address=address_of(request),
            has_secret=self._policy.proxy_secret is not None,
        )  # fmt: skip
