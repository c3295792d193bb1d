"""What a partition of the first hop has on its way: monitors with something new, samples, messages that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import Bundle
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.records import Batch
from irregulars.streams.rank_hop.evidence_reduction import Closing
from irregulars.streams.rank_hop.group_monitor import Refused
from irregulars.streams.stages.left_samples import LeftSamples
from irregulars.streams.stages.partition_state import PartitionState, Tracked
from irregulars.streams.stages.stage import Snapshottable
from irregulars.streams.stages.unannounced_ranks import ParkedMessage, ParkingLot


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
    """What a partition has to hand over."""

    parked: ParkingLot
    touched: dict[bytes, TrackedRanks] = field(default_factory=dict)  # monitors with something new
    messages: int = 0  # that went into them
    rows: int = 0  # that were in these
    samples: list[Sample] = field(default_factory=list)
    left: LeftSamples = field(default_factory=LeftSamples)  # to Kafka, since the database is away
    is_unstored: bool = False  # samples were handed over, and not flushed yet
    given_up: list[ParkedMessage] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sink_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # for what goes to the database and dead letters
