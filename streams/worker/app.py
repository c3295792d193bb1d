"""One worker process: Faust reads, the two stages work, Kafka and the sink take the results.

Where reading begins is decided by the snapshots, not by the group's committed offsets (`SnapshotConsumer`). Faust's
commits only tell monitoring tools how far the snapshots are, because they may run ahead of them: Faust acknowledges
events that it skips in a rebalance, and takes an offset as committed when the message before it is still held.
"""

from __future__ import annotations

import asyncio
import logging
import logging.config
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from irregulars.errors import InputError, IrregularsError, ServiceError, TopicMismatch
from irregulars.sinks.protocol import Sink
from irregulars.streams.kafka.aiokafka_credentials import aiokafka_security
from irregulars.streams.kafka.dead_letters import DeadLetters
from irregulars.streams.kafka.outbox import Outbox
from irregulars.streams.kafka.topic_admin import check_topics
from irregulars.streams.worker.agents import add_agents
from irregulars.streams.worker.job_stage import EVIDENCE, JobStage
from irregulars.streams.worker.log_format import logging_config
from irregulars.streams.worker.monitors import Monitors, make_monitors
from irregulars.streams.worker.rank_stage import RANK_TOPICS, RankStage
from irregulars.streams.worker.settings import WorkerSettings
from irregulars.streams.worker.sink_writer import SinkWriter
from irregulars.streams.worker.stage import Services

LOG: Final = logging.getLogger("irregulars.worker")
_FINAL_SNAPSHOT_S: Final = 5.0


class SnapshotConsumer(driver.Consumer):  # type: ignore[misc]
    """Faust's consumer, which goes on where the snapshots say."""

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Restore the state of what is assigned, and seek to behind it; Faust calls this after each rebalance."""
        positions: dict[TP, int] = await self.app.restore(self.assignment())
        if positions:
            await self._thread.seek_wait(positions)
        return positions


class SnapshotTransport(driver.Transport):  # type: ignore[misc]
    """Faust's Kafka transport with a `SnapshotConsumer`."""

    Consumer = SnapshotConsumer


