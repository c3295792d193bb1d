"""Faust's transport for a worker: it reads on from the snapshots' positions, a block of messages at a time.

A driver gives Faust the abstract methods of its base classes. Those for topics, keys and changelogs raise, since a
worker makes no topics through Faust and has no tables. Results go out through `kafka.outbox`; the producer is Faust's
base class, which connects to nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol, cast

from faust.transport import base
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from irregulars.streams.faust_driver.block_fetcher import BlockFetcher, Place, Record, cut_blocks
from irregulars.streams.faust_driver.group_member import GroupMember
from irregulars.streams.faust_driver.partition_offsets import BEGIN, END, PartitionOffsets
from irregulars.streams.health.reading_watch import WaitedTime
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
SCHEME: Final = "irregulars"
"""Name of the driver in the entry point group ``faust.transports``, and scheme of its broker's address."""

_FIRST_NUMBER: Final = 1 << 62
"""Faust drops a message whose offset is not beyond the last one's, and after a seek back that would drop all that is
read again, if a message was on its way meanwhile. Stages recognise known messages by `Record.offset`, so Faust gets
numbers that only grow, and lie beyond every offset that it is asked to seek."""

_LEAVE_S: Final = 1.5  # for leaving the group: there may be no broker to tell
_CLOSE_S: Final = 0.2


class Restorer(Protocol):
    """`streams.worker.app.WorkerApp`, as its consumer uses it."""

    consumer_generation_id: int
    rebalancing: bool
    settings: WorkerSettings
    second_hop: str  # full name of the topic that the second hop reads

    def on_rebalance_start(self) -> None:
        """See `faust.App`."""

    async def restore(self, assignment: set[TP]) -> dict[TP, int]:
        """See WorkerApp."""

    def let_go(self) -> None:
        """See WorkerApp."""

    def fail(self, error: BaseException) -> None:
        """See WorkerApp."""


