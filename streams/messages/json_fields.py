"""Fields of decoded JSON: each has its type and lies within its bounds, or the message can't be used.

A message that breaks its schema must be found out here. Further in it would stop a worker, and since it is read again
after each restart, it would stop every worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from irregulars.errors import RecordError

LARGEST: Final = 1 << 62
"""Integers of JSON have no bounds; arithmetic on these still fits into an int64."""

MAX_RANK: Final = (1 << 28) - 1


def json_object(value: bytes | None, what: str) -> dict[str, Any]:
    """Decode a JSON object; raises `RecordError`."""
    try:
        values = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{what} must be JSON; got {first_line(error)}") from error
    if not isinstance(values, dict):
        raise RecordError(f"{what} must be a JSON object; got {type(values).__name__}")
    return values


def integer(values: Mapping[str, Any], key: str, least: int = -LARGEST, most: int = LARGEST) -> int:
    """Return an integer within bounds; raises `RecordError`, and `KeyError` if there is none."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RecordError(f"{key} must be an integer from {least} to {most}; got {_shown(value)}")
    return value


def optional_integer(values: Mapping[str, Any], key: str, least: int = -LARGEST) -> int | None:
    """Return an integer within bounds, or None where it is null or missing; raises `RecordError`."""
    return None if values.get(key) is None else integer(values, key, least)


def boolean(values: Mapping[str, Any], key: str) -> bool:
    """Return a boolean; raises `RecordError`, and `KeyError` if there is none."""
    value = values[key]
    if not isinstance(value, bool):
        raise RecordError(f"{key} must be true or false; got {_shown(value)}")
    return value


def text(values: Mapping[str, Any], key: str) -> str:
    """Return a text that is not empty; raises `RecordError`, and `KeyError` if there is none."""
    value = values[key]
    if not is_text(value) or not value:
        raise RecordError(f"{key} must be a text that is not empty; got {_shown(value)}")
    return str(value)


def optional_text(values: Mapping[str, Any], key: str) -> str | None:
    """Return a text, or None where it is null or missing; raises `RecordError`."""
    value = values.get(key)
    if value is not None and not is_text(value):
        raise RecordError(f"{key} must be a text or null; got {_shown(value)}")
    return value


def texts(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return an array of texts; raises `RecordError`, and `KeyError` if there is none."""
    value = values[key]
    if not isinstance(value, list) or not all(map(is_text, value)):
        raise RecordError(f"{key} must be an array of texts; got {_shown(value)}")
    return tuple(value)


def is_text(value: object) -> bool:
    """Whether `value` is a text that UTF-8 can hold: JSON can write half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line with its type."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"


def _shown(value: object) -> str:
    said = ascii(value)
    return said if len(said) <= 80 else f"{said[:77]}..."
