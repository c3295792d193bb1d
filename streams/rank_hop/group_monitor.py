"""The ranks of one group, whose rows come together: each has a `RankMonitor`, all of them one place in a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import MAX_GROUP_RANKS, Bundle
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.records import Batch
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.message_rows import parts_of
from irregulars.streams.rank_hop.rank_attempt import Closed
from irregulars.streams.rank_hop.rank_monitor import RankMonitor, RankMonitorState, Refused


@dataclass(frozen=True, slots=True)
class GroupMonitorState:
    """State of a `GroupMonitor`."""

    job: str
    partition: int
    ranks: tuple[RankMonitorState, ...]


class GroupMonitor:
    """Follow the ranks of one group, or a single rank that has none.

    `partition`: of ``commops``; goes into the evidence with the offsets.
    """

    def __init__(self, job: str, settings: JudgeSettings, *, partition: int = 0) -> None:
        self.job = job
        self.settings = settings
        self._silence_s = settings.silence_s  # as set
        self.partition = partition
        self._monitors: dict[int, RankMonitor] = {}

    @property
    def is_ended(self) -> bool:
        """Whether the last row of each rank has been reduced."""
        return bool(self._monitors) and all(monitor.is_ended for monitor in self._monitors.values())

    @property
    def ranks(self) -> int:
        """How many ranks were announced, and have not ended."""
        return sum(monitor.is_running for monitor in self._monitors.values())

    def take_rows_over(self) -> int:
        """Return how many operators came of attempts that are over, since this was asked before."""
        return sum(monitor.take_rows_over() for monitor in self._monitors.values())

    # --- messages ---------------------------------------------------------------------------------------------------

    def announce(self, announcement: Announcement) -> None:
        """Take in the announcement of a rank; raises `RecordError` where the group has too many."""
        self._monitor(announcement.rank).announce(announcement)

    def add(self, rows: Batch | Bundle, offset: int) -> list[Refused]:
        """Take in a message with rows of some ranks; return the parts of it that can't be true."""
        refused = []
        for part in parts_of(rows, offset):
            try:
                self._monitor(part.rank).add_part(part)
            except RecordError as error:
                refused.append(Refused(part.batch(), offset, str(error)))
        return refused

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in the heartbeat of a rank; raises `RecordError` as `RankMonitor.beat` does."""
        self._monitor(heartbeat.rank).beat(heartbeat)

    def follow(self, silence_s: float | None) -> None:
        """Wait for another silence from here on; None: for the one that is set."""
        silence_s = self._silence_s if silence_s is None else silence_s
        if silence_s != self.settings.silence_s:
            self.settings = replace(self.settings, silence_s=silence_s)
            for monitor in self._monitors.values():
                monitor.follow(self.settings)

    def tick(self, now_s: float, until_s: float) -> None:
        """Close iterations that have waited for longer than the grace: see `RankMonitor.tick`."""
        for monitor in self._monitors.values():
            monitor.tick(now_s, until_s)

    def _monitor(self, rank: int) -> RankMonitor:
        monitor = self._monitors.get(rank)
        if monitor is None:
            # No group has more: rank numbers of damaged messages must not fill the memory.
            if len(self._monitors) >= MAX_GROUP_RANKS:
                raise RecordError(f"ranks of a group must be at most {MAX_GROUP_RANKS}; got rank {rank} besides them")
            monitor = RankMonitor(self.job, rank, self.settings, partition=self.partition)
            self._monitors[rank] = monitor
        return monitor

    # --- evidence ---------------------------------------------------------------------------------------------------

    def drain(self) -> list[Evidence | Membership]:
        """Reduce the complete iterations; return the new evidence and memberships, each rank's oldest first."""
        return reduce_closings(self.job, self.take_closed())

    def take_closed(self) -> Closed:
        """Close the iterations that are complete; return them unreduced, those of one rank after those of another."""
        return [one for monitor in self._monitors.values() for one in monitor.take_closed()]

    def take_refused(self) -> list[Refused]:
        """Give up held batches, as `RankMonitor.take_refused` does."""
        return [one for monitor in self._monitors.values() for one in monitor.take_refused()]

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> GroupMonitorState:
        """Everything that `from_state` needs; drain before, or closed iterations are lost."""
        return GroupMonitorState(
            self.job, self.partition, tuple(monitor.state() for monitor in self._monitors.values())
        )

    @classmethod
    def from_state(cls, state: GroupMonitorState, settings: JudgeSettings) -> GroupMonitor:
        """Restore."""
        monitor = cls(state.job, settings, partition=state.partition)
        monitor._monitors = {one.rank: RankMonitor.from_state(one, settings) for one in state.ranks}
        return monitor
