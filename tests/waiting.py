"""Waiting for what the code under test does by itself, with a deadline that only a fault exceeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 60.0


async def until(is_so: Callable[[], bool]) -> None:
    """Let the event loop run until `is_so`."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - it is a state of the code under test, which offers no event
            await asyncio.sleep(0.001)


def wait_for(is_so: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Let threads and other processes run until `is_so`."""
    deadline_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def gather(poll: Callable[[], Iterable[T]], is_enough: Callable[[list[T]], bool]) -> list[T]:
    """Poll until all that came is enough, and return that."""
    found: list[T] = []

    def has_enough() -> bool:
        found.extend(poll())
        return is_enough(found)

    wait_for(has_enough)
    return found
