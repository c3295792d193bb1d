"""Faust's Kafka transport as a worker needs it: it reads on where snapshots say, a block of messages at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from faust.transport.drivers import aiokafka as driver
from faust.types import TP, Message
from faust.types.tuples import ConsumerMessage

from irregulars.streams.faust_client.block_fetcher import BlockFetcher, Place
from irregulars.streams.faust_client.connection import BROKER_TROUBLE, LEAVE_S, PatientThread, Rebalances, try_for
from irregulars.streams.faust_client.message_blocks import Record, cut_blocks
from irregulars.streams.health.waited_time import WaitedTime

LOG: Final = logging.getLogger("irregulars.worker")
_CLOSE_S: Final = 0.2


class Restorer(Protocol):
    """`streams.worker.app.WorkerApp`, as its consumer uses it."""

    consumer_generation_id: int
    second_hop: str
    """Full name of the topic that the second hop reads."""

    def new_fetcher(self, wake: Callable[[], None]) -> BlockFetcher:
        """See WorkerApp."""

    async def restore(self, assignment: set[TP]) -> dict[TP, int]:
        """See WorkerApp."""


class NothingRead(dict[TP, int | None]):
    """Faust's own notes of what it has read, by which it passes over what it takes for read already.

    A message that was on its way during a rebalance is noted as read after the partition was sought, and Faust would
    drop all before it. Nobody needs these notes: `streams.stages.continuity` sees to the order.
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
        app = cast(Restorer, self.app)
        self._evidence: Final = app.second_hop
        # One for each hop: while one waits for its monitors, the other reads on.
        self._fetchers: Final = tuple(app.new_fetcher(self._wake) for _ in ("rank", "job"))

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
        if not await try_for(LEAVE_S, super().on_stop()):
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
    """Connects to nothing: we send with `kafka.outbox`."""

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
