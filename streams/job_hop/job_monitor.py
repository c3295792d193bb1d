"""The second hop: judge a job's iterations, and find who is to blame for the irregular ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from irregulars.detectors.judging.iteration_judge import IterationJudge, JudgeState
from irregulars.detectors.judging.iteration_rows import (
    IterationRows,
    ReadBack,
    join_rows,
    parts_of,
    split_by_iteration,
)
from irregulars.detectors.judging.operator_reader import LogTraffic
from irregulars.detectors.judging.result_log import concatenate_columns
from irregulars.messages.announcements import Announcement
from irregulars.messages.evidence import Evidence, Membership, decode_evidence, encode_evidence
from irregulars.messages.judgements import AttemptEnd, Judgements, Verdict
from irregulars.messages.threshold_changes import ThresholdChange, values_in_force
from irregulars.settings import JudgeSettings
from irregulars.state_codec import Part
from irregulars.streams.job_hop.job_clock import JobClock, Presence
from irregulars.streams.job_hop.job_roster import JobRoster, RosterState
from irregulars.streams.job_hop.job_starts import Contradiction, JobStarts, StartsState, without_places
from irregulars.streams.job_hop.stored_attributions import StoredAttributions, put_back, take_out

_MOST_PENDING_BYTES: Final = 256 << 20
"""Evidence of a job's iterations that wait for ranks; above it the oldest are given up. Nothing else ends the wait
for a rank whose partition no worker reads: it is not silent. 10,000 ranks fill it in some 30 iterations.
A start ends as well once that of later ones takes more: such a rank never reports the end of the present one."""

_MEMBER_BYTES: Final = 256  # of one who came or went, about as many as of a row of evidence
_SEVERITY: Final = "alert_"  # before the name of each limit of `SeverityLimits`, in the names of settings


def changed_settings(settings: JudgeSettings, values: Mapping[str, float]) -> JudgeSettings:
    """Return settings with these values, by the names of `messages.threshold_changes.LIVE`.

    >>> changed = changed_settings(JudgeSettings(), {"delta": 1.3, "alert_page_share": 0.2})
    >>> changed.delta, changed.severity.page_share, changed.window
    (1.3, 0.2, 50)
    """
    limits: dict[str, Any] = {
        name.removeprefix(_SEVERITY): value for name, value in values.items() if name.startswith(_SEVERITY)
    }
    own: dict[str, Any] = {name: value for name, value in values.items() if not name.startswith(_SEVERITY)}
    return replace(settings, severity=replace(settings.severity, **limits), **own)


def judged_by(verdict: Verdict, values: Mapping[str, float]) -> Verdict:
    """Return a verdict that names the changed thresholds by which it was judged, to programs and to people."""
    told = ", ".join(f"{name} = {value:g}" for name, value in values.items())
    return replace(
        verdict, thresholds=dict(values), evidence=f"{verdict.evidence}; judged with {told}, as changed live"
    )


@dataclass(frozen=True, slots=True)
class JobMonitorState:
    """State of a `JobMonitor`."""

    job: str
    attempt: int | None
    roster: RosterState
    pending: tuple[Part[IterationRows], ...]
    judge: JudgeState
    announced: tuple[int, ...]  # ranks whose announcement is still to be handed on
    is_ended: bool
    later: tuple[bytes, ...]  # rows of the next attempt, as messages of ``evidence``
    still_s: float | None  # for how long the job has not moved
    attributions: StoredAttributions  # those of `judge`, which is without them
    starts: StartsState  # the job's starts


class JobMonitor:
    """Judge one job's iterations in their order, each once all of its ranks have delivered it."""

    def __init__(self, job: str, settings: JudgeSettings) -> None:
        self.job = job
        self.settings = settings
        self._starts = JobStarts()
        self._attempt: int | None = None  # number of the start that is judged
        self._roster = JobRoster()
        self._judge = IterationJudge(job, 0, settings)
        self._pending: dict[int, list[IterationRows]] = {}
        self._pending_bytes = 0
        self.given_up = 0  # iterations that are not judged, as too much waited; since the state was restored
        self._waits_at: int | None = None  # the first of them since one was judged: ranks are waited for since then
        self._announced: list[Announcement] = []
        self._is_ended = False
        self._later: list[Evidence | Membership] = []  # of the next attempt, which begins when this one is over
        self._later_bytes = 0
        self._clock = JobClock(settings.silence_s, settings.grace_s)
        self._changes: Sequence[ThresholdChange] = ()
        self._in_force: dict[str, float] = {}  # of them, with the settings that they make
        self._current = settings

    @property
    def is_ended(self) -> bool:
        """Whether everything is judged and closed: the state may go."""
        return self._is_ended and not self._later

    @property
    def end_reason(self) -> str:
        """Why it ended; ``silent`` where its ranks did not say."""
        return self._roster.end_reason if self._roster.is_ended else "silent"

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        return self._judge.open_kinds

    @property
    def size(self) -> int:
        """How many ranks of the attempt were announced."""
        return len(self._roster.announcements)

    @property
    def traffic(self) -> LogTraffic:
        """How much of the attempt's log was read back."""
        return self._judge.traffic

    @property
    def cold_detectors(self) -> tuple[str, ...]:
        """Detectors of ranks that began cold although a snapshot should have held them."""
        return self._judge.cold_detectors

    @property
    def contradiction(self) -> Contradiction | None:
        """Why no device of the job can be named now; None: nothing contradicts."""
        if self._starts.is_beside(self._attempt):
            return Contradiction("starts", self._starts.hosts)
        return self._roster.contradiction

    @property
    def starts(self) -> StartsState:
        """Its starts so far."""
        return self._starts.state()

    @property
    def newest_start(self) -> tuple[int, int] | None:
        """Code and number of its newest start that has an id; None: none has."""
        return self._starts.newest

    @property
    def overtaken(self) -> int:
        """How many starts are not judged, as they began before one that was judged already."""
        return self._starts.not_judged

    def go_on_after(self, starts: StartsState) -> None:
        """Number further starts behind those before: else their verdicts would have the ids of verdicts on these."""
        self._starts = JobStarts(starts)

    def add(self, rows: Sequence[Evidence | Membership]) -> None:
        """Take in rows that RankMonitors drained; a row that comes twice counts once."""
        numbered = self._starts.numbered(rows)
        overtaken = self._starts.overtaken(self._attempt)
        if overtaken:
            self._hold_back(_without(overtaken, self._take_later()))
            numbered = _without(overtaken, numbered)
        self._add_numbered(numbered)

    def _add_numbered(self, rows: Sequence[Evidence | Membership]) -> None:
        for row in rows:
            if isinstance(row, Membership):
                # Devices report events while the job hangs too, a failing NIC for hours: these are no sign of life.
                if row.announcement is not None or row.reason is not None:
                    self._clock.hear(is_moving=True)
                if self._attempt is None and row.announcement is not None:
                    self._begin(row.attempt)
                if self._is_of_later(row.attempt):
                    self._hold_back([row])
                elif row.attempt == self._attempt:
                    if row.announcement is not None and self._roster.announce(row.announcement):
                        self._announced.append(row.announcement)
                    self._judge.note_events(row.events)
                    if row.reason is not None:
                        self._roster.end(row.rank, row.reason, row.since_ns)
            else:
                self._clock.hear(is_moving=not row.columns["unended"].any())
                self._add_evidence(row)

    def follow(self, changes: Sequence[ThresholdChange]) -> None:
        """Judge by all thresholds that people changed for this job, from the next iteration that `advance` judges on.

        They are in the order of their topic, and no part of the state: the stage calls this again after a restore.
        """
        if changes is not self._changes:
            self._changes = changes
            self._take_over(values_in_force(changes, self._judge.newest_ns))

    def _take_over(self, values: dict[str, float]) -> None:
        if values != self._in_force:
            self._in_force, self._current = values, changed_settings(self.settings, values)
            self._judge.follow(self._current)
            self._clock.silence_s = self._current.silence_s

    def tick(self, now_s: float, until_s: float | None = None) -> None:
        """Take in the time; `advance` then closes all that is due.

        Ranks that keep an iteration waiting for longer than the grace are given up. When a job has been silent (see
        `JobClock`), its verdicts are closed, and it is checked for a hang; messages that come later count again.
        It is forgotten after a day more, and the verdict on its hang then closes at the latest.
        A silence counts from the present, `now_s`, and only as far as was read, `until_s` (None: until now): the lag
        of a worker is not the job's silence.
        """
        until_s = now_s if until_s is None else until_s

        def is_stuck() -> bool:  # the newest evidence reports operators that never ended
            waiting = (rows for own in self._pending.values() for rows in own)
            return self._judge.has_unended or any(rows.columns["unended"].any() for rows in waiting)

        oldest = min(self._pending, default=None)
        self._clock.tick(
            now_s, until_s, oldest=oldest if self._waits_at is None else self._waits_at, is_stuck=is_stuck,
            has_later=bool(self._later),
        )  # fmt: skip
        self._judge.stand((self._clock.still_s or 0.0) - (now_s - until_s))
        if oldest is not None and self._clock.is_rank_overdue:
            self._roster.give_up(self._roster.lagging(oldest))

    def advance(self, read_back: ReadBack) -> Judgements:
        """Judge the iterations that are complete; operators are read back only for suspect ones."""
        parts = self._advance_attempt(read_back)
        while self._later and self._is_ended:
            later = self._take_later()
            attempts = [row.attempt for row in later if isinstance(row, Membership)]
            if not attempts:  # rows of an attempt that was not announced
                break
            self._begin(min(attempts))
            self._add_numbered(later)
            parts += self._advance_attempt(read_back)
        if len(parts) == 1:
            return parts[0]
        merged: dict[str, Any] = {}
        for name in (one.name for one in fields(Judgements) if one.name != "job"):
            own = [value for part in parts if (value := getattr(part, name))]
            is_columns = isinstance(getattr(parts[0], name), Mapping)
            merged[name] = concatenate_columns(own) if is_columns else list(chain.from_iterable(own))
        return Judgements(self.job, **merged)

    def _advance_attempt(self, read_back: ReadBack) -> list[Judgements]:
        reason, parts, ends = self._reason_to_end(), [], []
        roster = self._roster
        while self._pending and (reason is not None or (roster.is_complete and roster.has_all(min(self._pending)))):
            rows, self._waits_at = join_rows(self._take_oldest()), None
            values = values_in_force(self._changes, rows.start_ns)
            # Drained first: verdicts so far were judged by the thresholds before.
            if values != self._in_force:
                parts.append(self._drain([]))
                self._take_over(values)
            before = self._roster.announcements
            if self._roster.hold(rows.columns["rank"], rows.ends_ns):
                # Ranks have moved: a verdict names places, and its ranks have others from here on.
                self._judge.close("restarted", before, read_back)
                parts.append(self._drain([]))
                self._judge = self._judge.successor(self._current)
            self._judge.judge(rows, self._roster.announcements, read_back)
        while self._pending_bytes > _MOST_PENDING_BYTES and len(self._pending) > 1:
            # Not judged without the ranks that lack: it may be theirs to tell who is to blame.
            number = self._take_oldest()[0].number
            self._judge.pass_over(number)
            self.given_up += 1
            # The next one is now the oldest: a rank that is dead would never have kept it waiting for the grace.
            self._waits_at = number if self._waits_at is None else self._waits_at
        if reason is not None:
            # A silent job may go on: it has no end yet.
            if reason != "silent":
                ends.append(AttemptEnd(self.job, self._judge.attempt, reason, self._judge.newest_ns))
            self._judge.close(reason, self._roster.announcements, read_back)
            if self._clock.presence is Presence.FORGOTTEN:
                self._judge.close_standing(reason)
            self._clock.tell()
            self._is_ended = reason != "silent" or self._clock.presence is Presence.FORGOTTEN
        announced, self._announced = self._announced, []
        return [*parts, replace(self._drain(announced), ends=ends)]

    def _take_oldest(self) -> list[IterationRows]:
        rows = self._pending.pop(min(self._pending))
        self._pending_bytes -= sum(one.size_bytes for one in rows)
        return rows

    def _wait_for_ranks(self, rows: IterationRows) -> None:
        self._pending.setdefault(rows.number, []).append(rows)
        self._pending_bytes += rows.size_bytes

    def _drain(self, announced: Sequence[Announcement]) -> Judgements:
        """Return the new judgements, with changed thresholds in verdicts, and without suspects in a contradiction."""
        judgements = self._judge.drain(announced)
        if self.contradiction is not None:
            judgements = replace(judgements, verdicts=[*map(without_places, judgements.verdicts)])
        if not self._in_force or not judgements.verdicts:
            return judgements
        return replace(judgements, verdicts=[judged_by(one, self._in_force) for one in judgements.verdicts])

    def _reason_to_end(self) -> str | None:
        if self._is_ended or self._attempt is None:
            return None
        if self._roster.is_ended:
            return self._roster.end_reason
        is_full = self._later_bytes > _MOST_PENDING_BYTES
        if self._clock.is_attempt_overdue or (is_full and any(isinstance(row, Membership) for row in self._later)):
            return "restarted"
        return "silent" if self._clock.presence in (Presence.SILENT, Presence.FORGOTTEN) else None

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._roster = JobRoster()
        self._judge = IterationJudge(self.job, attempt, self._current)
        self._pending, self._pending_bytes, self._announced = {}, 0, []
        self._waits_at, self._is_ended = None, False
        self._clock.begin()

    def _is_of_later(self, attempt: int) -> bool:
        return self._attempt is not None and attempt > self._attempt

    def _hold_back(self, rows: Sequence[Evidence | Membership]) -> None:
        self._later += rows
        self._later_bytes += sum(row.size_bytes if isinstance(row, Evidence) else _MEMBER_BYTES for row in rows)

    def _take_later(self) -> list[Evidence | Membership]:
        later, self._later, self._later_bytes = self._later, [], 0
        return later

    def _add_evidence(self, evidence: Evidence) -> None:
        attempts = evidence.columns["attempt"]
        if len(evidence) and self._is_of_later(int(attempts.max())):
            is_later = attempts > (self._attempt or 0)  # a message may hold the end of one and the begin of the next
            self._hold_back([evidence.take(is_later)])
            evidence = evidence.take(~is_later)
        if self._is_ended:  # its verdicts are closed
            return
        columns, own = evidence.columns, np.empty(0, int)
        if self._attempt is not None:
            own = np.flatnonzero(columns["attempt"] == self._attempt)
        is_new = np.zeros(len(evidence), dtype=bool)  # of this attempt, and not delivered before
        is_new[own] = self._roster.deliver(*(columns[name][own].astype(np.int64) for name in ("rank", "iteration")))
        for rows in split_by_iteration(evidence, is_new):
            if self._judge.is_before(rows.number):
                self._wait_for_ranks(rows)
            else:
                self._judge.add_late(rows)
                self._waits_at = None  # a rank that is waited for is not dead: its partition is read again

    def state(self) -> JobMonitorState:
        """Everything that `from_state` needs."""
        judge, attributions = take_out(self._judge.state())
        return JobMonitorState(
            job=self.job, attempt=self._attempt, roster=self._roster.state(),
            pending=parts_of(rows for number in sorted(self._pending) for rows in self._pending[number]), judge=judge,
            announced=tuple(announcement.rank for announcement in self._announced), is_ended=self._is_ended,
            later=tuple(value for row in self._later for value in encode_evidence([row], self.job)),
            still_s=self._clock.still_s, attributions=attributions, starts=self._starts.state(),
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: JobMonitorState, settings: JudgeSettings) -> JobMonitor:
        """Restore."""
        monitor = cls(state.job, settings)
        # First: it resets fields that are restored below.
        if state.attempt is not None:
            monitor._begin(state.attempt)
        monitor._starts = JobStarts(state.starts)
        monitor._roster = JobRoster.from_state(state.roster)
        for rows in (part.value for part in state.pending):
            monitor._wait_for_ranks(rows)
        monitor._judge = IterationJudge.from_state(put_back(state.judge, state.attributions), settings)
        monitor._announced = [monitor._roster.newest(rank) for rank in state.announced]
        monitor._is_ended, monitor._clock.still_s = state.is_ended, state.still_s
        monitor._hold_back([row for value in state.later for row in decode_evidence(value)])
        return monitor


def _without(attempts: Sequence[int], rows: Sequence[Evidence | Membership]) -> list[Evidence | Membership]:
    left = [
        row.take(~np.isin(row.columns["attempt"], attempts)) if isinstance(row, Evidence) else row for row in rows
    ]
    return [row for row in left if (len(row) if isinstance(row, Evidence) else row.attempt not in attempts)]
