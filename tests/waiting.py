"""Waiting for what the code under test does by itself, with a deadline that only a fault exceeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_S = 60.0


async def until(is_so: Callable[[], bool]) -> None:
    """Let the event loop run until `is_so`."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - it is a state of the code under test, which offers no event
            await asyncio.sleep(0.001)
