"""The first hop: what ranks send goes through RankMonitors and leaves as evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from irregulars.errors import RecordError
from irregulars.streams.kafka.topics import MAX_MESSAGE_BYTES, rank_key
from irregulars.streams.messages.announcements import Announcement, Heartbeat, decode_announcement, decode_heartbeat
from irregulars.streams.messages.evidence import Evidence, Membership, encode_evidence
from irregulars.streams.messages.records import Batch, decode_batch, encode_batch
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.worker.partition_state import PartitionState, Tracked
from irregulars.streams.worker.stage import Event, Services, Snapshottable, Stage
from irregulars.streams.worker.unannounced_ranks import ParkedMessage, ParkingLot

RANK_TOPICS: Final = ("jobs", "commops", "iterations", "bandwidth", "gpu_health", "heartbeats")
_SAMPLES: Final = ("bandwidth", "gpu_health")
_MAX_TOUCHED: Final = 64
"""Monitors are drained once so many messages have gone into them: longer rounds were measured to be slower."""
_GIVE_WAY: Final = 32

Rows = Sequence[Evidence | Membership]
Record = Announcement | Batch | Heartbeat


class RankMonitorLike(Snapshottable, Protocol):
    """`streams.rank_hop.rank_monitor.RankMonitor`, as this stage uses it."""

    job: str

    def announce(self, announcement: Announcement) -> None:
        """See RankMonitor."""

    def add(self, batch: Batch, offset: int) -> None:
        """See RankMonitor."""

    def beat(self, heartbeat: Heartbeat) -> None:
        """See RankMonitor."""

    def tick(self, now_s: float) -> None:
        """See RankMonitor."""

    def drain(self) -> list[Evidence | Membership]:
        """See RankMonitor."""

    def take_closed(self) -> list[Closing | Membership]:
        """See RankMonitor."""

    def take_unannounced(self) -> list[tuple[Batch, int]]:
        """See RankMonitor."""


MakeRankMonitor = Callable[[str, int, int], RankMonitorLike]
"""Job, rank, partition."""


@dataclass(slots=True)
class _Work:
    """What a partition has to hand over."""

    parked: ParkingLot
    touched: dict[bytes, Tracked[RankMonitorLike]] = field(default_factory=dict)  # monitors with something new
    fed: int = 0  # messages that went into them
    samples: list[Batch] = field(default_factory=list)
    given_up: list[ParkedMessage] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RankStage(Stage[RankMonitorLike]):
    """Decode, feed the rank's monitor, send what it drained, keyed by job.

    Parameters
    ----------
    make, restore
        Make a new monitor, and one from a state.
    """

    hop = "rank"
    snapshot_topic = "rank_snapshots"

    def __init__(self, services: Services, make: MakeRankMonitor, restore: Callable[[Any], RankMonitorLike]) -> None:
        super().__init__(services)
        self._make: Final = make
        self._restore: Final = restore
        self._evidence_topic: Final = services.settings.topics.name("evidence")
        self._works: WeakKeyDictionary[PartitionState[RankMonitorLike], _Work] = WeakKeyDictionary()

    def restore_monitor(self, state: Any) -> RankMonitorLike:
        """Build a monitor from its stored state."""
        return self._restore(state)

    async def take(self, topic: str, events: Sequence[Event]) -> None:
        """Take in events of one topic, and send evidence early where much has gathered."""
        await super().take(topic, events)
        for state in list(self.states.values()):
            if self._work(state).fed >= _MAX_TOUCHED:
                await self.settle(state)

    async def process(self, state: PartitionState[RankMonitorLike], topic: str, event: Event) -> None:
        """Feed one message to its rank's monitor, park it, or bury it."""
        message = event.message
        tracked = state.tracked.get(message.key)
        if (tracked is not None and tracked.has_seen(topic, message.offset)) or _is_tombstone(topic, message):
            state.take(topic, message.offset, event)
            return
        try:
            record = decode(topic, message.key, message.value)
        except RecordError as error:
            await self.bury(state, topic, event, str(error))
            return
        state.take(topic, message.offset, event)
        if tracked is None and not isinstance(record, Announcement):
            self._park(state, topic, message)
            return
        if tracked is None:
            tracked = self._announce(state, message.key, record)
        self._feed(state, tracked, topic, message.offset, record)
        # Without giving way in between: a newer message of the rank must not overtake its parked ones.
        for parked in self._work(state).parked.take(message.key):
            self._feed_parked(state, tracked, parked)

    async def settle(self, state: PartitionState[RankMonitorLike]) -> None:
        """Send the rows that monitors drained, those of one job together, and what was given up."""
        work = self._work(state)
        async with work.lock:  # whoever comes after must know that it was sent, not that it is being sent
            # One pass: what comes in meanwhile waits for the next one, and is drained with more.
            await self._send_rows(await self._drain(work))
            samples, work.samples = work.samples, []
            await self.services.sink.write_samples(samples)
            given_up, work.given_up = work.given_up, []
            for message in given_up:
                await self._bury_given_up(state, message)

    async def capture(self, state: PartitionState[RankMonitorLike], tracked: Tracked[RankMonitorLike]) -> bytes:
        """Encode a monitor's state, and send what it drained: a state holds no drained rows."""
        async with self._work(state).lock:  # or these rows could overtake some that were drained before
            rows = tracked.monitor.drain()
            value = self.encode(state, tracked)
            if rows:
                await self._send_rows({tracked.monitor.job: rows})
            return value

    async def settle_all(self) -> None:
        """Send what has gathered in all partitions."""
        for state in list(self.states.values()):
            await self.settle(state)

    async def tick(self, now_s: float) -> None:
        """Let the wall clock speak to all monitors, and give up messages of ranks that were never announced."""
        for state in list(self.states.values()):
            for tracked in list(state.tracked.values()):
                tracked.monitor.tick(now_s)
                self._work(state).touched[tracked.key] = tracked
            work = self._work(state)
            work.given_up += work.parked.take_overdue(time.monotonic())

    def _work(self, state: PartitionState[RankMonitorLike]) -> _Work:
        work = self._works.get(state)
        if work is None:
            settings = self.services.settings
            work = self._works[state] = _Work(ParkingLot(settings.parked_bytes, settings.parked_s))
        return work

    def _announce(
        self, state: PartitionState[RankMonitorLike], key: bytes, record: Record
    ) -> Tracked[RankMonitorLike]:
        assert isinstance(record, Announcement)
        monitor = self._make(record.job, record.rank, state.partition)
        state.tracked[key] = Tracked(key, monitor)
        return state.tracked[key]

    def _feed(
        self,
        state: PartitionState[RankMonitorLike],
        tracked: Tracked[RankMonitorLike],
        topic: str,
        offset: int,
        record: Record,
    ) -> None:
        if isinstance(record, Announcement):
            tracked.monitor.announce(record)
        elif isinstance(record, Heartbeat):
            tracked.monitor.beat(record)
        else:
            tracked.monitor.add(record, offset)
            self._work(state).given_up += self._unannounced(tracked, state.partition)
            if topic in _SAMPLES:
                self._work(state).samples.append(record)
        tracked.saw(topic, offset)
        work = self._work(state)
        work.touched[tracked.key] = tracked
        work.fed += 1

    def _park(self, state: PartitionState[RankMonitorLike], topic: str, message: Any) -> None:
        parked = ParkedMessage(
            message.topic, message.partition, message.offset, message.timestamp, message.key, message.value, topic,
            time.monotonic(),
        )  # fmt: skip
        self._work(state).parked.add(message.key, parked)
        state.begin(topic, message.offset)

    def _feed_parked(
        self, state: PartitionState[RankMonitorLike], tracked: Tracked[RankMonitorLike], parked: ParkedMessage
    ) -> None:
        if not tracked.has_seen(parked.short_topic, parked.offset):  # its topic may have been read twice meanwhile
            record = decode(parked.short_topic, parked.key, parked.value)
            self._feed(state, tracked, parked.short_topic, parked.offset, record)
        state.finish(parked.short_topic, parked.offset)

    def _unannounced(self, tracked: Tracked[RankMonitorLike], partition: int) -> list[ParkedMessage]:
        """Return what a monitor gives up of an attempt that was never announced, as messages again."""
        topics = self.services.settings.topics
        return [
            ParkedMessage(
                topics.name(batch.header.schema), partition, offset, 0.0, tracked.key, encode_batch(batch),
                batch.header.schema, 0.0,
            )
            for batch, offset in tracked.monitor.take_unannounced()
        ]  # fmt: skip

    async def _drain(self, work: _Work) -> dict[str, list[Evidence | Membership]]:
        """Drain the monitors that have something new: not after each message, since a drain has its price."""
        touched, work.touched, work.fed = work.touched, {}, 0
        rows: dict[str, list[Evidence | Membership]] = {}
        for some in _parts(list(touched.values()), _GIVE_WAY):
            closed: dict[str, list[Closing | Membership]] = {}
            for tracked in some:
                own = tracked.monitor.take_closed()
                if own:
                    closed.setdefault(tracked.monitor.job, []).extend(own)
                    tracked.is_dirty = True
            for job, pieces in closed.items():
                rows.setdefault(job, []).extend(reduce_closings(job, pieces))
            await asyncio.sleep(0)  # thousands of monitors must not hold up the event loop
        return rows

    async def _send_rows(self, rows: Mapping[str, Rows]) -> None:
        for job, pieces in rows.items():
            for value in encode_within_limit(pieces, job):
                await self.services.outbox.send(self._evidence_topic, job.encode(), value)

    async def _bury_given_up(self, state: PartitionState[RankMonitorLike], message: ParkedMessage) -> None:
        reason = "rank and attempt must be announced on the topic jobs; got no announcement in time"
        await self.services.dead_letters.bury(message, reason)
        state.finish(message.short_topic, message.offset)


