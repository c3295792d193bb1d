"""The second hop: evidence goes through JobMonitors and leaves as verdicts, alerts and rows for the database."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from irregulars.errors import RecordError, ServiceError, ServiceUnavailable
from irregulars.kafka.log_reader import LogReader, OffsetsOfRank, PatientReader
from irregulars.kafka.topics import TOPICS
from irregulars.messages.evidence import decode_evidence
from irregulars.messages.judgements import Judgements, Verdict, bounded, encode_verdict
from irregulars.messages.records import Batch
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.streams.faust_driver.block_fetcher import Record as Message
from irregulars.streams.health.log_lines import log_job, log_verdict
from irregulars.streams.health.monitor_faults import BROKEN, is_broken
from irregulars.streams.health.watchdog import WorkGivenUp
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.job_hop.job_starts import StartsState
from irregulars.streams.snapshots.published_verdicts import VERDICT_TOPICS, VERDICTS, PublishedVerdicts, ends_of
from irregulars.streams.snapshots.records import Draft, EncodedState, Ends, Offsets, PositionRecord
from irregulars.streams.stages.job_topics import EVIDENCE, JobTopics, Rows, start_of
from irregulars.streams.stages.job_work import JobWork, Judges, QueuedMessage, State, TrackedJob, hear_starts
from irregulars.streams.stages.partition_state import Tracked
from irregulars.streams.stages.sink_writer import parts_of
from irregulars.streams.stages.stage import Services, Stage, unreadable
from irregulars.streams.stages.stream_time import StreamTime
from irregulars.streams.stages.word_log import WordLog

LOG: Final = logging.getLogger("irregulars.worker")
T = TypeVar("T")
_MAX_QUEUED: Final = 256
"""Evidence messages that wait for a job's monitor before the stage stops reading. Behind a judgement that takes long
it goes on, for the other jobs, and leaves the next ones of this job to Kafka, to be read again later."""


_WAY_S: Final = 0.005
_AGAIN_S: Final = 0.5
_LONGEST_WAY_S: Final = 0.1
"""A busy judge slows reading, and never stops it: the job that it is busy with may be one of many."""
_EVIDENCE_KEPT_S: Final = TOPICS[EVIDENCE].retention_ms / 1000
"""A job is not forgotten before its evidence: it may hang, and its ranks live."""


class JobStage(Stage[JobMonitor]):
    """Decode, queue for the job's monitor, judge in a thread, publish each revision once.

    `alert_of`: encoded alert of a verdict's revision; `None` where the policy keeps quiet.
    """

    hop = "job"
    snapshot_topic = "job_snapshots"
    rests_on = frozenset({EVIDENCE, "commops", *VERDICT_TOPICS, snapshot_topic})

    def __init__(
        self, services: Services, make: Callable[[str], JobMonitor], restore: Callable[[EncodedState], JobMonitor],
        alert_of: Callable[[Verdict], bytes | None], clocks: StreamTime,
        changed: WordLog[ThresholdChange] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(services, restore)
        self._changed: Final = changed
        self.forget_s = max(self.forget_s, _EVIDENCE_KEPT_S)
        self._clocks: Final = clocks
        self._make: Final = make
        self._alert_of: Final = alert_of
        settings = services.settings
        self._topics: Final = JobTopics(self.reader, settings.topics)
        self._spans: Final = PatientReader(
            LogReader(settings.bootstrap, settings.security, settings.broker_timeout_s, services.recent),
            settings.topics.name("commops"),
            settings.broker_away_s,
        )
        self._reading: Final = Lock()  # a reader is for one thread at a time
        self._judges: Final = Judges(services.watchdog)
        self._works: WeakKeyDictionary[TrackedJob, JobWork] = WeakKeyDictionary()
        self._published: WeakKeyDictionary[State, PublishedVerdicts] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[State, Ends] = WeakKeyDictionary()
        self._evidence_ends: WeakKeyDictionary[State, int] = WeakKeyDictionary()

    async def begin_anew(self, state: State, keys: Set[bytes], stored: PositionRecord) -> PositionRecord:
        """Read all evidence of the partition again, as far as it is kept: it begins with who takes part in a job.

        So are the verdicts on these jobs that were sent: none is sent twice. Other jobs skip the evidence in their
        states, or that which was judged before they ended.
        """
        return await self.services.reading.run(self._topics.begin_anew, state.partition, keys, stored)

    async def begin_first(self, state: State, stored: PositionRecord) -> PositionRecord:
        """Read the verdicts that were published before, should the states be lost and the evidence come again."""
        anew = await self.services.reading.run(self._topics.begin_anew, state.partition, frozenset(), stored)
        return anew if anew.told.anew else stored

    async def prepare(self, state: State, stored: PositionRecord) -> None:
        """Learn which revisions were sent after the states were stored: they must not be sent again."""
        published = self._published[state] = PublishedVerdicts(stored.told, state.tracked.keys())
        run, topics = self.services.reading.run, self._topics
        self._ends[state] = await run(topics.read_results, state.partition, stored.ends, published)
        end = await run(topics.evidence_end, state.partition)
        self._evidence_ends[state] = end
        if len(published):
            LOG.info("event=sent_before partition=%d verdicts=%d", state.partition, len(published))

    async def process(self, state: State, topic: str, message: Message) -> None:
        """Queue one evidence message for its job's monitor, or bury it."""
        key = message.key or b""  # a message without a key is no evidence, as decoding it finds
        tracked = state.tracked.get(key)
        if tracked is not None and message.offset <= max(tracked.seen.get(topic, -1), self._work(tracked).queued):
            state.take(topic, message.offset)
            return
        try:
            rows = _decode(message.key, message.value)
        except Exception as error:
            await self.bury(state, topic, message, unreadable(error))
            return
        published = self._published[state]
        if tracked is None and published.is_over(key, message.offset):
            state.take(topic, message.offset)
            return
        if tracked is None:
            tracked = state.tracked[key] = Tracked(key, self._make(key.decode()))
            before = published.start_before(key, is_new=self._has_read_all(state, {EVIDENCE: message.offset}))
            if before is not None:
                tracked.monitor.go_on_after(StartsState.of(*before))
            log_job("appeared", key.decode(), partition=state.partition)
        state.take(topic, message.offset)
        if published.is_first(key):
            rows = [*await self.services.reading.run(self._topics.announced, key.decode(), rows), *rows]
        self.services.counters.took_evidence(topic, rows)
        self._queue(state, tracked, message, rows)
        work = self._work(tracked)
        # No event to wait for: the partition may be revoked as well.
        while len(work.inbox) >= _MAX_QUEUED and not (work.left or work.is_slow) and self.holds(state):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def settle(self, state: State) -> None:
        """Do nothing: a monitor's results are published before its lock is given back."""

    async def capture(self, state: State, tracked: TrackedJob) -> Draft:
        """Encode a monitor's state between two judgements, in a thread of theirs: a large job's takes long."""
        async with self._work(tracked).lock:
            return await self._run(tracked, None, partial(self.encode, state, tracked))

    def record(self, state: State, positions: Offsets) -> PositionRecord:
        """Return the partition's record; revisions that are in no stored state yet lie behind its ends."""
        ends = self._ends[state]
        for topic, by_partition in ends.items():
            name = self.services.settings.topics.name(topic)
            for partition, end in by_partition.items():
                by_partition[partition] = max(end, self.services.outbox.end_offset(name, partition) or 0)
        published = self._published[state]
        if self._has_read_all(state, positions):
            published.forget(lambda job: job.encode() in state.tracked)
        own = {topic: dict(by_partition) for topic, by_partition in ends.items()}
        return PositionRecord(state.epoch, positions, own, told=published.told(), topic_ids=self._ids)

    def _has_read_all(self, state: State, positions: Offsets) -> bool:
        """Whether all evidence was read that was there when the partition came.

        Where there was none, the first hop is still to make it again.
        """
        return 0 < self._evidence_ends[state] <= positions.get(EVIDENCE, 0)

    async def tick(self) -> None:
        """Tick all monitors."""
        for state in list(self.states.values()):
            for tracked in list(state.tracked.values()):
                self._work(tracked).is_due = True
                self._start(state, tracked)

    def close(self) -> None:
        """End the judges and close their connection, without waiting for a broker that does not answer."""

        def close_spans() -> None:
            with self._reading:
                self._spans.close()

        # First: `close_spans` waits for the reader, which a judge may hold for as long as the broker is away.
        self._spans.give_up()
        self._judges.close(close_spans)

    # --- judging ----------------------------------------------------------------------------------------------------

    def _work(self, tracked: TrackedJob) -> JobWork:
        work = self._works.get(tracked)
        if work is None:
            work = self._works[tracked] = JobWork(was_ended=tracked.monitor.is_ended)
        return work

    def _queue(self, state: State, tracked: TrackedJob, message: Any, rows: Rows) -> None:
        work = self._work(tracked)
        # Once a message is left to Kafka all later ones are: they must not overtake it.
        if work.left or (len(work.inbox) >= _MAX_QUEUED and work.is_slow):
            work.left.append(message.offset)
        else:
            work.inbox.append(
                QueuedMessage(
                    message.topic, message.partition, message.offset, message.timestamp, message.key, message.value,
                    rows,
                )
            )  # fmt: skip
        work.queued = message.offset
        state.begin(EVIDENCE, message.offset)
        self._start(state, tracked)

    async def _read_left(self, state: State, work: JobWork) -> None:
        """Put the first of the messages that were left to Kafka into the inbox."""
        offsets = list(itertools.islice(work.left, _MAX_QUEUED))
        try:
            found = await self.services.reading.run(self._topics.evidence_at, state.partition, offsets)
        except ServiceUnavailable:  # `BrokerWatch` logs that the broker is away
            await asyncio.sleep(_AGAIN_S)
            return
        for one in found:
            place = one.topic() or "", one.partition() or 0, one.offset() or 0, one.timestamp()[1] / 1000
            work.inbox.append(QueuedMessage(*place, one.key(), one.value(), _decode(one.key(), one.value())))
        # Only now: if reading failed above, they are left for the next round.
        for _ in offsets:
            work.left.popleft()
        for offset in {*offsets} - {one.offset for one in work.inbox}:  # deleted meanwhile
            state.finish(EVIDENCE, offset)

    def _start(self, state: State, tracked: TrackedJob) -> None:
        work = self._work(tracked)
        if work.task is None or work.task.done():
            work.task = asyncio.ensure_future(self._judge_all(state, tracked, work))
            self.watch(work.task)

    async def _judge_all(self, state: State, tracked: TrackedJob, work: JobWork) -> None:
        while (work.inbox or work.left or work.is_due) and self.holds(state):
            if work.left and not work.inbox:
                await self._read_left(state, work)
                continue
            async with work.lock:  # given back after each round: a snapshot waits for it while evidence keeps coming
                if not self.holds(state):  # dropped while we waited, and the thread may have ended
                    return
                # One by one: the decisions of the first are published before the next ones are judged.
                message, work.is_due = work.inbox.popleft() if work.inbox else None, False
                await self._judge_one(state, tracked, message)

    async def _judge_one(self, state: State, tracked: TrackedJob, message: QueuedMessage | None) -> None:
        work = self._work(tracked)
        work.judging_since_s = time.monotonic()
        try:
            judgements, refused = await self._judged(state, tracked, message)
        except WorkGivenUp as why:
            await self._begin_over(state, tracked, why, message)
            return
        finally:
            work.judging_since_s = None
        # Revoked: the next owner reads the message again, and publishes its verdicts.
        if not self.holds(state):
            return
        if message is not None and refused is not None:
            await self.services.dead_letters.bury(message, refused)
        # Before anything is sent: a snapshot whose ends are behind these revisions must hold the state that gave
        # them, and waits for it. Time alone may have made the monitor decide.
        tracked.is_dirty = tracked.is_dirty or any(parts_of(judgements))
        await self._publish(state, judgements)
        work.note_end(tracked)
        work.note_overtaken(tracked)
        self.services.counters.given_up_iterations.inc(work.note_given_up(tracked))
        self.services.counters.contradictions.inc(work.note_contradiction(tracked))
        if tracked.monitor.is_ended:
            self._published[state].note_end(tracked.key.decode(), tracked.monitor.newest_start)
            await self._close_unfound(state, tracked)
        if message is not None:
            tracked.saw(EVIDENCE, message.offset)
            state.finish(EVIDENCE, message.offset)

    async def _judged(
        self, state: State, tracked: TrackedJob, message: QueuedMessage | None
    ) -> tuple[Judgements, str | None]:
        """Let the monitor judge in its thread; return the judgements, and why the message could not be used."""
        nothing = Judgements(tracked.key.decode())
        if message is not None:
            hear_starts(tracked, message.rows)
        if is_broken(tracked):
            return nothing, BROKEN
        until_s = self._clocks.job_until_s(state.partition, state.position())
        changes = () if self._changed is None else self._changed.known.of(tracked.key.decode())
        judge: Callable[[], tuple[Judgements, str | None]] = partial(self._judge, tracked, message, until_s, changes)
        try:
            return await self._run(tracked, message, judge)
        # No fault of the monitor: a broker that stays away ends the worker, and `_judge_one` handles work given up.
        except (ServiceError, WorkGivenUp):
            raise
        except Exception as error:  # whatever a monitor raises, it must not take the worker with it
            if not self.holds(state):  # the worker stops, and the threads that judge are gone: no monitor's fault
                return nothing, None
            return nothing, self.faults.failed(self.hop, tracked, error)

    async def _run(self, tracked: TrackedJob, message: QueuedMessage | None, work: Callable[[], T]) -> T:
        offset = tracked.seen.get(EVIDENCE, -1) if message is None else message.offset
        return await self._judges.run(tracked.key, offset, tracked.monitor.size, work)

    async def begin_over(self, state: State, tracked: TrackedJob, why: WorkGivenUp) -> None:
        """Let a job begin anew whose state could not be encoded in time."""
        async with self._work(tracked).lock:
            await self._begin_over(state, tracked, why, None)

    async def _begin_over(
        self, state: State, tracked: TrackedJob, why: WorkGivenUp, message: QueuedMessage | None
    ) -> None:
        """Let a job begin anew behind a message, with its announced ranks and its published verdicts.

        That is stored before anything else of the job is judged.
        """
        reason = self.faults.gave_up(self.hop, tracked, why, messages=int(message is not None))
        self.services.counters.given_up[self.hop].inc()
        if not self.holds(state):
            return
        job, rows = tracked.key.decode(), () if message is None else message.rows
        starts, tracked.monitor = tracked.monitor.starts, self._make(job)
        tracked.monitor.go_on_after(starts)
        announced = await self.services.reading.run(self._topics.announced, job, rows)
        tracked.given_up = tracked.given_up._replace(start=start_of([*announced, *rows]) or 0)
        if message is not None:
            await self.services.dead_letters.bury(message, reason)
            tracked.saw(EVIDENCE, message.offset)
        try:
            await self._run(tracked, message, partial(tracked.monitor.add, announced))
        except Exception as error:  # it can't even learn who takes part
            self.faults.raised(self.hop, tracked.key, error)
            tracked.monitor = self._make(job)
            tracked.monitor.go_on_after(starts)
        # Verdicts that are still on their way must be on the topics before these are read.
        await self.services.outbox.barrier()
        told = await self.services.reading.run(self._topics.told_of, state.partition, tracked.key)
        self._published[state].begin_anew(tracked.key, told)
        await self.store_begun_over(state, tracked)
        if message is not None:
            state.finish(EVIDENCE, message.offset)

    async def give_way(self) -> None:
        """Wait for a judgement that is being made, within bounds: reading meanwhile only makes it wait.

        The thread that judges and the one that reads share Python's lock. An iteration that is examined may give an
        alert, and no message that is read after it changes that.
        """
        until_s = time.monotonic() + _LONGEST_WAY_S
        while self._judges.is_busy and time.monotonic() < until_s:  # noqa: ASYNC110 - bounded, and mostly over at once
            await asyncio.sleep(_WAY_S)

    def _judge(
        self, tracked: TrackedJob, message: QueuedMessage | None, until_s: float | None,
        changes: Sequence[ThresholdChange],
    ) -> tuple[Judgements, str | None]:  # fmt: skip
        refused: str | None = None
        tracked.monitor.follow(changes)
        if message is not None:
            try:
                tracked.monitor.add(message.rows)
            except Exception as error:  # as above
                refused = self.faults.raised(self.hop, tracked.key, error)
        if until_s is not None:
            tracked.monitor.tick(self._clocks.now_s(), until_s)
        judgements = tracked.monitor.advance(partial(self._read_back, tracked.key.decode()))
        if refused is None:
            self.faults.works(tracked)
        return judgements, refused

    def _read_back(self, job: str, spans: Sequence[OffsetsOfRank]) -> Sequence[Batch]:
        def read() -> Sequence[Batch]:
            with self._reading:
                return self._spans.read(spans)

        return [batch for batch in self._judges.undisturbed(read) if batch.header.job == job]

    # --- publishing -------------------------------------------------------------------------------------------------

    async def _publish(self, state: State, judgements: Judgements) -> None:
        judgements = self._published[state].in_known_words(judgements)
        self.services.counters.judged(judgements.iterations, self._clocks.now_s())
        for verdict in map(bounded, judgements.verdicts):
            # After a restart a monitor repeats revisions: only those that are sent are logged and counted.
            if VERDICTS in await self._send_once(state, verdict):
                log_verdict(verdict)
                self.services.counters.told(verdict, judgements.iterations, self._clocks.now_s())
        if any(parts_of(judgements)):
            await self.services.sink.write(judgements)

    async def _close_unfound(self, state: State, tracked: TrackedJob) -> None:
        """Close the verdicts that are open on the topics, of a job that has ended and did not find them again.

        It began anew meanwhile, and nothing else would ever end these incidents. An end counts once all evidence was
        read that there was when the partition came: of a job that ran twice, the first end is not the last.
        """
        if not self._has_read_all(state, state.position()):
            return
        published = self._published[state]
        left = published.open_of(tracked.key.decode())
        if not left:
            return
        try:
            told = await self.services.reading.run(self._topics.told_of, state.partition, tracked.key)
        except ServiceUnavailable:  # `BrokerWatch` logs that the broker is away; the next tick asks again
            return
        if not self.holds(state):  # revoked meanwhile: the next owner closes them
            return
        closed = ends_of(told, left, tracked.monitor.end_reason)
        # As of all revisions: a snapshot waits until they are sent. In its record they may be left out before that.
        tracked.is_dirty = tracked.is_dirty or bool(closed)
        await self._publish(state, Judgements(tracked.key.decode(), verdicts=closed))
        published.drop(left)

    async def _send_once(self, state: State, verdict: Verdict) -> list[str]:
        """Send a revision to the topics that do not have it yet, and return these."""
        if not self.holds(state):  # the partition's next owner has read the topics by now
            return []
        sent = []
        for topic in self._published[state].unsent(verdict):
            value = encode_verdict(verdict) if topic == VERDICTS else self._alert_of(verdict)
            if value is not None:
                name = self.services.settings.topics.name(topic)
                await self.services.outbox.send(name, verdict.verdict_id.encode(), value)
                sent.append(topic)
        return sent


def _decode(key: bytes | None, value: bytes | None) -> Rows:
    rows = decode_evidence(value)
    for row in rows:
        if key != row.job.encode():
            raise RecordError(f"key must be {row.job.encode()!r}, the job inside; got {key!r}")
    return rows
