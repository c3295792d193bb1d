"""Memory that a worker has freed goes back to the system, where the C library would keep it for the next burst.

After a burst glibc holds what numpy and librdkafka have freed: in each arena only the end of the heap goes back by
itself, and every thread of some fifty may get an arena of its own. Elsewhere (musl, macOS) nothing is done.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_ARENAS: Final = 2
"""Heaps that threads share. Python's lock lets one of its threads allocate at a time, so that none but librdkafka's
could wait for one another."""

GIVE_BACK_S: Final = 20.0
"""Between two looks, s. Memory that is needed again costs a page fault for each 4 KiB: some 10 ms for 100 MiB."""

_BUSY_RATIO: Final = 0.5
"""Of a core, since the look before. A worker that does more than that needs its memory again at once."""


def share_few_heaps() -> None:
    """Let all threads share few heaps; call it before they are started."""
    _call("mallopt", _M_ARENA_MAX, _ARENAS)


class SpareMemory:
    """Gives memory back while the process has little to do."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._clock_s, self._cpu_s, self._trim = clock_s, cpu_s, trim or _trim
        self._looked_s, self._spent_s = clock_s(), cpu_s()

    def look(self) -> bool:
        """Give memory back unless the process was busy since the last look; return whether it did."""
        now_s, spent_s = self._clock_s(), self._cpu_s()
        is_busy = spent_s - self._spent_s > _BUSY_RATIO * (now_s - self._looked_s)
        self._looked_s, self._spent_s = now_s, spent_s
        if not is_busy:
            self._trim()
        return not is_busy


def _trim() -> None:
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library, if it has it; other threads go on meanwhile."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is not None:
        found(*arguments)
