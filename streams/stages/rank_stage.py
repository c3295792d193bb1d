"""The first hop: messages of ranks go through GroupMonitors and leave as evidence."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from irregulars.errors import RecordError, ServiceUnavailable
from irregulars.kafka.dead_letters import KeptMessage
from irregulars.kafka.topics import MAX_MESSAGE_BYTES, RANK_TOPICS
from irregulars.messages.announcements import Announcement, Heartbeat, code_of_start
from irregulars.messages.bundles import Bundle
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.evidence_parts import encode_within_limit
from irregulars.messages.records import Batch
from irregulars.messages.threshold_changes import ThresholdChange, values_in_force
from irregulars.sinks.tables import SAMPLES
from irregulars.streams.faust_driver.block_fetcher import Record as Message
from irregulars.streams.health.log_lines import log_over
from irregulars.streams.health.monitor_faults import BROKEN, hear_start, is_broken
from irregulars.streams.health.watchdog import WorkGivenUp
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.group_monitor import GroupMonitor
from irregulars.streams.rank_hop.rank_attempt import Closed
from irregulars.streams.rank_hop.rank_monitor import UNANNOUNCED, Refused
from irregulars.streams.snapshots.records import Draft, EncodedState, PositionRecord
from irregulars.streams.stages.partition_state import Tracked
from irregulars.streams.stages.rank_work import (
    ParkedMessage,
    ParkingLot,
    PartitionWork,
    Record,
    Rows,
    Sample,
    State,
    TrackedRanks,
    decode,
    encode_rows,
    monitor_key,
    read_samples,
    require_job,
)
from irregulars.streams.stages.stage import LOG, Services, Stage, unreadable
from irregulars.streams.stages.stream_time import ProgressLog, StreamTime
from irregulars.streams.stages.word_log import ReadWords, WordLog

T = TypeVar("T")
_MOST_ROWS: Final = 1 << 17
"""Monitors are drained once so many rows have gone into them: longer rounds were measured to be slower."""
_MOST_MESSAGES: Final = 512  # or so many messages: those of hosts are small, and a drain has its price for each rank
_MOST_SAMPLES: Final = 256  # messages with samples of a partition that are handed over before the next round is due
_AGAIN_S: Final = 0.5
_GIVE_WAY: Final = 32  # monitors that are drained at once, before the event loop has a turn


MakeRankMonitor = Callable[[str, int], GroupMonitor]  # job, partition
_Closed = tuple[TrackedRanks, Closed]
"""A monitor with iterations that it has closed, and memberships."""


class RankStage(Stage[GroupMonitor]):
    """Decode, feed the rank's monitor, send its evidence, keyed by job.

    `changed`: the thresholds that people have changed; None: none. Of them this hop follows the silence alone.
    """

    hop = "rank"
    snapshot_topic = "rank_snapshots"
    rests_on = frozenset({*RANK_TOPICS, snapshot_topic})

    def __init__(
        self, services: Services, make: MakeRankMonitor, restore: Callable[[EncodedState], GroupMonitor],
        changed: WordLog[ThresholdChange] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(services, restore)
        self._changed: Final = changed
        self._silences: tuple[ReadWords[ThresholdChange], dict[str, float | None]] = ReadWords(), {}  # by job
        self._guard: Final = services.watchdog.guard(self.hop)
        self._make: Final = make
        self._evidence_topic: Final = services.settings.topics.name("evidence")
        self._works: WeakKeyDictionary[State, PartitionWork] = WeakKeyDictionary()
        self._told_over: set[str] = set()

    async def begin_anew(self, state: State, keys: Set[bytes], stored: PositionRecord) -> PositionRecord:
        """Announce these ranks again, and go on where the partition was.

        Their earlier messages may be two days of operators. Without their announcements, which were read long ago,
        all later messages would be those of unknown ranks.
        """
        topic = self.services.settings.topics.name("jobs")
        # Names may hold any sign: the key ``a/@b/@c`` is of group ``b/@c`` of the job ``a``, or of ``c`` of ``a/@b``.
        jobs = {key[: found.start()] for key in keys for found in re.finditer(rb"/@|/\d+\Z", key)}

        def newest() -> dict[bytes | None, Any]:
            # One by one, and those of these jobs alone: announcements stay for ever, years of them fit no memory.
            found = self.reader.messages(topic, state.partition)
            return {one.key(): one for one in found if (one.key() or b"").rpartition(b"/")[0] in jobs}

        for message in (await self.services.reading.run(newest)).values():
            # Reading goes on at the stored position: later announcements come by themselves.
            if message.value() is not None and (message.offset() or 0) < stored.positions.get("jobs", 0):
                self._announce_again(state, keys, message)
        return stored

    def _announce_again(self, state: State, keys: Set[bytes], message: Any) -> None:
        try:
            record = decode("jobs", message.key(), message.value())
        except Exception:  # it is among the dead letters since it was read first
            return
        key = monitor_key(record)
        if key not in keys:
            return
        try:
            tracked = state.tracked.get(key) or self._make_monitor(state, key, record)
            self._guarded(tracked, partial(self._feed, state, tracked, "jobs", message.offset(), record))
            assert isinstance(record, Announcement)
            tracked.given_up = tracked.given_up._replace(start=code_of_start(record.attempt, record.start))
        except Exception as error:  # whatever a monitor raises, it must not take the worker with it
            self.faults.raised(self.hop, key, error)
            # Its messages are then those of unannounced ranks: parked, and buried in the end.
            state.tracked.pop(key, None)

    async def take(self, topic: str, messages: Sequence[Message]) -> None:
        """Take in messages of one topic, and send evidence early where much has gathered."""
        await super().take(topic, messages)
        states = list(self.states.values())
        works = [self._work(state) for state in states]
        # Over all partitions: a job's ranks lie in many of them, and their rows travel in one message.
        if sum(one.rows for one in works) >= _MOST_ROWS or sum(one.messages for one in works) >= _MOST_MESSAGES:
            await self._settle_rows(states)
        for state in states:
            if len(self._work(state).samples) >= _MOST_SAMPLES:
                await self._settle_rest(state)

    async def process(self, state: State, topic: str, message: Message) -> None:
        """Feed one message to the monitor of its ranks, park it, or bury it."""
        tracked = state.tracked.get(message.key or b"")  # the key of an announcement may be another
        # An announcement that was deleted by hand from the compacted topic is no message, and nothing is wrong.
        is_tombstone = topic == "jobs" and message.value is None and message.key is not None
        if (tracked is not None and tracked.has_seen(topic, message.offset)) or is_tombstone:
            state.take(topic, message.offset)
            return
        try:
            record = decode(topic, message.key, message.value)
        except Exception as error:
            await self.bury(state, topic, message, unreadable(error))
            return
        if topic == "commops":  # the second hop reads it again if its iteration is irregular
            self.services.recent.add(message.partition, message.offset, message.value or b"")
        state.take(topic, message.offset)
        if isinstance(record, Announcement):
            await self._take_announcement(state, message, record)
        elif tracked is None:
            parked = ParkedMessage(message, topic, time.monotonic())
            self._work(state).parked.add(message.key or b"", parked)
            state.begin(topic, message.offset)
        else:
            await self._feed_or_bury(state, tracked, topic, message, record)

    async def _take_announcement(self, state: State, message: Any, record: Announcement) -> None:
        key = monitor_key(record)
        tracked = state.tracked.get(key)
        is_new = tracked is None
        if tracked is None:
            tracked = self._make_monitor(state, key, record)
        elif tracked.has_seen("jobs", message.offset):
            return
        is_fed = await self._feed_or_bury(state, tracked, "jobs", message, record)
        # Only an announcement makes a monitor: without one, messages of these ranks are parked until it comes.
        if is_new and not is_fed:
            del state.tracked[key]
            return
        # Without giving way in between: a newer message of these ranks must not overtake the parked ones.
        for parked, topic, _ in self._work(state).parked.take(key):
            if not tracked.has_seen(topic, parked.offset):  # its topic may have been read twice
                again = decode(topic, parked.key, parked.value)
                await self._feed_or_bury(state, tracked, topic, parked, again)
            state.finish(topic, parked.offset)

    async def _feed_or_bury(
        self, state: State, tracked: TrackedRanks, topic: str, message: Any, record: Record
    ) -> bool:
        """Feed one message to its monitor, and bury all or the rows that it refuses; return whether it took any."""
        # Before the question whether it is broken: another start lets it work again.
        if isinstance(record, Announcement):
            hear_start(tracked, code_of_start(record.attempt, record.start))
        if is_broken(tracked):
            await self.services.dead_letters.bury(message, BROKEN)
            return False
        reason: str | None = None
        refused: Sequence[Refused] = ()
        try:
            feed = partial(self._feed, state, tracked, topic, message.offset, record)
            refused = self._guarded(tracked, feed, message.offset)
        except WorkGivenUp as why:
            reason = self._begin_over(tracked, why, messages=1)
        except RecordError as error:  # it can be read, and can't be true: the monitor took nothing of it
            reason = str(error)
        except Exception as error:  # whatever a monitor raises, it must not take the worker with it
            reason = self.faults.raised(self.hop, tracked.key, error)
        if reason is not None:
            # It counts as seen: it is buried, and a restart must not feed it again.
            tracked.saw(topic, message.offset)
            await self.services.dead_letters.bury(message, reason)
            return False
        for batch, offset, reason in refused:  # as messages again: those of the ranks whose rows they are
            schema, is_held = batch.header.schema, (batch.header.schema, offset) != (topic, message.offset)
            letter = KeptMessage(
                self.services.settings.topics.name(schema), message.partition, offset,
                0.0 if is_held else message.timestamp, tracked.key, encode_rows(batch),
            )  # fmt: skip
            await self.services.dead_letters.bury(letter, reason)
        return True

    async def settle(self, state: State) -> None:
        """Send the rows that monitors drained, those of one job together, and messages that were given up."""
        await self._settle_rows([state])
        await self._settle_rest(state)

    async def settle_all(self) -> None:
        """Send all that has gathered in the partitions: of a job whose ranks lie in many, one message."""
        states = list(self.states.values())
        await self._settle_rows(states)
        for state in states:
            await self._settle_rest(state)

    async def _settle_rest(self, state: State) -> None:
        work = self._work(state)
        async with work.sink_lock:
            samples, work.samples = work.samples, []
            if self.services.sink.has_room_for_samples:
                await self.services.sink.write_samples([batch for one in samples for batch in one.batches])
                # Not before: a snapshot that flushes meanwhile might not have stored these, and must not claim it.
                work.is_unstored = work.is_unstored or bool(samples)
            else:  # nothing here waits for a database: they are read again later
                for one in samples:
                    work.left.add(one.topic, one.offset)
            given_up, work.given_up = work.given_up, []
            for message, topic, _ in given_up:
                await self.services.dead_letters.bury(message, UNANNOUNCED)
                state.finish(topic, message.offset)

    async def store(self, state: State) -> None:
        """Return when all samples are stored: those that were left to Kafka are read again."""
        work = self._work(state)
        if len(work.left):
            LOG.info("event=samples_read_again partition=%d messages=%d", state.partition, len(work.left))
        for topic, offsets in work.left.take():
            await self._store_left(state, topic, offsets)
        is_unstored, work.is_unstored = work.is_unstored, False
        if is_unstored:  # else this hop owes the database nothing, and need not wait for it
            await super().store(state)

    async def _store_left(self, state: State, topic: str, offsets: Sequence[int]) -> None:
        while self.holds(state) and not self.services.sink.has_room_for_samples:  # noqa: ASYNC110 - for hours, maybe
            await asyncio.sleep(_AGAIN_S)
        while self.holds(state):
            topics, run = self.services.settings.topics, self.services.reading.run
            try:
                batches, missing = await run(read_samples, self.reader, topics, topic, state.partition, offsets)
            except ServiceUnavailable:  # `BrokerWatch` logs that the broker is away
                await asyncio.sleep(_AGAIN_S)
                continue
            if missing:
                LOG.warning(
                    "event=samples_deleted topic=%s partition=%d messages=%d", topic, state.partition, missing
                )
            await self.services.sink.write_samples(batches)
            self._work(state).is_unstored = True
            return

    async def _settle_rows(self, states: Sequence[State]) -> None:
        """Send the rows alone: a database that is away must hold up neither verdicts nor other workers' clocks."""
        works = [self._work(state) for state in states]
        async with AsyncExitStack() as held:
            for work in works:  # the next call must find the rows sent, and not on their way
                await held.enter_async_context(work.lock)
            # One pass: rows that come in meanwhile wait for the next one, and are drained with more.
            await self._send_rows(await self._drain(works))

    async def capture(self, state: State, tracked: TrackedRanks) -> Draft:
        """Encode a monitor's state, and send the rows that it drained: a state holds none of them."""
        async with self._work(state).lock:  # or these rows could overtake some that were drained before
            rows, value = self._guarded(tracked, lambda: (tracked.monitor.drain(), self.encode(state, tracked)))
            if rows:
                await self._send_rows({tracked.monitor.job: rows})
            return value

    async def tick(self, clocks: StreamTime) -> None:
        """Tick all monitors, and give up messages of ranks that were never announced."""
        now_s = clocks.now_s()
        for state in list(self.states.values()):
            until_s = clocks.rank_until_s(state.partition, state.read_to())
            if until_s is not None:
                self._tick_monitors(state, now_s, until_s)
            # An announcement may be on its topic, and not yet read. That topic is short: a worker that has operators
            # of days to read must not keep those of unknown ranks until it has read them all.
            announced_s = clocks.announced_until_s(state.partition, state.read_to())
            if announced_s is not None:
                work = self._work(state)
                work.given_up += work.parked.take_overdue(time.monotonic() - (now_s - announced_s))

    def _follow_silence(self, monitor: GroupMonitor) -> None:
        """Let a monitor wait for silent ranks as long as the changed threshold says."""
        # No threshold was ever changed: spare thousands of monitors the look-up each second.
        if self._changed is None or not self._changed.known.words:
            return
        known, silences = self._silences
        if known is not self._changed.known:
            known, silences = self._silences = self._changed.known, {}
        if monitor.job not in silences:  # once a job, and not each second for each of thousands of monitors
            silences[monitor.job] = values_in_force(known.of(monitor.job), None).get("silence_s")
        monitor.follow(silences[monitor.job])

    def _tick_monitors(self, state: State, now_s: float, until_s: float) -> None:
        for tracked in list(state.tracked.values()):
            if is_broken(tracked):
                continue
            with self._bearing(tracked):
                self._follow_silence(tracked.monitor)
                self._guarded(tracked, partial(tracked.monitor.tick, now_s, until_s))
                rows = tracked.monitor.take_rows_over()
                self.services.counters.attempt_over_rows.inc(rows)
                job = tracked.monitor.job
                if rows and job not in self._told_over:  # rows of attempts that are over are logged once a job
                    self._told_over.add(job)
                    log_over(job, rows)
            # Time alone may have closed iterations: the next drain takes them.
            self._work(state).touched[tracked.key] = tracked

    # --- draining ---------------------------------------------------------------------------------------------------

    async def _drain(self, works: Sequence[PartitionWork]) -> dict[str, list[Evidence | Membership]]:
        """Drain the monitors that have something new: not after each message, since a drain has its price."""
        touched = [tracked for work in works for tracked in work.touched.values()]
        for work in works:
            work.touched, work.messages, work.rows = {}, 0, 0
        rows: dict[str, list[Evidence | Membership]] = {}
        for first in range(0, len(touched), _GIVE_WAY):
            closed: dict[str, list[_Closed]] = {}
            for tracked in touched[first : first + _GIVE_WAY]:
                own: Closed = []
                if not is_broken(tracked):
                    with self._bearing(tracked):
                        own = self._guarded(tracked, tracked.monitor.take_closed)
                if own:
                    closed.setdefault(tracked.monitor.job, []).append((tracked, own))
                    tracked.is_dirty = True
            for job, of_job in closed.items():
                rows.setdefault(job, []).extend(self._reduce(job, of_job))
            await asyncio.sleep(0)  # thousands of monitors must not hold up the event loop
        return rows

    def _reduce(self, job: str, closed: Sequence[_Closed]) -> Rows:
        """Reduce closed iterations of a job; where that raises, each rank's by themselves, to find the faulty one."""
        rows: Rows = []
        with self._bearing(closed[0][0]):
            try:
                pieces = [piece for _, own in closed for piece in own]
                rows = self._guarded(closed[0][0], partial(reduce_closings, job, pieces))
            except Exception:
                if len(closed) > 1:
                    return [row for one in closed for row in self._reduce(job, [one])]
                raise
            for tracked, _ in closed:
                self.faults.works(tracked)
        return rows

    async def tell_progress(self, log: ProgressLog) -> None:
        """Publish how far each partition has been read, once all evidence of it is on the broker."""
        # Noted before the rows are sent: only of messages up to here is all evidence on the broker afterwards.
        told = [(state, state.read_to()) for state in list(self.states.values())]
        await self._settle_rows([state for state, _ in told])
        await self.services.outbox.barrier()
        for state, positions in told:
            # The next owner publishes its own progress, which an old one must not overwrite.
            if self.holds(state):
                await log.write(state.partition, positions)

    # --- work that does not end -------------------------------------------------------------------------------------

    def _guarded(self, tracked: TrackedRanks, work: Callable[[], T], offset: int = -1) -> T:
        return self._guard.run(tracked.key, offset, self.services.watchdog.limits.rank_cpu_s, work)

    @contextmanager
    def _bearing(self, tracked: TrackedRanks) -> Iterator[None]:
        """Bear a monitor that raises, and let one begin anew whose work is given up."""
        try:
            yield
        except WorkGivenUp as why:
            self._begin_over(tracked, why)
        except Exception as error:  # whatever a monitor raises, it must not take the worker with it
            self.faults.failed(self.hop, tracked, error)

    async def begin_over(self, state: State, tracked: TrackedRanks, why: WorkGivenUp) -> None:
        """Let a monitor begin anew whose state could not be encoded in time."""
        self._begin_over(tracked, why)

    def _begin_over(self, tracked: TrackedRanks, why: WorkGivenUp, messages: int = 0) -> str:
        """Let a monitor begin anew behind the message that it was at, and return the reason to bury that with."""
        reason = self.faults.gave_up(self.hop, tracked, why, messages)
        self.services.counters.given_up[self.hop].inc()
        # Callers in the drain do not know the partition; after a revocation none of ours holds the monitor.
        for state in self.states.values():
            if state.tracked.get(tracked.key) is tracked:
                tracked.monitor, tracked.is_dirty = self._make(tracked.monitor.job, state.partition), True
                self.watch(asyncio.ensure_future(self._announce_and_store(state, tracked)))
        return reason

    async def _announce_and_store(self, state: State, tracked: TrackedRanks) -> None:
        await self.begin_anew(state, {tracked.key}, PositionRecord(positions=state.read_to()))
        if self.holds(state):
            await self.store_begun_over(state, tracked)

    def _work(self, state: State) -> PartitionWork:
        work = self._works.get(state)
        if work is None:
            settings = self.services.settings
            work = self._works[state] = PartitionWork(ParkingLot(settings.parked_bytes, settings.parked_s))
        return work

    def _make_monitor(self, state: State, key: bytes, record: Record) -> TrackedRanks:
        assert isinstance(record, Announcement)
        state.tracked[key] = Tracked(key, self._make(record.job, state.partition))
        return state.tracked[key]

    def _feed(
        self, state: State, tracked: TrackedRanks, topic: str, offset: int, record: Record
    ) -> Sequence[Refused]:
        require_job(record, tracked.monitor.job)
        refused: Sequence[Refused] = ()
        if isinstance(record, Announcement):
            tracked.monitor.announce(record)
        elif isinstance(record, Heartbeat):
            tracked.monitor.beat(record)
        else:
            refused = tracked.monitor.add(record, offset)
            if topic in SAMPLES:
                batches = [record] if isinstance(record, Batch) else list(record.batches())
                self._work(state).samples.append(Sample(topic, offset, batches))
        rows = len(record) if isinstance(record, Batch | Bundle) else 1
        self.services.counters.took(topic, rows)
        tracked.saw(topic, offset)
        work = self._work(state)
        work.touched[tracked.key] = tracked
        work.messages += 1
        work.rows += rows
        return [*refused, *tracked.monitor.take_refused()]

    async def _send_rows(self, rows: Mapping[str, Rows]) -> None:
        for job, pieces in rows.items():
            for value in encode_within_limit(pieces, job, MAX_MESSAGE_BYTES):
                await self.services.outbox.send(self._evidence_topic, job.encode(), value)
