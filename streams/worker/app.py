"""One worker process: Faust reads, the two stages work, Kafka and the sink take the results.

Where reading begins is decided by the snapshots, not by the group's committed offsets: these only tell monitoring
tools how far the snapshots are. `running.add_agents` subscribes the stages to their topics.

A worker whose broker is away waits. If it has heard nothing from its group for as long as a session lasts, others may
have its partitions: it lets go of them and of its messages on their way, and begins again from the snapshots.
"""

from __future__ import annotations

import asyncio
import logging
import logging.config
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import faust
from faust.types import TP

from irregulars.errors import (
    IrregularsError,
    SendingGivenUp,
    ServiceError,
    ServiceRefused,
    ServiceUnavailable,
    TopicMismatch,
)
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.log_reader import LogReader, ReadingThread
from irregulars.kafka.login_password import password_of
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.scattered_reading import RecentMessages
from irregulars.kafka.topic_admin import check_topics
from irregulars.kafka.topics import RANK_TOPICS, TOPICS, WORKER_TOPICS
from irregulars.messages.opinions import Opinion, decode_opinion
from irregulars.messages.threshold_changes import ThresholdChange, decode_change
from irregulars.sinks.protocol import Sink
from irregulars.streams.faust_driver.transport import SCHEME, Consumer
from irregulars.streams.health.broker_watch import QUIET_S, BrokerWatch
from irregulars.streams.health.counters import Counters
from irregulars.streams.health.observer import Hop, Observer
from irregulars.streams.health.process import SpareMemory, StopDeadline
from irregulars.streams.health.reading_watch import ReadingWatch
from irregulars.streams.health.watchdog import Watchdog
from irregulars.streams.stages.job_stage import JobStage
from irregulars.streams.stages.job_topics import EVIDENCE
from irregulars.streams.stages.partition_state import Continuity, Offsets, PartitionState
from irregulars.streams.stages.rank_stage import RankStage
from irregulars.streams.stages.sink_writer import SinkWriter
from irregulars.streams.stages.stage import Services
from irregulars.streams.stages.stream_time import ProgressLog, StreamTime
from irregulars.streams.stages.word_log import W, WordLog
from irregulars.streams.worker.monitors import Monitors
from irregulars.streams.worker.topic_watch import LogGaps, TopicWatch
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
LOOK_S: Final = 1.0  # between two questions to the broker
_SNAPSHOT_SHARE: Final = 0.3  # of the time to stop; Faust takes up to half of it
_FLUSH_SHARE: Final = 0.2
_MARGIN_S: Final = 60.0
_AGAIN_S: Final = 0.5
_LONGEST_WAIT_S: Final = 8.0
_MOST_LINES: Final = 100  # changes of thresholds that are logged one by one: a worker may start with thousands
_REFUSED_S: Final = 60.0  # librdkafka tries to log in every ten seconds or sooner


