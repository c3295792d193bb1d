"""The starts of a job: the attempt number under which each is judged, and contradictions between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Ints
from irregulars.messages.announcements import FIRST_ATTEMPT, Announcement, code_of_start
from irregulars.messages.evidence import BESIDE_NS, GOES_ON, Evidence, Membership
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import UNKNOWN
from irregulars.validation import LARGEST

MOST_HOSTS: Final = 8
_EVIDENCE: Final = (
    "no device is named: the job's ranks are announced in contradicting places, or two jobs have one name"
)


class Contradiction(NamedTuple):
    """Why it is not known which devices a job's rows are of."""

    # In which respect announcements differ (`announcements.contradiction_of`); ``starts``: two starts run at once
    what: str
    hosts: tuple[str, ...]  # some of those that are concerned, ascending


def hosts_of(announcements: Iterable[Announcement]) -> tuple[str, ...]:
    """Return some of the hosts of announcements, ascending."""
    return tuple(sorted({one.host for one in announcements if one.host is not None})[:MOST_HOSTS])


def without_places(verdict: Verdict) -> Verdict:
    """Return a verdict without suspects, and not as recovered: its rows may be those of two starts."""
    reason = "restarted" if verdict.close_reason == "recovered" else verdict.close_reason
    return replace(verdict, suspects=(), evidence=_EVIDENCE, close_reason=reason)


_NOT_JUDGED: Final = -LARGEST  # number of rows of a start that was not announced: none is judged under it
_MOST_STARTS: Final = 1024
"""Starts that are known as such. Of a job that starts more often, one that is long over would count as new."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job: the attempt number under which it is judged, its first iteration, and some of its hosts."""

    number: int
    began_ns: int = UNKNOWN
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartsState:
    """State of `JobStarts`: the starts by their code (`code_of_start`), in the order of their coming."""

    known: tuple[tuple[int, Start], ...]
    beside: tuple[int, ...]

    @classmethod
    def of(cls, code: int, number: int) -> StartsState:
        """Return that of a job of which only the newest start is known; its next one gets a higher number."""
        return cls(((code, Start(number)),), ())


class JobStarts:
    """Gives each start of a job an attempt number of its own, in the order of their first messages.

    The first start under an attempt number keeps it, and so does each one without an id. A further one gets the next
    number above all that were given. Partitions are read apart, so that a start may be heard of after the one that
    followed it: its first rows show that, and it is over then.
    """

    def __init__(self, state: StartsState | None = None) -> None:
        self._known = {} if state is None else dict(state.known)
        self._beside = set(() if state is None else state.beside)  # numbers of starts that run beside another

    def is_beside(self, number: int | None) -> bool:
        """Whether a start runs beside another one."""
        return number in self._beside

    @property
    def hosts(self) -> tuple[str, ...]:
        """Some hosts of the starts that run beside one another, ascending."""
        found = {host for one in self._known.values() if one.number in self._beside for host in one.hosts}
        return tuple(sorted(found)[:MOST_HOSTS])

    @property
    def not_judged(self) -> int:
        """How many starts were overtaken."""
        return sum(one.number == _NOT_JUDGED for one in self._known.values())

    @property
    def newest(self) -> tuple[int, int] | None:
        """Code and number of the newest start that has an id; None: none has."""
        numbers = {code: one.number for code, one in self._known.items() if code < FIRST_ATTEMPT}
        return max(numbers.items(), key=lambda one: one[1], default=None)

    def overtaken(self, current: int | None) -> list[int]:
        """Return the numbers of starts to come that began before the present one; nothing is judged under them."""
        now = next((one for one in self._known.values() if one.number == current), None)
        found: list[int] = []
        if now is None or now.began_ns == UNKNOWN:
            return found
        for code, one in self._known.items():
            if one.number > now.number and UNKNOWN < one.began_ns < now.began_ns:
                self._known[code] = replace(one, number=_NOT_JUDGED)
                found.append(one.number)
        return found

    def numbered(self, rows: Sequence[Evidence | Membership]) -> list[Evidence | Membership]:
        """Return rows with the numbers of their starts as attempts, without reports that a start goes on."""
        found: list[Evidence | Membership] = []
        for row in rows:
            if isinstance(row, Evidence):
                found.append(self._numbered_evidence(row))
            elif row.reason == GOES_ON:
                self._note_beside(self._known.get(code_of_start(row.attempt, row.start)))
            else:
                found.append(self._numbered_member(row))
        return found

    def _numbered_member(self, member: Membership) -> Membership:
        code, own = code_of_start(member.attempt, member.start), member.announcement
        known = self._known.get(code)
        if known is None:
            number = member.attempt
            if member.start is not None:
                newest = max(
                    (one.number for code, one in self._known.items() if code < FIRST_ATTEMPT), default=-LARGEST
                )
                number = max(number, newest + 1)
            known = self._known[code] = Start(number)
            if len(self._known) > _MOST_STARTS:
                del self._known[next(iter(self._known))]
        host = None if own is None else own.host
        if host is not None and host not in known.hosts and len(known.hosts) < MOST_HOSTS:
            self._known[code] = replace(known, hosts=(*known.hosts, host))
        if known.number == member.attempt:
            return member
        own = None if own is None else replace(own, attempt=known.number)
        return replace(member, attempt=known.number, announcement=own)

    def _numbered_evidence(self, evidence: Evidence) -> Evidence:
        codes = evidence.columns["attempt"]
        # All of starts without an id: their codes are their attempt numbers.
        if not len(evidence) or int(codes.min()) >= FIRST_ATTEMPT:
            return evidence
        numbers = codes.astype(np.int64)
        for code in np.unique(codes).tolist():
            known = self._known.get(code)
            if code < FIRST_ATTEMPT:
                numbers[codes == code] = _NOT_JUDGED if known is None else known.number
            if known is not None:
                self._note_times(code, known, evidence.columns["start_ns"][codes == code].astype(np.int64))
        return replace(evidence, columns={**evidence.columns, "attempt": numbers})

    def _note_times(self, code: int, known: Start, start_ns: Ints) -> None:
        """Note when a start began, and whether it goes on after a later one began.

        By the middle row, not by the first and the last one: the wrong clock of one host would decide for all.
        """
        start_ns = start_ns[start_ns != UNKNOWN]
        if not len(start_ns):
            return
        middle = len(start_ns) // 2
        middle_ns = int(np.partition(start_ns, middle)[middle])
        if known.began_ns == UNKNOWN:
            self._known[code] = replace(known, began_ns=middle_ns)
        until_ns = middle_ns - BESIDE_NS
        began_ns = self._known[code].began_ns
        if any(began_ns < one.began_ns < until_ns for one in self._known.values()):
            self._note_beside(known)

    def _note_beside(self, known: Start | None) -> None:
        """Note that a start goes on beside all later ones."""
        if known is not None:
            self._beside.update(one.number for one in self._known.values() if one.number >= known.number)

    def state(self) -> StartsState:
        """Return the state from which `JobStarts` goes on."""
        return StartsState(tuple(self._known.items()), tuple(sorted(self._beside)))
