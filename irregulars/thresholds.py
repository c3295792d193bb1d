"""How a threshold is written down: its value beside its unit, its meaning and its source.

Each room with thresholds has one frozen dataclass of them, in its `thresholds.py`; infra/docs/thresholds.md is made
of them. They are constants: the settings that people change while workers run are in `messages.threshold_changes`.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Final, NamedTuple

_KEY: Final = "threshold"


class Threshold(NamedTuple):
    """One threshold, as it is written down."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


def threshold(value: float, unit: str, meaning: str, source: str) -> Any:
    """Return a field of a frozen dataclass of thresholds.

    Parameters
    ----------
    value
        The default, which the product uses.
    unit
        Such as ``ns``, ``share of the iteration``, ``standard errors``, ``iterations``.
    meaning
        The effect of a value above it, or below; a sentence.
    source
        A paper with its section, a script with the split that fitted it, or "chosen: " and the reason.
    """
    return field(default=value, metadata={_KEY: (unit, meaning, source)})


def thresholds_of(instance: Any) -> list[Threshold]:
    """Return the thresholds of a dataclass, in the order of its fields."""
    return [
        Threshold(one.name, getattr(instance, one.name), *one.metadata[_KEY])
        for one in fields(instance)
        if _KEY in one.metadata
    ]
