"""What a form sends: read with a bound, and only where its word against other sites is right."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from irregulars.infra.console.access.sessions import same_word
from irregulars.infra.console.pages.rendering import visitor_of

_MOST_BYTES: Final = 16 * 1024
_MOST_FIELDS: Final = 20


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of one that comes twice the last."""
    try:
        body = await _read_body(request)
    except ClientDisconnect:  # whoever went, or was too slow, gets no answer; it is no fault of ours to be logged
        raise HTTPException(408, "This form did not arrive whole.") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, "This form can't be read.") from None


async def _read_body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, "This form is too long.")
    return body


async def read_own_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of ours made for this visitor; of any other answer with 403."""
    fields, visitor = await read_form(request), visitor_of(request)
    if visitor is None or not same_word(fields.get("csrf", ""), visitor.csrf):
        raise HTTPException(403, "This form is not one that was made for you. Load its page again, and send it anew.")
    return fields
