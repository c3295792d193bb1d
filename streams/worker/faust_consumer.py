"""Faust's Kafka transport as a worker needs it: it reads on where the snapshots say, and bears a broker that is away.

Faust ends a worker, with tracebacks, for a commit that failed and for a broker that was away when it started, and
waits without an end for one that is away when it stops. None of these loses anything here: where reading begins the
snapshots decide, and the group's committed offsets only tell monitoring tools how far these are.

The group's generation would tell Faust, and us, which messages were fetched for which assignment. It may stay the
same when a member joins again, so `Rebalances` counts assignments instead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.auth import OAuthCredentials
from faust.transport.consumer import ensure_TPset
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, Message
from faust.types.tuples import ConsumerMessage

from irregulars.streams.health.stop_deadline import StopDeadline
from irregulars.streams.health.waited_time import WaitedTime
from irregulars.streams.kafka.aiokafka_credentials import aiokafka_security
from irregulars.streams.kafka.block_fetcher import BlockFetcher, Place
from irregulars.streams.kafka.message_blocks import Record, cut_blocks
from irregulars.streams.worker.job_topics import EVIDENCE
from irregulars.streams.worker.settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
_COMMIT_S: Final = 5.0
_LEAVE_S: Final = 1.5
_CLOSE_S: Final = 0.2
_AGAIN_S: Final = 0.5
_REQUEST_S: Final = 35.0
"""How long the broker has to answer one request of the consumer: longer than a rebalance or a session may take."""

_MOST_BLOCKS: Final = 32

BROKER_TROUBLE: Final = (KafkaError, OSError, TimeoutError)
"""What aiokafka raises while a broker is away."""


class Restorer(Protocol):
    """`streams.worker.app.WorkerApp`, as its consumer uses it."""

    consumer_generation_id: int
    settings: WorkerSettings

    async def restore(self, assignment: set[TP]) -> dict[TP, int]:
        """See WorkerApp."""


class Stoppable(Protocol):
    """`streams.worker.app.WorkerApp`, as its process uses it."""

    deadline: StopDeadline


async def commit(consumer: AIOKafkaConsumer, offsets: Mapping[TP, int], own: Collection[TP]) -> bool:
    """Tell the group's coordinator how far we are in our own partitions; whether it knows.

    None of them may be ours any more: a worker that stood still for longer than its session has lost them all.
    """
    wanted = {TopicPartition(*tp): OffsetAndMetadata(to, "") for tp, to in offsets.items() if tp in own}
    if not wanted:
        return False  # aiokafka takes no empty commit
    try:
        await asyncio.wait_for(consumer.commit(wanted), _COMMIT_S)
    except (*BROKER_TROUBLE, IllegalStateError) as error:
        LOG.debug("event=not_committed reason=%r", str(error) or type(error).__name__)
        return False
    return True


async def try_for(limit_s: float, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work` for at most `limit_s`, and return whether it was done; Faust's own may not heed being cancelled."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=limit_s)
    if not task.done():
        task.cancel()
        return False
    return not task.cancelled() and task.exception() is None


class Rebalances(driver.ConsumerRebalanceListener):
    """Numbers the assignments of this process, and tells Faust of them."""

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """See `faust.transport.drivers.aiokafka`; there it is the group's generation."""
        thread = cast("PatientThread", self._thread)
        thread.heard_s = time.monotonic()
        thread.fetch_nothing(assigned)
        app = cast(Restorer, thread.app)
        app.consumer_generation_id += 1
        await thread.on_partitions_assigned(ensure_TPset(assigned), app.consumer_generation_id)


