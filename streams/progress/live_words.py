"""By which words of people a worker judges the evidence of its partitions: changed thresholds, opinions on verdicts.

A word holds from a place in the log on (`streams.snapshots.word_steps`): the next evidence of the partition that the
worker takes once it has read the word; after a restart, the end of what stands there then, since what stands before
may have been judged without. The place is stored before any evidence behind it is taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.messages.opinions import Opinion
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.streams.progress.word_log import ReadWords, W, WordLog
from irregulars.streams.snapshots.records import PositionRecord
from irregulars.streams.snapshots.word_steps import WordSteps

LOG: Final = logging.getLogger("irregulars.worker")
_BURIES: Final = 0
"""The partition whose owner sends words that can't be used to the dead letters: every worker reads them."""

_NONE: Final = WordSteps()
_MOST_TOLD: Final = 100
"""Words that begin to hold at once and are told one by one."""


class HeldPartition(Protocol):
    """`streams.stages.partition_state.PartitionState`, as it is used here: one assignment of one partition."""

    partition: int


class Heard(NamedTuple, Generic[W]):
    """What people said of a job before some evidence of it.

    Parameters
    ----------
    revision
        How far their topic counts.
    words
        Those on this job, or on all, in the order of the topic; the same object while they last.
    """

    revision: int
    words: tuple[W, ...]


class LiveWords(Generic[W]):
    """Keeps, for all partitions that a worker has, from where on which words of one topic hold.

    Parameters
    ----------
    name
        Of the topic, without prefix.
    log
        What was read of it; None: nobody says anything.
    describe
        The end of a line of the worker's log, for a word that begins to hold.
    dead_letters
        Where messages go that are no words; None: nowhere.
    """

    def __init__(
        self, name: str, log: WordLog[W] | None, describe: Callable[[W], str], dead_letters: DeadLetters | None = None
    ) -> None:
        self._name: Final = name
        self._log: Final = log
        self._describe: Final = describe
        self._dead_letters: Final = dead_letters
        self._steps: WeakKeyDictionary[HeldPartition, WordSteps] = WeakKeyDictionary()
        self._planned: WeakKeyDictionary[HeldPartition, WordSteps] = WeakKeyDictionary()
        self._found: tuple[ReadWords[W], dict[tuple[str, int], Heard[W]]] = (ReadWords(), {})

    async def restore(self, state: HeldPartition, steps: WordSteps, end: int, *, is_judged: bool) -> None:
        """Take over a partition.

        Parameters
        ----------
        steps, end
            What was stored of it, and where its evidence ends.
        is_judged
            Whether some of it may have been judged before; else all of it can be by what holds now.

        Raises
        ------
        ServiceUnavailable
            If words hold there that can't be read: nothing may be judged then.
        """
        steps = steps.bounded(end)
        if steps.newest and self._log is not None and not self._log.is_readable:
            raise ServiceUnavailable(
                f"topic {self._name} must be readable, since words up to offset {steps.newest} hold in "
                f"partition {state.partition}; it is not there, or not for us. See: irregulars topics check"
            )
        self._steps[state] = self._planned[state] = steps
        if steps.newest:  # `begin` says when a word begins to hold, unless its partition was taken away just then
            LOG.info("event=words_hold topic=%s partition=%d revision=%d", self._name, state.partition, steps.newest)
        if self.has_news(state):
            await self.plan(state, end if is_judged else 0)
            self.begin(state)

    def from_start(self) -> WordSteps:
        """Return the steps of a partition of which all is judged by what was read."""
        revision = self._known.revision
        return WordSteps().begin(0, revision) if revision else _NONE

    def has_news(self, state: HeldPartition) -> bool:
        """Whether words were read that do not hold in a partition yet."""
        is_readable = self._log is not None and self._log.is_readable
        return is_readable and self._known.revision != self._steps.get(state, _NONE).newest

    async def plan(self, state: HeldPartition, offset: int) -> None:
        """Note that all that was read is to hold from an offset on; `begin` follows when that is stored."""
        before, revision = self._steps[state].newest, self._known.revision
        self._planned[state] = self._steps[state].begin(offset, revision)
        if self._dead_letters is not None and state.partition == _BURIES:
            for message in self._known.unusable_between(before, revision):
                await self._dead_letters.bury(message, message.reason)

    def begin(self, state: HeldPartition) -> None:
        """Let what was planned hold."""
        before, self._steps[state] = self._steps[state].newest, self._planned[state]
        if not self._steps[state].steps:
            return
        newest = self._steps[state].steps[-1]
        words = self._known.between(before, newest.revision)
        if len(words) > _MOST_TOLD:  # a line each would take the event loop for seconds
            LOG.info("event=%s partition=%d from_offset=%d revision=%d words=%d", self._name, state.partition,
                     newest.offset, newest.revision, len(words))  # fmt: skip
            return
        for word in words:
            LOG.info(
                "event=%s partition=%d from_offset=%d revision=%d job=%r %s", self._name, state.partition,
                newest.offset, newest.revision, word.job or "*", self._describe(word),
            )  # fmt: skip

    def to_store(self, state: HeldPartition) -> WordSteps:
        """Return what a snapshot is to keep."""
        return self._planned.get(state, _NONE)

    def heard(self, state: HeldPartition, job: str, offset: int) -> Heard[W]:
        """Return the words by which a job's evidence at an offset is judged."""
        steps = self._steps.get(state, _NONE)
        known, found = self._found
        if known is not self._known:
            known, found = self._found = self._known, {}
        key = job, steps.revision_at(offset)
        if key not in found:
            found[key] = Heard(key[1], known.of(*key))
        return found[key]

    def revision(self, states: Iterable[HeldPartition]) -> int:
        """Return the revision that holds for what comes next in all of these partitions: the lowest."""
        return min((self._steps[one].newest for one in states if one in self._steps), default=0)

    @property
    def _known(self) -> ReadWords[W]:
        return ReadWords() if self._log is None else self._log.known


