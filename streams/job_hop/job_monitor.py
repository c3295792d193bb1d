"""The second hop: judge a job's iterations, and find who is to blame for the irregular ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from irregulars.detectors.judging.iteration_judge import IterationJudge
from irregulars.detectors.judging.reading.iteration_rows import IterationRows, join_rows, split_by_iteration
from irregulars.detectors.judging.reading.operator_reader import Traffic
from irregulars.detectors.judging.reading.spans import ReadBack
from irregulars.detectors.judging.result_columns import concatenate_columns
from irregulars.streams.job_hop.job_roster import JobRoster
from irregulars.streams.messages.announcements import Announcement
from irregulars.streams.messages.evidence import Evidence, Membership, decode_evidence, encode_evidence, select
from irregulars.streams.messages.judgements import Judgements
from irregulars.streams.monitor_settings import MonitorSettings

Array = np.ndarray

FORGOTTEN: Final = 10
"""A job that was silent for so many times the silence is over: its state goes, and it is not heard any more."""


class JobMonitor:
    """Judge one job's iterations in their order, each once all of its ranks have delivered it.

    Parameters
    ----------
    job
        Whose evidence this is.
    settings
        δ, window, how long to wait for ranks, and the detectors of ranks.
    """

    def __init__(self, job: str, settings: MonitorSettings) -> None:
        self.job = job
        self.settings = settings
        self._attempt: int | None = None
        self._roster = JobRoster()
        self._judge = IterationJudge(job, 0, settings)
        self._pending: dict[int, list[IterationRows]] = {}
        self._announced: list[Announcement] = []
        self._is_ended = False
        self._is_silent = self._is_forgotten = False
        self._silence_is_told = False
        self._later: list[Evidence | Membership] = []  # of the next attempt, which begins when this one is over
        self._heard = 0
        self._heard_at: tuple[int, float] | None = None
        self._has_moved = False  # something came since the last tick that does not tell of a standstill
        self._moved_s: float | None = None  # when it last did
        self._oldest_at: tuple[int | None, float] | None = None
        self._later_since_s: float | None = None
        self._is_later_due = False

    @property
    def is_ended(self) -> bool:
        """Whether everything is judged and closed: the state may go."""
        return self._is_ended and not self._later

    @property
    def traffic(self) -> Traffic:
        """How much of the attempt's log was read back."""
        return self._judge.traffic

    def add(self, rows: Sequence[Evidence | Membership]) -> None:
        """Take in what RankMonitors drained; what comes twice counts once."""
        for row in rows:
            self._heard += 1
            if isinstance(row, Membership):
                self._has_moved = True
                self._add_member(row)
            else:
                self._has_moved = self._has_moved or not row.columns["unended"].any()
                self._add_evidence(row)

    def tick(self, now_s: float) -> None:
        """Let the wall clock speak.

        Ranks that keep an iteration waiting for longer than the grace are given up. Of a job from which nothing came
        for `MonitorSettings.silence_s`, verdicts are closed, and it is asked whether it hangs; after a grace, where
        ranks gave what they have because they fell silent inside operators (the first hop has waited by then). It is
        heard again if it speaks before `FORGOTTEN` times the silence.
        """
        oldest = min(self._pending, default=None)
        if self._oldest_at is None or self._oldest_at[0] != oldest:
            self._oldest_at = oldest, now_s
        elif oldest is not None and now_s - self._oldest_at[1] >= self.settings.grace_s:
            self._roster.give_up(self._roster.lagging(oldest))
        if self._heard_at is None or self._heard_at[0] != self._heard:
            self._heard_at = self._heard, now_s
            self._note_movement(now_s)
            self._is_silent = self._is_forgotten = self._silence_is_told = False
        else:
            silent_s = now_s - self._heard_at[1]
            is_stuck = self._has_stood_for(self.settings.silence_s, now_s) and self._is_stuck
            self._is_silent = silent_s >= (self.settings.grace_s if is_stuck else self.settings.silence_s)
            self._is_forgotten = silent_s >= FORGOTTEN * self.settings.silence_s
        if not self._later:
            self._later_since_s = None
        elif self._later_since_s is None:
            self._later_since_s = now_s
        elif now_s - self._later_since_s >= self.settings.grace_s:
            self._is_later_due = True

    def advance(self, read_back: ReadBack) -> Judgements:
        """Judge what can be judged; operators are read back only for irregular iterations."""
        parts = [self._advance_attempt(read_back)]
        while self._later and self._is_ended:
            later, self._later = self._later, []
            attempts = [row.attempt for row in later if isinstance(row, Membership)]
            if not attempts:  # rows of an attempt that nobody announced
                break
            self._begin(min(attempts))
            self.add(later)
            parts.append(self._advance_attempt(read_back))
        return _joined(self.job, parts)

    def _advance_attempt(self, read_back: ReadBack) -> Judgements:
        reason = self._reason_to_end()
        while self._pending and (reason is not None or self._is_judgeable(min(self._pending))):
            rows = join_rows(self._pending.pop(min(self._pending)))
            self._judge.judge(rows, self._roster.announcements, read_back)
        if reason is not None:
            self._judge.close(reason, self._roster.announcements, read_back)
            self._silence_is_told = True
            self._is_ended = reason != "silent" or self._is_forgotten
        announced, self._announced = self._announced, []
        return self._judge.drain(announced)

    def _reason_to_end(self) -> str | None:
        if self._is_ended or self._attempt is None:
            return None
        if self._roster.is_ended:
            return self._roster.end_reason
        if self._is_later_due:
            return "restarted"
        if self._is_forgotten or (self._is_silent and not self._silence_is_told):
            return "silent"
        return None

    def _note_movement(self, now_s: float) -> None:
        """Note when the job last moved: an operator that is open for long is no standstill while others end.

        What came so soon was not given because of a silence, whatever it tells.
        """
        if self._has_moved or not self._has_stood_for(self.settings.silence_s / 2, now_s):
            self._moved_s = now_s
        self._has_moved = False

    def _has_stood_for(self, seconds: float, now_s: float) -> bool:
        return self._moved_s is not None and now_s - self._moved_s >= seconds

    @property
    def _is_stuck(self) -> bool:
        """Whether the newest evidence tells of operators that never ended."""
        waiting = (rows for own in self._pending.values() for rows in own)
        return self._judge.has_unended or any(rows.columns["unended"].any() for rows in waiting)

    def _is_judgeable(self, number: int) -> bool:
        return self._roster.is_complete and self._roster.has_all(number)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._roster = JobRoster()
        self._judge = IterationJudge(self.job, attempt, self.settings)
        self._pending, self._announced = {}, []
        self._is_ended = self._is_later_due = False
        self._is_silent = self._is_forgotten = self._silence_is_told = False

    def _add_member(self, member: Membership) -> None:
        if self._attempt is None and member.announcement is not None:
            self._begin(member.attempt)
        if self._is_of_later(member.attempt):
            self._later.append(member)
        elif member.attempt == self._attempt:
            if member.announcement is not None and self._roster.announce(member.announcement):
                self._announced.append(member.announcement)
            if member.reason is not None:
                self._roster.end(member.rank, member.reason)

    def _is_of_later(self, attempt: int) -> bool:
        return self._attempt is not None and attempt > self._attempt

    def _add_evidence(self, evidence: Evidence) -> None:
        attempts = evidence.columns["attempt"]
        if len(evidence) and self._is_of_later(int(attempts.max())):
            is_later = attempts > (self._attempt or 0)  # a message may hold the end of one and the begin of the next
            self._later.append(select(evidence, is_later))
            evidence, attempts = select(evidence, ~is_later), attempts[~is_later]
        if self._is_ended:  # closed: what comes after is not of a job that anybody waits for
            return
        pairs = zip(evidence.columns["rank"].tolist(), evidence.columns["iteration"].tolist(), strict=True)
        is_new = [
            attempt == self._attempt and self._roster.deliver(rank, iteration)
            for attempt, (rank, iteration) in zip(attempts.tolist(), pairs, strict=True)
        ]
        for rows in split_by_iteration(evidence, np.array(is_new, dtype=bool)):
            if self._judge.is_before(rows.number):
                self._pending.setdefault(rows.number, []).append(rows)
            else:
                self._judge.add_late(rows)

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays."""
        return {
            "job": self.job,
            "attempt": self._attempt,
            "roster": self._roster.state(),
            "pending": [rows.state() for number in sorted(self._pending) for rows in self._pending[number]],
            "judge": self._judge.state(),
            "announced": [announcement.rank for announcement in self._announced],
            "is_ended": self._is_ended,
            "moved_s": self._moved_s,
            "later": [
                np.frombuffer(value, np.uint8) for row in self._later for value in encode_evidence([row], self.job)
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], settings: MonitorSettings) -> JobMonitor:
        """Restore."""
        monitor = cls(state["job"], settings)
        if state["attempt"] is not None:
            monitor._begin(state["attempt"])
        monitor._roster = JobRoster.from_state(state["roster"])
        for rows in map(IterationRows.from_state, state["pending"]):
            monitor._pending.setdefault(rows.number, []).append(rows)
        monitor._judge = IterationJudge.from_state(state["judge"], settings)
        monitor._announced = [monitor._roster.announcements[rank] for rank in state["announced"]]
        monitor._is_ended, monitor._moved_s = state["is_ended"], state["moved_s"]
        monitor._later = [row for value in state["later"] for row in decode_evidence(value.tobytes())]
        return monitor


def _joined(job: str, parts: Sequence[Judgements]) -> Judgements:
    if len(parts) == 1:
        return parts[0]
    return Judgements(
        job=job,
        announcements=[one for part in parts for one in part.announcements],
        iterations=[one for part in parts for one in part.iterations],
        rank_iterations=concatenate_columns([p.rank_iterations for p in parts if p.rank_iterations]),
        operators=concatenate_columns([p.operators for p in parts if p.operators]),
        patterns=concatenate_columns([p.patterns for p in parts if p.patterns]),
        verdicts=[one for part in parts for one in part.verdicts],
    )
