"""The base of both hops: restoring partitions, and the snapshot cycle from which a worker goes on.

A cycle of one partition, in this order: (1) note the position up to which everything is in a monitor; (2) send the
rows that the monitors drained, and take their states; (3) wait until results are stored and acknowledged; (4) write
the states, and after them the position; (5) wait for the acknowledgement; (6) commit the position, for tools that
watch the group.
Messages that arrive meanwhile are in a state or not; those that are will be skipped by offset after a restart.

A state that can't be read (an older or newer version wrote it, or it is damaged) does not stop a worker, which would
find it again at each start: it is logged in one line, and its monitor begins anew (`Stage.begin_anew`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from irregulars.errors import RecordError, SendingGivenUp, ServiceError
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.scattered_reading import RecentMessages
from irregulars.kafka.topic_admin import require_same_topics
from irregulars.streams.faust_driver.block_fetcher import Record
from irregulars.streams.health.counters import Counters
from irregulars.streams.health.monitor_faults import MonitorFaults, is_broken
from irregulars.streams.health.watchdog import Watchdog, WorkGivenUp
from irregulars.streams.snapshots.records import POSITION_KEY, Draft, EncodedState, Offsets, PositionRecord, draft_of
from irregulars.streams.snapshots.snapshot_log import SnapshotLog
from irregulars.streams.snapshots.snapshot_writer import SnapshotWriter
from irregulars.streams.snapshots.stored_partition import StoredPartition
from irregulars.streams.stages.partition_state import Continuity, PartitionState, Tracked
from irregulars.streams.stages.sink_writer import SinkWriter
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
ENDED_LINGER_S: Final = 600.0
"""How long the state of a monitor that has ended is kept, s, so that stragglers and repeats find it."""

_REST: Final = 5.0
_LONGEST_REST_S: Final = 20.0
"""After a cycle of snapshots none begins for five times as long as it took: those of thousands of ranks took a sixth
of a busy worker's time where it rested for twice as long."""

