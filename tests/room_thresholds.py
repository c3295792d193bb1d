"""Thresholds of rooms with another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

STEP: Final = 0.25


def moved_value(value: float, way: int) -> float:
    """Return a value a quarter up (1) or down (-1); a share stays below 1, and a count moves by 1 at least."""
    if isinstance(value, int):
        return max(value + way * max(round(STEP * value), 1), 1)
    up = min((1 + STEP) * value, (1 + value) / 2) if 0 < value < 1 else (1 + STEP) * value
    return up if way > 0 else (1 - STEP) * value


@contextmanager
def moved(values: Any, name: str, value: float) -> Iterator[None]:
    """Let one threshold of a room's set have another value.

    The set is frozen for everybody else. All modules hold the same object, so that all of them see the move.
    """
    before = getattr(values, name)
    object.__setattr__(values, name, value)
    try:
        yield
    finally:
        object.__setattr__(values, name, before)
