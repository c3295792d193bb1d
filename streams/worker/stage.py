"""What both hops share: restoring partitions, and the snapshot cycle that makes acknowledgement safe.

A cycle of one partition, in this order: (1) note the position up to which everything is in a monitor; (2) send what
the monitors drained, and take their states; (3) wait until results are stored and acknowledged; (4) write the states,
and after them the position; (5) wait for the acknowledgement; (6) acknowledge the Faust events below the position.
Messages that arrive meanwhile are in a state or not; those that are will be skipped by offset after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from irregulars.streams.kafka.dead_letters import DeadLetters, InputMessage
from irregulars.streams.kafka.log_reader import LogReader
from irregulars.streams.kafka.outbox import Outbox
from irregulars.streams.worker.partition_state import Offsets, PartitionState, Tracked
from irregulars.streams.worker.settings import WorkerSettings
from irregulars.streams.worker.sink_writer import SinkWriter
from irregulars.streams.worker.snapshot_log import Ends, SnapshotLog, StoredPartition, encode_monitor

LOG: Final = logging.getLogger("irregulars.worker")
ENDED_LINGER_S: Final = 600.0
"""How long the state of what has ended is kept, so that stragglers and repeats find it."""


class Snapshottable(Protocol):
    """What the stages ask of a monitor."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing more is to come."""

    def state(self) -> dict[str, Any]:
        """Return what restores it."""


class Event(Protocol):
    """What we use of a Faust event."""

    message: Any
    value: Any


M = TypeVar("M", bound=Snapshottable)


@dataclass(frozen=True, slots=True)
class Services:
    """What stages work with; one set per worker process."""

    settings: WorkerSettings
    outbox: Outbox
    dead_letters: DeadLetters
    sink: SinkWriter
    acknowledge: Callable[[Event], Any]
    fail: Callable[[BaseException], None]


