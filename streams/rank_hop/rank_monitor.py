"""The first hop: one rank's rows become one evidence row per iteration. Reduces, and never judges the job."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from irregulars.errors import RecordError
from irregulars.messages.announcements import (
    Announcement,
    Heartbeat,
    contradiction_of,
    decode_announcement,
    encode_announcement,
)
from irregulars.messages.evidence import BESIDE_NS, GOES_ON, Evidence, Membership
from irregulars.messages.records import UNKNOWN, Batch, decode_batch, encode_batch
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.closing_times import WaitingTimer
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.message_rows import Part, part_of
from irregulars.streams.rank_hop.rank_attempt import AttemptState, Closed, RankAttempt

MAX_HELD_BATCHES: Final = 1000
"""Batches held for a rank that was not announced yet; `HeldMessages.take_surplus` hands back those above."""

MAX_HELD_BYTES: Final = 16 << 20
"""The same in bytes, 300,000 operators: announcements come seconds late, and a message of some kB may decompress to
13 MB."""

UNANNOUNCED: Final = "rank and attempt must be announced on the topic jobs; got no announcement in time"


class Refused(NamedTuple):
    """Rows that were not taken in, the offset of their message, and why."""

    batch: Batch
    offset: int
    reason: str


class HeldBatch(NamedTuple):
    """A batch as it came: its schema, its offset and its message."""

    schema: str
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class HeldState:
    """State of `HeldMessages`."""

    batches: tuple[HeldBatch, ...]
    heartbeats: tuple[Heartbeat, ...]


class HeldMessages:
    """Batches with their offsets, and the newest heartbeats, in the order in which they came."""

    def __init__(self) -> None:
        self._batches: list[tuple[Batch, int]] = []
        self._size_bytes = 0  # of them
        self._beats: list[Heartbeat] = []

    def add(self, batch: Batch, offset: int) -> None:
        """Hold a batch."""
        # Copied: a cut of a column would hold those of the message's other ranks as well.
        own = replace(batch, columns={name: np.array(column) for name, column in batch.columns.items()})
        self._batches.append((own, offset))
        self._size_bytes += _size_bytes(own)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Hold a heartbeat; only the newest two are of use."""
        self._beats = [*self._beats[-1:], heartbeat]

    @property
    def has_batches(self) -> bool:
        """Whether any are held."""
        return bool(self._batches)

    def has_operators(self, attempt: int, start: str | None) -> bool:
        """Whether operators of this start, or of a later attempt, are held."""
        held = (batch.header for batch, _ in self._batches if batch.header.schema == "commops")
        return any(one.attempt > attempt or (one.attempt == attempt and one.start in (None, start)) for one in held)

    def drop_before(self, schema: str, attempt: int, since_ns: int | None) -> int:
        """Drop batches of a schema that are of no later attempt or place, as rows came that were sent after them.

        Returns how many operators were in them.
        """
        gone = [
            batch
            for batch, _ in self._batches
            if (own := batch.header).schema == schema
            and own.attempt <= attempt
            and (own.since_ns or 0) <= (since_ns or 0)
        ]
        if gone:
            self._batches = [held for held in self._batches if not any(held[0] is one for one in gone)]
            self._size_bytes -= sum(map(_size_bytes, gone))
        return sum(map(len, gone)) if schema == "commops" else 0

    def take(self) -> tuple[list[tuple[Batch, int]], list[Heartbeat]]:
        """Hand out everything."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        beats, self._beats = self._beats, []
        return batches, beats

    def take_surplus(self) -> list[tuple[Batch, int]]:
        """Give up batches above `MAX_HELD_BATCHES` and `MAX_HELD_BYTES`, oldest first."""
        given_up = []
        while len(self._batches) > MAX_HELD_BATCHES or self._size_bytes > MAX_HELD_BYTES:
            given_up.append(self._batches.pop(0))
            self._size_bytes -= _size_bytes(given_up[-1][0])
        return given_up

    def state(self) -> HeldState:
        """Everything that `from_state` needs."""
        batches = tuple(
            HeldBatch(batch.header.schema, offset, encode_batch(batch)) for batch, offset in self._batches
        )
        return HeldState(batches, tuple(self._beats))

    @classmethod
    def from_state(cls, state: HeldState) -> HeldMessages:
        """Restore."""
        held = cls()
        for one in state.batches:
            held.add(decode_batch(one.value, one.schema), one.offset)
        held._beats = list(state.heartbeats)
        return held


def _size_bytes(batch: Batch) -> int:
    """Return the bytes of a batch's columns and names."""
    return sum(column.nbytes for column in batch.columns.values()) + sum(map(len, batch.header.names))


_PAST_STARTS: Final = 16
"""Starts that are over and are known as such: rows of one before them would wait for an announcement in vain."""


@dataclass(frozen=True, slots=True)
class RankMonitorState:
    """State of a `RankMonitor`; the announcement of the next start as its message."""

    job: str
    rank: int
    partition: int
    attempt: AttemptState | None
    successor: bytes | None
    held: HeldState
    past: tuple[tuple[int, str | None], ...] = ()
    began_ns: int = UNKNOWN
    contradicts: str | None = None


