"""Whether the topics are still those that a worker's partitions were restored from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_ids import TopicIds
from irregulars.streams.stages.made_anew import LogEnds, changed_ids
from irregulars.streams.stages.partition_state import Offsets, PartitionState
from irregulars.streams.telemetry.counters import Counters
from irregulars.streams.worker_settings import WorkerSettings

R = TypeVar("R")

LOG: Final = logging.getLogger("irregulars.worker")
_REASON: Final = (
    "it was deleted and made again, or cut, since the last snapshot; what stood there and was not read is lost, and "
    "what stands there now is read from its beginning"
)


class TopicWatch:
    """Knows which topics stand behind the names.

    Attributes
    ----------
    ids
        As partitions were restored; those of topics that are away stay. Each `look` makes another object.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.ids: Mapping[str, str] = {}
        self._asked: Final = TopicIds(
            settings.bootstrap, settings.topics, settings.security, settings.broker_timeout_s
        )
        self._ends: Final = LogEnds()
        self._name: Final = settings.topics.name
        self._reader: Final = LogReader(settings.bootstrap, settings.security, settings.broker_timeout_s)
        self._sound: set[tuple[str, int, int]] = set()  # what was read last, and is there though the log ends before
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-topics")

    async def look(self) -> set[str]:
        """Take over the topics as they are; return those that were others when they were looked at before."""
        found = await self._read()
        anew = changed_ids(self.ids, found)
        self.ids = {**self.ids, **found}
        self._ends.forget()
        return anew

    async def changed_since(
        self, ids: Mapping[str, str], states: Iterable[PartitionState[Any]], ends: Mapping[int, Offsets]
    ) -> set[str]:
        """Return the topics that have other ids, or that have ended for a while before what was read of them."""
        suspect = self._ends.look(states, ends)
        self._sound &= suspect
        return changed_ids(ids, await self._read()) | await self._in_thread(self._cut, suspect - self._sound)

    def _cut(self, places: Iterable[tuple[str, int, int]]) -> set[str]:
        """Return the topics of which what was read last is gone."""
        found = set()
        for topic, partition, offset in places:
            if self._reader.holds(self._name(topic), partition, offset):
                self._sound.add((topic, partition, offset))
            else:
                found.add(topic)
        return found

    async def _read(self) -> dict[str, str]:
        return await self._in_thread(self._asked.read)

    async def _in_thread(self, work: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        """Let go of the thread, without waiting for a broker that does not answer."""
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)


def tell_made_anew(by_hop: Iterable[Mapping[str, Set[int]]], counters: Counters) -> None:
    """Say, a line a topic, which partitions are read from their beginning although they were read before."""
    found: dict[str, set[int]] = {}
    for own in by_hop:
        for topic, partitions in own.items():
            found.setdefault(topic, set()).update(partitions)
    for topic, partitions in sorted(found.items()):
        counters.read_anew(topic, len(partitions))
        numbers = ",".join(map(str, sorted(partitions)))
        LOG.error("event=topic_made_anew topic=%s partitions=%s reason=%r", topic, numbers, _REASON)
