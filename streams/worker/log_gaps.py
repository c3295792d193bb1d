"""Ends of partitions to which no message leads, so that no clock waits for ever to read up to them.

A transaction leaves a marker at its end, which no consumer is given; retention may delete a tail that nobody read. In
both cases the partition ends behind the last message that anybody will see. What stands between is asked of the log,
and only where reading stands still before an end: a consumer's own position tells what it has fetched, and not what
has come to a monitor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from irregulars.errors import ServiceError
from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.topics import TopicSettings
from irregulars.streams.stages.partition_state import Offsets, PartitionState

LOG: Final = logging.getLogger("irregulars.worker")
_LOOKS: Final = 3
"""Looks in a row at which a partition was at the same offset, and before its end, until the log is asked."""


class LogGaps:
    """Lets partitions move on over what holds no message."""

    def __init__(self, reading: ReadingThread, topics: TopicSettings) -> None:
        self._reading: Final = reading
        self._name: Final = topics.name
        self._standing: dict[tuple[PartitionState[Any], str], tuple[int, int]] = {}  # offset, and looks at it

    async def move_on(self, states: Iterable[PartitionState[Any]], ends: Mapping[int, Offsets]) -> None:
        """Look where reading stands before one of the `ends`, and ask the log about those that stood there before."""
        seen, self._standing = self._standing, {}
        for state in states:
            for topic, end in ends.get(state.partition, {}).items():
                at = state.read_to().get(topic)
                if at is None or at >= end:
                    continue
                before, looks = seen.get((state, topic), (at, 0))
                self._standing[state, topic] = (at, looks + 1 if before == at else 1)
        for (state, topic), (at, looks) in list(self._standing.items()):
            if looks >= _LOOKS:
                del self._standing[state, topic]
                await self._ask(state, topic, at)

    async def first_offset(self, topic: str, partition: int, at: int) -> int:
        """Return the offset of the first message at or behind `at`; if there is none, where the next may come.

        Raises `ServiceError` if the broker does not say.
        """
        return await self._reading.run(self._reading.reader.next_offset, self._name(topic), partition, at)

    async def _ask(self, state: PartitionState[Any], topic: str, at: int) -> None:
        try:
            found = await self.first_offset(topic, state.partition, at)
        except ServiceError as error:  # the clock stands, which accuses nobody
            LOG.debug("event=no_look error=%s reason=%r", type(error).__name__, str(error))
            return
        if found > at:
            state.skip_to(topic, found)  # never back: it may have been read on meanwhile
            LOG.info("event=gap topic=%s partition=%d from=%d to=%d", topic, state.partition, at, found)
