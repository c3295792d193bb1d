"""Evidence of a job that waits for its monitor in the second hop, and the threads that judge.

One judgement at a time; beside one that takes long, the next.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from irregulars.kafka.dead_letters import KeptMessage
from irregulars.messages.announcements import code_of_start
from irregulars.messages.evidence import Evidence, Membership
from irregulars.streams.health.log_lines import log_contradiction, log_given_up, log_job, log_overtaken
from irregulars.streams.health.monitor_faults import hear_start
from irregulars.streams.health.watchdog import Guard, Watchdog
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.stages.job_topics import Rows
from irregulars.streams.stages.partition_state import PartitionState, Tracked

State = PartitionState[JobMonitor]
TrackedJob = Tracked[JobMonitor]


@dataclass(slots=True)
class QueuedMessage(KeptMessage):
    """A message that waits for its job's monitor: as it came, should it have to be buried, and decoded."""

    rows: Sequence[Evidence | Membership]


@dataclass(eq=False)
class JobWork:
    """Work that waits for one job's monitor."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    inbox: deque[QueuedMessage] = field(default_factory=deque)
    left: deque[int] = field(default_factory=deque)  # offsets behind the inbox: these messages are read again
    queued: int = -1  # newest offset that was put into the inbox, or left
    judging_since_s: float | None = None
    is_due: bool = False
    task: asyncio.Task[None] | None = None
    was_ended: bool = False
    contradicts: str | None = None  # in which respect, as it was logged
    overtaken: int = 0  # starts that are not judged, as it was logged
    given_up: int = 0  # iterations that are not judged, as they were counted

    @property
    def is_slow(self) -> bool:
        """Whether a judgement is being made that takes long."""
        return self.judging_since_s is not None and time.monotonic() - self.judging_since_s > TURN_S

    def note_contradiction(self, tracked: TrackedJob) -> bool:
        """Log once that a job contradicts itself, and return whether that is new."""
        found = tracked.monitor.contradiction
        is_new = found is not None and found.what != self.contradicts
        if found is not None and is_new:
            log_contradiction(tracked.key.decode(), found.what, found.hosts)
        self.contradicts = None if found is None else found.what
        return is_new

    def note_overtaken(self, tracked: TrackedJob) -> None:
        """Log once that further starts of a job are not judged."""
        found = tracked.monitor.overtaken
        if found > self.overtaken:
            log_overtaken(tracked.key.decode(), found)
        self.overtaken = found

    def note_given_up(self, tracked: TrackedJob) -> int:
        """Return how many more iterations of a job are not judged; log the first ones."""
        before, self.given_up = self.given_up, tracked.monitor.given_up
        if self.given_up > before == 0:
            log_given_up(tracked.key.decode())
        return max(self.given_up - before, 0)

    def note_end(self, tracked: TrackedJob) -> None:
        """Log once that the job ended; it may begin again with another attempt."""
        if tracked.monitor.is_ended and not self.was_ended:
            log_job("ended", tracked.key.decode())
        self.was_ended = tracked.monitor.is_ended


def hear_starts(tracked: TrackedJob, rows: Rows) -> None:
    """Let a job that was given up be judged again if rows announce another start of it."""
    for row in rows if tracked.given_up.times else ():
        if isinstance(row, Membership) and row.announcement is not None:
            hear_start(tracked, code_of_start(row.attempt, row.start))


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
                # One that takes longer goes on outside of the turn, beside the next one.
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