class Consumer(base.Consumer):
    """Reads the partitions that the group assigns, from behind the restored state.

    Faust is given blocks of messages, each as one event. It acknowledges nothing: snapshots decide where reading goes
    on, and `commit_to` reports to the group how far these are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        worker = self._worker = cast(Restorer, self.app)
        settings = worker.settings
        self._waited: Final = WaitedTime()
        self._given_out = 0  # blocks that Faust was given and has not asked the messages of
        self._numbers: Final = itertools.count(_FIRST_NUMBER)
        self._fetched: Final = asyncio.Event()
        self._member: Final = GroupMember(settings, self)
        self._offsets: Final = PartitionOffsets(settings)
        # One for each hop: while one waits for its monitors, the other reads on.
        self._fetchers: Final = tuple(
            BlockFetcher(settings.bootstrap, settings.security, self._wake) for _ in ("rank", "job")
        )

    @property
    def waited_s(self) -> float:
        """Seconds so far in which all that was fetched had been handed over, whether or not Faust asked for more."""
        return self._waited.seconds

    async def on_start(self) -> None:
        """Connect, and fetch as soon as partitions are assigned."""
        await super().on_start()
        self._member.start()
        for fetcher in self._fetchers:
            fetcher.start()

    async def on_stop(self) -> None:
        """Leave the group, if that is soon done: the thread may have calls that get no answer."""
        await super().on_stop()
        # In a thread, as it joins the member's own, which may be waiting for this event loop.
        await asyncio.get_running_loop().run_in_executor(None, self._member.close, _LEAVE_S)
        for fetcher in self._fetchers:
            fetcher.close(_CLOSE_S)
        self._offsets.close()

    @property
    def silent_s(self) -> float:
        """See `GroupMember.silent_s`."""
        return self._member.silent_s

    # --- the group --------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group for these topics."""
        self._member.subscribe(topics)

    def assignment(self) -> set[TP]:
        """Return the partitions that are ours."""
        return set(self._member.own)

    async def revoked(self, own: set[TP], *, is_lost: bool = False) -> None:
        """Fetch no more, and let Faust and the stages know; an assignment follows."""
        if is_lost:
            self._worker.let_go()
        self._read_from({}, 0)
        self._worker.on_rebalance_start()
        await self.on_partitions_revoked(own)

    async def assigned(self, own: set[TP]) -> None:
        """Let Faust know, which then calls `seek_to_committed`.

        Assignments are counted here: the group's own generation may stay the same when a member joins again.
        """
        if not self._worker.rebalancing:  # the first one: Faust expects both halves of a rebalance
            await self.revoked(set())
        self._worker.consumer_generation_id += 1
        await self.on_partitions_assigned(own, self._worker.consumer_generation_id)

    def failed(self, error: BaseException) -> None:
        """End the worker: the group does not let it in, or partitions could not be taken or given back."""
        self._worker.fail(error)

    def commit_to(self, positions: Mapping[TP, int]) -> None:
        """Let the group know how far snapshots are."""
        self._member.commit(positions)

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        # Sent later, if at all: the group's offsets are for monitoring tools, and no reading depends on them.
        self._member.commit(offsets)
        return True

    # --- where to read ----------------------------------------------------------------------------------------------

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Restore the state of assigned partitions, read from behind it; Faust calls this after each rebalance."""
        generation = self._worker.consumer_generation_id
        positions = await self._worker.restore(self.assignment())
        if self._worker.consumer_generation_id == generation:  # else another assignment has come, and seeks by itself
            self._read_from(positions, generation)
        return positions

    def _read_from(self, positions: Mapping[TP, int], generation: int) -> None:
        own: tuple[dict[Place, int], dict[Place, int]] = {}, {}  # of the first hop, and of the second
        for place, at in positions.items():
            own[place.topic == self._worker.second_hop][place.topic, place.partition] = at
        for fetcher, some in zip(self._fetchers, own, strict=True):
            fetcher.assign(some, generation)

    async def read_on(self, positions: Mapping[TP, int]) -> None:
        """Seek to where reading has come to a stop, and undo pauses that may have stopped it."""
        self.resume_partitions(set(positions))
        for place, at in positions.items():
            await self.seek(place, at)
        self.resume_flow()

    async def _seek(self, partition: TP, offset: int) -> None:
        self._fetchers[partition.topic == self._worker.second_hop].seek(
            {(partition.topic, partition.partition): offset}
        )

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        """Seek; `BlockFetcher` hands over nothing from before."""
        for place, at in partitions.items():
            await self.seek(place, at)

    async def position(self, tp: TP) -> int | None:
        """Return to where a partition was handed over; see `position_of`."""
        return self.position_of(tp)

    def position_of(self, place: TP) -> int:
        """Return to where a partition was handed over, past offsets without messages. -1: it is not ours."""
        return self._fetchers[place.topic == self._worker.second_hop].position((place.topic, place.partition))

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        """Ask where partitions begin."""
        return await self._offsets.ask(partitions, BEGIN) if partitions else {}

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        """Ask where partitions end."""
        return await self._offsets.ask(partitions, END) if partitions else {}

    def highwater(self, tp: TP) -> int:
        """Return to where a partition was handed over: `highwaters` asks for its end."""
        return self.position_of(tp)

    # --- messages ---------------------------------------------------------------------------------------------------

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:  # noqa: ASYNC109
        self._waited.begin()
        # Cleared before the look: a wake-up that comes between look and wait must not be lost.
        self._fetched.clear()
        found = self._take(active_partitions)
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._fetched.wait()
            found = self._take(active_partitions)
        self._given_out = sum(map(len, found.values()))
        if found:
            self._waited.end()
        return found

    def stop_flow(self) -> None:
        """Stop handing blocks to Faust, which forgets those that it has not used yet."""
        super().stop_flow()
        self._waited.begin()

    def _take(self, places: set[TP] | None) -> dict[TP, list[Sequence[Record]]]:
        own = [fetcher.take(places) for fetcher in self._fetchers]
        return {TP(*place): list(cut_blocks(records)) for found in own for place, records in found.items()}

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        self._given_out -= 1
        if not self._given_out:
            self._waited.begin()
        last: Record = record[-1]
        return ConsumerMessage(
            tp.topic, tp.partition, next(self._numbers), last.timestamp, 0, None, None, record, None, None, None, tp,
            generation_id=last.generation_id,
        )  # fmt: skip

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self.loop.call_soon_threadsafe(self._fetched.set)

    def on_buffer_drop(self, tp: TP) -> None:
        """Go on with a partition whose events had filled their queue."""
        super().on_buffer_drop(tp)
        self._fetched.set()

    # --- methods that only tables, replies and declared topics need -------------------------------------------------

    async def create_topic(self, topic: str, partitions: int, replication: int, **_: Any) -> None:
        """Make no topics: ``irregulars topics create`` does."""
        raise _unused("create_topic")

    def topic_partitions(self, topic: str) -> int | None:
        """Only tables ask."""
        raise _unused("topic_partitions")

    def key_partition(self, topic: str, key: bytes | None, partition: int | None = None) -> int | None:
        """Only transactions ask."""
        raise _unused("key_partition")

    def _new_topicpartition(self, topic: str, partition: int) -> NoReturn:
        raise _unused("a partition's type")


def _unused(name: str) -> NotImplementedError:
    return NotImplementedError(f"a worker must not need {name} of Faust's consumer: it has no tables and no replies")


class Transport(base.Transport):
    """Our driver: Faust's transport with our `Consumer`."""

    Consumer = Consumer
    default_port: int = 9092
    driver_version: str = "irregulars on librdkafka"