class WorkerApp(faust.App):  # type: ignore[misc]
    """The Faust app of a worker, with its stages."""

    def __init__(self, settings: WorkerSettings, sink: Sink | None, monitors: Monitors) -> None:
        super().__init__(settings.group, **_faust_config(settings))
        self.failure: BaseException | None = None
        self.settings: Final = settings
        outbox = Outbox(settings.bootstrap, settings.security, settings.broker_timeout_s)
        dead_letters = DeadLetters(outbox, settings.topics)
        self.services: Final = Services(
            settings, outbox, dead_letters, SinkWriter(sink, dead_letters), _acknowledge, self.fail
        )
        self.rank_stage: Final = RankStage(self.services, monitors.make_rank, monitors.restore_rank)
        self.job_stage: Final = JobStage(self.services, monitors.make_job, monitors.restore_job, monitors.alert_of)
        self._generation: int | None = None
        self._restoring = asyncio.Lock()

    def _new_transport(self) -> SnapshotTransport:
        return SnapshotTransport(self.conf.broker_consumer, self)

    async def _on_agent_error(self, agent: Any, error: BaseException) -> None:
        # Faust would start the agent again behind the event that broke it.
        self.fail(error)

    async def restore(self, assignment: set[TP]) -> dict[TP, int]:
        """Restore both stages for `assignment`, if that was not done in this generation, and say where to read on.

        A failure stops the worker; nothing is read then.
        """
        try:
            async with self._restoring:
                if self._generation != self.consumer_generation_id:
                    await self._restore_stages(assignment, self.consumer_generation_id)
                return await self._positions(assignment)
        except IrregularsError as error:
            self.fail(error)
            return {}

    async def on_stop(self) -> None:
        """Write a last snapshot, so that the next worker has nothing to read twice; then let go of everything."""
        if self.failure is None:
            try:
                await asyncio.wait_for(self._last_snapshot(), _FINAL_SNAPSHOT_S)
            except (ServiceError, TimeoutError) as error:
                LOG.warning("event=last_snapshot_missed reason=%r", str(error) or type(error).__name__)
        await super().on_stop()
        self._drop()
        for stage in (self.rank_stage, self.job_stage):
            stage.close()
        self.services.sink.close()
        self.services.outbox.close()

    def fail(self, error: BaseException) -> None:
        """Stop the worker: what it has not stored is read again by the next one."""
        if self.failure is None:
            self.failure = error
            LOG.critical("event=failed error=%s reason=%r", type(error).__name__, str(error))
            os.kill(os.getpid(), signal.SIGTERM)  # the one way of stopping that Faust's worker does cleanly

    async def repeat(self, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` again and again until the app stops; an error of it stops the worker."""
        while not self.should_stop:
            await self.sleep(every_s)
            try:
                await work()
            except IrregularsError as error:
                self.fail(error)
                return

    async def snapshot(self) -> None:
        """Run the snapshot cycle of both stages."""
        await self.rank_stage.snapshot_all()
        await self.job_stage.snapshot_all()

    async def tick(self) -> None:
        """Let the wall clock speak."""
        now_s = time.time()
        await self.rank_stage.tick(now_s)
        await self.job_stage.tick(now_s)

    async def revoke(self, revoked: set[TP]) -> None:
        """Write a last snapshot of what goes, and forget it; Faust's rebalances revoke everything."""
        if self.failure is None and revoked:
            try:
                await asyncio.wait_for(self.snapshot(), _FINAL_SNAPSHOT_S)
            except (ServiceError, TimeoutError) as error:
                LOG.warning("event=last_snapshot_missed reason=%r", str(error) or type(error).__name__)
        self._drop()
        LOG.info("event=revoked partitions=%d", len(revoked))

    async def _last_snapshot(self) -> None:
        await self.rank_stage.settle_all()
        await self.snapshot()

    def _drop(self) -> None:
        self._generation = None
        self.rank_stage.drop()
        self.job_stage.drop()

    async def _restore_stages(self, assignment: set[TP], generation: int) -> None:
        by_topic = {name: self._partitions(assignment, name) for name in (*RANK_TOPICS, EVIDENCE)}
        if len({frozenset(by_topic[name]) for name in RANK_TOPICS}) > 1:
            found = ", ".join(f"{name}={sorted(by_topic[name])}" for name in RANK_TOPICS)
            raise TopicMismatch(f"one worker must get equal partitions of the first hop's topics; got {found}")
        await self.rank_stage.restore(by_topic["jobs"], generation)
        await self.job_stage.restore(by_topic[EVIDENCE], generation)
        self._generation = generation

    def _partitions(self, assignment: set[TP], topic: str) -> set[int]:
        name = self.settings.topics.name(topic)
        return {tp.partition for tp in assignment if tp.topic == name}

    async def _positions(self, assignment: set[TP]) -> dict[TP, int]:
        earliest = await self.consumer.earliest_offsets(*assignment)
        begin = {TP(tp.topic, tp.partition): offset for tp, offset in earliest.items()}
        positions = {}
        for topic in (*RANK_TOPICS, EVIDENCE):
            stage: RankStage | JobStage = self.job_stage if topic == EVIDENCE else self.rank_stage
            for partition, state in stage.states.items():
                place = TP(self.settings.topics.name(topic), partition)
                # Retention may have deleted what was still to be read.
                positions[place] = max(state.stored_position.get(topic, 0), begin.get(place, 0))
        return positions


def make_app(settings: WorkerSettings, sink: Sink | None = None, monitors: Monitors | None = None) -> WorkerApp:
    """Build the Faust app of one worker.

    Parameters
    ----------
    sink
        Where rows go; `None` keeps none.
    monitors
        How monitors are made; `None`: the real ones, as `settings` say.

    Raises
    ------
    InputError
        If a setting is unusable.
    """
    app = WorkerApp(settings, sink, monitors or make_monitors(settings))
    add_agents(app, settings.topics, app.rank_stage, app.job_stage)
    app.on_partitions_revoked.connect(_on_revoked, weak=False)
    for every_s, work in (
        (settings.snapshot_s, app.snapshot),
        (settings.evidence_linger_s, app.rank_stage.settle_all),
        (1.0, app.tick),
    ):
        app.task(_repeating(app, every_s, work))
    return app


def run_worker(settings: WorkerSettings, sink: Sink | None = None, monitors: Monitors | None = None) -> int:
    """Run one worker until SIGTERM or SIGINT, and return its exit status: 0 when it was asked to stop, else 1.

    Raises
    ------
    ServiceUnavailable, ServiceRefused, TopicMismatch
        If the broker can't be used, or the topics do not fit together: before anything is started.
    InputError
        If a setting is unusable.
    """
    check_topics(settings.bootstrap, settings.topics, settings.security, settings.broker_timeout_s)
    _make_directory(settings.data_directory)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    app = make_app(settings, sink, monitors)
    # The level is for Faust's spinner, which it shows from "warn" on; what is logged, the configuration says.
    own_logging = logging_config(settings.log_level)
    worker = faust.Worker(
        app, loop=loop, loglevel="info", quiet=True, redirect_stdouts=False, logging_config=own_logging
    )
    logging.config.dictConfig(own_logging)
    LOG.info("event=start group=%s bootstrap=%s", settings.group, settings.bootstrap)
    try:
        worker.execute_from_commandline()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0
    if app.failure is not None:
        print(f"irregulars worker: {app.failure}", file=sys.stderr)
        return 1
    LOG.info("event=stop status=%d", status)
    return status


def _faust_config(settings: WorkerSettings) -> dict[str, Any]:
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
        "broker_request_timeout": max(settings.broker_timeout_s, settings.session_s) + 5.0,
        "broker_commit_interval": min(settings.snapshot_s, 2.8),
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
    if "sasl_mechanism" in found:
        return faust.SASLCredentials(
            username=found["sasl_plain_username"],
            password=found["sasl_plain_password"],
            mechanism=found["sasl_mechanism"],
            ssl_context=found.get("ssl_context"),
        )
    return faust.SSLCredentials(found["ssl_context"]) if "ssl_context" in found else None


def _acknowledge(event: Any) -> None:
    event.ack()


async def _on_revoked(app: WorkerApp, revoked: set[TP], **_: Any) -> None:
    await app.revoke(revoked)


def _repeating(app: WorkerApp, every_s: float, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def repeating() -> None:
        await app.repeat(every_s, work)

    repeating.__qualname__ = repeating.__name__ = f"repeat_{getattr(work, '__name__', 'work')}"
    return repeating


def _make_directory(name: str) -> None:
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"data_directory must be one that we can write; got {name!r} ({error.strerror})") from error


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
