"""Revisions on the result topics: each revision is published once, and each incident opens once.

After a restart a monitor repeats the revisions since its state was stored. A job that begins anew repeats those that
its evidence still yields, and not always as before: where the beginning of the evidence is deleted, or another
version judges, the same incident may get another id. It then goes on under the id that was published first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from irregulars.messages.judgements import SEVERITIES, Judgements, Verdict, urgency_of
from irregulars.messages.kinds import STANDSTILLS

VERDICTS: Final = "verdicts"
ALERTS: Final = "alerts"
VERDICT_TOPICS: Final = (VERDICTS, ALERTS)
MOST_ENDED: Final = 1000
"""Jobs of a partition that ended and whose newest start is known: they are in each of its records."""


@dataclass(frozen=True, slots=True)
class Published:
    """One verdict, by its newest revisions on the result topics."""

    verdict_id: str
    job: str
    attempt: int
    what: str  # kind and first suspect
    iterations: tuple[int, int]  # as `Verdict.iterations` of the newest revision
    is_open: bool  # whether the newest revision is open
    revisions: Mapping[str, int]  # the newest one on each topic
    severity: str | None = None  # the worst of its revisions; None: not known


@dataclass(frozen=True, slots=True)
class Alias:
    """The published id of an incident to which a job that began anew gives another one."""

    verdict_id: str  # the id that was published first
    job: str
    # revision, past_last, is_open: As published when it was taken over: newest revision, `Verdict.iterations`' end,
    # whether it was open
    revision: int
    past_last: int
    is_open: bool
    severity: str | None = None  # the worst that was published; None: not known

    def translate(self, verdict: Verdict) -> Verdict | None:
        """Return a revision under the published id; None where it holds nothing new.

        It is as severe as what was published: a verdict that sinks below what gives an alert would have no closing
        alert, and people would wait for the end of an incident that is over.
        """
        if not self.revision:  # the job found it again under its own id, and repeats its revisions
            return as_severe(verdict, self.severity) if verdict.state == "closed" else verdict
        goes_on = verdict.iterations[1] > self.past_last
        # Of one that was closed before and went on, the new end counts as well: its revisions since have opened it.
        is_news = goes_on or (self.is_open and verdict.event == "closed")
        if verdict.event == "opened" or not is_news:
            return None
        severe = as_severe(verdict, self.severity)
        return replace(severe, verdict_id=self.verdict_id, revision=self.revision + verdict.revision)


@dataclass(frozen=True, slots=True)
class Told:
    """State of `PublishedVerdicts`, in a partition's snapshot."""

    published: tuple[Published, ...] = ()  # verdicts on the topics that the monitors have not repeated yet
    aliases: Mapping[str, Alias] = field(default_factory=dict)  # by the id that the monitor uses
    anew: tuple[bytes, ...] = ()  # keys of the jobs that began anew
    before: int = 0  # evidence before this offset was judged before they did: that of other jobs is not judged again
    # Newest start of jobs that ended, by job: its code and its number; those that ended last come last
    starts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class PublishedVerdicts:
    """Verdicts on the result topics, of the jobs of one partition.

    `restored`: keys of the jobs whose states are in it.
    """

    def __init__(self, told: Told, restored: Set[bytes] = frozenset()) -> None:
        self._published = {one.verdict_id: one for one in told.published}
        self._aliases = dict(told.aliases)
        self._anew = set(told.anew)
        self._before: Final = told.before
        self._to_announce = set(told.anew) - restored
        self._starts = dict(told.starts)

    def __len__(self) -> int:
        return len(self._published)

    # --- revisions --------------------------------------------------------------------------------------------------

    def note(self, topic: str, verdict: Verdict) -> None:
        """Take in a revision that was found on a topic."""
        known = self._published.get(verdict.verdict_id)
        revisions = dict(known.revisions) if known is not None else {}
        revisions[topic] = max(revisions.get(topic, 0), verdict.revision)
        severity = _worse(verdict.severity, None if known is None else known.severity)
        # An older revision, of a topic that is read after the other one: it changes no state.
        if known is not None and verdict.revision < max(known.revisions.values()):
            self._published[verdict.verdict_id] = replace(known, revisions=revisions, severity=severity)
        else:
            self._published[verdict.verdict_id] = Published(
                verdict.verdict_id, verdict.job, verdict.attempt, _what(verdict), verdict.iterations,
                verdict.state == "open", revisions, severity,
            )  # fmt: skip

    def unsent(self, verdict: Verdict) -> Sequence[str]:
        """Return the topics to which a revision is still to be sent; each is asked for once.

        A producer keeps the order of messages of one key: below a revision on the topic all others are there as well.
        """
        known = self._published.get(verdict.verdict_id)
        if known is None:
            return VERDICT_TOPICS
        if verdict.revision >= max(known.revisions.values()):  # all revisions have been repeated
            del self._published[verdict.verdict_id]
        return [topic for topic in VERDICT_TOPICS if verdict.revision > known.revisions.get(topic, 0)]

    def open_of(self, job: str) -> Set[str]:
        """Return the ids of verdicts on a job that are open on the topics, and that its monitor has not repeated."""
        return {one.verdict_id for one in self._published.values() if one.job == job and one.is_open}

    def drop(self, verdict_ids: Set[str]) -> None:
        """Forget some verdicts: no monitor repeats them any more."""
        self._published = {name: one for name, one in self._published.items() if name not in verdict_ids}

    # --- jobs that begin anew ---------------------------------------------------------------------------------------

    def is_over(self, key: bytes, offset: int) -> bool:
        """Whether evidence is of a job that ended before another one of its partition began anew."""
        return offset < self._before and key not in self._anew

    def is_first(self, key: bytes) -> bool:
        """Whether a job began anew, and this is asked for the first time: its announcements may be deleted."""
        if key not in self._to_announce:
            return False
        self._to_announce.discard(key)
        return True

    def begin_anew(self, key: bytes, verdicts: Iterable[tuple[str, Verdict]]) -> None:
        """Let a job begin anew of which these verdicts were published, by topic; the newest of a topic last."""
        for topic, verdict in verdicts:
            self.note(topic, verdict)
        self._anew.add(key)

    def in_known_words(self, judgements: Judgements) -> Judgements:
        """Give incidents the ids under which they were published first, and ends the newest revisions."""
        if judgements.job.encode() not in self._anew:
            known = self._published  # usually none: monitors have repeated all that was sent before the restart
            return replace(judgements, verdicts=[*map(self._behind, judgements.verdicts)]) if known else judgements
        found = (self._translated(verdict) for verdict in judgements.verdicts)
        verdicts = [self._behind(verdict) for verdict in found if verdict is not None]
        ids = {own: alias.verdict_id for own, alias in self._aliases.items()}
        iterations = [
            replace(one, verdict_ids=tuple(ids.get(name, name) for name in one.verdict_ids))
            for one in judgements.iterations
        ]
        return replace(judgements, verdicts=verdicts, iterations=iterations)

    def _behind(self, verdict: Verdict) -> Verdict:
        """Return an end as the newest revision; other revisions as they are.

        A monitor that decides otherwise than before the restart may close after fewer revisions than were published:
        its end would count as an old one, and the incident would stay open.
        """
        known = self._published.get(verdict.verdict_id)
        if known is None or verdict.state != "closed":
            return verdict
        least = max(known.revisions.values()) + known.is_open
        return replace(as_severe(verdict, known.severity), revision=max(verdict.revision, least))

    def _translated(self, verdict: Verdict) -> Verdict | None:
        own = verdict.verdict_id
        if own not in self._aliases:
            repeated = self._published.get(own)
            if repeated is not None:
                alias = self._aliases[own] = Alias(own, verdict.job, 0, 0, True, repeated.severity)
                return alias.translate(verdict)
            if verdict.revision > 1:
                return verdict
            same = (one for one in self._published.values() if _is_same_incident(one, verdict))
            known = max(same, key=lambda one: (one.is_open, one.iterations), default=None)
            if known is None:
                return verdict
            newest = max(known.revisions.values())
            self._aliases[own] = Alias(
                known.verdict_id, known.job, newest, known.iterations[1], known.is_open, known.severity
            )  # fmt: skip
            del self._published[known.verdict_id]  # no monitor repeats it under that id
        return self._aliases[own].translate(verdict)

    # --- jobs that have ended, and may be run again under their names -----------------------------------------------

    def note_end(self, job: str, start: tuple[int, int] | None) -> None:
        """Note the newest start of a job that has ended, as `JobStarts.newest` returns it."""
        if start is not None:
            self._starts.pop(job, None)
            self._starts[job] = start
        if len(self._starts) > MOST_ENDED:
            del self._starts[next(iter(self._starts))]

    def start_before(self, key: bytes, *, is_new: bool = False) -> tuple[int, int] | None:
        """Return the newest start of a job that has no monitor; None: not known, or its evidence comes again.

        `is_new`: whether its evidence lies behind all that comes again. One that began anew and ended is forgotten as
        such with a later snapshot, and may be run again before that.
        """
        return self._starts.get(key.decode()) if is_new or key not in self._anew else None

    # --- snapshots --------------------------------------------------------------------------------------------------

    def forget(self, is_alive: Callable[[str], bool]) -> None:
        """Forget jobs that have no monitor any more."""
        self._published = {name: one for name, one in self._published.items() if is_alive(one.job)}
        self._aliases = {name: one for name, one in self._aliases.items() if is_alive(one.job)}
        # Jobs whose evidence has not come yet have no monitor, and are still to begin anew.
        self._anew = {key for key in self._anew if key in self._to_announce or is_alive(key.decode())}

    def told(self) -> Told:
        """Return the state for a snapshot."""
        return Told(
            tuple(self._published.values()), dict(self._aliases), tuple(sorted(self._anew)), self._before,
            dict(self._starts),
        )  # fmt: skip