class Stage(ABC, Generic[M]):
    """One hop: the partitions of it that this worker has."""

    hop: str
    snapshot_topic: str

    def __init__(self, services: Services) -> None:
        self.services = services
        self.states: dict[int, PartitionState[M]] = {}
        settings = services.settings
        self.reader = LogReader(settings.bootstrap, settings.security, settings.broker_timeout_s)
        self.log = SnapshotLog(settings.topics.name(self.snapshot_topic), self.reader, services.outbox)
        # One thread for restoring: a reader belongs to one thread, and rebalances may follow one another quickly.
        self._restorer = ThreadPoolExecutor(1, thread_name_prefix=f"irregulars-{self.hop}-restore")
        self._cycle = asyncio.Lock()

    # --- for the subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def restore_monitor(self, state: Any) -> M:
        """Build a monitor from its stored state."""

    @abstractmethod
    async def process(self, state: PartitionState[M], topic: str, event: Event) -> None:
        """Take in one message; call ``state.take`` once it is in a monitor, begun, or sent to the dead letters."""

    @abstractmethod
    async def settle(self, state: PartitionState[M]) -> None:
        """Drain the monitors and hand over what they gave; whatever was drained before the call is sent on return."""

    async def capture(self, state: PartitionState[M], tracked: Tracked[M]) -> bytes:
        """Encode a monitor's state; what it drained before is handed over by the next `settle` at the latest."""
        await self.settle(state)
        return self.encode(state, tracked)

    def encode(self, state: PartitionState[M], tracked: Tracked[M]) -> bytes:
        """Encode at once: a state may share arrays with its monitor, which goes on changing them."""
        tracked.is_dirty = False
        return encode_monitor(state.epoch, tracked.seen, tracked.monitor.state())

    async def prepare(self, state: PartitionState[M], stored: StoredPartition) -> None:
        """Do what else a restored partition needs."""

    def ends(self, state: PartitionState[M]) -> Ends | None:
        """Return the ends of the result topics for the partition's record."""
        return None

    # --- assignment -------------------------------------------------------------------------------------------------

    async def restore(self, partitions: Iterable[int], generation: int) -> None:
        """Read the state of newly assigned partitions, and claim them. What was held before is forgotten."""
        self.drop()
        loop = asyncio.get_running_loop()
        restored = {}
        for partition in sorted(partitions):
            began_s = time.monotonic()
            stored = await loop.run_in_executor(self._restorer, self.log.read, partition)
            state: PartitionState[M] = PartitionState(partition, generation, stored.epoch + 1, stored.positions)
            for one in stored.monitors:
                state.tracked[one.key] = Tracked(one.key, self.restore_monitor(one.state), dict(one.seen))
            await self.prepare(state, stored)
            await self.log.write_position(partition, state.epoch, state.stored_position, self.ends(state))
            restored[partition] = state
            _log_restored(self.hop, state, began_s)
        await self.services.outbox.barrier()
        self.states = restored

    def drop(self) -> None:
        """Forget all partitions: they were revoked."""
        self.states = {}

    def holds(self, state: PartitionState[M]) -> bool:
        """Whether the partition is still the one that `state` belongs to."""
        return self.states.get(state.partition) is state

    # --- messages ---------------------------------------------------------------------------------------------------

    async def take(self, topic: str, events: Sequence[Event]) -> None:
        """Take in events of one topic (named without prefix), in their order."""
        for event in events:
            message = event.message
            state = self.states.get(message.partition)
            # Faust may still hand over what it had buffered before a rebalance: it will be read again.
            if state is not None and message.generation_id == state.generation:
                await self.process(state, topic, event)
                message.value = event.value = None  # held until the snapshot, when only the offset is of use

    async def bury(self, state: PartitionState[M], topic: str, event: Event, reason: str) -> None:
        """Send an unusable message to the dead letters."""
        message: InputMessage = event.message
        await self.services.dead_letters.bury(message, reason)
        state.take(topic, message.offset, event)

    # --- snapshots --------------------------------------------------------------------------------------------------

    async def snapshot_all(self) -> None:
        """Run a cycle for each partition that has changed."""
        async with self._cycle:
            for state in list(self.states.values()):
                if self.holds(state) and state.is_changed:
                    await self._snapshot(state)

    async def _snapshot(self, state: PartitionState[M]) -> None:
        position, ends = state.position(), self.ends(state)
        drafts = await self._capture_dirty(state)
        await self.settle(state)
        await self.services.sink.flush()  # first, since rows that it refuses go to the dead letters
        await self.services.outbox.barrier()
        if not self.holds(state):
            return
        ended = self._forget_ended(state)
        for key, value in drafts.items():
            if key in state.tracked:
                await self.log.write_monitor(state.partition, key, value)
        await self.log.delete_monitors(state.partition, ended)
        await self.log.write_position(state.partition, state.epoch, position, ends)
        await self.services.outbox.barrier()
        if self.holds(state):
            self._acknowledge(state, position)

    async def _capture_dirty(self, state: PartitionState[M]) -> dict[bytes, bytes]:
        drafts = {}
        for tracked in [tracked for tracked in state.tracked.values() if tracked.is_dirty]:
            drafts[tracked.key] = await self.capture(state, tracked)
            await asyncio.sleep(0)  # thousands of monitors must not hold up the event loop
        return drafts

    def _acknowledge(self, state: PartitionState[M], position: Offsets) -> None:
        for event in state.release(position):
            self.services.acknowledge(event)

    def _forget_ended(self, state: PartitionState[M]) -> list[bytes]:
        """Drop monitors that ended a while ago, if a restart would not read again what they have seen."""
        now_s = time.monotonic()
        for tracked in state.tracked.values():
            if not tracked.monitor.is_ended:
                tracked.ended_at_s = None
            elif tracked.ended_at_s is None:
                tracked.ended_at_s = now_s
        old = [
            tracked.key
            for tracked in state.tracked.values()
            if tracked.ended_at_s is not None
            and now_s - tracked.ended_at_s >= ENDED_LINGER_S
            and state.is_covered(tracked)
        ]
        for key in old:
            del state.tracked[key]
        return old

    def close(self) -> None:
        """Let go of threads and connections."""
        self._restorer.shutdown(wait=True, cancel_futures=True)
        self.reader.close()


def _log_restored(hop: str, state: PartitionState[M], began_s: float) -> None:
    LOG.info(
        "event=restored hop=%s partition=%d epoch=%d monitors=%d took_s=%.3f",
        hop, state.partition, state.epoch, len(state.tracked), time.monotonic() - began_s,
    )  # fmt: skip
