"""The threads that judge: one judgement at a time, and beside one that takes long, the next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from irregulars.streams.health.watchdog import Guard, Watchdog

T = TypeVar("T")
TURN_S: Final = 1.0
"""A judgement that has run for longer lets the next one begin beside it, s. Most take ms, and two at once would only
take Python's lock from one another."""

_MOST_AT_ONCE: Final = 8
"""Judgements that run beside each other: each takes its share of the lock from the others, and from reading."""

_MOST_THREADS: Final = 64  # those at once, and threads that are lost: see `streams.health.watchdog`


class Judges:
    """Runs judgements in threads, each guarded."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog: Final = watchdog
        self._pool: Final = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="irregulars-judge")
        self._guards: Final = threading.local()
        self._turn: Final = asyncio.Lock()
        self._room: Final = asyncio.Semaphore(_MOST_AT_ONCE)

    @property
    def is_busy(self) -> bool:
        """Whether a judgement runs that has not taken long yet."""
        return self._turn.locked()

    async def run(self, key: bytes, offset: int, ranks: int, work: Callable[[], T]) -> T:
        """Do work for the monitor of a job of `ranks` ranks; raises its errors, and `WorkGivenUp`."""
        limits = self._watchdog.limits
        cpu_limit_s = limits.job_cpu_s + limits.job_cpu_s_per_rank * ranks
        outcome: Future[T] = Future()

        def fail(error: BaseException) -> None:
            with suppress(InvalidStateError):  # it is not awaited any more
                outcome.set_exception(error)

        def judge() -> None:
            try:
                result = self._guard().run(key, offset, cpu_limit_s, work, on_lost=fail)
            except BaseException as error:  # raised where the result is awaited
                fail(error)
            else:
                with suppress(InvalidStateError):
                    outcome.set_result(result)

        async with self._room:
            async with self._turn:
                self._pool.submit(judge)
                waited = asyncio.wrap_future(outcome)
                await asyncio.wait([waited], timeout=TURN_S)
            return await waited

    def undisturbed(self, call: Callable[[], T]) -> T:
        """See `Guard.undisturbed`; for the work that `run` does."""
        return self._guard().undisturbed(call)

    def close(self, last: Callable[[], None]) -> None:
        """End the threads that are not lost, after `last`; wait for none of them."""
        self._pool.submit(last)
        self._pool.shutdown(wait=False)

    def _guard(self) -> Guard:
        guard: Guard | None = getattr(self._guards, "own", None)
        if guard is None:
            guard = self._guards.own = self._watchdog.guard("job")
        return guard
