"""The first hop: one rank's rows become one evidence row per iteration. Reduces, and never judges the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from irregulars.streams.rank_hop.rank_attempt import Closed, RankAttempt
from irregulars.streams.rank_hop.unannounced_messages import HeldMessages
from irregulars.streams.rank_hop.waiting_timer import Patience


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

    Notes ----- Nothing here depends on how topics interleave: an iteration closes when each source that the rank
    announced has passed its end, and a heartbeat takes effect when the rows it counts have arrived
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
        self._patience = Patience(settings.grace_s)  # with rows of the attempt before it
        self._closed: Closed = []

    @property
    def is_ended(self) -> bool:
        """Whether the rank's last row has been reduced."""
        return self._attempt is not None and self._attempt.is_ended

    # --- what comes in ----------------------------------------------------------------------------------------------

    def announce(self, announcement: Announcement) -> None:
        """Take in the rank's announcement.

        One of a higher attempt ends the attempt before, once the operators of the new one come (then those of the old
        one have all been read), or when the grace is over.
        """
        if self._attempt is None:
            self._take_up(announcement)
        elif self._is_later(announcement.attempt):
            self._successor = announcement
            if self.is_ended or self._held.has_operators(announcement.attempt):
                self._succeed(announcement)

    def add(self, batch: Batch, offset: int) -> None:
        """Take in a batch; rows of an attempt that was not announced yet are held."""
        attempt = batch.header.attempt
        if self._attempt is None or self._is_later(attempt):
            self._held.add(batch, offset)
            if self._successor is not None and self._held.has_operators(self._successor.attempt):
                self._succeed(self._successor)
        elif attempt == self._attempt.announcement.attempt:
            self._attempt.add(batch, offset)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat."""
        if self._attempt is None or self._is_later(heartbeat.attempt):
            self._held.beat(heartbeat)
        elif heartbeat.attempt == self._attempt.announcement.attempt:
            self._attempt.beat(heartbeat)

    def tick(self, now_s: float) -> None:
        """Let the wall clock speak: what has waited for longer than the grace is closed."""
        is_over = self._patience.is_over(self._successor is not None, now_s)
        if self._successor is not None and (is_over or self.is_ended):
            self._succeed(self._successor)
        if self._attempt is not None:
            self._closed += self._attempt.tick(now_s)

    # --- what comes out ---------------------------------------------------------------------------------------------

    def drain(self) -> list[Evidence | Membership]:
        """Reduce what is complete; return what is new, oldest first, and forget it.

        The cost is per call and not per iteration: drain after many batches, not after each; and where there are many
        monitors, reduce what `take_closed` gives of all of them at once.
        """
        return reduce_closings(self.job, self.take_closed())

    def take_closed(self) -> Closed:
        """Close what is complete; return it unreduced, oldest first, for.

        `streams.rank_hop.evidence_reduction.reduce_closings`.
        """
        if self._attempt is not None:
            self._closed += self._attempt.settle()
        closed, self._closed = self._closed, []
        return closed

    def take_unannounced(self) -> list[tuple[Batch, int]]:
        """Give up the oldest batches of an attempt that was never announced, where too many are held."""
        return self._held.take_surplus()

    # --- from one attempt to the next -------------------------------------------------------------------------------

    def _is_later(self, attempt: int) -> bool:
        return self._attempt is not None and attempt > self._attempt.announcement.attempt

    def _succeed(self, successor: Announcement) -> None:
        """End the attempt, unless its last word has been said, for the one that was announced after it."""
        self._successor = None
        self._patience.renew()
        if self._attempt is not None:
            self._closed += self._attempt.settle()
        if self._attempt is not None and not self._attempt.is_ended:
            self._closed += self._attempt.end("restarted")
        self._take_up(successor)

    def _take_up(self, announcement: Announcement) -> None:
        """Begin an attempt, with what was held for it; what is of yet later ones is held again."""
        self._attempt = RankAttempt(announcement, self.partition, self.settings)
        self._closed.append(Membership(self.job, announcement.attempt, self.rank, announcement))
        if not announcement.is_logged:
            self._closed += self._attempt.end("not logged")
        batches, beats = self._held.take()
        for batch, offset in batches:
            self.add(batch, offset)
        for beat in beats:
            self.beat(beat)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays; drain before, or it is lost."""
        return {
            "job": self.job,
            "rank": self.rank,
            "partition": self.partition,
            "attempt": None if self._attempt is None else self._attempt.state(),
            "successor": None if self._successor is None else encode_announcement(self._successor).decode(),
            "held": self._held.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], settings: MonitorSettings) -> RankMonitor:
        """Restore."""
        monitor = cls(state["job"], state["rank"], settings, partition=state["partition"])
        attempt, successor = state["attempt"], state["successor"]
        if attempt is not None:
            monitor._attempt = RankAttempt.from_state(attempt, monitor.partition, settings)
        monitor._successor = None if successor is None else decode_announcement(successor.encode())
        monitor._held = HeldMessages.from_state(state["held"])
        return monitor