_UNUSABLE: Final = (RecordError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of restoring a state that can't be read, or whose values have their types and contradict each other."""


class Snapshottable(Protocol):
    """A monitor, as the stages use it."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing more is to come."""

    def state(self) -> Any:
        """Return its state, for `irregulars.state_codec`."""


M = TypeVar("M", bound=Snapshottable)


@dataclass(frozen=True, slots=True)
class Services:
    """Services that stages use; one set per worker process."""

    settings: WorkerSettings
    outbox: Outbox
    reading: ReadingThread  # for both stages: restoring, and messages that are read again
    dead_letters: DeadLetters
    sink: SinkWriter
    # Lets the group know how far a partition's snapshot is; offsets by topic, named without prefix
    commit: Callable[[int, Offsets], Any]
    fail: Callable[[BaseException], None]
    continuity: Continuity
    counters: Counters = field(default_factory=Counters)
    recent: RecentMessages = field(default_factory=lambda: RecentMessages(0))
    watchdog: Watchdog = field(default_factory=Watchdog)


class Stage(ABC, Generic[M]):
    """One hop: the partitions of it that this worker has."""

    hop: str
    snapshot_topic: str
    rests_on: frozenset[str] = frozenset()  # topics (without prefix) of which its states and records name places

    def __init__(self, services: Services, restore: Callable[[EncodedState], M]) -> None:
        """`restore`: builds a monitor from its encoded state, in a thread; raises `RecordError`."""
        self.services = services
        self._restore_monitor: Final = restore
        self.forget_s = services.settings.forget_s
        self.states: dict[int, PartitionState[M]] = {}
        settings = services.settings
        self.reader: Final = services.reading.reader
        self.log = SnapshotLog(settings.topics.name(self.snapshot_topic), self.reader, services.outbox)
        self._writers: WeakKeyDictionary[PartitionState[M], SnapshotWriter] = WeakKeyDictionary()
        self._writing = asyncio.Lock()
        self._ids: dict[str, str] = {}
        self._taking = 0
        self._running: set[asyncio.Task[None]] = set()
        self.faults: Final = MonitorFaults(services.fail)

    # --- for the subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    async def begin_anew(self, state: PartitionState[M], keys: Set[bytes], stored: PositionRecord) -> PositionRecord:
        """Let the monitors of these keys, whose states can't be read, begin anew; return where to go on reading."""

    @abstractmethod
    async def process(self, state: PartitionState[M], topic: str, message: Record) -> None:
        """Take in one message; call ``state.take`` once it is in a monitor, begun, or sent to the dead letters."""

    @abstractmethod
    async def settle(self, state: PartitionState[M]) -> None:
        """Drain the monitors and hand over their rows; all rows drained before the call are sent on return."""

    async def store(self, state: PartitionState[M]) -> None:
        """Return when all settled rows are stored; while the database is away, snapshots wait here."""
        await self.services.sink.flush()

    async def capture(self, state: PartitionState[M], tracked: Tracked[M]) -> Draft:
        """Encode a monitor's state; rows drained before are handed over by the next `settle` at the latest."""
        await self.settle(state)
        return self.encode(state, tracked)

    def encode(self, state: PartitionState[M], tracked: Tracked[M]) -> Draft:
        """Encode at once: a state may share arrays with its monitor, which goes on changing them."""
        tracked.is_dirty = False
        return draft_of(tracked.seen, tracked.monitor.state(), tracked.given_up)

    @abstractmethod
    async def begin_over(self, state: PartitionState[M], tracked: Tracked[M], why: WorkGivenUp) -> None:
        """Let a monitor whose work did not end begin anew, from the next message on."""

    async def store_begun_over(self, state: PartitionState[M], tracked: Tracked[M]) -> None:
        """Store a monitor that began anew at once: neither a restart nor another owner may meet its message again.

        While the database is away the next cycle stores it: rows that wait would be lost with the old state.
        """
        draft, tracked.is_unstored = self.encode(state, tracked), True
        if self.services.sink.is_busy:
            tracked.is_dirty = True
            return
        await self.store(state)  # earlier judgements are no longer in a state
        await self.services.outbox.barrier()
        async with self._writing:
            if self.holds(state) and tracked.is_unstored:  # else a cycle has stored a newer one
                await self._writers[state].write_monitor(tracked.key, draft)
                tracked.is_unstored = False
                await self.services.outbox.barrier()

    async def prepare(self, state: PartitionState[M], stored: PositionRecord) -> None:
        """Prepare a restored partition further."""

    def record(self, state: PartitionState[M], positions: Offsets) -> PositionRecord:
        """Return the partition's own record, as of now."""
        return PositionRecord(state.epoch, positions, topic_ids=self._ids)

    async def begin_first(self, state: PartitionState[M], stored: PositionRecord) -> PositionRecord:
        """Return how a partition begins of which no record is stored: at the beginning."""
        return stored

    # --- assignment -------------------------------------------------------------------------------------------------

    async def restore(
        self, partitions: Iterable[int], generation: int, topic_ids: Mapping[str, str] | None = None
    ) -> None:
        """Read the state of newly assigned partitions, and claim them. Those held before are forgotten.

        Raises `TopicMismatch` if a stored state is of another topic of the same name.
        """
        # First: while states are read, messages find no partition here, and are not taken.
        self.drop()
        self._ids = {topic: known for topic, known in (topic_ids or {}).items() if topic in self.rests_on}
        async with self._writing:  # a cycle of partitions held before may still write
            restored = {partition: await self._restore_one(partition, generation) for partition in sorted(partitions)}
            await self.services.outbox.barrier()
        # Behind the barrier: only then the offsets of the first records are known.
        for state in restored.values():
            await self._settle_writer(state)
        # Last, and all at once: no message is taken into a partition that is not claimed on the broker yet.
        self.states = restored

    async def _restore_one(self, partition: int, generation: int) -> PartitionState[M]:
        began_s = time.monotonic()
        stored = await self.services.reading.run(self.log.read, partition)
        require_same_topics(stored.position.topic_ids, self._ids, self.services.settings.topics)
        state = await self._restored(stored, partition, generation)
        took_s = time.monotonic() - began_s
        LOG.info(
            "event=restored hop=%s partition=%d epoch=%d monitors=%d read_bytes=%d took_s=%.3f",
            self.hop, partition, state.epoch, len(state.tracked), stored.read_bytes, took_s,
        )  # fmt: skip
        self.services.counters.restores[self.hop].inc()
        self.services.counters.restore_s[self.hop].inc(took_s)
        return state

    async def _restored(self, stored: StoredPartition, partition: int, generation: int) -> PartitionState[M]:
        # In the thread: a large job's state takes seconds, for which the event loop must not stand still.
        tracked, refused = await self.services.reading.run(self._revive, stored)
        position = stored.position
        writer = self.log.writer(partition, stored)
        state: PartitionState[M] = PartitionState(partition, generation, writer.epoch, position.positions)
        state.tracked = tracked
        self._writers[state] = writer
        # Their old records hold up the offset at which reading begins: the next cycle writes them again.
        for key in writer.overdue() & tracked.keys():
            tracked[key].is_dirty = True
        if refused:
            LOG.warning(
                "event=begun_anew hop=%s partition=%d monitors=%d of=%d reason=%r", self.hop, partition,
                len(refused), len(refused) + len(tracked), next(iter(refused.values())),
            )  # fmt: skip
            position = await self.begin_anew(state, refused.keys() - {POSITION_KEY}, position)
            state.go_on_at(position.positions)
        # The first writer's epoch is 1: no record was ever stored.
        elif not position.epoch:
            position = await self.begin_first(state, position)
        await self.prepare(state, position)
        await writer.write_position(self.record(state, state.stored_position))
        # Behind the position: a worker that ends in between finds them again, and begins anew as well.
        await writer.delete_monitors(refused.keys() - {POSITION_KEY} - state.tracked.keys())
        return state

    def _revive(self, stored: StoredPartition) -> tuple[dict[bytes, Tracked[M]], dict[bytes, str]]:
        """Build the monitors of a partition; return them, and why each of the others could not be built."""
        tracked: dict[bytes, Tracked[M]] = {}
        refused = dict(stored.refused)
        for key, record in stored.monitors.items():
            try:
                monitor = self._restore_monitor(record.state)
                tracked[key] = Tracked(key, monitor, dict(record.seen), given_up=record.given_up)
            except _UNUSABLE as error:
                refused[key] = f"{error if isinstance(error, RecordError) else repr(error)} (key {key!r})"
        return tracked, refused

    def state_bytes(self) -> int:
        """Return the bytes of all records of the states that are held."""
        return sum(self._writers[state].live_bytes for state in self.states.values())

    def drop(self) -> None:
        """Forget all partitions: the group has revoked them."""
        self.states = {}

    def holds(self, state: PartitionState[M]) -> bool:
        """Whether the partition is still the one that `state` belongs to."""
        return self.states.get(state.partition) is state

    @property
    def is_idle(self) -> bool:
        """Whether the stage waits for messages."""
        return self._taking == 0

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Mark the stage as busy, around `take`."""
        self._taking += 1
        try:
            yield
        finally:
            self._taking -= 1

    # --- messages ---------------------------------------------------------------------------------------------------

    async def take(self, topic: str, messages: Sequence[Record]) -> None:
        """Take in messages of one topic (named without prefix), in their order."""
        for message in messages:
            state = self.states.get(message.partition)
            # Faust may still hand over messages from before a rebalance, which are read again.
            if state is None or message.generation_id != state.generation:
                continue
            if await self.services.continuity.is_next(state, topic, message.offset) and self.holds(state):
                await self.process(state, topic, message)  # else it comes again, or came before

    async def bury(self, state: PartitionState[M], topic: str, message: Record, reason: str) -> None:
        """Send an unusable message to the dead letters."""
        await self.services.dead_letters.bury(message, reason)
        state.take(topic, message.offset)

    # --- snapshots --------------------------------------------------------------------------------------------------

    async def snapshot_all(self) -> None:
        """Run a cycle for each partition that has changed, and wait for all of them."""
        await asyncio.gather(*map(self._run_cycle, list(self.states.values())))

    def start_snapshots(self) -> None:
        """Begin a cycle for each partition that has changed, and has none under way: a busy one holds up no other."""
        now_s = time.monotonic()
        for state in self.states.values():
            is_free = not state.cycle.locked() and now_s >= state.rests_until_s
            if is_free and self._is_due(state):
                self.watch(asyncio.ensure_future(self._run_cycle_and_rest(state)))

    def watch(self, task: asyncio.Task[None]) -> None:
        """Keep a task that is not awaited: any error in it must stop the worker."""
        self._running.add(task)

        def report(ended: asyncio.Task[None]) -> None:
            self._running.discard(ended)
            error = None if ended.cancelled() else ended.exception()
            if error is not None and not isinstance(error, SendingGivenUp):  # then the partition was dropped as well
                self.services.fail(error)

        task.add_done_callback(report)

    async def _run_cycle(self, state: PartitionState[M]) -> float:
        """Run one cycle if it is due; return how long it waited for the database, s."""
        async with state.cycle:
            # Asked behind the lock: the partition may have gone meanwhile, or the cycle before has stored all.
            if self.holds(state) and self._is_due(state):
                return await self._snapshot(state)
            return 0.0

    async def _run_cycle_and_rest(self, state: PartitionState[M]) -> None:
        began_s = time.monotonic()
        waited_s = await self._run_cycle(state)
        ended_s = time.monotonic()
        state.rests_until_s = ended_s + min(_REST * (ended_s - began_s - waited_s), _LONGEST_REST_S)

    def _is_due(self, state: PartitionState[M]) -> bool:
        return state.is_changed or any(map(self._is_silent, state.tracked.values()))

    def _is_silent(self, tracked: Tracked[M]) -> bool:
        return time.monotonic() - tracked.heard_at_s > self.forget_s

    async def _snapshot(self, state: PartitionState[M]) -> float:
        # Before any state: messages that come meanwhile are read again, and those in a state skipped by their offset.
        position = state.position()
        record = self.record(state, position)
        drafts: dict[bytes, Draft] = {}
        overdue = self._writers[state].overdue()
        due = [one for one in state.tracked.values() if one.is_dirty or one.key in overdue]
        for tracked in [one for one in due if one.is_unstored or not is_broken(one)]:
            draft = await self._capture(state, tracked)
            drafts |= {} if draft is None else {tracked.key: draft}
            await asyncio.sleep(0)  # thousands of monitors must not hold up the event loop
        # Also samples of messages before `position` must be with the sink: `store` then covers them.
        await self.settle(state)
        began_s = time.monotonic()
        await self.store(state)  # first, since rows that the database refuses go to the dead letters
        waited_s = time.monotonic() - began_s
        await self.services.outbox.barrier()
        async with self._writing:
            # Revoked meanwhile: the next owner may have claimed the partition, and these states are old.
            if not self.holds(state):
                return waited_s
            ended, writer = self._forget_ended(state), self._writers[state]
            for key, draft in drafts.items():
                one = state.tracked.get(key)
                is_newest = one is not None and one.given_up.times <= draft.given_up.times
                # It has begun anew since: what is stored is that, or else must fit the position that is stored below.
                if one is not None and (is_newest or one.is_unstored):
                    await writer.write_monitor(key, draft)
                    one.is_unstored = not is_newest
            await writer.delete_monitors(ended)
            # Last: a reader that finds the position finds all records before it.
            await writer.write_position(record)
            await self.services.outbox.barrier()
        await self._settle_writer(state)
        if self.holds(state):
            state.stored_position = dict(position)
            self.services.commit(state.partition, position)
        return waited_s

    async def _settle_writer(self, state: PartitionState[M]) -> None:
        writer = self._writers[state]
        found = writer.settle()
        if found is not None:  # rare: a worker that was suspended for longer than its session, and woke up
            epoch = await self.services.reading.run(self.log.highest_epoch, state.partition, found)
            writer.excuse(epoch)
            LOG.warning(
                "event=others_write hop=%s partition=%d epoch=%d highest=%d",
                self.hop, state.partition, state.epoch, epoch,
            )  # fmt: skip

    async def _capture(self, state: PartitionState[M], tracked: Tracked[M]) -> Draft | None:
        """Encode a monitor's state; `None` if that fails, and then the last one that was stored stays."""
        try:
            return await self.capture(state, tracked)
        # No fault of the monitor: a service is away, or the worker stops.
        except (ServiceError, asyncio.CancelledError):
            raise
        except WorkGivenUp as why:
            await self.begin_over(state, tracked, why)
            return None
        except Exception as error:  # whatever a monitor raises, it must not take the worker with it
            self.faults.failed(self.hop, tracked, error)
            return None

    def _forget_ended(self, state: PartitionState[M]) -> list[bytes]:
        """Drop monitors that ended or fell silent long ago, if a restart would not read their messages again."""
        now_s, old = time.monotonic(), []
        for tracked in state.tracked.values():
            # It may have begun again with another attempt: a later end counts anew.
            if not tracked.monitor.is_ended:
                tracked.ended_at_s = None
            elif tracked.ended_at_s is None:
                tracked.ended_at_s = now_s
            is_long_over = tracked.ended_at_s is not None and now_s - tracked.ended_at_s >= ENDED_LINGER_S
            if (is_long_over or self._is_silent(tracked)) and state.is_covered(tracked):
                old.append(tracked.key)
        silent = sum(not state.tracked.pop(key).monitor.is_ended for key in old)
        if silent:
            LOG.info("event=forgotten hop=%s partition=%d monitors=%d", self.hop, state.partition, silent)
        return old


def unreadable(error: Exception) -> str:
    """Return the reason to bury a message that can't be decoded.

    Decoders raise `RecordError`. Any other error of one is a fault of ours, and no message may stop a partition.
    """
    if isinstance(error, RecordError):
        return str(error)
    return f"message must be readable; reading it raised {type(error).__name__}: {error}"
