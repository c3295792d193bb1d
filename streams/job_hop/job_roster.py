"""The ranks that take part in a job, and how far each has come: they decide which iterations can be judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.detectors.arrays.row_keys import find_sorted, stable_order
from irregulars.detectors.arrays.runs import begins_run
from irregulars.dtypes import Flags, Ints
from irregulars.messages.announcements import Announcement, contradiction_of, decode_announcement, encode_announcement
from irregulars.state_codec import Part
from irregulars.streams.job_hop.job_starts import Contradiction, hosts_of
from irregulars.validation import LARGEST

_MOST_SKIPPED: Final = 1 << 21
"""Iterations that a job may skip at once: twice the first hop's bound, since ranks are at different iterations."""

_NOTHING: Final = int(np.iinfo(np.int64).min)  # stands for the newest iteration of a rank that has delivered none


@dataclass(frozen=True, slots=True)
class RosterState:
    """State of a `JobRoster`; announcements as messages, in which the ranks of communicators are short runs."""

    announcements: Part[tuple[bytes, ...]]
    reasons: Mapping[int, str]
    through: Mapping[int, int]
    given_up: frozenset[int]
    is_complete: bool
    contradicting: tuple[bytes, ...] = ()
    in_force: tuple[tuple[int, int], ...] = ()
    most_skipped: int = _MOST_SKIPPED


