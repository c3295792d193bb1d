"""Work of a partition of the first hop: monitors to drain, samples to store, messages of unannounced ranks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

from irregulars.kafka.dead_letters import KeptMessage
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import Bundle
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.records import Batch
from irregulars.streams.health.monitor_faults import MonitorFaults, is_broken
from irregulars.streams.health.watchdog import WorkGivenUp
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.group_monitor import Refused
from irregulars.streams.stages.partition_state import PartitionState, Tracked
from irregulars.streams.stages.rank_records import LeftSamples
from irregulars.streams.stages.stage import Snapshottable

UNANNOUNCED: Final = "rank and attempt must be announced on the topic jobs; got no announcement in time"


@dataclass(slots=True)
class ParkedMessage(KeptMessage):
    """One message as it was read; `reason` is for the headers of its dead letter."""

    short_topic: str
    parked_at_s: float
    reason: str = UNANNOUNCED


class ParkingLot:
    """Keeps messages by key, oldest first."""

    def __init__(self, limit_bytes: int, limit_s: float) -> None:
        self._limit_bytes: Final = limit_bytes
        self._limit_s: Final = limit_s
        self._by_key: dict[bytes, deque[ParkedMessage]] = {}
        self.size_bytes = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def add(self, key: bytes, message: ParkedMessage) -> None:
        """Keep a message."""
        self._by_key.setdefault(key, deque()).append(message)
        self.size_bytes += _size_bytes(message)

    def take(self, key: bytes) -> list[ParkedMessage]:
        """Give back the messages of `key`: it was announced."""
        messages = list(self._by_key.pop(key, ()))
        self.size_bytes -= sum(map(_size_bytes, messages))
        return messages

    def take_overdue(self, now_s: float) -> list[ParkedMessage]:
        """Give up messages that have stayed too long, and, where memory is short, the keys that came first."""
        overdue = []
        for key in list(self._by_key):
            first = self._by_key[key][0]
            if now_s - first.parked_at_s >= self._limit_s or self.size_bytes > self._limit_bytes:
                overdue += self.take(key)
        return overdue


def _size_bytes(message: ParkedMessage) -> int:
    return len(message.key or b"") + len(message.value or b"")


class RankMonitorLike(Snapshottable, Protocol):
    """`streams.rank_hop.group_monitor.GroupMonitor`, as this stage uses it."""

    job: str

    def announce(self, announcement: Announcement) -> None:
        """See GroupMonitor."""

    def add(self, rows: Batch | Bundle, offset: int) -> Sequence[Refused]:
        """See GroupMonitor."""

    def beat(self, heartbeat: Heartbeat) -> None:
        """See GroupMonitor."""

    def follow(self, silence_s: float | None) -> None:
        """See GroupMonitor."""

    def tick(self, now_s: float, until_s: float) -> None:
        """See GroupMonitor."""

    def drain(self) -> list[Evidence | Membership]:
        """See GroupMonitor."""

    def take_closed(self) -> list[Closing | Membership]:
        """See GroupMonitor."""

    def take_rows_over(self) -> int:
        """See GroupMonitor."""

    def take_unannounced(self) -> list[tuple[Batch, int]]:
        """See GroupMonitor."""


State = PartitionState[RankMonitorLike]
TrackedRanks = Tracked[RankMonitorLike]


@dataclass(frozen=True, slots=True)
class Sample:
    """Samples of devices, and the message that they came in."""

    topic: str
    offset: int
    batches: Sequence[Batch]


@dataclass(slots=True)
class PartitionWork:
    """Work that a partition has to hand over."""

    parked: ParkingLot
    touched: dict[bytes, TrackedRanks] = field(default_factory=dict)  # monitors with something new
    messages: int = 0  # that went into them
    rows: int = 0  # that were in these
    samples: list[Sample] = field(default_factory=list)
    left: LeftSamples = field(default_factory=LeftSamples)  # to Kafka, since the database is away
    is_unstored: bool = False  # samples were handed over, and not flushed yet
    given_up: list[ParkedMessage] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sink_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # for rows to the database and dead letters


T = TypeVar("T")
_GIVE_WAY: Final = 32

Rows = Sequence[Evidence | Membership]
_Closed = tuple[TrackedRanks, list[Closing | Membership]]


class Guarded(Protocol):
    """How a monitor's work is done."""

    def __call__(self, tracked: TrackedRanks, work: Callable[[], T], /) -> T:
        """Do it; raises `WorkGivenUp`."""


class RankDrain:
    """Drains monitors, and bears one that raises.

    Parameters
    ----------
    guarded
        Does a monitor's work in bounds; raises `WorkGivenUp`.
    gave_up
        Lets a monitor begin anew whose work was given up.
    """

    def __init__(
        self,
        hop: str,
        faults: MonitorFaults,
        guarded: Guarded,
        gave_up: Callable[[TrackedRanks, WorkGivenUp], object],
    ) -> None:
        self._hop: Final = hop
        self._faults: Final = faults
        self._guarded: Final = guarded
        self._gave_up: Final = gave_up

    async def drain(self, works: Sequence[PartitionWork]) -> dict[str, list[Evidence | Membership]]:
        """Drain the monitors that have something new: not after each message, since a drain has its price."""
        touched = [tracked for work in works for tracked in work.touched.values()]
        for work in works:
            work.touched, work.messages, work.rows = {}, 0, 0
        rows: dict[str, list[Evidence | Membership]] = {}
        for first in range(0, len(touched), _GIVE_WAY):
            some = touched[first : first + _GIVE_WAY]
            for job, own in self._take_closed(some).items():
                rows.setdefault(job, []).extend(self._reduce(job, own))
            await asyncio.sleep(0)  # thousands of monitors must not hold up the event loop
        return rows

    def _take_closed(self, some: Sequence[TrackedRanks]) -> dict[str, list[_Closed]]:
        """Take closed iterations from monitors, by job."""
        closed: dict[str, list[_Closed]] = {}
        for tracked in some:
            if is_broken(tracked):
                continue
            try:
                own = self._guarded(tracked, tracked.monitor.take_closed)
            except WorkGivenUp as why:
                self._gave_up(tracked, why)
                continue
            except Exception as error:  # whatever a monitor raises, it must not take the worker with it
                self._faults.failed(self._hop, tracked, error)
                continue
            if own:
                closed.setdefault(tracked.monitor.job, []).append((tracked, own))
                tracked.is_dirty = True
        return closed

    def _reduce(self, job: str, closed: Sequence[_Closed]) -> Rows:
        """Reduce closed iterations of a job; where that raises, each rank's by themselves, to find the faulty one."""
        try:
            pieces = [piece for _, own in closed for piece in own]
            rows = self._guarded(closed[0][0], partial(reduce_closings, job, pieces))
        except Exception as error:  # as above
            if len(closed) > 1:
                return [row for one in closed for row in self._reduce(job, [one])]
            if isinstance(error, WorkGivenUp):
                self._gave_up(closed[0][0], error)
            else:
                self._faults.failed(self._hop, closed[0][0], error)
            return []
        for tracked, _ in closed:
            self._faults.works(tracked)
        return rows
