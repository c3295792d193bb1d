"""Until when everything that was sent has been read: the only clock by which a silence may be judged.

A worker that lags, or the death of another worker, looks like silent ranks. How far the topics have been read tells
the two apart. The ends of the topics are noted at some moment; once everything before these ends has been read,
everything that was sent before the moment has been read. So a silence is the sender's, and not ours, if it lasts by
this clock. There are four (`ReadThrough`), each for the monitors of one partition:

* that of announcements: all that were sent until then are known, however far behind the operators are;
* the first hop's: everything that was sent until then to the rank's topics is in its monitors;
* everybody's: the same of all partitions of the first hop, of all workers; workers publish it on the topic
  ``progress``, after the evidence that follows from it is on the broker;
* the second hop's: all evidence of rows that were sent until then is in the job's monitor.

A clock stands still while a worker lags, is suspended or dead, or while the broker does not answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.outbox import Outbox
from irregulars.streams.snapshots.records import Offsets
from irregulars.version import VERSION

Place = TypeVar("Place")

MOST_LOOKS: Final = 128  # looks that are kept while reading lags; where more would be needed, every second one goes


class ReadThrough(Generic[Place]):
    """Follows how far some places (topics, partitions) have been read.

    Examples
    --------
    >>> clock = ReadThrough()
    >>> clock.look(10.0, {"commops": 5})      # at 10 s the topic had 5 messages
    >>> clock.advance({"commops": 4}) is None
    True
    >>> clock.look(11.0, {"commops": 9})
    >>> clock.advance({"commops": 7})         # those 5 have been read, and not yet all 9
    10.0
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[Place, int]]] = deque()
        self._apart_s = 0.0  # least time between two looks; grows while reading lags
        self._until_s: float | None = None

    @property
    def until_s(self) -> float | None:
        """Everything that was sent until then has been read; `None` while nothing is known."""
        return self._until_s

    def look(self, at_s: float, ends: Mapping[Place, int]) -> None:
        """Note that at a moment the places ended at these offsets (of the next message)."""
        # The newest look is replaced until it is far enough from the one before it.
        is_close = len(self._looks) > 1 and at_s - self._looks[-2][0] < self._apart_s
        if self._looks and (ends == self._looks[-1][1] or is_close):
            self._looks.pop()  # the newer one says as much, or more
        self._looks.append((at_s, ends))
        # Reading lags: half as many looks cover the same time, only less finely.
        if len(self._looks) > MOST_LOOKS:
            self._looks = deque(look for number, look in enumerate(self._looks) if number % 2 == 0)
            self._apart_s = 2 * (self._looks[-1][0] - self._looks[0][0]) / MOST_LOOKS

    def advance(self, positions: Mapping[Place, int]) -> float | None:
        """Return `until_s` after reading has come to these offsets (of the next message to read)."""
        while self._looks and all(positions.get(place, 0) >= end for place, end in self._looks[0][1].items()):
            self._until_s = self._looks.popleft()[0]
        # Caught up: every look is worth keeping again.
        if not self._looks:
            self._apart_s = 0.0
        return self._until_s


LOG: Final = logging.getLogger("irregulars.worker")
EVERY_S: Final = 2.0  # between two looks, and between two records of progress
_ANSWER_S: Final = 10.0
# A clock that stands still for longer is logged, and not again for as long, s.
_STANDS_S: Final = 60.0


AskEnds = Callable[[Collection[str]], Awaitable[Mapping[int, Offsets]]]
"""Offsets that the next messages of some topics (named without prefix) will get: by partition, then topic."""


