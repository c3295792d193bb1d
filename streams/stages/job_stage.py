"""The second hop: evidence goes through JobMonitors and leaves as verdicts, alerts and rows for the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from irregulars.detectors.irregular.window import drift_detector
from irregulars.errors import RecordError, ServiceError
from irregulars.streams.health.monitor_faults import BROKEN, is_broken
from irregulars.streams.kafka.log_reader import LogReader, OffsetsOfRank
from irregulars.streams.kafka.patient_reader import PatientReader
from irregulars.streams.kafka.topics import TOPICS
from irregulars.streams.messages.evidence import decode_evidence
from irregulars.streams.messages.judgements import Judgements, Verdict, bounded, encode_verdict
from irregulars.streams.messages.opinions import Opinion
from irregulars.streams.messages.records import Batch
from irregulars.streams.messages.threshold_changes import ThresholdChange
from irregulars.streams.progress.live_words import PeopleSay
from irregulars.streams.progress.word_log import WordLog
from irregulars.streams.snapshots.published_verdicts import RESULTS, VERDICTS, PublishedVerdicts
from irregulars.streams.snapshots.records import Draft, EncodedState, Ends, Offsets, PositionRecord
from irregulars.streams.stages.job_topics import EVIDENCE, JobTopics, Rows
from irregulars.streams.stages.job_work import Clocks, JobMonitorLike, JobWork, QueuedMessage, Words, words_before
from irregulars.streams.stages.partition_state import PartitionState, Tracked
from irregulars.streams.stages.stage import Event, Services, Stage, unreadable
from irregulars.streams.telemetry.log_lines import log_job, log_verdict

LOG: Final = logging.getLogger("irregulars.worker")
_MAX_QUEUED: Final = 256
"""Evidence messages that wait for a job's monitor before the stage stops reading."""


_WAY_S: Final = 0.005
_LONGEST_WAY_S: Final = 0.1
"""A busy judge slows reading, and never stops it: the job that it is busy with may be one of many."""
_EVIDENCE_KEPT_S: Final = TOPICS[EVIDENCE].retention_ms / 1000
"""A job is not forgotten before its evidence: it may hang, and its ranks live."""