class PatientThread(driver.AIOKafkaConsumerThread):
    """The thread that has the connection; it outlasts a broker that is away."""

    heard_s: float = 0.0
    """When the last request was sent to which the group answered that we are one of it; by `time.monotonic`."""

    async def on_start(self) -> None:
        """Connect, however long it takes: `streams.health.broker_watch` says when it is too long."""
        self.time_started = time.monotonic()
        while not self.should_stop:
            self._consumer = self._create_consumer(loop=self.thread_loop)
            # Faust would wait for a restore no longer than for one request; it has one setting for both.
            self._consumer._client._request_timeout_ms = int(_REQUEST_S * 1000)
            # It leaves a group whose member does not fetch; ours fetches with `BlockFetcher`.
            self._consumer._subscription._fetch_count += 1
            try:
                await self._consumer.start()
            except BROKER_TROUBLE as error:
                LOG.debug("event=connect_again reason=%r", str(error) or type(error).__name__)
                await self._consumer.stop()
                await asyncio.sleep(_AGAIN_S)
            else:
                self._note_heartbeats(self._consumer._coordinator)
                return

    def _note_heartbeats(self, coordinator: Any) -> None:
        beat: Callable[[], Awaitable[bool]] = coordinator._do_heartbeat

        async def noted() -> bool:
            sent_s = time.monotonic()
            is_member = await beat()
            if is_member:
                self.heard_s = sent_s
            return is_member

        coordinator._do_heartbeat = noted

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        return await commit(self._ensure_consumer(), offsets, self.assignment())

    async def on_thread_stop(self) -> None:
        """Leave the group, if there is a broker to tell."""
        if not await try_for(_LEAVE_S, super().on_thread_stop()):
            LOG.debug("event=not_left")

    def fetch_nothing(self, assigned: Iterable[Any]) -> None:
        """Leave these partitions to `BlockFetcher`; before they have a position, nothing of them is fetched."""
        self._ensure_consumer().pause(*assigned)

    def join_again(self) -> None:
        """Ask for a new assignment, as a member that the group may have forgotten."""
        consumer = self._consumer
        if consumer is not None:
            self.thread_loop.call_soon_threadsafe(consumer._coordinator.request_rejoin)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Say nothing: `streams.health.reading_watch` does, and heals."""


class NothingRead(dict[TP, int | None]):
    """Faust's own notes of what it has read, by which it passes over what it takes for read already.

    A message that was on its way during a rebalance is noted as read after the partition was sought, and Faust would
    drop all before it. Nobody needs these notes: `streams.worker.continuity` sees to the order.
    """

    def __getitem__(self, place: TP) -> None:
        return None


class SnapshotConsumer(driver.Consumer):
    """Faust's consumer, which goes on where the snapshots say."""

    RebalanceListener = Rebalances

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = NothingRead()
        self._waited: Final = WaitedTime()
        self._fetched: Final = asyncio.Event()
        settings = cast(Restorer, self.app).settings
        self._evidence: Final = settings.topics.name(EVIDENCE)
        # One for each hop: while one waits for its monitors, the other reads on.
        self._fetchers: Final = tuple(
            BlockFetcher(settings.bootstrap, settings.security, self._wake) for _ in ("rank", "job")
        )

    def _new_consumer_thread(self) -> PatientThread:
        return PatientThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def thread(self) -> PatientThread:
        """The thread that has the connection."""
        return cast(PatientThread, self._thread)

    @property
    def waited_s(self) -> float:
        """Seconds so far in which all that was fetched had been handed over, and the consumer waited for more."""
        return self._waited.seconds

    async def _wait_next_records(self, *wait_s: Any) -> Any:
        with self._waited:
            return await super()._wait_next_records(*wait_s)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:  # noqa: ASYNC109
        """Give what was fetched of each partition as blocks; else as Faust's own does."""
        records, _ = await self._wait_next_records(timeout)
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            with suppress(*BROKER_TROUBLE):  # a rebalance is under way: it seeks as well
                await self.perform_seek()
            return
        for place, own in records.items():
            for block in cut_blocks(own):
                if not self.flow_active or block[0].generation_id != self.app.consumer_generation_id:
                    return
                yield place, _block_message(place, block)

    def _new_offset(self, tp: TP) -> int | None:
        """Return the offset behind what was acknowledged of a partition: we do that in order, a block at a time."""
        acked = self._acked[tp]
        if not acked:
            return None
        behind = max(acked) + 1
        acked.clear()
        self._acked_index[tp].clear()
        return behind

    async def on_stop(self) -> None:
        """Commit a last time, if that is soon done: the thread may have calls that get no answer."""
        if not await try_for(_LEAVE_S, super().on_stop()):
            LOG.debug("event=not_committed reason='the worker stops'")
        for fetcher in self._fetchers:
            fetcher.close(_CLOSE_S)

    # --- fetching ---------------------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Begin to fetch, as soon as partitions are assigned."""
        await super().on_start()
        for fetcher in self._fetchers:
            fetcher.start()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self.loop.call_soon_threadsafe(self._fetched.set)

    def on_buffer_drop(self, tp: TP) -> None:
        """Go on with a partition whose events had filled their queue."""
        super().on_buffer_drop(tp)
        self._fetched.set()

    async def _getmany(
        self,
        active_partitions: set[TP] | None,
        timeout: float,  # noqa: ASYNC109  # Faust's signature
    ) -> dict[TP, list[Any]]:
        self._fetched.clear()
        found = self._take(active_partitions)
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._fetched.wait()
            found = self._take(active_partitions)
        return found

    def _take(self, places: set[TP] | None) -> dict[TP, list[Any]]:
        own = [fetcher.take(places) for fetcher in self._fetchers]
        return {TP(*place): records for found in own for place, records in found.items()}

    def _split(self, positions: Mapping[TP, int]) -> tuple[dict[Place, int], dict[Place, int]]:
        """Return the positions of the first hop's partitions, and of the second hop's."""
        own: tuple[dict[Place, int], dict[Place, int]] = {}, {}
        for place, at in positions.items():
            own[place.topic == self._evidence][place.topic, place.partition] = at
        return own

    async def read_on(self, positions: Mapping[TP, int]) -> None:
        """Seek to where reading has come to a stop, and undo whatever may have stopped it."""
        self.resume_partitions(set(positions))
        for fetcher, own in zip(self._fetchers, self._split(positions), strict=True):
            fetcher.seek(own)
        self.resume_flow()

    def position_of(self, place: TP) -> int:
        """Return to where a partition was handed over; it passes what holds no messages. -1: it is not ours."""
        return self._fetchers[place.topic == self._evidence].position((place.topic, place.partition))

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Restore the state of what is assigned, and read from behind it; Faust calls this after each rebalance."""
        app = cast(Restorer, self.app)
        generation = app.consumer_generation_id
        positions = await app.restore(self.assignment())
        if app.consumer_generation_id == generation:  # else another assignment has come, and seeks by itself
            self._read_from(positions, generation)
        return positions

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Fetch no more: an assignment follows."""
        self._read_from({}, 0)
        await super().on_partitions_revoked(revoked)

    def _read_from(self, positions: Mapping[TP, int], generation: int) -> None:
        for fetcher, own in zip(self._fetchers, self._split(positions), strict=True):
            fetcher.assign(own, generation)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Leave to `streams.telemetry.health` who stands: Faust takes each partition after a rebalance for one.

        It counts from the start of the process. After five minutes it would write an error for each partition that
        was just assigned and has not been fetched yet.
        """


def _block_message(place: TP, block: Sequence[Record]) -> Message:
    """Make Faust's message of a block; it stands at the offset of the last one."""
    last, value = block[-1], cast(bytes, block)  # Faust hands it on as it is
    return ConsumerMessage(
        place.topic, place.partition, last.offset, last.timestamp, 0, None, None, value, None, None, None, place,
        generation_id=last.generation_id,
    )  # fmt: skip


