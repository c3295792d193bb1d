"""Thresholds of rooms with another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
