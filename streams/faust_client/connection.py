"""The thread that keeps a worker's place in its consumer group; it outlasts a broker that is away.

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
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol, cast

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.consumer import ensure_TPset
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from irregulars.kafka.login_password import LoginPassword

LOG: Final = logging.getLogger("irregulars.worker")
_COMMIT_S: Final = 5.0
LEAVE_S: Final = 1.5
"""For leaving the group, and for a last commit: there may be no broker to tell."""

_AGAIN_S: Final = 0.5
_REQUEST_S: Final = 35.0
"""How long the broker has to answer one request of the consumer: longer than a rebalance or a session may take."""

BROKER_TROUBLE: Final = (KafkaError, OSError, TimeoutError)
"""What aiokafka raises while a broker is away."""


class Numbered(Protocol):
    """`streams.worker.app.WorkerApp`, as its connection uses it."""

    consumer_generation_id: int


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
        app = cast(Numbered, thread.app)
        app.consumer_generation_id += 1
        await thread.on_partitions_assigned(ensure_TPset(assigned), app.consumer_generation_id)


class _AiokafkaLogin:
    """Tells aiokafka's client of a new password: it has no call for that, and reads this for each connection."""

    def __init__(self, client: Any) -> None:
        self._client: Final = client

    def set_sasl_credentials(self, _user: str, password: str, /) -> None:
        self._client._sasl_plain_password = password


class PatientThread(driver.AIOKafkaConsumerThread):
    """The thread that has the connection; it outlasts a broker that is away."""

    _login: _AiokafkaLogin | None = None
    heard_s: float = 0.0
    """When the last request was sent to which the group answered that we are one of it; by `time.monotonic`."""

    async def on_start(self) -> None:
        """Connect, however long it takes: `streams.health.broker_watch` says when it is too long."""
        self.time_started = time.monotonic()
        while not self.should_stop:
            self._consumer = self._create_consumer(loop=self.thread_loop)
            # Faust would wait for a restore no longer than for one request; it has one setting for both.
            self._consumer._client._request_timeout_ms = int(_REQUEST_S * 1000)
            self._follow_password(self._consumer._client)
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

    def _follow_password(self, client: Any) -> None:
        password = client._sasl_plain_password  # as the settings hold it
        if isinstance(password, LoginPassword):
            self._login = _AiokafkaLogin(client)
            self._login.set_sasl_credentials(password.user, password.newest())
            password.follow(self._login)

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
        if not await try_for(LEAVE_S, super().on_thread_stop()):
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
