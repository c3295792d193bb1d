"""Whether a worker's topics are there, and still those that its partitions were restored from.

A topic that was deleted and made anew, or cut (an unclean election of a leader), holds other messages at the offsets
that were read. A worker that went on would pass over all that comes until the log is as long as it was. So it ends,
and an operator deletes the snapshots with the topic: the topic is then read from its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from irregulars.errors import ServiceError, TopicMismatch
from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.topic_admin import TopicIds, check_topics, require_same_topics, what_to_do
from irregulars.kafka.topics import WORKER_TOPICS, TopicSettings
from irregulars.streams.health.broker_watch import QUIET_S
from irregulars.streams.stages.partition_state import Offsets, PartitionState
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
_LOOK_S: Final = 10.0
_LOOKS: Final = 2
"""Looks in a row at which topics are missing before that is logged: a busy broker forgets one for a moment."""
_END_S: Final = 5.0
_END_AGAIN_S: Final = 0.5
"""A log counts as cut if for `_END_S` it has ended before the position up to which it was read: a new leader may need
a moment to know its end."""


class TopicWatch:
    """Checks that the topics are there, and still the same.

    `settings`: ``broker_away_s`` is how long a topic may be missing, as long as the broker may be away.

    `ids`: Kafka's ids of the topics, as they were found first; of those that are away when a worker starts, later.
    """

    def __init__(self, settings: WorkerSettings, reading: ReadingThread) -> None:
        self.ids: Mapping[str, str] = {}
        self.every_s: Final = min(_LOOK_S, settings.broker_away_s / 4)
        self._settings: Final = settings
        self._asked: Final = TopicIds(
            settings.bootstrap, settings.topics, settings.security, settings.broker_timeout_s
        )
        self._reading: Final = reading
        self._since_s = 0.0
        self._missed = 0

    async def look_for_missing(self) -> None:
        """Look whether all topics are there: without ``evidence`` a worker is given no partitions.

        Raises `TopicMismatch` if they have been missing, or have not fitted together, for too long.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(None, partial(require_topics, self._settings))
        except TopicMismatch as error:
            now_s, most_s = time.monotonic(), self._settings.broker_away_s
            if not self._missed:
                self._since_s = now_s
            self._missed += 1
            if self._missed == _LOOKS:
                LOG.error("event=topics_missing waits_s=%g reason=%r", most_s, str(error))
            if self._missed > _LOOKS and now_s - self._since_s > most_s:
                raise error
        except ServiceError:  # `BrokerWatch` logs that; connections stay
            return
        else:
            self._missed = 0

    async def require_same(self, read_to: Iterable[tuple[int, Offsets]], ends: Mapping[int, Offsets]) -> None:
        """Require that no topic was made anew, and that none ends before the position up to which it was read.

        `read_to`, `ends`: how far partitions were read by topic (without prefix), and where they ended then or later.

        Raises `TopicMismatch` if so; the text names the topic; `ServiceUnavailable` if the broker does not answer.
        """
        topics = self._settings.topics
        found = await self._reading.run(self._asked.read)
        require_same_topics(self.ids, found, topics)
        self.ids = {**found, **self.ids}
        behind = [
            (topic, partition, at)
            for partition, positions in read_to
            for topic, at in positions.items()
            if at > ends.get(partition, {}).get(topic, at)
        ]
        for topic, partition, at in behind:
            # The newest message that was read must still be there: an end alone may be an outdated answer.
            if not await self._reading.run(self._holds, topics.name(topic), partition, at - 1):
                raise TopicMismatch(
                    f"topic must hold what was read of it; got {topics.name(topic)}/{partition}, which ends at "
                    f"{ends[partition][topic]}, before {at}: it was cut, or made anew. {what_to_do(topics)}"
                )

    def _holds(self, topic: str, partition: int, offset: int) -> bool:
        """Whether a message is there at an offset, or behind it; some brokers report an end before the true one."""
        until_s = time.monotonic() + _END_S
        while not self._reading.reader.holds(topic, partition, offset):
            if time.monotonic() > until_s:
                return False
            time.sleep(_END_AGAIN_S)
        return True


def require_topics(settings: WorkerSettings) -> None:
    """Ask, within some seconds, for a worker's topics; raises as `check_topics` does."""
    within_s = min(settings.broker_timeout_s, QUIET_S)
    check_topics(settings.bootstrap, settings.topics, settings.security, within_s, WORKER_TOPICS)


_LOOKS_BEFORE_END: Final = 3
"""Looks in a row at which a partition was at the same offset, and before its end, until the log is asked."""


class LogGaps:
    """Lets partitions move on over offsets without messages, so that no clock waits for ever to read up to them.

    A transaction leaves a marker at its end, which no consumer is given; retention may delete a tail that was never
    read. In both cases the partition ends behind the last message that comes. The log is asked only where reading
    stands still before an end: a consumer's own position counts messages that it has fetched and no monitor has yet.
    """

    def __init__(self, reading: ReadingThread, topics: TopicSettings) -> None:
        self._reading: Final = reading
        self._name: Final = topics.name
        self._standing: dict[tuple[PartitionState[Any], str], tuple[int, int]] = {}  # offset, and looks at it

    async def move_on(self, states: Iterable[PartitionState[Any]], ends: Mapping[int, Offsets]) -> None:
        """Find where reading stands still before one of the `ends`; ask the log where it has done so for a while."""
        seen, self._standing = self._standing, {}
        for state in states:
            for topic, end in ends.get(state.partition, {}).items():
                at = state.read_to().get(topic)
                if at is None or at >= end:
                    continue
                before, looks = seen.get((state, topic), (at, 0))
                self._standing[state, topic] = (at, looks + 1 if before == at else 1)
        for (state, topic), (at, looks) in list(self._standing.items()):
            if looks < _LOOKS_BEFORE_END:
                continue
            del self._standing[state, topic]
            try:
                found = await self.first_offset(topic, state.partition, at)
            except ServiceError as error:  # the clock stands still, which accuses no rank
                LOG.debug("event=no_look error=%s reason=%r", type(error).__name__, str(error))
                continue
            if found > at:
                state.skip_to(topic, found)  # never back: it may have been read on meanwhile
                LOG.info("event=gap topic=%s partition=%d from=%d to=%d", topic, state.partition, at, found)

    async def first_offset(self, topic: str, partition: int, at: int) -> int:
        """Return the offset of the first message at or behind `at`; if there is none, where the next may come.

        Raises `ServiceError` if the broker does not answer.
        """
        return await self._reading.run(self._reading.reader.next_offset, self._name(topic), partition, at)
