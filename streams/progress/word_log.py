"""A topic of people's words as a worker follows it: changes of thresholds, or opinions on verdicts.

Words are few, and the topic keeps the newest of each key for ever: a worker that starts reads all of them before it
judges.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from irregulars.errors import RecordError, ServiceError, ServiceUnavailable, TopicMismatch
from irregulars.kafka.log_reader import LogReader
from irregulars.messages.kept_message import KeptMessage

LOG: Final = logging.getLogger("irregulars.worker")
WORDS_S: Final = 2.0
"""Seconds between two looks at what is judged by."""
OPINIONS_S: Final = 10.0
"""Seconds between two looks for the database: nobody waits for a row of feedback."""


class Word(Protocol):
    """What somebody said: `ThresholdChange`, `Opinion`."""

    @property
    def job(self) -> str | None:
        """The job that it is about; None: all of them."""


W = TypeVar("W", bound=Word)


@dataclass(slots=True)
class UnusableWord(KeptMessage):
    """A message that is no word: as it came, for the dead letters, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReadWords(Generic[W]):
    """What was read of the topic.

    Parameters
    ----------
    revision
        How far: the offset of the next word.
    words, unusable
        Words with their offsets, and the messages that are none, both in the order of the topic; `more` adds to them.
    """

    revision: int = 0
    words: tuple[tuple[int, W], ...] = ()
    unusable: tuple[UnusableWord, ...] = ()
    _by_job: Mapping[str | None, tuple[tuple[int, W], ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find words by job."""
        if self.words and not self._by_job:
            object.__setattr__(self, "_by_job", self._with({}, self.words))

    def more(
        self, revision: int, words: Sequence[tuple[int, W]], unusable: Sequence[UnusableWord] = ()
    ) -> ReadWords[W]:
        """Return it with what stands from its revision to another one."""
        by_job = self._with(self._by_job, words)
        return ReadWords(revision, (*self.words, *words), (*self.unusable, *unusable), by_job)

    @staticmethod
    def _with(
        known: Mapping[str | None, tuple[tuple[int, W], ...]], words: Sequence[tuple[int, W]]
    ) -> Mapping[str | None, tuple[tuple[int, W], ...]]:
        new: dict[str | None, list[tuple[int, W]]] = {}
        for at, word in words:
            new.setdefault(word.job, []).append((at, word))
        return {**known, **{job: (*known.get(job, ()), *own) for job, own in new.items()}}

    def of(self, job: str, revision: int) -> tuple[W, ...]:
        """Return the words before a revision that concern a job; those on other jobs are not looked at."""
        on_all, own = self._by_job.get(None, ()), self._by_job.get(job, ())
        found = own if not on_all else sorted([*on_all, *own], key=_offset)
        return tuple(one for at, one in found if at < revision)

    def between(self, begin: int, end: int) -> list[W]:
        """Return the words of a range of revisions."""
        first, past = (bisect_left(self.words, at, key=_offset) for at in (begin, end))
        return [one for _, one in self.words[first:past]]

    def since(self, revision: int) -> list[W]:
        """Return the words from a revision on; all of them where the topic was made anew since."""
        return [one for at, one in self.words if at >= revision or revision > self.revision]

    def unusable_between(self, begin: int, end: int) -> Sequence[UnusableWord]:
        """Return the messages of a range of revisions that are no words."""
        return [one for one in self.unusable if begin <= one.offset < end]


def _offset(word: tuple[int, object]) -> int:
    return word[0]


class WordLog(Generic[W]):
    """Reads what was said since the last look.

    Parameters
    ----------
    topic
        Full name.
    name
        Without the prefix; names the thread and the line of the log that says why nothing is read.
    reader
        For this log alone: it is used in a thread of its own.
    decode
        Makes a word of a message's value; raises `RecordError`.
    keeps_unusable
        Whether messages that are no words are kept, for who buries them; False: the log tells of them alone.

    Attributes
    ----------
    known
        What was read so far.
    is_readable
        Whether the topic could be read when it was last looked at: it is there, and we may.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        reader: LogReader,
        decode: Callable[[bytes | None], W],
        *,
        keeps_unusable: bool = True,
    ) -> None:
        self.known: ReadWords[W] = ReadWords()
        self.is_readable = False
        self._topic: Final = topic
        self._name: Final = name
        self._reader: Final = reader
        self._decode: Final = decode
        self._keeps_unusable: Final = keeps_unusable
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix=f"irregulars-{name}")
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
        self.known = ReadWords()

    def close(self) -> None:
        """Let go of thread and connection, without waiting for a broker that does not answer."""
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)

    def _follow(self) -> ReadWords[W]:
        try:
            if not self._reader.partitions(self._topic):
                raise TopicMismatch(
                    f"topic must exist, and we must be allowed to read it; got none named {self._topic}. Make it: "
                    "irregulars topics create; with ACLs also: irregulars topics grant worker User:NAME"
                )
            found = self._read(self.known)
        except ServiceUnavailable:
            raise
        except ServiceError as error:  # thresholds are those of the settings then, and nobody teaches
            self.is_readable = False
            if str(error) != self._trouble:
                self._trouble = str(error)
                LOG.warning("event=no_%s reason=%r", self._name, self._trouble)
            return self.known
        self._trouble, self.is_readable = "", True
        return found

    def _read(self, known: ReadWords[W]) -> ReadWords[W]:
        _, end = self._reader.bounds(self._topic, 0)
        if end < known.revision:  # the topic was made anew
            known = ReadWords()
        if end == known.revision:
            return known
        words: list[tuple[int, W]] = []
        unusable: list[UnusableWord] = []
        for message in self._reader.messages(self._topic, 0, known.revision, end):
            offset = message.offset() or 0
            if message.value() is None:  # someone erased it by hand
                continue
            try:
                words.append((offset, self._decode(message.value())))
            except RecordError as error:
                LOG.warning("event=unreadable topic=%s offset=%d reason=%r", self._topic, offset, str(error))
                if self._keeps_unusable:
                    unusable.append(UnusableWord(self._topic, 0, offset, message.timestamp()[1] / 1000, message.key(),
                                                 message.value(), str(error)))  # fmt: skip
        return known.more(end, words, unusable)
