"""The monitors of one assigned partition, how far each has read, and which message is the next.

Plain bookkeeping, without Kafka. Two promises make recovery exact:

* a monitor is never fed a message at or below the offset that it has seen (`Tracked.has_seen`);
* `PartitionState.position` never passes a message that is in no monitor yet (it waits in an inbox, or is parked).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from irregulars.errors import ServiceError
from irregulars.streams.health.monitor_faults import NOT_GIVEN_UP, GivenUp
from irregulars.streams.snapshots.records import Offsets as Offsets  # theirs and ours: others take it from here

M = TypeVar("M")


@dataclass(eq=False)
class Tracked(Generic[M]):
    """One monitor, and the newest offset per topic that is in its state."""

    key: bytes
    monitor: M
    seen: Offsets = field(default_factory=dict)
    is_dirty: bool = False
    ended_at_s: float | None = None
    heard_at_s: float = field(default_factory=time.monotonic)
    faults: int = 0  # see `streams.health.monitor_faults`
    given_up: GivenUp = NOT_GIVEN_UP
    is_unstored: bool = False  # it began anew, and the state that is stored is the one before that

    def has_seen(self, topic: str, offset: int) -> bool:
        """Whether the monitor's state holds this message already."""
        return offset <= self.seen.get(topic, -1)

    def saw(self, topic: str, offset: int) -> None:
        """Note that the message is in the monitor's state now."""
        self.seen[topic] = offset
        self.is_dirty = True
        self.heard_at_s = time.monotonic()


class PartitionState(Generic[M]):
    """One partition of one hop, from its assignment to its revocation.

    `generation`: of the consumer group: messages that were fetched in another one are not for this state.
    `epoch`: grows with every assignment of the partition to any worker; see `streams.snapshots.snapshot_log`.
    """

    def __init__(self, partition: int, generation: int, epoch: int, positions: Mapping[str, int]) -> None:
        self.partition = partition
        self.generation = generation
        self.epoch = epoch
        self.tracked: dict[bytes, Tracked[M]] = {}
        self.cycle: Final = asyncio.Lock()  # held while a snapshot of it is written
        self.rests_until_s = 0.0  # before that no further one begins
        self.stored_position: Offsets = dict(positions)
        self._next: Offsets = dict(positions)
        self._unfinished: dict[str, dict[int, None]] = {}  # offsets ascending, as they were taken

    def go_on_at(self, positions: Mapping[str, int]) -> None:
        """Read on from elsewhere; call it before anything was taken."""
        self.stored_position, self._next = dict(positions), dict(positions)

    def begin_at(self, topic: str, offset: int) -> None:
        """Note where reading begins: messages before it are stored, or were deleted unread."""
        self.stored_position[topic] = offset
        self._next[topic] = max(offset, self._next.get(topic, 0))

    def read_to(self) -> Offsets:
        """Return the offsets of the next messages to read, parked ones counted as read."""
        return dict(self._next)

    def next_of(self, topic: str) -> int:
        """Return the offset of the next message of a topic."""
        return self._next.get(topic, 0)

    def take(self, topic: str, offset: int) -> None:
        """Note that a message was read."""
        self._next[topic] = max(offset + 1, self._next.get(topic, 0))

    def skip_to(self, topic: str, offset: int) -> None:
        """Note that all messages before this offset have been read."""
        self._next[topic] = max(offset, self._next.get(topic, 0))

    def begin(self, topic: str, offset: int) -> None:
        """Note that a message which was taken is in no monitor yet."""
        self._unfinished.setdefault(topic, {})[offset] = None

    def finish(self, topic: str, offset: int) -> None:
        """Note that it is in a monitor now, or in the dead-letter topic."""
        self._unfinished.get(topic, {}).pop(offset, None)

    def position(self) -> Offsets:
        """Return the offsets before which all messages are in a monitor, or buried.

        From there a restart would have to read, once the monitors as of now are stored.
        """
        positions = dict(self._next)
        for topic, offsets in self._unfinished.items():
            if offsets:
                positions[topic] = min(next(iter(offsets)), positions[topic])
        return positions

    @property
    def is_changed(self) -> bool:
        """Whether a snapshot would hold more than the last one."""
        return self.position() != self.stored_position or any(t.is_dirty for t in self.tracked.values())

    def is_covered(self, tracked: Tracked[M]) -> bool:
        """Whether a restart would not read this monitor's messages again: only then may its state go."""
        return all(offset < self.stored_position.get(topic, 0) for topic, offset in tracked.seen.items())


LOG: Final = logging.getLogger("irregulars.worker")
_AGAIN_S: Final = 10.0
"""After which reading is sent back again, s: messages on their way, in Faust's queues too, have come by then."""

FirstOffset = Callable[[str, int, int], Awaitable[int]]
"""Topic, partition, offset: gives the offset of the first message there or behind; raises `ServiceError`."""

GoBack = Callable[[str, int, int], Awaitable[None]]  # topic, partition, offset: reads on from there


class Continuity:
    """Passes no message over: each must be the next one of its partition, or no other may stand in between.

    Where reading begins is sought after each rebalance, and Faust may hand over messages that were fetched before, or
    pass over those that it takes for read: two rebalances within a second did that. A worker that took such a message
    would store a position behind others that no monitor has seen. So a message that is not the next one is not taken
    unless the log says that nothing stands in between (a transaction's marker, messages that were compacted or
    deleted); otherwise reading goes back to where it was. Messages that come a second time are skipped.
    """

    def __init__(self, first_offset: FirstOffset, go_back: GoBack) -> None:
        self._first_offset: Final = first_offset
        self._go_back: Final = go_back
        self._sent_back: WeakKeyDictionary[PartitionState[Any], dict[str, tuple[int, float]]] = WeakKeyDictionary()

    async def is_next(self, state: PartitionState[Any], topic: str, offset: int) -> bool:
        """Whether a message is the next one to take; if some stand before it, see to it that they come."""
        wanted = state.next_of(topic)
        if offset <= wanted:
            return offset == wanted
        to, at_s = self._sent_back.get(state, {}).get(topic, (-1, 0.0))
        # Sent back a moment ago: messages that were fetched before still come.
        if to == wanted and time.monotonic() - at_s < _AGAIN_S:
            return False
        try:
            if await self._first_offset(topic, state.partition, wanted) >= offset:
                state.skip_to(topic, offset)
                return True
        except ServiceError as error:  # it will come again, and be asked for again
            LOG.debug("event=no_look error=%s reason=%r", type(error).__name__, str(error))
        LOG.warning("event=passed_over topic=%s partition=%d from=%d to=%d", topic, state.partition, wanted, offset)
        self._sent_back.setdefault(state, {})[topic] = wanted, time.monotonic()
        await self._go_back(topic, state.partition, wanted)
        return False
