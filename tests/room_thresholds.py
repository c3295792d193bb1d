"""The thresholds of all rooms, found by walking the packages: each room with thresholds has one set of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from irregulars.thresholds import Threshold, thresholds_of

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("detectors", "streams")
FILES: Final = ("thresholds.py", "likelihoods.py")
STEP: Final = 0.25


class Room(NamedTuple):
    """A room, by its folder, and its set of thresholds; likelihoods are a set of their own, by their module."""

    folder: str
    values: Any

    @property
    def name(self) -> str:
        """Such as ``blame``."""
        return self.folder.rsplit("/", 1)[1]

    @property
    def thresholds(self) -> list[Threshold]:
        """What is written down of them."""
        return thresholds_of(self.values)


@cache
def rooms() -> tuple[Room, ...]:
    """Find the rooms with a ``thresholds.py`` or ``likelihoods.py``, by folder.

    Raises
    ------
    ValueError
        If one of them holds no set of thresholds, or several.
    """
    paths = sorted(path for package in PACKAGES for name in FILES for path in (ROOT / package).rglob(name))
    return tuple(_room(path.relative_to(ROOT).with_suffix("").as_posix()) for path in paths)


def _room(file: str) -> Room:
    module = importlib.import_module(f"irregulars.{file.replace('/', '.')}")
    found = [
        value
        for value in vars(module).values()
        if is_dataclass(value) and not isinstance(value, type) and thresholds_of(value)
    ]
    if len(found) != 1:
        raise ValueError(f"{file}.py must hold one set of thresholds; got {len(found)}")
    return Room(file.removesuffix("/thresholds"), found[0])


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
