"""What a job of the second hop has on its way: evidence that waits for its monitor, and what people said before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from irregulars.messages.announcements import code_of_start
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import Judgements
from irregulars.messages.kept_message import KeptMessage
from irregulars.messages.opinions import Opinion
from irregulars.messages.records import Batch
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.streams.health.judges import TURN_S
from irregulars.streams.health.monitor_faults import hear_start
from irregulars.streams.job_hop.contradictions import Contradiction
from irregulars.streams.progress.live_words import Heard, PeopleSay
from irregulars.streams.snapshots.records import Offsets
from irregulars.streams.stages.job_topics import EVIDENCE, Rows
from irregulars.streams.stages.partition_state import PartitionState, Tracked
from irregulars.streams.stages.stage import Snapshottable
from irregulars.streams.telemetry.log_lines import log_contradiction, log_job, log_untaught

Words = tuple[Heard[ThresholdChange], Heard[Opinion]]
"""What people said before some evidence of a job: changes of thresholds, and opinions on its verdicts."""


class JobMonitorLike(Snapshottable, Protocol):
    """`streams.job_hop.job_monitor.JobMonitor`, as this stage uses it."""

    @property
    def size(self) -> int:
        """See JobMonitor."""

    @property
    def untaught_detectors(self) -> Mapping[str, str]:
        """See JobMonitor."""

    @property
    def contradiction(self) -> Contradiction | None:
        """See JobMonitor."""

    def add(self, rows: Rows) -> None:
        """See JobMonitor."""

    def tick(self, now_s: float, until_s: float) -> None:
        """See JobMonitor."""

    def follow(self, changes: Sequence[ThresholdChange]) -> None:
        """See JobMonitor."""

    def forget_operators(self) -> None:
        """See JobMonitor."""

    def hear(self, opinions: Sequence[Opinion], revision: int) -> None:
        """See JobMonitor."""

    def advance(self, read_back: Callable[[Sequence[Any]], Sequence[Batch]]) -> Judgements:
        """See JobMonitor."""


class Clocks(Protocol):
    """`streams.progress.stream_time.StreamTime`, as this stage uses it."""

    def now_s(self) -> float:
        """See StreamTime."""

    def job_until_s(self, partition: int, positions: Offsets) -> float | None:
        """See StreamTime."""


@dataclass(slots=True)
class QueuedMessage(KeptMessage):
    """A message that waits for its job's monitor: as it came, should it have to be buried, and decoded."""

    rows: Sequence[Evidence | Membership]


@dataclass(eq=False)
class JobWork:
    """What waits for one job's monitor."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    inbox: deque[QueuedMessage] = field(default_factory=deque)
    left: deque[int] = field(default_factory=deque)  # offsets behind the inbox: these messages are read again
    queued: int = -1  # newest offset that was put into the inbox, or left
    judging_since_s: float | None = None
    is_due: bool = False
    task: asyncio.Task[None] | None = None
    was_ended: bool = False
    untaught: frozenset[str] = frozenset()  # detectors of which it was said
    contradicts: str | None = None  # in which respect, as it was said

    @property
    def is_slow(self) -> bool:
        """Whether a judgement is being made that takes long."""
        return self.judging_since_s is not None and time.monotonic() - self.judging_since_s > TURN_S

    def note_untaught(self, tracked: Tracked[Any]) -> None:
        """Say once of a detector that it does not take what people say."""
        found = tracked.monitor.untaught_detectors
        if not found.keys() <= self.untaught:
            for name in found.keys() - self.untaught:
                log_untaught(tracked.key.decode(), name, found[name])
            self.untaught |= found.keys()

    def note_contradiction(self, tracked: Tracked[Any]) -> bool:
        """Say once that a job contradicts itself, and return whether that is new."""
        found = tracked.monitor.contradiction
        is_new = found is not None and found.what != self.contradicts
        if found is not None and is_new:
            log_contradiction(tracked.key.decode(), found.what, found.hosts)
        self.contradicts = None if found is None else found.what
        return is_new

    def note_end(self, tracked: Tracked[Any]) -> None:
        """Say once that the job ended; it may begin again with another attempt."""
        if tracked.monitor.is_ended and not self.was_ended:
            log_job("ended", tracked.key.decode())
        self.was_ended = tracked.monitor.is_ended


def hear_starts(tracked: Tracked[JobMonitorLike], rows: Rows) -> None:
    """Let a job that was given up be judged again if rows announce another start of it."""
    for row in rows if tracked.given_up.times else ():
        if isinstance(row, Membership) and row.announcement is not None:
            hear_start(tracked, code_of_start(row.attempt, row.start))


def words_before(
    people_say: PeopleSay,
    state: PartitionState[JobMonitorLike],
    tracked: Tracked[JobMonitorLike],
    message: QueuedMessage | None,
) -> Words:
    """Return what people said before a message, or before what comes next; never less than the state knows of."""
    offset = state.next_of(EVIDENCE) if message is None else message.offset
    place = state, tracked.key.decode(), max(offset, tracked.seen.get(EVIDENCE, -1) + 1)
    return people_say.thresholds.heard(*place), people_say.opinions.heard(*place)