class NoProducer(driver.Producer):
    """Connects to nothing: we send with `streams.kafka.outbox`."""

    async def on_start(self) -> None:
        """Do nothing."""

    async def on_stop(self) -> None:
        """Do nothing."""

    async def flush(self) -> None:
        """Do nothing."""


class SnapshotTransport(driver.Transport):
    """Faust's Kafka transport with a `SnapshotConsumer`."""

    Consumer = SnapshotConsumer
    Producer = NoProducer


class DeadlineWorker(faust.Worker):
    """Faust's worker process, whose end has a deadline from the signal on."""

    def _flag_as_shutdown_by_signal(self) -> None:
        cast(Stoppable, self.app).deadline.arm()
        super()._flag_as_shutdown_by_signal()

    async def _sentinel_task(self) -> None:
        """Faust waits a second here, for nothing of ours."""


def faust_config(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings of the Faust app."""
    config: dict[str, Any] = {
        "broker": [f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
        "broker_credentials": _credentials(settings.security),
        "datadir": settings.data_directory,
        "store": "memory://",
        "key_serializer": "raw",
        "value_serializer": "raw",
        "autodiscover": False,
        "consumer_auto_offset_reset": "earliest",
        "broker_session_timeout": settings.session_s,
        "broker_heartbeat_interval": settings.session_s / 10,
        # Faust gives a restore no longer than this; requests themselves get less (`PatientThread`).
        "broker_request_timeout": 2 * settings.broker_away_s + settings.session_s,
        "broker_commit_interval": min(settings.snapshot_s, 2.8),
        # Of blocks: what is read ahead must be bounded in bytes.
        "stream_buffer_maxsize": _MOST_BLOCKS,
        # Events are held until a snapshot: a rebalance that waits for them would wait for ever.
        "stream_wait_empty": False,
        # With 0 Faust would let aiokafka assign partitions round robin, and scatter those that belong together.
        "table_standby_replicas": 1,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": settings.web_port > 0,
        "web_bind": settings.web_host,
        "web_host": settings.web_host,
        "web_port": settings.web_port or 1,  # Faust takes no 0, even where it opens no port
        "worker_redirect_stdouts": False,
    }
    return config


def _credentials(security: Mapping[str, Any]) -> Any:
    """Say the same in Faust's words."""
    found = aiokafka_security(security)
    if "sasl_oauth_token_provider" in found:
        return OAuthCredentials(oauth_cb=found["sasl_oauth_token_provider"], ssl_context=found.get("ssl_context"))
    if "sasl_mechanism" in found:
        return faust.SASLCredentials(
            username=found["sasl_plain_username"],
            password=found["sasl_plain_password"],
            mechanism=found["sasl_mechanism"],
            ssl_context=found.get("ssl_context"),
        )
    return faust.SSLCredentials(found["ssl_context"]) if "ssl_context" in found else None