def decode(topic: str, key: bytes | None, value: bytes | None) -> Record:
    """Decode a message of an input topic of the first hop.

    Raises
    ------
    RecordError
        If it can't be decoded, or its key is not that of the rank inside.
    """
    record: Record
    if topic == "jobs":
        record = decode_announcement(value)
        job, rank = record.job, record.rank
    elif topic == "heartbeats":
        record = decode_heartbeat(value)
        job, rank = record.job, record.rank
    else:
        record = decode_batch(value, topic)
        job, rank = record.header.job, record.header.rank
    if key != rank_key(job, rank):
        raise RecordError(f"key must be {rank_key(job, rank)!r}, the rank inside; got {key!r}")
    return record


def encode_within_limit(rows: Rows, job: str) -> list[bytes]:
    """Encode `rows` in as few messages as the size limit allows, in order."""
    values = encode_evidence(rows, job)
    if len(rows) < 2 or all(len(value) <= MAX_MESSAGE_BYTES for value in values):
        return values
    half = len(rows) // 2
    return encode_within_limit(rows[:half], job) + encode_within_limit(rows[half:], job)


def _parts(touched: list[Tracked[RankMonitorLike]], size: int) -> Iterator[list[Tracked[RankMonitorLike]]]:
    for first in range(0, len(touched), size):
        yield touched[first : first + size]


def _is_tombstone(topic: str, message: Any) -> bool:
    """Somebody deleted a rank's announcement from the compacted topic: no message, and nothing wrong."""
    return topic == "jobs" and message.value is None and message.key is not None
