"""Evidence of a job that waits for its monitor in the second hop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from irregulars.kafka.dead_letters import KeptMessage
from irregulars.messages.announcements import code_of_start
from irregulars.messages.evidence import Evidence, Membership
from irregulars.streams.health.judges import TURN_S
from irregulars.streams.health.log_lines import log_contradiction, log_job
from irregulars.streams.health.monitor_faults import hear_start
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