class PeopleSay:
    """All that people say by which a worker judges.

    Parameters
    ----------
    thresholds
        The topic ``thresholds``; None: nobody changes anything.
    opinions
        The topic ``feedback``; None: no detector is taught by it.
    dead_letters
        Where messages go that are no changes of thresholds.
    """

    def __init__(
        self,
        thresholds: WordLog[ThresholdChange] | None,
        opinions: WordLog[Opinion] | None,
        dead_letters: DeadLetters,
    ) -> None:
        self.thresholds: Final = LiveWords("thresholds", thresholds, _of_change, dead_letters)
        self.opinions: Final = LiveWords("feedback", opinions, _of_opinion)
        self._gates: WeakKeyDictionary[HeldPartition, asyncio.Lock] = WeakKeyDictionary()

    def gate(self, state: HeldPartition) -> asyncio.Lock:
        """Return what whoever takes evidence of a partition holds, and whoever changes by what it is judged."""
        return self._gates.setdefault(state, asyncio.Lock())

    async def restore(self, state: HeldPartition, stored: PositionRecord, end: int) -> None:
        """Take over a partition whose evidence ends at `end`; raises as `LiveWords.restore`."""
        is_judged = stored.ends is not None
        await self.thresholds.restore(state, stored.thresholds, end, is_judged=is_judged)
        await self.opinions.restore(state, stored.opinions, end, is_judged=is_judged)

    def from_start(self, stored: PositionRecord) -> PositionRecord:
        """Let a partition whose record is lost be judged by what was said until now."""
        return replace(stored, thresholds=self.thresholds.from_start(), opinions=self.opinions.from_start())

    def has_news(self, state: HeldPartition) -> bool:
        """Whether something was said that does not hold in a partition yet."""
        return any(one.has_news(state) for one in self._all)

    async def plan(self, state: HeldPartition, offset: int) -> None:
        """Note that all that was said is to hold from an offset on; `begin` follows when that is stored."""
        for one in self._all:
            if one.has_news(state):
                await one.plan(state, offset)

    def begin(self, state: HeldPartition) -> None:
        """Let what was planned hold."""
        for one in self._all:
            one.begin(state)

    @property
    def _all(self) -> tuple[LiveWords[Any], ...]:
        return self.thresholds, self.opinions


def _of_change(change: ThresholdChange) -> str:
    return f"change={change.change_id} values={change.describe()!r} who={change.who!r}"


def _of_opinion(opinion: Opinion) -> str:
    words = {True: "right", False: "wrong", None: "withdrawn"}
    return f"verdict={opinion.verdict_id!r} said={words[opinion.is_right]} who={opinion.who!r}"