class RankMonitor:
    """Follow one rank through the starts of its job.

    A start is known by its attempt number and, where its producer gives one, its id. One that was not heard before
    follows the present one, whatever its number: the topic of announcements keeps their order. Within a start another
    place of the rank (`Announcement.since_ns`) follows the one before it as another start would: another process
    counts its rows from 0.

    `partition`: of ``commops``; goes into the evidence with the offsets.

    Nothing here depends on how topics interleave: an iteration closes when each source that the rank announced has
    passed its end, and a heartbeat takes effect when the rows that it counts have arrived
    (`streams.rank_hop.rank_attempt`).
    """

    def __init__(self, job: str, rank: int, settings: JudgeSettings, *, partition: int = 0) -> None:
        self.job = job
        self.rank = rank
        self.settings = settings
        self.partition = partition
        self._attempt: RankAttempt | None = None  # the one that is heard
        self._held = HeldMessages()  # of starts that were not announced yet
        self._successor: Announcement | None = None  # of the next start
        self._succession = WaitingTimer(settings.grace_s)  # for rows of the start before it
        self._past: tuple[tuple[int, str | None], ...] = ()  # newest starts that are over
        self._began_ns = UNKNOWN  # start of the first operators that came of this one
        self._contradicts: str | None = None  # how its newest announcement differs from the one that holds
        self._has_told_past = False  # that one which is over goes on
        self._closed: Closed = []
        self._refused: list[Refused] = []  # of those that were held
        self._rows_over = 0  # of starts that are over

    @property
    def is_ended(self) -> bool:
        """Whether the rank's last row has been reduced."""
        return self._attempt is not None and self._attempt.is_ended

    @property
    def is_running(self) -> bool:
        """Whether the rank was announced, and is not over."""
        return self._attempt is not None and not self._attempt.is_ended

    # --- messages ---------------------------------------------------------------------------------------------------

    def announce(self, announcement: Announcement) -> None:
        """Take in the rank's announcement.

        That of another start ends the one before it as soon as operators of the new one come: those of the old one
        have all been read by then. If none come, the old one ends when the grace is over. That of the present start
        is passed on where it contradicts the first.
        """
        if self._attempt is None:
            self._take_up(announcement)
        elif self._is_later(announcement):
            self._successor = announcement
            if self.is_ended or self._held.has_operators(announcement.attempt, announcement.start):
                self._succeed(announcement)
        elif self._is_present(announcement):
            contradicts = contradiction_of(self._attempt.announcement, announcement)
            if contradicts != self._contradicts:
                self._contradicts = contradicts
                self._closed.append(self._came(announcement))

    def add(self, batch: Batch, offset: int) -> None:
        """Take in a batch, as `add_part` does."""
        if len(batch):
            self.add_part(part_of(batch, offset))

    def add_part(self, part: Part) -> None:
        """Take in rows of a message; those of a start that was not announced yet are held.

        Raises `RecordError` if they can't be true (`streams.rank_hop.plausible_progress`). Nothing is taken in then.
        """
        if self._attempt is None or self._is_later(part):
            self._held.add(part.batch(), part.offset)
            next_one = self._successor
            if next_one is not None and self._held.has_operators(next_one.attempt, next_one.start):
                self._succeed(next_one)
        elif self._attempt.is_ended or not self._is_present(part):
            if part.schema == "commops":  # a node is sampled beyond the end of its job
                self._rows_over += part.cut.rows
                self._note_past(part)
        else:
            if self._held.has_batches:  # rows come in order: held ones of no later attempt are over
                self._rows_over += self._held.drop_before(part.schema, part.attempt, part.since_ns)
            if self._began_ns == UNKNOWN and part.schema == "commops":
                self._began_ns = int(part.cut.column("start_ns").min())
            self._attempt.add(part)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat; raises as `add` does."""
        if self._attempt is None or self._is_later(heartbeat):
            self._held.beat(heartbeat)
        elif self._is_present(heartbeat):
            self._attempt.beat(heartbeat)

    def follow(self, settings: JudgeSettings) -> None:
        """Wait for another silence from here on; nothing else of the settings may differ."""
        self.settings = settings
        if self._attempt is not None:
            self._attempt.wait_for(settings.silence_s)

    def tick(self, now_s: float, until_s: float | None = None) -> None:
        """Close iterations that have waited for longer than the grace.

        `now_s`, `until_s`: the present, and until when everything that was sent has been read (None: until now). A
        silence counts from the present, and only as far as was read: neither our lag nor another worker's is the
        rank's silence.
        """
        until_s = now_s if until_s is None else until_s
        is_over = self._succession.is_over(self._successor is not None, now_s, until_s)
        if self._successor is not None and (is_over or self.is_ended):
            self._succeed(self._successor)
        if self._attempt is not None:
            self._closed += self._attempt.tick(now_s, until_s)

    # --- evidence ---------------------------------------------------------------------------------------------------

    def drain(self) -> list[Evidence | Membership]:
        """Reduce the iterations that are complete; return the new evidence and memberships, oldest first.

        The cost is per call and not per iteration: drain after many batches, not after each; and where there are many
        monitors, reduce the iterations of all of them (`take_closed`) at once.
        """
        return reduce_closings(self.job, self.take_closed())

    def take_closed(self) -> Closed:
        """Close the iterations that are complete; return them unreduced, oldest first.

        `streams.rank_hop.evidence_reduction.reduce_closings` reduces it.
        """
        if self._attempt is not None:
            self._closed += self._attempt.settle()
        closed, self._closed = self._closed, []
        return closed

    def take_rows_over(self) -> int:
        """Return how many operators came of starts that are over, since this was asked before."""
        rows, self._rows_over = self._rows_over, 0
        return rows

    def take_refused(self) -> list[Refused]:
        """Give up held batches: those that can't be true, and, where too many are held, the oldest."""
        refused, self._refused = self._refused, []
        return [*refused, *(Refused(*held, UNANNOUNCED) for held in self._held.take_surplus())]

    # --- from one start to the next ---------------------------------------------------------------------------------

    def _is_of_start(self, one: Announcement | Heartbeat | Part) -> bool:
        """Whether something is of the present start; without an id it is of the one with its attempt number."""
        own = None if self._attempt is None else self._attempt.announcement
        return own is not None and one.attempt == own.attempt and one.start in (None, own.start)

    def _is_present(self, one: Announcement | Heartbeat | Part) -> bool:
        """Whether something is of the present start and place."""
        own = None if self._attempt is None else self._attempt.announcement
        return own is not None and self._is_of_start(one) and one.since_ns == own.since_ns

    def _is_later(self, one: Announcement | Heartbeat | Part) -> bool:
        """Whether something is of a start or place that is still to come: neither the present one nor one before."""
        if self._attempt is None or (one.attempt, one.start) in self._past:
            return False
        own = self._attempt.announcement
        if self._is_of_start(one):
            return (one.since_ns or 0) > (own.since_ns or 0)
        return one.start is not None or one.attempt > own.attempt

    def _note_past(self, part: Part) -> None:
        """Report once that a start which is over goes on: its rows are younger than the first ones of the present."""
        if self._has_told_past or part.start is None or self._began_ns == UNKNOWN or self._is_of_start(part):
            return
        if int(part.cut.column("start_ns").max()) > self._began_ns + BESIDE_NS:
            self._has_told_past = True
            self._closed.append(Membership(self.job, part.attempt, self.rank, reason=GOES_ON, start=part.start))

    def _came(self, announcement: Announcement) -> Membership:
        return Membership(self.job, announcement.attempt, self.rank, announcement, start=announcement.start)

    def _succeed(self, successor: Announcement) -> None:
        """End the start, unless it has ended by itself, and begin the one that was announced after it."""
        self._successor = None
        self._succession.restart()
        if self._attempt is not None:
            self._closed += self._attempt.settle()
        if self._attempt is not None:
            own = self._attempt.announcement
            if not self._is_of_start(successor):
                self._past = (*self._past, (own.attempt, own.start))[-_PAST_STARTS:]
            self._closed += [] if self._attempt.is_ended else self._attempt.end("restarted")
        self._take_up(successor)

    def _take_up(self, announcement: Announcement) -> None:
        """Begin a start with the messages that were held for it; those of yet later ones are held again."""
        self._attempt = RankAttempt(announcement, self.partition, self.settings)
        self._began_ns, self._contradicts, self._has_told_past = UNKNOWN, None, False
        self._closed.append(self._came(announcement))
        if not announcement.is_logged:
            self._closed += self._attempt.end("not logged")
        batches, beats = self._held.take()
        for batch, offset in batches:
            try:
                self.add(batch, offset)
            except RecordError as error:  # rows that are missing then are counted with the next batch
                self._refused.append(Refused(batch, offset, str(error)))
        for beat in beats:
            with suppress(RecordError):
                self.beat(beat)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> RankMonitorState:
        """Everything that `from_state` needs; drain before, or closed iterations are lost."""
        return RankMonitorState(
            job=self.job, rank=self.rank, partition=self.partition,
            attempt=None if self._attempt is None else self._attempt.state(),
            successor=None if self._successor is None else encode_announcement(self._successor),
            held=self._held.state(), past=self._past, began_ns=self._began_ns, contradicts=self._contradicts,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: RankMonitorState, settings: JudgeSettings) -> RankMonitor:
        """Restore."""
        monitor = cls(state.job, state.rank, settings, partition=state.partition)
        if state.attempt is not None:
            monitor._attempt = RankAttempt.from_state(state.attempt, monitor.partition, settings)
        monitor._successor = None if state.successor is None else decode_announcement(state.successor)
        monitor._held = HeldMessages.from_state(state.held)
        monitor._past, monitor._began_ns, monitor._contradicts = state.past, state.began_ns, state.contradicts
        return monitor
