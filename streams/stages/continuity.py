"""No message is passed over: each must be the next one of its partition, or no other may stand in between.

Where reading begins is sought after each rebalance, and Faust may hand over messages that were fetched before, or
pass over those that it takes for read: two rebalances within a second did that. A worker that took such a message
would store a position behind others that no monitor has seen. So a message that is not the next one is not taken
unless the log says that nothing stands in between (a transaction's marker, messages that were compacted or deleted);
otherwise reading goes back to where it was. Messages that come a second time are skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from irregulars.errors import ServiceError
from irregulars.streams.stages.partition_state import PartitionState

LOG: Final = logging.getLogger("irregulars.worker")
_AGAIN_S: Final = 10.0
"""After which reading is sent back again, s: messages on their way, in Faust's queues too, have come by then."""

FirstOffset = Callable[[str, int, int], Awaitable[int]]
"""Topic, partition, offset: gives the offset of the first message there or behind; raises `ServiceError`."""

GoBack = Callable[[str, int, int], Awaitable[None]]
"""Topic, partition, offset: reads on from there."""


class Continuity:
    """Decides of each message whether it may be taken.

    Parameters
    ----------
    first_offset, go_back
        Ask the log, and seek.
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
        if self._was_just_sent_back(state, topic, wanted):
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

    def _was_just_sent_back(self, state: PartitionState[Any], topic: str, wanted: int) -> bool:
        to, at_s = self._sent_back.get(state, {}).get(topic, (-1, 0.0))
        return to == wanted and time.monotonic() - at_s < _AGAIN_S