class StreamTime:
    """The clocks of one worker."""

    def __init__(self, rank_topics: Collection[str], evidence: str, ask_ends: AskEnds, progress: ProgressLog) -> None:
        self._rank_topics: Final = rank_topics
        self._evidence: Final = evidence
        self._ask_ends: Final = ask_ends
        self._progress: Final = progress
        self._began_s: Final = time.time() - time.monotonic()
        self._announced: dict[int, ReadThrough[str]] = {}
        self._own: dict[int, ReadThrough[str]] = {}
        self._everybodys: dict[int, ReadThrough[str]] = {}
        self._jobs: dict[int, ReadThrough[str]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._warned_s = self.now_s()

    def now_s(self) -> float:
        """Return the time since 1970 at the start plus the time since then: setting the clock changes nothing."""
        return self._began_s + time.monotonic()

    def forget(self) -> None:
        """Begin anew with the partitions of a new assignment: their monitors were restored."""
        # Everybody's clocks stay: they do not depend on which partitions are ours.
        self._announced, self._own, self._jobs = {}, {}, {}

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
            if error is not None:  # of any kind: the clocks stand still, and no device is accused
                LOG.debug("event=no_look error=%s reason=%r", type(error).__name__, str(error))
        now_s = self.now_s()  # once a minute a line if no silence can be judged, with the partitions that hold it up
        behind = [
            partition
            for partition, clock in sorted(self._everybodys.items())
            if clock.until_s is None or now_s - clock.until_s > _STANDS_S
        ]
        if now_s - self._warned_s > _STANDS_S and (behind or not self._everybodys):
            self._warned_s = now_s
            LOG.warning("event=time_stands for_s=%d partitions=%s", _STANDS_S, ",".join(map(str, behind)) or "all")

    async def _look(self) -> None:
        # Before the question: ends in a later answer are at or behind those of this moment.
        now_s = self.now_s()
        for partition, own in (await self._ask_ends(self._rank_topics)).items():
            announced = {topic: end for topic, end in own.items() if topic == "jobs"}
            self._announced.setdefault(partition, ReadThrough()).look(now_s, announced)
            self._own.setdefault(partition, ReadThrough()).look(now_s, own)
            self._everybodys.setdefault(partition, ReadThrough()).look(now_s, own)
        told = await self._progress.read()
        until = [clock.advance(told.get(partition, {})) for partition, clock in self._everybodys.items()]
        known = [one for one in until if one is not None]
        # One partition that no worker reads holds back all jobs: any of their ranks may have sent to it.
        if len(known) == len(until) and known:
            # Only now: the evidence of these positions is on the broker.
            for partition, own in (await self._ask_ends((self._evidence,))).items():
                self._jobs.setdefault(partition, ReadThrough()).look(min(known), own)

    def announced_until_s(self, partition: int, positions: Offsets) -> float | None:
        """Return until when every rank that announced itself in a partition of the first hop is known there."""
        clock = self._announced.get(partition)
        return None if clock is None else clock.advance(positions)

    def rank_until_s(self, partition: int, positions: Offsets) -> float | None:
        """Return until when everything sent to a partition of the first hop is in its monitors."""
        clock = self._own.get(partition)
        return None if clock is None else clock.advance(positions)

    def job_until_s(self, partition: int, positions: Offsets) -> float | None:
        """Return until when everything that any rank sent is, as evidence, in the job monitors of a partition."""
        clock = self._jobs.get(partition)
        return None if clock is None else clock.advance(positions)


class ProgressLog:
    """Writes on the topic ``progress`` how far this worker has read the first hop's partitions, and follows it.

    One record for each partition, keyed by its number. It is written once all evidence of the messages that were read
    is on the broker, and again every few seconds, so that a worker that starts needs nothing from before.
    """

    def __init__(self, topic: str, reading: ReadingThread, outbox: Outbox) -> None:
        self._topic: Final = topic
        self._reading: Final = reading
        self._outbox: Final = outbox
        self._read_to: int | None = None
        self._told: dict[int, Offsets] = {}

    async def write(self, partition: int, positions: Offsets) -> None:
        """Publish how far a partition was read; all evidence must have been acknowledged before."""
        record = {"partition": partition, "positions": positions, "release": VERSION}
        value = json.dumps(record, separators=(",", ":")).encode()
        await self._outbox.send(self._topic, str(partition).encode(), value, partition=0)

    async def read(self) -> dict[int, Offsets]:
        """Return how far each partition has been read, by the records that were published so far."""
        return await self._reading.run(self._follow)

    def _follow(self) -> dict[int, Offsets]:
        end = self._reading.reader.end_offset(self._topic, 0)
        if self._read_to is None or self._read_to > end:  # at the start, or the log was cut
            self._read_to, self._told = end, {}
        for message in self._reading.reader.read_tail(self._topic, 0, self._read_to):
            self._read_to = (message.offset() or 0) + 1
            try:
                record = json.loads(message.value() or b"")
                positions = {str(topic): int(at) for topic, at in record["positions"].items()}
                self._told[int(record["partition"])] = positions
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):  # of Infinity
                continue  # no worker wrote it: its partition's known positions stay
        return dict(self._told)