class JobRoster:
    """Ranks of one attempt of a job.

    An iteration can be judged once every rank that logs has delivered it, has ended, or was given up.

    `announcements`: that of each rank which holds in the iteration that `hold` was asked for last, else the one that
    came first.
    """

    def __init__(self) -> None:
        self.announcements: dict[int, Announcement] = {}
        self._all: dict[int, dict[int, Announcement]] = {}  # all of each rank, by the time since when each holds
        self._moved: set[int] = set()  # ranks that have several
        self._in_force: dict[int, int] = {}  # since when these have the place of the newest iteration
        self._resized: tuple[float, float] = (0, math.inf)  # time and world size of the newest change
        self._known: list[Announcement] = []  # all of `_all`, as they came
        self._encoded: tuple[bytes, ...] = ()  # of the first of these; most states are taken when all have come
        self._contradicting: dict[int, Announcement] = {}  # by rank; the first one of a place holds
        self.reasons: dict[int, str] = {}  # of ranks that have ended
        # Of all ranks that were announced or delivered something, ascending. Arrays, as a job of 100,000 ranks
        # delivers as many rows in each iteration.
        self._ranks: Ints = np.empty(0, dtype=np.int64)
        self._through: Ints = np.empty(0, dtype=np.int64)  # newest iteration that each delivered
        self._is_awaited: Flags | None = None  # of each; None: it is to be found out anew
        self._newest: int | None = None  # of any rank
        self._leaps = 0  # rows far ahead of that, one after the other
        self._most_skipped = _MOST_SKIPPED  # how far ahead that is
        self._slowest = 0  # place of a rank that was behind at the last question
        self._given_up: set[int] = set()
        self._logged = 0  # ranks that were announced and log
        self._expected = 1  # as many as are to log
        self._is_complete = False

    def announce(self, announcement: Announcement) -> bool:
        """Take in an announcement; return whether it is new. A rank's first one holds until `hold` picks another."""
        rank, since_ns = announcement.rank, announcement.since_ns or 0
        own = self._all.setdefault(rank, {})
        if since_ns in own:
            noted = self._contradicting.get(rank)
            if contradiction_of(own[since_ns], announcement) is not None:
                self._contradicting[rank] = announcement
            elif noted is not None and noted.host == announcement.host:  # the host that contradicted agrees again
                del self._contradicting[rank]
            return False
        own[since_ns] = announcement
        self._known.append(announcement)
        self._resized = max(self._resized, (since_ns, announcement.world_size)) if since_ns else self._resized
        self._is_awaited = None
        if len(own) == 1:
            self.announcements[rank] = announcement
            self._logged += announcement.is_logged
            self._expected = max(self._expected, announcement.logged_ranks)
        elif since_ns == max(own):  # the process that had the rank before may have ended, or fallen silent
            self.reasons.pop(rank, None)
            self._given_up.discard(rank)
        self._moved.update([rank] if len(own) > 1 else ())
        return True

    def newest(self, rank: int) -> Announcement:
        """Return the announcement of a rank's newest place."""
        return self._all[rank][max(self._all[rank])]

    def hold(self, rank: Ints, end_ns: Ints) -> bool:
        """Let the places count that ranks had in an iteration; return whether they had others in the one before.

        `end_ns`: the iteration's end of each row, by the clock of the rank's own host, as `Announcement.since_ns`.
        """
        if not self._moved:
            return False
        ends_ns, latest_ns = dict(zip(rank.tolist(), end_ns.tolist(), strict=True)), int(end_ns.max())
        now: dict[int, Announcement] = {}
        for moved in self._moved:
            # A rank without a row in it goes by the iteration's latest end.
            own, until_ns = self._all[moved], ends_ns.get(moved, latest_ns)
            since_ns = max((one for one in own if one < until_ns), default=min(own))
            # A rank does not go back to a place that it has left, though clocks of hosts differ.
            since_ns = self._in_force[moved] = max(since_ns, self._in_force.get(moved, since_ns))
            now[moved] = own[since_ns]
        return self._put(now)

    def _put(self, now: dict[int, Announcement]) -> bool:
        if all(self.announcements.get(rank) is one for rank, one in now.items()):
            return False
        # Another object, not other values: judges keep the one that they were given.
        is_resized = max((one.since_ns or 0 for one in now.values()), default=0) >= self._resized[0] > 0
        most = self._resized[1] if is_resized else math.inf
        self.announcements = {rank: one for rank, one in (self.announcements | now).items() if rank < most}
        for rank in self._contradicting.keys() & now.keys():
            if (self._contradicting[rank].since_ns or 0) < (now[rank].since_ns or 0):
                del self._contradicting[rank]
        self._is_awaited = None
        return True

    @property
    def contradiction(self) -> Contradiction | None:
        """How announcements of the ranks contradict each other; None: they do not."""
        for other in self._contradicting.values():
            what = contradiction_of(self._place_of(other), other)
            if what is not None:
                both = [one for again in self._contradicting.values() for one in (self._place_of(again), again)]
                return Contradiction(what, hosts_of(both))
        return None

    def _place_of(self, other: Announcement) -> Announcement:
        """Return the announcement that holds of the place which another one is of."""
        return self._all[other.rank][other.since_ns or 0]

    def end(self, rank: int, reason: str, since_ns: int | None = None) -> None:
        """Take in that a rank has ended, and its reason; the end of a place that it has left is ignored."""
        if rank in self._moved and self.newest(rank).since_ns != since_ns:
            return
        self.reasons[rank] = reason
        place, is_known = find_sorted(self._ranks, np.array([rank]))
        if self._is_awaited is not None and is_known[0]:  # one that ended before it was awaited has no place
            self._is_awaited[place[0]] = False

    def deliver(self, rank: Ints, iteration: Ints) -> Flags:
        """Note evidence rows; return False for those that were delivered before, or can't have come yet.

        The first hop refuses leaps itself, so that one here comes of a damaged or foreign message. A second one after
        it is believed. Of several rows of one rank those count that are newer than all before them.
        """
        if not len(rank):
            return np.zeros(0, dtype=bool)
        newest = int(iteration.min()) if self._newest is None else self._newest
        if int(iteration.max()) - newest > self._most_skipped:  # some may be too far ahead: each is judged by itself
            pairs = zip(rank.tolist(), iteration.tolist(), strict=True)
            return np.array([self._deliver_one(*pair) for pair in pairs], dtype=bool)
        place = self._places(rank)
        is_new = (iteration > self._through[place]) & _are_newest(place, iteration)
        if is_new.any():
            self._leaps = 0
            self._note(place[is_new], iteration[is_new])
        return is_new

    def _deliver_one(self, rank: int, iteration: int) -> bool:
        place = self._places(np.array([rank]))
        if iteration <= self._through.item(place[0]):
            return False
        skipped = 0 if self._newest is None else iteration - self._newest
        self._leaps = self._leaps + 1 if skipped > self._most_skipped else 0
        if self._leaps == 1:
            return False
        if self._leaps > 1:
            # It numbers in wide steps, by tokens say: else each iteration would cost a row. Bounded, to be stored.
            self._most_skipped = min(2 * skipped, LARGEST)
        self._note(place, np.array([iteration]))
        return True

    def _note(self, place: Ints, iteration: Ints) -> None:
        """Note new rows of the ranks at these places."""
        np.maximum.at(self._through, place, iteration)
        newest = int(iteration.max())
        self._newest = newest if self._newest is None else max(newest, self._newest)
        back = self._given_up.intersection(self._ranks[place].tolist()) if self._given_up else ()
        if back:  # not for the messages of all others, while a rank stays away for days
            self._given_up.difference_update(back)
            self._is_awaited = None

    def _places(self, rank: Ints) -> Ints:
        """Return the place of each rank in `_ranks`, to which new ones are added."""
        place, is_known = find_sorted(self._ranks, rank)
        if is_known.all():
            return place
        before, through = self._ranks, self._through
        self._ranks = np.union1d(before, rank)
        self._through = np.full(len(self._ranks), _NOTHING)
        self._through[np.searchsorted(self._ranks, before)] = through
        self._is_awaited = None
        return np.searchsorted(self._ranks, rank)

    def lagging(self, iteration: int) -> list[int]:
        """Return the ranks that log and have not delivered an iteration yet, ascending."""
        is_behind = self._awaited() & (self._through < iteration)
        behind: list[int] = self._ranks[is_behind].tolist()
        return behind

    def has_all(self, iteration: int) -> bool:
        """Whether every rank has delivered an iteration that it is awaited for."""
        # It is asked far more often than the answer changes, and the rank that lacked an iteration before mostly
        # still lacks it: that one is asked first.
        is_awaited, at = self._awaited(), self._slowest
        if at < len(is_awaited) and is_awaited[at] and self._through[at] < iteration:
            return False
        behind = np.flatnonzero(is_awaited & (self._through < iteration))
        self._slowest = int(behind[0]) if len(behind) else 0
        return not len(behind)

    def _awaited(self) -> Flags:
        """Return for each of `_ranks` whether it is awaited: it logs, has not ended and was not given up."""
        if self._is_awaited is None:
            awaited = [rank for rank in self._logging if rank not in self.reasons and rank not in self._given_up]
            place = self._places(np.array(awaited, dtype=np.int64))
            self._is_awaited = np.zeros(len(self._ranks), dtype=bool)
            self._is_awaited[place] = True
        return self._is_awaited

    @property
    def _logging(self) -> Iterator[int]:
        """The ranks that log, without those that are beyond the size to which the group was resized."""
        # One by one: with each message it is asked whether all have ended, and mostly the first has not.
        return (rank for rank, one in self.announcements.items() if one.is_logged and rank < self._resized[1])

    def give_up(self, ranks: Iterable[int]) -> None:
        """Wait no longer for these ranks, until they deliver again, nor for ranks that were never announced."""
        self._given_up.update(ranks)
        self._is_awaited = None
        self._is_complete = True

    @property
    def is_complete(self) -> bool:
        """Whether all ranks that log have been announced."""
        self._is_complete = self._is_complete or self._logged >= self._expected
        return self._is_complete

    @property
    def is_ended(self) -> bool:
        """Whether all ranks that log have ended."""
        return self.is_complete and all(rank in self.reasons for rank in self._logging)

    @property
    def end_reason(self) -> str:
        """Why the job ended: the worst of the reasons that its ranks gave."""
        said = {self.reasons[rank] for rank in self._logging if rank in self.reasons}
        return next((reason for reason in ("restarted", "stopped") if reason in said), "finished")

    def state(self) -> RosterState:
        """Everything that `from_state` needs; `announcements` is the same object as long as no further one came."""
        new = self._known[len(self._encoded) :]
        if new:
            self._encoded = (*self._encoded, *map(encode_announcement, new))
        is_known = self._through != _NOTHING
        return RosterState(
            announcements=Part(self._encoded, sum(map(len, self._encoded))),
            reasons=dict(self.reasons),
            through=dict(zip(self._ranks[is_known].tolist(), self._through[is_known].tolist(), strict=True)),
            given_up=frozenset(self._given_up),
            is_complete=self._is_complete,
            contradicting=tuple(map(encode_announcement, self._contradicting.values())),
            in_force=tuple(self._in_force.items()),
            most_skipped=self._most_skipped,
        )

    @classmethod
    def from_state(cls, state: RosterState) -> JobRoster:
        """Restore."""
        roster = cls()
        roster._encoded = state.announcements.value
        for value in roster._encoded:
            roster.announce(decode_announcement(value))
        roster._in_force = dict(state.in_force)
        roster._put({rank: roster._all[rank][since_ns] for rank, since_ns in state.in_force})
        roster.reasons = dict(state.reasons)
        through = sorted(state.through.items())
        roster._ranks, roster._through = np.array(through, dtype=np.int64).reshape(-1, 2).T.copy()
        roster._newest = max(state.through.values(), default=None)
        roster._most_skipped = state.most_skipped
        roster._given_up = set(state.given_up)
        roster._is_complete = state.is_complete
        # Last: they contradict announcements that are restored above.
        for value in state.contradicting:
            roster.announce(decode_announcement(value))
        return roster


def _are_newest(place: Ints, iteration: Ints) -> Flags:
    """Return for each row whether it is newer than all rows of the same place before it.

    >>> _are_newest(np.array([4, 4, 2, 4]), np.array([7, 9, 1, 8])).tolist()
    [True, True, True, False]
    """
    if bool(np.all(place[1:] > place[:-1])):  # as messages of one iteration have it
        return np.ones(len(place), dtype=bool)
    order = stable_order(place)
    numbers, code = np.unique(iteration[order], return_inverse=True)
    lift = place[order] * len(numbers)
    newest = np.maximum.accumulate(code + lift) - lift  # of the row's place, up to the row
    is_newest = np.empty(len(place), dtype=bool)
    is_newest[order] = begins_run(place[order], newest)
    return is_newest
