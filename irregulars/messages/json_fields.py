"""JSON of messages: an object, or the message can't be used; `irregulars.validation` then checks its fields.

A message that breaks its schema must be found out here. Further in it would stop a worker, and since it is read again
after each restart, it would stop every worker.
"""

from __future__ import annotations

import json
from typing import Any

from irregulars.errors import RecordError


def json_object(value: bytes | None, what: str) -> dict[str, Any]:
    """Decode a JSON object; raises `RecordError`."""
    try:
        values = json.loads(value or b"")
        if value and b"\\u" in value:  # JSON can write half of a surrogate pair, which UTF-8 can't hold
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{what} must be JSON; got {first_line(error)}") from error
    if not isinstance(values, dict):
        raise RecordError(f"{what} must be a JSON object; got {type(values).__name__}")
    return values


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line with its type."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
