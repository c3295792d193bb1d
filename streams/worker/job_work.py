"""What waits for one job's monitor."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from irregulars.streams.telemetry.log_lines import log_job
from irregulars.streams.worker.job_topics import Rows
from irregulars.streams.worker.partition_state import Tracked


@dataclass(slots=True)
class QueuedMessage:
    """A message that waits for its job's monitor: as it came, should it have to be buried, and decoded."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    key: bytes | None
    value: bytes | None
    rows: Rows


@dataclass(eq=False)
class JobWork:
    """What waits for one job's monitor."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    inbox: deque[QueuedMessage] = field(default_factory=deque)
    queued: int = -1  # newest offset that was put into the inbox
    is_due: bool = False
    task: asyncio.Task[None] | None = None
    was_ended: bool = False

    def note_end(self, tracked: Tracked[Any]) -> None:
        """Say once that the job ended; it may begin again with another attempt."""
        if tracked.monitor.is_ended and not self.was_ended:
            log_job("ended", tracked.key.decode())
        self.was_ended = tracked.monitor.is_ended
