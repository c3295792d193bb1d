"""How far a worker, and all workers together, have read: asked of Kafka, and told to the others.

Three clocks of `streams.progress.read_through`, each for the monitors of one partition:

* the first hop's: everything that was sent until then to the rank's topics is in its monitors;
* everybody's: the same of all partitions of the first hop, whoever has them; workers tell one another on the topic
  ``progress``, after the evidence that follows from it stands on the bus;
* the second hop's: all evidence of what was sent until then is in the job's monitor.

A clock stands still while somebody lags, is suspended or dead, or while the broker does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

from irregulars.streams.progress.read_through import ReadThrough
from irregulars.streams.snapshots.records import Offsets

LOG: Final = logging.getLogger("irregulars.worker")
EVERY_S: Final = 2.0
"""Between two looks, and between two words to the others."""

_ANSWER_S: Final = 10.0
_STANDS_S: Final = 60.0


class Progress(Protocol):
    """`streams.progress.progress_log.ProgressLog`, as the clocks use it."""

    async def read(self) -> dict[int, Offsets]:
        """See ProgressLog."""


AskEnds = Callable[[Collection[str]], Awaitable[Mapping[int, Offsets]]]
"""Offsets that the next messages of some topics (named without prefix) will get: by partition, then topic."""


class StreamTime:
    """The clocks of one worker.

    Parameters
    ----------
    rank_topics, evidence
        What each hop reads, named without prefix.
    ask_ends
        Of the broker; may fail, and then nothing is known of this moment.
    progress
        What the workers tell one another.
    """

    def __init__(self, rank_topics: Collection[str], evidence: str, ask_ends: AskEnds, progress: Progress) -> None:
        self._rank_topics: Final = rank_topics
        self._evidence: Final = evidence
        self._ask_ends: Final = ask_ends
        self._progress: Final = progress
        self._began_s: Final = time.time() - time.monotonic()
        self._own: dict[int, ReadThrough[str]] = {}
        self._everybodys: dict[int, ReadThrough[str]] = {}
        self._jobs: dict[int, ReadThrough[str]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._warned_s = self.now_s()

    def now_s(self) -> float:
        """Return the time since 1970 as it was at the start plus what has passed: nobody's clock can set it."""
        return self._began_s + time.monotonic()

    def forget(self) -> None:
        """Begin anew with the partitions of a new assignment: what they hold was restored."""
        self._own, self._jobs = {}, {}

    async def look(self) -> None:
        """Note where the topics end, and how far everybody has read; waits for an answer at most `_ANSWER_S`.

        A request to the broker is not cut off, as that would not end it there: the next look waits for it.
        """
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        done, _ = await asyncio.wait({self._looking}, timeout=_ANSWER_S)
        if done:
            error = self._looking.exception()
            self._looking = None
            if error is not None:  # whatever it is, the clocks stand still, which accuses nobody
                LOG.debug("event=no_look error=%s reason=%r", type(error).__name__, str(error))
        self._warn_if_standing()

    def _warn_if_standing(self) -> None:
        """Tell once a minute if no silence can be told, and whose partitions hold up everybody."""
        now_s = self.now_s()
        behind = [
            partition
            for partition, clock in sorted(self._everybodys.items())
            if clock.until_s is None or now_s - clock.until_s > _STANDS_S
        ]
        if now_s - self._warned_s > _STANDS_S and (behind or not self._everybodys):
            self._warned_s = now_s
            LOG.warning("event=time_stands for_s=%d partitions=%s", _STANDS_S, ",".join(map(str, behind)) or "all")

    async def _look(self) -> None:
        now_s = self.now_s()
        for partition, own in (await self._ask_ends(self._rank_topics)).items():
            self._own.setdefault(partition, ReadThrough()).look(now_s, own)
            self._everybodys.setdefault(partition, ReadThrough()).look(now_s, own)
        told = await self._progress.read()
        until = [clock.advance(told.get(partition, {})) for partition, clock in self._everybodys.items()]
        known = [one for one in until if one is not None]
        if len(known) == len(until) and known:
            # Only now, for the evidence of what was told stands on the bus by now.
            for partition, own in (await self._ask_ends((self._evidence,))).items():
                self._jobs.setdefault(partition, ReadThrough()).look(min(known), own)

    def rank_until_s(self, partition: int, positions: Offsets) -> float | None:
        """Return until when everything sent to a partition of the first hop is in its monitors."""
        clock = self._own.get(partition)
        return None if clock is None else clock.advance(positions)

    def job_until_s(self, partition: int, positions: Offsets) -> float | None:
        """Return until when everything that any rank sent is, as evidence, in the job monitors of a partition."""
        clock = self._jobs.get(partition)
        return None if clock is None else clock.advance(positions)
