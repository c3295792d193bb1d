"""The ranks that take part in a job, and how far each has come: they say which iterations can be judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from irregulars.state_codec import Part
from irregulars.streams.messages.announcements import Announcement, decode_announcement, encode_announcement

_MOST_SKIPPED: Final = 1 << 21
"""Iterations that a job may skip at once: twice the first hop's bound, since ranks are at different iterations."""


@dataclass(frozen=True, slots=True)
class RosterState:
    """What a `JobRoster` keeps; announcements as messages, in which the ranks of communicators are short runs."""

    announcements: Part[tuple[bytes, ...]]
    reasons: Mapping[int, str]
    through: Mapping[int, int]
    given_up: frozenset[int]
    is_complete: bool


class JobRoster:
    """Ranks of one attempt of a job.

    An iteration can be judged once every rank that logs has delivered it, has ended, or was given up.
    """

    def __init__(self) -> None:
        self.announcements: dict[int, Announcement] = {}
        self._encoded: tuple[bytes, ...] = ()  # of the first announcements; most states are taken when all have come
        self.reasons: dict[int, str] = {}  # of ranks that have ended
        self._through: dict[int, int] = {}  # newest iteration that each rank delivered
        self._newest: int | None = None  # of any rank
        self._leaps = 0  # rows far ahead of that, one after the other
        self._slowest: tuple[int, int] | None = None  # a rank that was behind, and the iteration that it lacked
        self._given_up: set[int] = set()
        self._is_complete = False

    def announce(self, announcement: Announcement) -> bool:
        """Take in an announcement; return whether it is new. A rank's first one holds for the whole attempt."""
        is_new = announcement.rank not in self.announcements
        self.announcements.setdefault(announcement.rank, announcement)
        return is_new

    def end(self, rank: int, reason: str) -> None:
        """Take in that a rank has ended, and its reason."""
        self.reasons[rank] = reason

    def deliver(self, rank: int, iteration: int) -> bool:
        """Note an evidence row; return False for an iteration that was delivered before, or can't have come yet.

        The first hop refuses leaps itself, so that one here comes of a damaged or foreign message. A second one after
        it is believed.
        """
        if iteration <= self._through.get(rank, iteration - 1) or not self._is_plausible(iteration):
            return False
        self._through[rank] = iteration
        self._given_up.discard(rank)
        return True

    def _is_plausible(self, iteration: int) -> bool:
        is_leap = self._newest is not None and iteration - self._newest > _MOST_SKIPPED
        self._leaps = self._leaps + 1 if is_leap else 0
        if self._leaps == 1:
            return False
        self._newest = iteration if self._newest is None else max(iteration, self._newest)
        return True

    def lagging(self, iteration: int) -> list[int]:
        """Return the ranks that log and have not delivered an iteration yet."""
        return [rank for rank in self.announcements if self._is_behind(rank, iteration)]

    def has_all(self, iteration: int) -> bool:
        """Whether every rank has delivered an iteration that it is awaited for.

        It is asked far more often than the answer changes, and the rank that lacked an iteration before mostly still
        lacks it: that one is asked first.
        """
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
        """Wait no longer for these ranks, until they deliver again, nor for ranks that were never announced."""
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
        """Why the job ended: the worst of the reasons that its ranks gave."""
        said = {self.reasons[rank] for rank, a in self.announcements.items() if a.is_logged and rank in self.reasons}
        return next((reason for reason in ("restarted", "stopped") if reason in said), "finished")

    def state(self) -> RosterState:
        """Everything that `from_state` needs."""
        return RosterState(
            announcements=self._announced(),
            reasons=dict(self.reasons),
            through=dict(self._through),
            given_up=frozenset(self._given_up),
            is_complete=self._is_complete,
        )

    def _announced(self) -> Part[tuple[bytes, ...]]:
        """Return all announcements encoded: the same object as long as no further one has come."""
        new = list(self.announcements.values())[len(self._encoded) :]
        if new:
            self._encoded = (*self._encoded, *map(encode_announcement, new))
        return Part(self._encoded, sum(map(len, self._encoded)))

    @classmethod
    def from_state(cls, state: RosterState) -> JobRoster:
        """Restore."""
        roster = cls()
        roster._encoded = state.announcements.value
        for value in roster._encoded:
            roster.announce(decode_announcement(value))
        roster.reasons = dict(state.reasons)
        roster._through = dict(state.through)
        roster._newest = max(state.through.values(), default=None)
        roster._given_up = set(state.given_up)
        roster._is_complete = state.is_complete
        return roster
