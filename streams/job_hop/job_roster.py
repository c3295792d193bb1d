"""Who takes part in a job, and how far each rank has come: which iterations can be judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from irregulars.streams.messages.announcements import Announcement, decode_announcement, encode_announcement


class JobRoster:
    """Ranks of one attempt of a job.

    An iteration can be judged when every rank that logs has delivered it, has ended, or was given up.
    """

    def __init__(self) -> None:
        self.announcements: dict[int, Announcement] = {}
        self.reasons: dict[int, str] = {}  # of ranks that have ended
        self._through: dict[int, int] = {}  # newest iteration that each rank delivered
        self._slowest: tuple[int, int] | None = None  # a rank that was behind, and the iteration it had not delivered
        self._given_up: set[int] = set()
        self._is_complete = False

    def announce(self, announcement: Announcement) -> bool:
        """Take in an announcement; return whether it is new. What a rank said first holds for the whole attempt."""
        is_new = announcement.rank not in self.announcements
        self.announcements.setdefault(announcement.rank, announcement)
        return is_new

    def end(self, rank: int, reason: str) -> None:
        """Take in that a rank sends no more."""
        self.reasons[rank] = reason

    def deliver(self, rank: int, iteration: int) -> bool:
        """Note an evidence row; return False if the rank had delivered this iteration before."""
        if iteration <= self._through.get(rank, iteration - 1):
            return False
        self._through[rank] = iteration
        self._given_up.discard(rank)
        return True

    def lagging(self, iteration: int) -> list[int]:
        """Ranks that log and are still to deliver an iteration."""
        return [rank for rank in self.announcements if self._is_behind(rank, iteration)]

    def has_all(self, iteration: int) -> bool:
        """Whether nobody is to deliver an iteration still; most calls look at the one rank that was behind before."""
        if self._slowest is not None:
            rank, wanted = self._slowest
            if iteration >= wanted and self._is_awaited(rank) and self._through.get(rank, iteration - 1) < iteration:
                return False
        behind = next((rank for rank in self.announcements if self._is_behind(rank, iteration)), None)
        self._slowest = None if behind is None else (behind, iteration)
        return behind is None

    def _is_awaited(self, rank: int) -> bool:
        return self.announcements[rank].is_logged and rank not in self.reasons and rank not in self._given_up

    def _is_behind(self, rank: int, iteration: int) -> bool:
        return self._is_awaited(rank) and self._through.get(rank, iteration - 1) < iteration

    def give_up(self, ranks: Iterable[int]) -> None:
        """Wait no longer for these ranks (until they deliver again), nor for ranks that nobody announced."""
        self._given_up.update(ranks)
        self._is_complete = True

    @property
    def is_complete(self) -> bool:
        """Whether all ranks that log have been announced."""
        if not self._is_complete:
            logged = sum(a.is_logged for a in self.announcements.values())
            expected = max((a.logged_ranks for a in self.announcements.values()), default=1)
            self._is_complete = logged >= expected
        return self._is_complete

    @property
    def is_ended(self) -> bool:
        """Whether all ranks that log have ended."""
        return self.is_complete and all(rank in self.reasons for rank, a in self.announcements.items() if a.is_logged)

    @property
    def end_reason(self) -> str:
        """Why the job ended: what its ranks said, worst first."""
        said = {self.reasons[rank] for rank, a in self.announcements.items() if a.is_logged and rank in self.reasons}
        return next((reason for reason in ("restarted", "stopped") if reason in said), "finished")

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {
            "announcements": [encode_announcement(a).decode() for a in self.announcements.values()],
            "reasons": [[rank, reason] for rank, reason in self.reasons.items()],
            "through": [[rank, iteration] for rank, iteration in self._through.items()],
            "given_up": sorted(self._given_up),
            "is_complete": self._is_complete,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> JobRoster:
        """Restore."""
        roster = cls()
        for value in state["announcements"]:
            roster.announce(decode_announcement(value.encode()))
        roster.reasons = dict(state["reasons"])
        roster._through = dict(state["through"])
        roster._given_up = set(state["given_up"])
        roster._is_complete = state["is_complete"]
        return roster
