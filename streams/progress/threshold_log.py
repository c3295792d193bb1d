"""The topic ``thresholds`` as a worker follows it.

Changes are few, and the topic keeps each of them for ever: a worker that starts reads all of them before it judges.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from irregulars.errors import RecordError, ServiceError, ServiceUnavailable, TopicMismatch
from irregulars.streams.kafka.log_reader import LogReader
from irregulars.streams.messages.threshold_changes import ThresholdChange, decode_change

LOG: Final = logging.getLogger("irregulars.worker")
THRESHOLDS_S: Final = 2.0
"""Seconds between two looks."""


@dataclass(slots=True)
class UnusableChange:
    """A message that is no change of thresholds: as it came, for the dead letters, and why."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    key: bytes | None
    value: bytes | None
    reason: str


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """What was read of the topic.

    Parameters
    ----------
    revision
        How far: the offset of the next change.
    changes, unusable
        Changes with their offsets, and the messages that are none, both in the order of the topic.
    """

    revision: int = 0
    changes: tuple[tuple[int, ThresholdChange], ...] = ()
    unusable: tuple[UnusableChange, ...] = ()

    def of(self, job: str, revision: int) -> tuple[ThresholdChange, ...]:
        """Return the changes before a revision that concern a job."""
        return tuple(one for at, one in self.changes if at < revision and one.job in (None, job))

    def unusable_between(self, begin: int, end: int) -> Sequence[UnusableChange]:
        """Return the messages of a range of revisions that are no changes."""
        return [one for one in self.unusable if begin <= one.offset < end]


class ThresholdLog:
    """Reads what was changed since the last look.

    Parameters
    ----------
    topic
        Full name.
    reader
        For this log alone: it is used in a thread of its own.

    Attributes
    ----------
    known
        What was read so far.
    is_readable
        Whether the topic could be read when it was last looked at: it is there, and we may.
    """

    def __init__(self, topic: str, reader: LogReader) -> None:
        self.known = ReadChanges()
        self.is_readable = False
        self._topic: Final = topic
        self._reader: Final = reader
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-thresholds")
        self._trouble = ""

    async def read(self) -> None:
        """Read what is new. Without the topic there is nothing, and a line of the log says so.

        Raises
        ------
        ServiceUnavailable
            If the broker does not send it: then nobody knows by what to judge.
        """
        self.known = await asyncio.get_running_loop().run_in_executor(self._thread, self._follow)

    def forget(self) -> None:
        """Forget what was read: the topic was made anew."""
        self.known = ReadChanges()

    def close(self) -> None:
        """Let go of thread and connection, without waiting for a broker that does not answer."""
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)

    def _follow(self) -> ReadChanges:
        try:
            if not self._reader.partitions(self._topic):
                raise TopicMismatch(
                    f"topic must exist, and we must be allowed to read it; got none named {self._topic}. Make it: "
                    "irregulars topics create; with ACLs also: irregulars topics grant worker User:NAME"
                )
            found = self._read(self.known)
        except ServiceUnavailable:
            raise
        except ServiceError as error:  # settings alone say how to judge
            self.is_readable = False
            if str(error) != self._trouble:
                self._trouble = str(error)
                LOG.warning("event=no_thresholds reason=%r", self._trouble)
            return self.known
        self._trouble, self.is_readable = "", True
        return found

    def _read(self, known: ReadChanges) -> ReadChanges:
        _, end = self._reader.bounds(self._topic, 0)
        if end < known.revision:  # the topic was made anew
            known = ReadChanges()
        if end == known.revision:
            return known
        changes, unusable = [*known.changes], [*known.unusable]
        for message in self._reader.messages(self._topic, 0, known.revision, end):
            offset = message.offset() or 0
            if message.value() is None:  # someone erased it by hand
                continue
            try:
                changes.append((offset, decode_change(message.value())))
            except RecordError as error:
                LOG.warning("event=unreadable topic=%s offset=%d reason=%r", self._topic, offset, str(error))
                unusable.append(UnusableChange(self._topic, 0, offset, message.timestamp()[1] / 1000, message.key(),
                                               message.value(), str(error)))  # fmt: skip
        return ReadChanges(end, tuple(changes), tuple(unusable))
