"""By which changed thresholds a worker judges the evidence of its partitions.

A change holds from a place in the log on (`streams.snapshots.threshold_steps`): the next evidence of the partition
that the worker takes once it has read the change; after a restart, the end of what stands there then, since what
stands before may have been judged without. The place is stored before any evidence behind it is taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from irregulars.errors import ServiceUnavailable
from irregulars.streams.kafka.dead_letters import DeadLetters
from irregulars.streams.messages.threshold_changes import ThresholdChange
from irregulars.streams.progress.threshold_log import ReadChanges, ThresholdLog
from irregulars.streams.snapshots.records import PositionRecord
from irregulars.streams.snapshots.threshold_steps import ThresholdSteps

LOG: Final = logging.getLogger("irregulars.worker")
_BURIES: Final = 0
"""The partition whose owner sends changes that can't be used to the dead letters: every worker reads them."""

_NONE: Final = ThresholdSteps()


class HeldPartition(Protocol):
    """`streams.stages.partition_state.PartitionState`, as it is used here: one assignment of one partition."""

    partition: int


class LiveThresholds:
    """Keeps the steps of all partitions that a worker has.

    Parameters
    ----------
    log
        The topic ``thresholds``; None: nobody changes anything.
    dead_letters
        Where messages go that are no changes.
    """

    def __init__(self, log: ThresholdLog | None, dead_letters: DeadLetters) -> None:
        self._log: Final = log
        self._dead_letters: Final = dead_letters
        self._steps: WeakKeyDictionary[HeldPartition, ThresholdSteps] = WeakKeyDictionary()
        self._planned: WeakKeyDictionary[HeldPartition, ThresholdSteps] = WeakKeyDictionary()
        self._gates: WeakKeyDictionary[HeldPartition, asyncio.Lock] = WeakKeyDictionary()
        self._found: tuple[ReadChanges, dict[tuple[str, int], tuple[ThresholdChange, ...]]] = (ReadChanges(), {})

    def gate(self, state: HeldPartition) -> asyncio.Lock:
        """Return what whoever takes evidence of a partition holds, and whoever changes by what it is judged."""
        return self._gates.setdefault(state, asyncio.Lock())

    async def restore(self, state: HeldPartition, stored: PositionRecord, end: int) -> None:
        """Take over a partition whose evidence ends at `end`.

        Raises
        ------
        ServiceUnavailable
            If changes hold there that can't be read: nothing may be judged then.
        """
        steps = stored.thresholds.bounded(end)
        if steps.newest and self._log is not None and not self._log.is_readable:
            raise ServiceUnavailable(
                f"topic thresholds must be readable, since {steps.newest} changes hold in partition "
                f"{state.partition}; it is not there, or not for us. See: irregulars topics check"
            )
        self._steps[state] = self._planned[state] = steps
        if self.has_news(state):
            # Without ends nothing was ever judged in this partition, so that all of it can be by what holds now.
            await self.plan(state, 0 if stored.ends is None else end)
            self.begin(state)

    def has_news(self, state: HeldPartition) -> bool:
        """Whether changes were read that do not hold in a partition yet."""
        is_readable = self._log is not None and self._log.is_readable
        return is_readable and self._known.revision != self._steps.get(state, _NONE).newest

    async def plan(self, state: HeldPartition, offset: int) -> None:
        """Note that all that was read is to hold from an offset on; `begin` follows when that is stored."""
        before, revision = self._steps[state].newest, self._known.revision
        self._planned[state] = self._steps[state].begin(offset, revision)
        for message in self._known.unusable_between(before, revision) if state.partition == _BURIES else ():
            await self._dead_letters.bury(message, message.reason)

    def begin(self, state: HeldPartition) -> None:
        """Let what was planned hold."""
        before, self._steps[state] = self._steps[state].newest, self._planned[state]
        newest = self._steps[state].steps[-1]
        for at, change in self._known.changes:
            if before <= at < newest.revision:
                LOG.info(
                    "event=thresholds partition=%d from_offset=%d revision=%d job=%r change=%s values=%r who=%r",
                    state.partition, newest.offset, newest.revision, change.job or "*", change.change_id,
                    change.describe(), change.who,
                )  # fmt: skip

    def to_store(self, state: HeldPartition) -> ThresholdSteps:
        """Return what a snapshot is to keep."""
        return self._planned.get(state, _NONE)

    def changes_for(self, state: HeldPartition, job: str, offset: int) -> tuple[ThresholdChange, ...]:
        """Return the changes by which a job's evidence at an offset is judged; the same object while they last."""
        steps = self._steps.get(state)
        if steps is None or not steps.steps:
            return ()
        known, found = self._found
        if known is not self._known:
            known, found = self._found = self._known, {}
        key = job, steps.revision_at(offset)
        if key not in found:
            found[key] = known.of(*key)
        return found[key]

    def revision(self, states: Iterable[HeldPartition]) -> int:
        """Return the revision that holds for what comes next in all of these partitions: the lowest."""
        return min((self._steps[one].newest for one in states if one in self._steps), default=0)

    @property
    def _known(self) -> ReadChanges:
        return ReadChanges() if self._log is None else self._log.known
