"""The first hop: one rank's rows become one evidence row per iteration. Reduces, and never judges the job."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from irregulars.errors import RecordError
from irregulars.streams.messages.announcements import (
    Announcement,
    Heartbeat,
    decode_announcement,
    encode_announcement,
)
from irregulars.streams.messages.evidence import Evidence, Membership
from irregulars.streams.messages.records import Batch
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.rank_attempt import AttemptState, Closed, RankAttempt
from irregulars.streams.rank_hop.rows.message_rows import Part, part_of
from irregulars.streams.rank_hop.rows.row_summaries import RowSummary
from irregulars.streams.rank_hop.unannounced_messages import HeldMessages, HeldState
from irregulars.streams.rank_hop.waiting_timer import WaitingTimer


@dataclass(frozen=True, slots=True)
class RankMonitorState:
    """What a `RankMonitor` keeps; the announcement of the next attempt as its message."""

    job: str
    rank: int
    partition: int
    attempt: AttemptState | None
    successor: bytes | None
    held: HeldState


class RankMonitor:
    """Follow one rank through the attempts of its job.

    Parameters
    ----------
    job, rank
        Whose rows these are.
    settings
        How long to wait, and the detectors of operators.
    partition
        Of ``commops``; goes into the evidence with the offsets.

    Notes
    -----
    Nothing here depends on how topics interleave: an iteration closes when each source that the rank announced has
    passed its end, and a heartbeat takes effect when the rows that it counts have arrived
    (`streams.rank_hop.rank_attempt`).
    """

    def __init__(self, job: str, rank: int, settings: MonitorSettings, *, partition: int = 0) -> None:
        self.job = job
        self.rank = rank
        self.settings = settings
        self.partition = partition
        self._attempt: RankAttempt | None = None  # the one that is heard
        self._held = HeldMessages()  # of attempts that were not announced yet
        self._successor: Announcement | None = None  # of the next attempt
        self._succession = WaitingTimer(settings.grace_s)  # for rows of the attempt before it
        self._closed: Closed = []
        self._rows_over = 0  # of attempts that are over

    @property
    def is_ended(self) -> bool:
        """Whether the rank's last row has been reduced."""
        return self._attempt is not None and self._attempt.is_ended

    @property
    def is_running(self) -> bool:
        """Whether the rank was announced, and is not over."""
        return self._attempt is not None and not self._attempt.is_ended

    # --- what comes in ----------------------------------------------------------------------------------------------

    def announce(self, announcement: Announcement) -> None:
        """Take in the rank's announcement.

        That of a higher attempt ends the attempt before it as soon as operators of the new one come: those of the old
        one have all been read by then. If none come, the old one ends when the grace is over.
        """
        if self._attempt is None:
            self._take_up(announcement)
        elif self._is_later(announcement.attempt):
            self._successor = announcement
            if self.is_ended or self._held.has_operators(announcement.attempt):
                self._succeed(announcement)

    def add(self, batch: Batch, offset: int, summary: RowSummary | None = None) -> None:
        """Take in a batch, as `add_part` does.

        Parameters
        ----------
        summary
            Of its rows; None: nobody has made one yet.
        """
        if len(batch):
            self.add_part(part_of(batch, offset, summary))

    def add_part(self, part: Part) -> None:
        """Take in rows of a message; those of an attempt that was not announced yet are held.

        Raises
        ------
        RecordError
            If they can't be true (`streams.rank_hop.plausible_progress`). Nothing is taken in then.
        """
        if self._attempt is None or self._is_later(part.attempt):
            self._held.add(part.batch(), part.offset)
            if self._successor is not None and self._held.has_operators(self._successor.attempt):
                self._succeed(self._successor)
        elif part.attempt < self._attempt.announcement.attempt or self._attempt.is_ended:
            if part.schema == "commops":  # a node is sampled beyond the end of its job
                self._rows_over += part.cut.rows
        else:
            self._attempt.add(part)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat; raises as `add` does."""
        if self._attempt is None or self._is_later(heartbeat.attempt):
            self._held.beat(heartbeat)
        elif heartbeat.attempt == self._attempt.announcement.attempt:
            self._attempt.beat(heartbeat)

    def follow(self, settings: MonitorSettings) -> None:
        """Wait for another silence from here on; nothing else of the settings may differ."""
        self.settings = settings
        if self._attempt is not None:
            self._attempt.wait_for(settings.silence_s)

    def tick(self, now_s: float, until_s: float | None = None) -> None:
        """Close what has waited for longer than the grace.

        Parameters
        ----------
        now_s, until_s
            The present, and until when everything that was sent has been read (None: until now). A silence counts
            from the present, and only as far as was read: neither our lag nor another worker's is the rank's silence.
        """
        until_s = now_s if until_s is None else until_s
        is_over = self._succession.is_over(self._successor is not None, now_s, until_s)
        if self._successor is not None and (is_over or self.is_ended):
            self._succeed(self._successor)
        if self._attempt is not None:
            self._closed += self._attempt.tick(now_s, until_s)

    # --- what comes out ---------------------------------------------------------------------------------------------

    def drain(self) -> list[Evidence | Membership]:
        """Reduce the iterations that are complete; return the new evidence and memberships, oldest first.

        The cost is per call and not per iteration: drain after many batches, not after each; and where there are many
        monitors, reduce what `take_closed` gives of all of them at once.
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
        """Return how many operators came of attempts that are over, since this was asked before."""
        rows, self._rows_over = self._rows_over, 0
        return rows

    def take_unannounced(self) -> list[tuple[Batch, int]]:
        """Give up the oldest batches of an attempt that was never announced, where too many are held."""
        return self._held.take_surplus()

    # --- from one attempt to the next -------------------------------------------------------------------------------

    def _is_later(self, attempt: int) -> bool:
        return self._attempt is not None and attempt > self._attempt.announcement.attempt

    def _succeed(self, successor: Announcement) -> None:
        """End the attempt, unless it has ended by itself, and begin the one that was announced after it."""
        self._successor = None
        self._succession.restart()
        if self._attempt is not None:
            self._closed += self._attempt.settle()
        if self._attempt is not None and not self._attempt.is_ended:
            self._closed += self._attempt.end("restarted")
        self._take_up(successor)

    def _take_up(self, announcement: Announcement) -> None:
        """Begin an attempt with the messages that were held for it; those of yet later attempts are held again."""
        self._attempt = RankAttempt(announcement, self.partition, self.settings)
        self._closed.append(Membership(self.job, announcement.attempt, self.rank, announcement))
        if not announcement.is_logged:
            self._closed += self._attempt.end("not logged")
        batches, beats = self._held.take()
        for batch, offset in batches:
            with suppress(RecordError):  # rows that are missing then are counted with the next batch
                self.add(batch, offset)
        for beat in beats:
            with suppress(RecordError):
                self.beat(beat)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> RankMonitorState:
        """Everything that `from_state` needs; drain before, or what is closed is lost."""
        return RankMonitorState(
            job=self.job,
            rank=self.rank,
            partition=self.partition,
            attempt=None if self._attempt is None else self._attempt.state(),
            successor=None if self._successor is None else encode_announcement(self._successor),
            held=self._held.state(),
        )

    @classmethod
    def from_state(cls, state: RankMonitorState, settings: MonitorSettings) -> RankMonitor:
        """Restore."""
        monitor = cls(state.job, state.rank, settings, partition=state.partition)
        if state.attempt is not None:
            monitor._attempt = RankAttempt.from_state(state.attempt, monitor.partition, settings)
        monitor._successor = None if state.successor is None else decode_announcement(state.successor)
        monitor._held = HeldMessages.from_state(state.held)
        return monitor