def begun_anew(told: Told, keys: Set[bytes], position: int, verdicts: Iterable[tuple[str, Verdict]]) -> Told:
    """Return the state once jobs begin anew, whose verdicts these are, by topic; the newest of a topic last."""
    published = PublishedVerdicts(told)
    for topic, verdict in verdicts:
        published.note(topic, verdict)
    return replace(published.told(), anew=tuple(sorted({*told.anew, *keys})), before=max(told.before, position))


def ends_of(told: Iterable[tuple[str, Verdict]], verdict_ids: Set[str], reason: str) -> list[Verdict]:
    """Return an end for each of these verdicts that is open on ``verdicts``; `told`: revisions, by topic.

    The newest revision need not be the last on the topic: a worker that stood still sends old ones when it wakes,
    behind those of the partition's next owner.
    """
    newest: dict[str, Verdict] = {}
    for topic, one in told:
        if topic == VERDICTS and one.verdict_id in verdict_ids:
            newest[one.verdict_id] = max(one, newest.get(one.verdict_id, one), key=lambda each: each.revision)
    return [
        replace(one, revision=one.revision + 1, state="closed", event="closed", close_reason=reason)
        for one in newest.values()
        if one.state != "closed"
    ]


def as_severe(verdict: Verdict, severity: str | None) -> Verdict:
    """Return a verdict that is at least as severe; one whose own severity is not known gives alerts as it is."""
    return verdict if verdict.severity is None else replace(verdict, severity=_worse(verdict.severity, severity))


def _worse(one: str | None, other: str | None) -> str | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, key=lambda each: SEVERITIES.index(urgency_of(each)), default=None)


def _what(verdict: Verdict) -> str:
    """Describe the accused: the first suspect, or the communicator where there is none."""
    first = next(iter(verdict.suspects), None)
    accused = verdict.communicator if first is None else f"{first.device} {first.rank} {first.peer}"
    return f"{verdict.kind} {accused}" if verdict.detector is None else f"{verdict.detector} {accused}"


def _is_same_incident(known: Published, verdict: Verdict) -> bool:
    if (known.job, known.attempt, known.what) != (verdict.job, verdict.attempt, _what(verdict)):
        return False
    if known.is_open and verdict.kind not in STANDSTILLS:  # it may have gone on since its last revision
        return verdict.iterations[1] > known.iterations[0]
    return verdict.iterations[0] < known.iterations[1] and known.iterations[0] < verdict.iterations[1]
