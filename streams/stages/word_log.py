"""A topic of people's words as a worker follows it: changes of thresholds, or opinions on verdicts.

Words are few, and the topic keeps the newest of each key for ever: a worker that starts reads all of them before it
judges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from irregulars.errors import RecordError, ServiceError, ServiceUnavailable, TopicMismatch
from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.topics import TopicSettings

LOG: Final = logging.getLogger("irregulars.worker")
WORDS_S: Final = 2.0
"""Seconds between two readings of the changed thresholds; see `messages.threshold_changes.LEAD_NS`."""
OPINIONS_S: Final = 10.0  # seconds between two readings for the database: no one waits for a row of feedback


class Word(Protocol):
    """A message of a person: `ThresholdChange`, `Opinion`."""

    @property
    def job(self) -> str | None:
        """The job that it is about; None: all of them."""


W = TypeVar("W", bound=Word)


@dataclass(frozen=True, slots=True)
class ReadWords(Generic[W]):
    """The words that were read of a topic, in its order."""

    revision: int = 0  # the offset of the next word
    words: tuple[W, ...] = ()
    _by_job: dict[str, tuple[W, ...]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, job: str) -> tuple[W, ...]:
        """Return the words that concern a job; each time the same object."""
        if job not in self._by_job:  # looked up once a job, and not each second for each of thousands of monitors
            self._by_job[job] = tuple(one for one in self.words if one.job in (None, job))
        return self._by_job[job]


class WordLog(Generic[W]):
    """Reads the words that came since the last reading.

    `name`: of the topic without the prefix; names the line of the log that says why nothing is read.
    `decode`: makes a word of a message's value; raises `RecordError`.

    `known`: the words that were read so far; another object once more have come.
    """

    def __init__(
        self, topics: TopicSettings, name: str, reading: ReadingThread, decode: Callable[[bytes | None], W]
    ) -> None:
        self.known: ReadWords[W] = ReadWords()
        self._topic: Final = topics.name(name)
        self._name: Final = name
        self._reading: Final = reading
        self._decode: Final = decode
        self._trouble = ""

    async def read(self) -> tuple[W, ...]:
        """Read the words that are new, and return them. Without the topic there are none; a line of the log says so.

        Raises `ServiceUnavailable` if the broker does not send it: then the thresholds by which to judge are not
        known.
        """
        before = len(self.known.words)
        self.known = await self._reading.run(self._follow)
        return self.known.words[before:]

    def _follow(self) -> ReadWords[W]:
        try:
            if not self._reading.reader.partitions(self._topic):
                raise TopicMismatch(
                    f"topic must exist, and we must be allowed to read it; got none named {self._topic}. Make it: "
                    "irregulars topics create; with ACLs also: irregulars topics grant worker User:NAME"
                )
            found = self._read(self.known)
        except ServiceUnavailable:
            raise
        except ServiceError as error:  # the worker goes on by the words that it has read
            if str(error) != self._trouble:
                self._trouble = str(error)
                LOG.warning("event=no_%s reason=%r", self._name, self._trouble)
            return self.known
        self._trouble = ""
        return found

    def _read(self, known: ReadWords[W]) -> ReadWords[W]:
        _, end = self._reading.reader.bounds(self._topic, 0)
        # The same object: monitors compare by identity to see whether words have come.
        if end <= known.revision:
            return known
        words: list[W] = []
        for message in self._reading.reader.messages(self._topic, 0, known.revision, end):
            if message.value() is None:  # someone erased it by hand
                continue
            try:
                words.append(self._decode(message.value()))
            except RecordError as error:  # the topic keeps it: no copy goes to the dead letters
                LOG.warning(
                    "event=unreadable topic=%s offset=%d reason=%r", self._topic, message.offset(), str(error)
                )
        return ReadWords(end, (*known.words, *words))
