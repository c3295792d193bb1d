"""What people see when a page can't be made: one sentence that says why and what to do, never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from irregulars.errors import InputError, IrregularsError, ServiceRefused
from irregulars.infra.console.access.gate import path_of
from irregulars.infra.console.pages.rendering import render
from irregulars.printing import printable

LOG: Final = logging.getLogger("irregulars.console")

_TO_DO: Final[Mapping[int, str]] = {
    404: "The name may be misspelt, or what it names is no longer stored. Search finds jobs, hosts and verdicts.",
    503: "This page tries again by itself. Alerts go their own way meanwhile: irregulars alerts follows them.",
    500: "The console's log says more. Please report it.",
}


def error_handlers() -> Mapping[Any, Callable[[Request, Any], Any]]:
    """Return the handlers of an application."""
    return {HTTPException: _of_http, IrregularsError: _of_ours, Exception: _of_bug}


async def _of_http(request: Request, error: HTTPException) -> Response:
    is_plain = error.detail == HTTPStatus(error.status_code).phrase
    return _answer(request, error.status_code, "There is no such page." if is_plain and error.status_code == 404
                   else error.detail, error.headers)  # fmt: skip


async def _of_ours(request: Request, error: IrregularsError) -> Response:
    if isinstance(error, InputError):
        return _answer(request, 400, str(error))
    to_do = "Check clickhouse_reader_user and its rights." if isinstance(error, ServiceRefused) else None
    if request.method == "POST":
        to_do = "Go back, and send it again when the service answers: the same word twice counts once."
    return _answer(request, 503, str(error), {"Retry-After": "5"}, to_do)


async def _of_bug(request: Request, error: Exception) -> Response:
    # Starlette raises it again behind us, and uvicorn logs the traceback.
    LOG.error("event=page_failed page=%s error=%s", printable(path_of(request)), type(error).__name__)
    return _answer(request, 500, "This page could not be made: that is a fault of the console.")


def _answer(
    request: Request, status: int, text: str, headers: Mapping[str, str] | None = None, to_do: str | None = None
) -> Response:
    if path_of(request).startswith("/api/"):
        return JSONResponse({"error": text}, status, dict(headers or {}))
    title = HTTPStatus(status).phrase
    answer = render(request, "error.html", status, code=status, title=title, text=text,
                    to_do=to_do or _TO_DO.get(status, ""))  # fmt: skip
    for name, value in (headers or {}).items():
        answer.headers[name] = value
    return answer