class JobStage(Stage[JobMonitorLike]):
    """Decode, queue for the job's monitor, judge in a thread, publish each revision once.

    Parameters
    ----------
    make, restore
        Make a new monitor of a job, and one from a state.
    alert_of
        Encoded alert of a verdict's revision; `None` where the policy keeps quiet.
    clocks
        Until when everything that ranks sent has been read.
    changed
        What people changed of the thresholds; None: nothing.
    opinions
        What people said of verdicts; None: no detector is taught by it.
    """

    hop = "job"
    snapshot_topic = "job_snapshots"
    rests_on = frozenset({EVIDENCE, "commops", *RESULTS, "thresholds", "feedback", snapshot_topic})

    def __init__(
        self,
        services: Services,
        make: Callable[[str], JobMonitorLike],
        restore: Callable[[EncodedState], JobMonitorLike],
        alert_of: Callable[[Verdict], bytes | None],
        clocks: Clocks,
        changed: WordLog[ThresholdChange] | None = None,
        opinions: WordLog[Opinion] | None = None,
    ) -> None:
        super().__init__(services)
        self.people_say: Final = PeopleSay(changed, opinions, services.dead_letters)
        self.forget_s = max(self.forget_s, _EVIDENCE_KEPT_S)
        self._clocks: Final = clocks
        self._make: Final = make
        self._restore: Final = restore
        self._alert_of: Final = alert_of
        settings = services.settings
        self._topics: Final = JobTopics(self.reader, settings.topics)
        self._spans: Final = PatientReader(
            LogReader(settings.bootstrap, settings.security, settings.broker_timeout_s, services.recent),
            settings.topics.name("commops"),
            settings.broker_away_s,
        )
        self._has_followed = False
        self._is_taught: Final = opinions is not None
        self._judging = 0
        self._judges: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-judge")
        drift_detector()  # while no other thread imports anything
        self._works: WeakKeyDictionary[Tracked[JobMonitorLike], JobWork] = WeakKeyDictionary()
        self._published: WeakKeyDictionary[PartitionState[JobMonitorLike], PublishedVerdicts] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[PartitionState[JobMonitorLike], Ends] = WeakKeyDictionary()
        self._evidence_ends: WeakKeyDictionary[PartitionState[JobMonitorLike], int] = WeakKeyDictionary()

    def restore_monitor(self, value: EncodedState) -> JobMonitorLike:
        """Build a monitor from its encoded state; raises `RecordError`."""
        return self._restore(value)

    async def begin_anew(
        self, state: PartitionState[JobMonitorLike], keys: Set[bytes], stored: PositionRecord
    ) -> PositionRecord:
        """Read all evidence of the partition again, as far as it is kept: it begins with who takes part in a job.

        So are the verdicts on these jobs that were sent: none is sent twice. Other jobs skip what is in their states,
        or what was judged before they ended.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._restorer, self._topics.begin_anew, state.partition, keys, stored)

    async def begin_first(self, state: PartitionState[JobMonitorLike], stored: PositionRecord) -> PositionRecord:
        """Learn what was told before, should the states be lost and the evidence be there: it comes again."""
        loop = asyncio.get_running_loop()
        anew = await loop.run_in_executor(
            self._restorer, self._topics.begin_anew, state.partition, frozenset[bytes](), stored
        )
        return self.people_say.from_start(anew) if anew.told.anew else stored

    def forget_places(self, state: PartitionState[JobMonitorLike], topics: Set[str]) -> None:
        """Let no monitor read operators of iterations whose operators are gone."""
        for tracked in state.tracked.values() if "commops" in topics else ():
            tracked.monitor.forget_operators()
            tracked.is_dirty = True

    async def prepare(self, state: PartitionState[JobMonitorLike], stored: PositionRecord) -> None:
        """Learn which revisions were sent after the states were stored: they must not be sent again."""
        published = self._published[state] = PublishedVerdicts(stored.told, state.tracked.keys())
        loop, topics = asyncio.get_running_loop(), self._topics
        self._ends[state] = await loop.run_in_executor(
            self._restorer, topics.read_results, state.partition, stored.ends, published
        )
        end = await loop.run_in_executor(self._restorer, topics.evidence_end, state.partition)
        self._evidence_ends[state] = end
        await self.people_say.restore(state, stored, end)
        if len(published):
            LOG.info("event=sent_before partition=%d verdicts=%d", state.partition, len(published))

    async def process(self, state: PartitionState[JobMonitorLike], topic: str, event: Event) -> None:
        """Queue one evidence message for its job's monitor, or bury it."""
        async with self.people_say.gate(state):
            await self._process(state, topic, event)

    async def _process(self, state: PartitionState[JobMonitorLike], topic: str, event: Event) -> None:
        message = event.message
        tracked = state.tracked.get(message.key)
        if tracked is not None and message.offset <= max(tracked.seen.get(topic, -1), self._work(tracked).queued):
            state.take(topic, message.offset, event)
            return
        try:
            rows = _decode(message.key, message.value)
        except Exception as error:
            await self.bury(state, topic, event, unreadable(error))
            return
        published = self._published[state]
        if tracked is None and published.is_over(message.key, message.offset):
            state.take(topic, message.offset, event)
            return
        if tracked is None:
            tracked = state.tracked[message.key] = Tracked(message.key, self._make(message.key.decode()))
            log_job("appeared", message.key.decode(), partition=state.partition)
        state.take(topic, message.offset, event)
        if published.is_first(message.key):
            job, loop = message.key.decode(), asyncio.get_running_loop()
            rows = [*await loop.run_in_executor(self._restorer, self._topics.announced, job, rows), *rows]
        self.services.counters.took_evidence(topic, rows)
        self._queue(state, tracked, message, rows)
        await self._wait_for_room(state, tracked)

    async def settle(self, state: PartitionState[JobMonitorLike]) -> None:
        """Do nothing: a monitor's results are published before its lock is given back."""

    async def capture(self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike]) -> Draft:
        """Encode a monitor's state between two judgements, in the thread: a large job's takes long."""
        loop = asyncio.get_running_loop()
        async with self._work(tracked).lock:
            return await loop.run_in_executor(self._judges, self.encode, state, tracked)

    def record(self, state: PartitionState[JobMonitorLike], positions: Offsets) -> PositionRecord:
        """Return the partition's record; revisions that are in no stored state yet stand behind its ends."""
        ends = self._ends[state]
        for topic, by_partition in ends.items():
            name = self.services.settings.topics.name(topic)
            for partition, end in by_partition.items():
                by_partition[partition] = max(end, self.services.outbox.end_offset(name, partition) or 0)
        published = self._published[state]
        if positions.get(EVIDENCE, 0) >= self._evidence_ends[state]:  # whoever was told of has been heard again
            published.forget(lambda job: job.encode() in state.tracked)
        own = {topic: dict(by_partition) for topic, by_partition in ends.items()}
        words = self.people_say
        return PositionRecord(
            state.epoch, positions, own, told=published.told(),
            thresholds=words.thresholds.to_store(state), opinions=words.opinions.to_store(state),
            topic_ids=self.ids_of(state),
        )  # fmt: skip

    async def follow_people(self) -> None:
        """Let what people said, and was read, hold in all partitions, each from its next evidence on."""
        await asyncio.gather(*map(self._begin_words, list(self.states.values())))

    async def _begin_words(self, state: PartitionState[JobMonitorLike]) -> None:
        """Store from which evidence on words hold, with a whole snapshot, before any of that evidence is taken."""
        if not self.people_say.has_news(state) or self.services.sink.is_busy:
            return  # no snapshot can be written while the database is away, and evidence must not wait for it
        await self.services.sink.flush()  # nor for one that is away, and was not missed yet
        async with self._cycle(state), self.people_say.gate(state):
            if not self.holds(state):
                return
            await self.people_say.plan(state, state.next_of(EVIDENCE))
            await self._snapshot(state)
            if self.holds(state):
                self.people_say.begin(state)

    async def tick(self) -> None:
        """Let time speak to all monitors."""
        for state in list(self.states.values()):
            for tracked in list(state.tracked.values()):
                self._work(tracked).is_due = True
                self._start(state, tracked)

    def close(self) -> None:
        """Let go of threads and connections, without waiting for a broker that does not answer."""
        super().close()
        self._spans.give_up()
        self._judges.submit(self._spans.close)
        self._judges.shutdown(wait=False)

    # --- judging ----------------------------------------------------------------------------------------------------

    def _work(self, tracked: Tracked[JobMonitorLike]) -> JobWork:
        work = self._works.get(tracked)
        if work is None:
            work = self._works[tracked] = JobWork(was_ended=tracked.monitor.is_ended)
        return work

    def _queue(
        self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike], message: Any, rows: Rows
    ) -> None:
        work = self._work(tracked)
        queued = QueuedMessage(
            message.topic, message.partition, message.offset, message.timestamp, message.key, message.value, rows
        )
        work.inbox.append(queued)
        work.queued = message.offset
        state.begin(EVIDENCE, message.offset)
        self._start(state, tracked)

    async def _wait_for_room(self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike]) -> None:
        # No event to wait for: the partition may be revoked as well.
        while len(self._work(tracked).inbox) >= _MAX_QUEUED and self.holds(state):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _start(self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike]) -> None:
        work = self._work(tracked)
        if work.task is None or work.task.done():
            work.task = asyncio.ensure_future(self._judge_all(state, tracked, work))
            self.watch(work.task)

    async def _judge_all(
        self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike], work: JobWork
    ) -> None:
        while (work.inbox or work.is_due) and self.holds(state):
            async with work.lock:  # given back after each round: a snapshot waits for it while evidence keeps coming
                if not self.holds(state):  # dropped while we waited, and the thread may have ended
                    return
                # One by one: what the first of them decides is told before the next ones are judged.
                message, work.is_due = work.inbox.popleft() if work.inbox else None, False
                await self._judge_one(state, tracked, message)

    async def _judge_one(
        self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike], message: QueuedMessage | None
    ) -> None:
        judgements, refused = await self._judged(state, tracked, message)
        if not self.holds(state):
            return
        if message is not None and refused is not None:
            await self.services.dead_letters.bury(message, refused)
        # Before anything is sent: a snapshot whose ends are behind these revisions must hold the state that said so,
        # and waits for it. Time alone may have made the monitor speak.
        tracked.is_dirty = tracked.is_dirty or _has_rows(judgements)
        await self._publish(state, judgements)
        self._work(tracked).note_end(tracked)
        self._work(tracked).note_untaught(tracked)
        self.services.counters.contradictions += self._work(tracked).note_contradiction(tracked)
        if message is not None:
            tracked.saw(EVIDENCE, message.offset)
            state.finish(EVIDENCE, message.offset)

    async def _judged(
        self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike], message: QueuedMessage | None
    ) -> tuple[Judgements, str | None]:
        """Let the monitor judge in its thread; return what it says, and why the message could not be used."""
        nothing = Judgements(tracked.key.decode())
        if is_broken(tracked):
            return nothing, BROKEN
        until_s = self._clocks.job_until_s(state.partition, state.position())
        words = words_before(self.people_say, state, tracked, message)
        loop = asyncio.get_running_loop()
        self._judging += 1
        try:
            return await loop.run_in_executor(self._judges, self._judge, tracked, message, until_s, words)
        except ServiceError:
            raise
        except Exception as error:  # whatever a monitor raises, it must not take the worker with it
            return nothing, self.faults.failed(self.hop, tracked, error)
        finally:
            self._judging -= 1

    async def give_way(self) -> None:
        """Wait for a judgement that is being made, within bounds: what is read meanwhile only makes it wait.

        The thread that judges and the one that reads share Python's lock. Of an iteration that is looked into an
        alert may come, and nothing that is read after it changes that.
        """
        until_s = time.monotonic() + _LONGEST_WAY_S
        while self._judging and time.monotonic() < until_s:  # noqa: ASYNC110 - bounded, and mostly over at once
            await asyncio.sleep(_WAY_S)

    def _judge(
        self,
        tracked: Tracked[JobMonitorLike],
        message: QueuedMessage | None,
        until_s: float | None,
        words: Words,
    ) -> tuple[Judgements, str | None]:
        refused: str | None = None
        changes, opinions = words
        self._has_followed = self._has_followed or bool(changes.words)
        if self._has_followed:  # also where there is none any more: the topic was made anew
            tracked.monitor.follow(changes.words)
        if self._is_taught:
            tracked.monitor.hear(opinions.words, opinions.revision)
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
        """Read operators of a job again: where the topic was made anew, another's may stand at these offsets."""
        return [batch for batch in self._spans.read(spans) if batch.header.job == job]

    # --- publishing -------------------------------------------------------------------------------------------------

    async def _publish(self, state: PartitionState[JobMonitorLike], judgements: Judgements) -> None:
        judgements = self._published[state].in_known_words(judgements)
        self.services.counters.judged(judgements.iterations, self._clocks.now_s())
        for verdict in map(bounded, judgements.verdicts):
            if VERDICTS in await self._send_once(state, verdict):
                log_verdict(verdict)
                self.services.counters.told(verdict, judgements.iterations, self._clocks.now_s())
        if _has_rows(judgements):
            await self.services.sink.write(judgements)

    async def _send_once(self, state: PartitionState[JobMonitorLike], verdict: Verdict) -> list[str]:
        """Send a revision to the topics where it does not stand yet, and return these."""
        if not self.holds(state):  # whoever has the partition now looked for what stands there
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


def _has_rows(judgements: Judgements) -> bool:
    return bool(
        judgements.announcements
        or judgements.iterations
        or judgements.verdicts
        or any(map(len, judgements.rank_iterations.values()))
        or any(map(len, judgements.detector_scores.values()))
        or any(map(len, judgements.operators.values()))
        or any(map(len, judgements.patterns.values()))
    )
