"""Values that a test knows to be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return what must not be None: else the test fails."""
    assert value is not None
    return value
