"""A worker's place in its consumer group: librdkafka's membership, in a thread of its own.

This client fetches nothing. It joins, sends heartbeats, is assigned partitions and gives them back, and commits how
far snapshots are. `BlockFetcher` reads, because librdkafka hands over all messages of a client in one queue: to hold
back a hop that is full, and go on with the other one, its partitions would have to be paused, which throws away their
fetched messages.

Partitions are assigned by range and eagerly. All topics of the first hop have equally many partitions, and range
gives those of one number to one worker; librdkafka's cooperative strategy does not promise that. In a rebalance a
worker gives all partitions back, as its stages restore all or none.

librdkafka also finds out, from the answers to its heartbeats, that a session has ended (``on_lost``), whether or not
a broker is there to report it. It calls us back in `poll`, so nothing else that waits for a broker may use this
client: a worker that learns of a lost session too late works on partitions that others have. Where `poll` itself does
not come back for as long (a process that was stopped, a clock that was set back), `silent_s` shows it, and the member
joins anew.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import wait
from typing import Any, Final, Protocol

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from faust.types import TP

from irregulars.kafka.broker import client_config, is_refusal, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
_POLL_S: Final = 0.05
_AGAIN_S: Final = 0.5
_REBALANCE_S: Final = 60.0  # how long a member may take to give its partitions back, and to ask for new ones


class Listener(Protocol):
    """The object that works on the partitions, called in the event loop; the rebalance waits for it."""

    async def revoked(self, own: set[TP], *, is_lost: bool) -> None:
        """All partitions go; if they are lost, others may have them already."""

    async def assigned(self, own: set[TP]) -> None:
        """These partitions are ours."""

    def failed(self, error: BaseException) -> None:
        """The broker does not let us into the group, or the work on partitions that came or go has failed."""


class GroupMember:
    """Keeps a worker in its consumer group."""

    def __init__(self, settings: WorkerSettings, listener: Listener) -> None:
        self._settings: Final = settings
        self._listener: Final = listener
        session_ms = int(settings.session_s * 1000)
        self._config: Final = client_config(settings.bootstrap, settings.security) | {
            "group.id": settings.group,
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 10,
            # Also how long others wait in a rebalance for a member that does not come.
            "max.poll.interval.ms": max(int(_REBALANCE_S * 1000), session_ms),
            "partition.assignment.strategy": "range",
            "enable.auto.commit": True,  # only of offsets that `commit` stored
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": int(min(settings.snapshot_s, 2.8) * 1000),
            "auto.offset.reset": "latest",
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.interval.ms": 30_000,
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._positions: Final = deque[list[TopicPartition]]()  # to be committed
        self._topics: list[str] = []
        self._is_subscribed = True
        self._is_closed: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._turned_s = time.monotonic()  # when the thread came round last
        self._was_silent = False  # for longer than a session: others may have had our partitions
        self.own: set[TP] = set()

    # --- for the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, however long it takes: `streams.health.broker_watch` decides when it is too long."""
        self._loop = asyncio.get_running_loop()
        self._is_closed.clear()
        self._turned_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="irregulars-group", daemon=True)
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """Seconds since the thread came round last, in which it could not have heard that the session has ended."""
        return time.monotonic() - self._turned_s

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group for these topics, or ask it anew."""
        self._topics, self._is_subscribed = sorted(topics), False

    def commit(self, positions: Mapping[TP, int]) -> None:
        """Let the group know, in a while, how far our own partitions are; monitoring tools read it."""
        own = [TopicPartition(*place, at) for place, at in positions.items() if place in self.own]
        if own:
            self._positions.append(own)

    def close(self, within_s: float) -> None:
        """Leave the group, if a broker answers in time."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(within_s)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        consumer: Consumer | None = None
        while not self._is_closed.is_set():
            try:
                consumer = consumer or new_consumer(self._config)
                self._turn(consumer)
            except Exception as error:  # no token to log in with, for example: it is tried again
                LOG.debug("event=group_again error=%s reason=%r", type(error).__name__, str(error))
                self._is_closed.wait(_AGAIN_S)
        if consumer is not None:
            self._store_positions(consumer)  # the last snapshot may just have been committed
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        if self.silent_s > self._settings.session_s:
            self._was_silent = True
            consumer.unsubscribe()  # all that was ours comes back to us, or goes to another, with an assignment
            self._is_subscribed = False
        self._turned_s = time.monotonic()
        if not self._is_subscribed:
            consumer.subscribe(
                self._topics,
                on_assign=self._assign,
                on_revoke=lambda one, _: self._give_back(one, is_lost=False),
                on_lost=lambda one, _: self._give_back(one, is_lost=True),
            )
            self._is_subscribed = True
        self._store_positions(consumer)
        message = consumer.poll(_POLL_S)
        if message is not None and (error := message.error()) is not None:
            if is_refusal(error, self._settings.security):
                self._fail(service_error(error, self._settings.bootstrap, security=self._settings.security))
            # librdkafka tries again by itself; `BrokerWatch` ends a worker whose broker stays away.
            LOG.debug("event=group_trouble reason=%r", error.str())

    def _fail(self, error: BaseException) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._listener.failed, error)

    def _store_positions(self, consumer: Consumer) -> None:
        while self._positions:
            try:
                consumer.store_offsets(offsets=self._positions.popleft())
            except KafkaException as error:  # some are not ours any more
                LOG.debug("event=not_committed reason=%r", str(error))

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # librdkafka wants an assignment, though this client reads nothing: so at the end, and paused.
        for one in partitions:
            one.offset = OFFSET_END
        consumer.assign(partitions)
        consumer.pause(partitions)
        own = {TP(one.topic, one.partition) for one in partitions}

        async def assigned() -> None:
            self.own = own
            await self._listener.assigned(own)

        self._tell(consumer, assigned)

    def _give_back(self, consumer: Consumer, *, is_lost: bool) -> None:
        # After a silence the session may be over, though librdkafka reports an ordinary revocation.
        is_lost, self._was_silent = is_lost or self._was_silent, False

        async def revoked() -> None:
            await self._listener.revoked(self.own, is_lost=is_lost)
            self.own = set()

        self._tell(consumer, revoked)
        consumer.resume(consumer.assignment())  # a pause would outlast the assignment
        consumer.unassign()

    def _tell(self, consumer: Consumer, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` in the event loop and wait for it: when this returns, librdkafka goes on with the rebalance."""
        # The worker stops: `WorkerApp.on_stop` gives its partitions up, and the loop may take no more work.
        if self._is_closed.is_set() or self._loop is None or self._loop.is_closed():
            return
        told = asyncio.run_coroutine_threadsafe(work(), self._loop)
        while not self._is_closed.is_set():
            # Work in the event loop may take longer than a session: that is no silence of this thread.
            self._turned_s = time.monotonic()
            if wait([told], _POLL_S).done:
                if not told.cancelled() and (error := told.exception()) is not None:
                    self._fail(error)
                break
        self._store_positions(consumer)  # of a last snapshot, while the partitions are still ours