class WorkerApp(faust.App):
    """The Faust app of a worker, with its stages."""

    def __init__(self, settings: WorkerSettings, sink: Sink | None, monitors: Monitors) -> None:
        super().__init__(settings.group, **faust_config(settings))
        self.failure: BaseException | None = None
        self.settings: Final = settings
        self.second_hop: Final = settings.topics.name(EVIDENCE)
        self.deadline: Final = StopDeadline(settings.stop_s)
        self.broker: Final = BrokerWatch(settings.bootstrap, settings.broker_away_s)
        # Longer than the broker may be away: the watch reports that, in better words.
        outbox = Outbox(settings.bootstrap, settings.security, settings.broker_away_s + _MARGIN_S)
        dead_letters = DeadLetters(outbox, settings.topics)
        counters = Counters()
        writer = SinkWriter(sink, dead_letters, counters, settings.unstored_mib << 20)
        # Two threads, as restoring reads for long, and clocks must not wait for samples that are read again.
        reading = _reading_thread(settings, "reading")
        looking = self._looking = _reading_thread(settings, "looking")
        self.gaps: Final = LogGaps(looking, settings.topics)
        continuity = Continuity(self.gaps.first_offset, self._go_back)
        directory = Path(settings.data_directory)
        self.watchdog: Final = Watchdog(monitors.limits, directory if directory.is_dir() else None)
        self.services: Final = Services(
            settings, outbox, reading, dead_letters, writer, self._commit_snapshot, self.fail, continuity, counters,
            RecentMessages(settings.recent_mib << 20), self.watchdog,
        )  # fmt: skip
        self.thresholds: Final = WordLog(settings.topics, "thresholds", looking, decode_change)
        self.rank_stage: Final = RankStage(self.services, monitors.make_rank, monitors.restore_rank, self.thresholds)
        self._reading: Final[ReadingWatch[TP]] = ReadingWatch(settings.stall_s)
        self.progress: Final = ProgressLog(settings.topics.name("progress"), looking, outbox)
        self.opinions: Final = WordLog(settings.topics, "feedback", looking, decode_opinion)
        self._unstored_opinions: list[Opinion] = []
        self._newest_ends: dict[int, Offsets] = {}
        self.topics_watch: Final = TopicWatch(settings, looking)
        self.clocks: Final = StreamTime(RANK_TOPICS, EVIDENCE, self._ends, self.progress)
        self.job_stage: Final = JobStage(
            self.services, monitors.make_job, monitors.restore_job, monitors.alert_of, self.clocks, self.thresholds,
        )  # fmt: skip
        self._generation: int | None = None  # of the assignment that the stages hold
        self._gone_generation: int | None = None  # of one that others may hold by now
        self.observer: Final = Observer(
            counters, outbox, dead_letters, settings.topics, settings.group,
            (Hop(self.rank_stage, self.clocks.rank_until_s), Hop(self.job_stage, self.clocks.job_until_s)),
            lambda: self._generation is not None, self.clocks.now_s, settings.judge.grace_s,
            lambda: self.broker.is_away, self.watchdog,
        )  # fmt: skip
        self._partition_counts: Mapping[str, int] = {}
        self._restoring = asyncio.Lock()
        self._asker: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-broker")
        self._memory: Final = SpareMemory()

    @property
    def reader(self) -> Consumer:
        """Our driver's consumer."""
        return cast(Consumer, self.consumer)

    async def restore(self, assignment: set[TP]) -> dict[TP, int]:
        """Restore both stages for `assignment`, if that was not done in this generation, and return where to read on.

        While the broker does not answer this waits; another failure stops the worker, and nothing is read then.
        """
        generation = self.consumer_generation_id
        until_s = time.monotonic() + self.settings.broker_away_s
        wait_s = _AGAIN_S
        while True:
            try:
                async with self._restoring:
                    return await self._restore_once(assignment, generation)
            # Among OSErrors the TimeoutError of an answer; rights that are being changed may be back in a moment.
            except (ServiceUnavailable, ServiceRefused, OSError) as error:
                if time.monotonic() > until_s:
                    self.fail(error)
                    return {}
                log = LOG.debug if self.broker.is_away else LOG.warning
                log("event=restore_again in_s=%g reason=%r", wait_s, str(error) or type(error).__name__)
            except IrregularsError as error:
                self.fail(error)
                return {}
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _restore_once(self, assignment: set[TP], generation: int) -> dict[TP, int]:
        if generation != self.consumer_generation_id:  # another assignment has come meanwhile, and is restored itself
            return {}
        if self._gone_generation == generation:  # Faust also asks between two assignments
            return {}
        if self._generation != generation:
            await self._restore_stages(assignment, generation)
        earliest = await self.consumer.earliest_offsets(*assignment)
        begin = {TP(tp.topic, tp.partition): offset for tp, offset in earliest.items()}
        positions = {}
        for topic in (*RANK_TOPICS, EVIDENCE):
            stage: RankStage | JobStage = self.job_stage if topic == EVIDENCE else self.rank_stage
            for partition, state in stage.states.items():
                place = TP(self.settings.topics.name(topic), partition)
                # Retention may have deleted messages that were still to be read.
                positions[place] = max(state.stored_position.get(topic, 0), begin.get(place, 0))
                state.begin_at(topic, positions[place])
        return positions

    async def open_sink(self) -> None:
        """Open the sink, though no row is there yet, if it was away when the worker started."""
        try:
            await self.services.sink.flush()
        except Exception as error:  # a worker without rows would never learn of it
            self.fail(error)

    async def on_stop(self) -> None:
        """Write a last snapshot, so that the next worker has nothing to read twice; then let go of everything."""
        self.deadline.arm()
        if self.failure is None:
            await self._try_last_snapshot(self._last_snapshot())
        # Before anything else: a snapshot that was cut short may have taken rows which it did not send, and no other
        # may store what comes after them.
        self._drop()
        await super().on_stop()
        self.job_stage.close()
        self.services.sink.close()
        self.services.outbox.close(self.deadline.left_s * _FLUSH_SHARE)
        self.services.reading.close()
        self._looking.close()
        self._asker.shutdown(wait=False)

    async def _try_last_snapshot(self, work: Awaitable[None]) -> None:
        """Await a snapshot that saves others work, and is no loss if there is no time for it, or no broker."""
        try:
            # Without a broker no snapshot can be written, and the time to stop is short.
            await asyncio.wait_for(work, 0.1 if self.broker.is_away else self.settings.stop_s * _SNAPSHOT_SHARE)
        except (ServiceError, TimeoutError) as error:
            LOG.warning("event=last_snapshot_missed reason=%r", str(error) or type(error).__name__)

    def fail(self, error: BaseException) -> None:
        """Stop the worker: the next one reads again all that it has not stored."""
        if self.failure is None:
            self.failure = error
            self.deadline.arm()
            LOG.critical("event=failed error=%s reason=%r", type(error).__name__, str(error))
            os.kill(os.getpid(), signal.SIGTERM)  # stopping has one way, from wherever

    async def repeat(self, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` again and again until the app stops; an error of it stops the worker."""
        while not self.should_stop:
            await self.sleep(every_s)
            if self.should_stop:
                return
            try:
                await work()
            except SendingGivenUp:  # the partitions were dropped as well
                continue
            except Exception as error:  # it would go unseen, and the work would never be done again
                self.fail(error)
                return

    async def start_snapshots(self) -> None:
        """Begin the snapshot cycles of both stages, and do not wait for them."""
        self.rank_stage.start_snapshots()
        self.job_stage.start_snapshots()

    async def snapshot(self) -> None:
        """Run the snapshot cycles of both stages to their end."""
        await asyncio.gather(self.rank_stage.snapshot_all(), self.job_stage.snapshot_all())

    async def look_after_broker(self) -> None:
        """Ask whether the broker answers."""
        # The group's thread can't have learned meanwhile that the session ended: others may have our partitions.
        if self.reader.silent_s > self.settings.session_s and self._states:
            self.let_go()
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._asker, self.services.outbox.is_answered, QUIET_S / 2):
            self.broker.heard()
        else:
            password = password_of(self.settings.security)
            self.broker.missed(None if password is None else password.refusal(_REFUSED_S))

    def let_go(self) -> None:
        """Let go of all partitions and of messages on their way: the session has ended, and others may have them."""
        log = LOG.debug if self.broker.is_away else LOG.warning
        log("event=let_go partitions=%d", len(self._states))
        self._drop()
        self.services.outbox.give_up()

    async def give_back_memory(self) -> None:
        """Give freed memory back to the system, unless the worker is busy."""
        await asyncio.get_running_loop().run_in_executor(self._asker, self._memory.look)

    async def tick(self) -> None:
        """Tick all monitors by the clocks of how far everything that was sent has been read."""
        await self.rank_stage.tick(self.clocks)
        await self.job_stage.tick()

    async def tell_progress(self) -> None:
        """Publish how far this worker has read."""
        await self.rank_stage.tell_progress(self.progress)

    async def store_opinions(self) -> None:
        """Store the new opinions of people on verdicts; every worker does, and the same row is one row."""
        self._unstored_opinions += await self._read_words(self.opinions)
        if self._unstored_opinions:
            await self.services.sink.write_opinions(self._unstored_opinions)
            await self.services.sink.flush()
            # Only when they are stored: a round that was cut short gives them again.
            self._unstored_opinions = []

    async def follow_thresholds(self) -> None:
        """Judge by the thresholds that people have changed since the last look."""
        self._note_changes(await self._read_words(self.thresholds))

    def _note_changes(self, changes: Sequence[ThresholdChange]) -> None:
        revision = self.services.counters.thresholds_revision = self.thresholds.known.revision
        for change in changes[-_MOST_LINES:]:
            LOG.info("event=thresholds revision=%d job=%r from_ns=%d change=%s values=%r who=%r", revision,
                     change.job or "*", change.begin_ns, change.change_id, change.describe(), change.who)  # fmt: skip

    async def _read_words(self, log: WordLog[W]) -> tuple[W, ...]:
        try:
            return await log.read()
        except ServiceUnavailable as error:  # known words stay in force; the watch logs a broker that is away
            LOG.debug("event=words_unread reason=%r", str(error))
            return ()

    async def watch_reading(self) -> None:
        """Seek partitions that are not read although they have messages; end the worker if that does not help."""
        if self._generation is None or self.broker.is_away:
            self._reading.forget()
            return
        name = self.settings.topics.name
        positions = {
            TP(name(topic), state.partition): at for state in self._states for topic, at in state.read_to().items()
        }
        consumer = self.reader
        try:
            ends = await consumer.highwaters(*positions)
            is_idle = self.rank_stage.is_idle and self.job_stage.is_idle
            stalled = self._reading.look(positions, ends, consumer.waited_s, is_idle=is_idle)
            for place in stalled:
                LOG.warning("event=stalled topic=%s partition=%d position=%d", *place, positions[place])
            if stalled:
                await consumer.read_on({place: positions[place] for place in stalled})
        except ServiceError as error:  # also while our rights are being changed: if they are gone, the group fails
            LOG.debug("event=no_look error=%s reason=%r", type(error).__name__, str(error))
            return
        # Where our driver itself has come to the end, reading is not at fault.
        lost = [place for place in self._reading.lost() if consumer.position_of(place) < ends[place]]
        if lost:
            raise ServiceUnavailable(
                f"all assigned partitions must be read; got nothing from {lost[0].topic}/{lost[0].partition}, which "
                "has messages, though it was sought. A new worker will read it"
            )

    async def _go_back(self, topic: str, partition: int, offset: int) -> None:
        await self.reader.read_on({TP(self.settings.topics.name(topic), partition): offset})

    def _commit_snapshot(self, partition: int, positions: Offsets) -> None:
        name = self.settings.topics.name
        self.reader.commit_to({TP(name(topic), partition): at for topic, at in positions.items()})

    @property
    def _states(self) -> list[PartitionState[Any]]:
        """The partitions of both hops that this worker has."""
        return [*self.rank_stage.states.values(), *self.job_stage.states.values()]

    async def _ends(self, topics: Collection[str]) -> Mapping[int, Offsets]:
        """Ask the broker where all partitions of some topics end, whichever worker has them."""
        name, counts = self.settings.topics.name, self._partition_counts
        asked = {*topics, EVIDENCE}  # evidence is observed anyway
        read_to = [(state.partition, state.read_to()) for state in self._states]  # before the ends, which grow
        ends = await self._ends_of([TP(name(topic), number) for topic in asked for number in range(counts[topic])])
        try:
            await self.topics_watch.require_same(read_to, ends)
        except TopicMismatch as error:
            self.fail(error)
            raise
        for number, own in ends.items():
            self._newest_ends.setdefault(number, {}).update(own)
        self.observer.saw_ends(ends)
        found = {number: {topic: own[topic] for topic in topics if topic in own} for number, own in ends.items()}
        return {number: own for number, own in found.items() if own}  # evidence may have more partitions

    async def close_gaps(self) -> None:
        """Move on over offsets without messages at the ends of partitions."""
        await self.gaps.move_on(self._states, self._newest_ends)

    async def revoke(self, revoked: set[TP]) -> None:
        """Write a last snapshot of the partitions that go, and forget them; Faust's rebalances revoke everything."""
        if self.failure is None and revoked:
            await self._try_last_snapshot(self.snapshot())
        self._drop()
        LOG.info("event=revoked partitions=%d", len(revoked))

    async def _last_snapshot(self) -> None:
        await self.rank_stage.settle_all()
        await self.snapshot()

    def _drop(self) -> None:
        self._generation, self._gone_generation = None, self.consumer_generation_id
        self.rank_stage.drop()
        self.job_stage.drop()

    async def _restore_stages(self, assignment: set[TP], generation: int) -> None:
        full = self.settings.topics.name
        by_topic = {
            name: {tp.partition for tp in assignment if tp.topic == full(name)} for name in (*RANK_TOPICS, EVIDENCE)
        }
        if len({frozenset(by_topic[name]) for name in RANK_TOPICS}) > 1:
            found = ", ".join(f"{name}={sorted(by_topic[name])}" for name in RANK_TOPICS)
            raise TopicMismatch(
                f"one worker must get equal partitions of the first hop's topics; got {found}. A topic that has none "
                "may have been deleted. Run: irregulars topics create; then start the worker again"
            )
        ends = await self._ends_of(assignment)
        # Before any state is read: none of a topic that was made anew may be restored.
        await self.topics_watch.require_same((), ends)
        self._note_changes(await self.thresholds.read())
        await self.rank_stage.restore(by_topic["jobs"], generation, self.topics_watch.ids)
        await self.job_stage.restore(by_topic[EVIDENCE], generation, self.topics_watch.ids)
        # And once the positions are known: a topic that ends before one of them was cut.
        stored = [(state.partition, state.stored_position) for state in self._states]
        await self.topics_watch.require_same(stored, ends)
        self.clocks.forget()
        self._reading.forget()
        self._partition_counts = await self._count_partitions()
        # Last: the observer reports both stages as restored from here on.
        self._generation = generation

    async def _ends_of(self, places: Collection[TP]) -> dict[int, Offsets]:
        names = {self.settings.topics.name(name): name for name in TOPICS}
        ends: dict[int, Offsets] = {}
        for place, end in (await self.consumer.highwaters(*places)).items() if places else ():
            ends.setdefault(place.partition, {})[names[place.topic]] = end
        return ends

    async def _count_partitions(self) -> Mapping[str, int]:
        own = self.settings
        ask = partial(check_topics, own.bootstrap, own.topics, own.security, own.broker_timeout_s, WORKER_TOPICS)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, ask)
        except TopicMismatch:
            if not self._partition_counts:
                raise
            return self._partition_counts  # a busy broker forgets a topic for a moment; at the start they were right


def _reading_thread(settings: WorkerSettings, name: str) -> ReadingThread:
    return ReadingThread(LogReader(settings.bootstrap, settings.security, settings.broker_timeout_s), name)


_MOST_BLOCKS: Final = 32


def faust_config(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings of the Faust app."""
    config: dict[str, Any] = {
        # The driver logs in and connects by the worker's settings; of this Faust only reads which driver it is.
        "broker": [f"{SCHEME}://{address.strip()}" for address in settings.bootstrap.split(",")],
        "datadir": settings.data_directory,
        "store": "memory://",
        "key_serializer": "raw",
        "value_serializer": "raw",
        "autodiscover": False,
        "broker_session_timeout": settings.session_s,  # Faust complains of rebalances that take longer
        "broker_request_timeout": 2 * settings.broker_away_s + settings.session_s,  # its limit of a restore
        # In blocks: messages that are read ahead must be bounded in bytes.
        "stream_buffer_maxsize": _MOST_BLOCKS,
        "stream_wait_empty": False,  # a message that is cut off in a rebalance is read again
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": settings.web_port > 0,
        "web_bind": settings.web_host,
        "web_host": settings.web_host,
        "web_port": settings.web_port or 1,  # Faust takes no 0, even where it opens no port
        "worker_redirect_stdouts": False,
    }
    return config
