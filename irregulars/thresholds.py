"""How a threshold is written down: its value beside its unit, what it means and where it comes from.

Each room with thresholds has one frozen dataclass of them, in its `thresholds.py`. The page infra/docs/thresholds.md
lists them; a test keeps the two alike.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Final, NamedTuple

_KEY: Final = "threshold"


class Threshold(NamedTuple):
    """What is written down about one threshold."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


def threshold(value: float, *, unit: str, meaning: str, source: str) -> Any:
    """Return a field of a frozen dataclass of thresholds.

    Parameters
    ----------
    value
        The default, and what the product uses.
    unit
        Such as ``ns``, ``share of the iteration``, ``standard errors``, ``iterations``.
    meaning
        What is so above it, or below; a sentence.
    source
        A paper with its section, a script with the split that fitted it, or "chosen: " and the reason.
    """
    return field(default=value, metadata={_KEY: (unit, meaning, source)})


def thresholds_of(instance: Any) -> list[Threshold]:
    """Return what is written down about the thresholds of a dataclass, in the order of its fields."""
    return [
        Threshold(one.name, getattr(instance, one.name), *one.metadata[_KEY])
        for one in fields(instance)
        if _KEY in one.metadata
    ]
