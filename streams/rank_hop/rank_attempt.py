"""One rank in one attempt of its job: gathers its rows, and closes its iterations once they are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from irregulars.detectors.path.ranks_to_read import WIDE
from irregulars.dtypes import Column, Flags
from irregulars.messages.announcements import (
    Announcement,
    Heartbeat,
    code_of_start,
    decode_announcement,
    encode_announcement,
)
from irregulars.messages.bounds import usable_rows
from irregulars.messages.device_events import DeviceEvent, events_of
from irregulars.messages.evidence import Membership
from irregulars.messages.records import PHASE_UNKNOWN, UNKNOWN, Batch
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.closing_times import (
    ClosingTime,
    WaitingTimer,
    closing_times_by_operators,
    newest_closed,
)
from irregulars.streams.rank_hop.evidence_reduction import Closing
from irregulars.streams.rank_hop.message_rows import IterationTimes, Part, part_of
from irregulars.streams.rank_hop.nic_samples import NicSamples, NicSamplesState
from irregulars.streams.rank_hop.pending_rows import PendingRows, PendingState
from irregulars.streams.rank_hop.plausible_progress import PlausibleProgress, SourceArrivals
from irregulars.streams.rank_hop.taught_detectors import TaughtDetectors, TaughtState
from irregulars.streams.rank_hop.thresholds import RANK_HOP

Closed = list[Closing | Membership]  # complete iterations, and memberships (a rank came or went), oldest first
_OF_TRAINING: Final = ("commops", "iterations")
"""Sources that fall silent when a rank hangs; samples of its GPU and its NIC flow on."""

_NOT_TOLD = IterationTimes(UNKNOWN, UNKNOWN, PHASE_UNKNOWN, np.nan)


@dataclass(frozen=True, slots=True)
class AttemptState:
    """State of a `RankAttempt`; the announcement as its message, in which ranks of communicators are short runs."""

    announcement: bytes
    is_ended: bool
    arrivals: SourceArrivals
    pending: PendingState
    samples: NicSamplesState
    heartbeat: Heartbeat | None
    last_end_ns: int
    detectors: TaughtState | None = None
    most_skipped: int = RANK_HOP.most_skipped_iterations


class RankAttempt:
    """Gathers rows until their iterations are complete, and closes these."""

    def __init__(self, announcement: Announcement, partition: int, settings: JudgeSettings) -> None:
        self.announcement = announcement
        self.is_ended = False
        self._partition = partition
        self._settings = settings
        self._arrivals = SourceArrivals(lost_rows=announcement.lost_rows or 0)
        self._progress = PlausibleProgress()
        self._pending = PendingRows()
        self._samples = NicSamples(announcement.nic)
        self._events: list[DeviceEvent] = []  # of its devices; drained before each state is taken
        self._heartbeat: Heartbeat | None = None
        self._applied: Heartbeat | None = None  # the one whose rows have all arrived
        self._grace = WaitingTimer(settings.grace_s)
        self._silence = WaitingTimer(settings.silence_s)
        self._rest = WaitingTimer(settings.grace_s)  # since the last row of training
        self._last_end_ns = UNKNOWN  # of the operators that were closed last
        self._detectors = (
            TaughtDetectors(settings.operator_detectors, settings.delta, settings.window)
            if settings.operator_detectors
            else None
        )
        self._wide = frozenset(c.id for c in announcement.communicators if len(c.ranks) > WIDE)
        self._has_iteration_rows = "iterations" in announcement.sources
        self._announcement_value: bytes | None = None  # encoded
        self._code = code_of_start(announcement.attempt, announcement.start)

    # --- messages ---------------------------------------------------------------------------------------------------

    def add(self, part: Part) -> None:
        """Take in rows of this attempt; raises `RecordError` if they can't be true, and takes nothing in then."""
        if self.is_ended:
            return
        # First, as it may refuse the message: nothing of that must have been taken in then.
        if part.schema == "commops":
            self._pending.require_names(part.names)
        self._arrivals.require(part.schema, part.rows_before)
        is_plausible: Flags | None = None
        watermark_ns = part.watermark_ns
        if not self._progress.is_ordinary(part.summary, watermark_ns):
            batch, is_plausible = self._progress.admit(part.batch())
            watermark_ns = batch.header.watermark_ns
        self._arrivals.count(part.schema, part.rows_before, part.cut.rows, watermark_ns)
        if is_plausible is not None:
            batch = Batch(batch.header, self._usable(batch.columns, is_plausible))
            if len(batch) == 0:
                return
            part = part_of(batch, part.offset, part.summary._replace(is_usable=False, runs=None, device=None))
        if part.schema in _OF_TRAINING:
            self._silence.restart()
            self._rest.restart()
        if part.schema == "commops":
            self._take_operators(part)
        elif part.schema == "iterations":
            self._arrivals.lost_rows += self._pending.add_iterations(part.iterations)
        elif part.schema == "bandwidth":
            self._arrivals.lost_rows += self._samples.add(part)
        elif part.schema == "events":
            self._events += events_of(self._usable_batch(part))
        elif not part.summary.is_usable:  # states of GPUs, which the sink stores
            self._usable_batch(part)

    def _take_operators(self, part: Part) -> None:
        runs = part.summary.runs
        # Detectors are promised codes that never change: they get rows that were looked at, with our own.
        if runs is not None and self._pending.has_open(runs) and self._detectors is None:
            self._pending.add_runs(part.cut, runs, has_unended=part.summary.has_unended)
            return
        columns = self._usable_batch(part).columns
        is_named = columns["iteration"] != UNKNOWN
        if not is_named.all():
            # An operator without an iteration may be of one all the same, or of a hang behind those that are known.
            is_known = self._pending.newest is not None
            if not (self._has_iteration_rows and (is_known or not self.announcement.names_iterations)):
                columns = {name: column[is_named] for name, column in columns.items()}
        self._pending.add_operators(columns, part.names, part.offset)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat of this attempt; raises as `add` does."""
        if not self.is_ended:
            self._heartbeat = self._progress.admit_heartbeat(heartbeat)

    def _usable_batch(self, part: Part) -> Batch:
        """Return the usable rows of a part; see `_usable`."""
        batch = part.batch()
        if part.summary.is_usable:
            return batch
        return Batch(batch.header, self._usable(batch.columns, usable_rows(part.schema, batch.columns)))

    def _usable(self, columns: Mapping[str, Column], is_usable: Flags | None) -> Mapping[str, Column]:
        """Leave out rows that no honest producer sends, and count them as lost; None: all are usable."""
        if is_usable is None:
            return columns
        self._arrivals.lost_rows += int((~is_usable).sum())
        return {name: column[is_usable] for name, column in columns.items()}

    def wait_for(self, silence_s: float) -> None:
        """Wait for `silence_s` from here on, where an operator has not ended."""
        self._silence.most_s = silence_s

    # --- when iterations close --------------------------------------------------------------------------------------

    def settle(self) -> Closed:
        """Apply a heartbeat whose rows have arrived, then close the iterations that are complete."""
        if self.is_ended:
            return []
        events: Closed = []
        if self._events:
            own, told = self.announcement, tuple(self._events)
            self._events = []
            events = [Membership(own.job, own.attempt, own.rank, start=own.start, since_ns=own.since_ns, events=told)]
        beat = self._heartbeat
        if beat is not None and beat is not self._applied:
            if self._arrivals.apply(beat.sources, self.announcement.sources):
                self._applied = beat
            if self._applied is beat and beat.state == "ended":
                return [*events, *self.end(beat.reason or "ended")]
        until_ns = self._arrivals.complete_until_ns(self.announcement.sources)
        has_rows = self._has_iteration_rows
        if until_ns is None or until_ns < self._pending.first_close_ns(by_rows=has_rows, by_operators=not has_rows):
            return events
        return [*events, *self._close_through(newest_closed(self._closing_times(), until_ns))]

    def tick(self, now_s: float, until_s: float) -> Closed:
        """Close iterations that have waited for longer than the grace, by the times that `RankMonitor.tick` explains.

        If some operator has not ended and nothing has come since for `silence_s`, everything is closed: the job may
        hang, and the second hop needs all that is known. A rank that stops outside of operators sends nothing that
        would close its last iteration: a grace after its row, where the heartbeat counts no more rows, it is closed.
        """
        if self.is_ended:
            return []
        self._progress.note_clock(now_s)
        if self._rest.is_over(bool(self._pending.closes_ns), now_s, until_s):
            closed = self.settle()
            told = self._pending.closes_ns  # what is open and has a row
            is_all = self._heartbeat is not None and self._applied is self._heartbeat
            if told and is_all and not self._pending.has_unended and not self.is_ended:
                closed += self._close_through(max(told))
            if closed:
                return closed
        if self._silence.is_over(self._pending.has_unended, now_s, until_s):
            return self._close_all()
        # The newest iteration that the source ahead has left behind by `grace_s`; the other sources have not passed
        # it, or it would have closed.
        overdue = None
        behind_ns = self._arrivals.newest_ns - int(self._settings.grace_s * 1e9)
        if behind_ns >= self._pending.first_close_ns(by_rows=self._has_iteration_rows, by_operators=True):
            known = chain(self._closing_times(), closing_times_by_operators(self._pending.starts_ns))
            overdue = newest_closed(known, behind_ns)
        is_leaving = self._heartbeat is not None and self._heartbeat.state == "ended"
        if not self._grace.is_over(overdue is not None or is_leaving, now_s, until_s):
            return []
        if self._heartbeat is not None and is_leaving:
            return self.end(self._heartbeat.reason or "ended")
        return self._close_through(overdue)

    def end(self, reason: str) -> Closed:
        """Close all iterations: the rank sends nothing more in this attempt."""
        closed = self._close_all()
        self.is_ended = True
        self._pending = PendingRows()
        own = self.announcement
        went = Membership(own.job, own.attempt, own.rank, reason=reason, start=own.start, since_ns=own.since_ns)
        return [*closed, went]

    def _close_all(self) -> Closed:
        self._pending.place_unfinished()
        self._pending.note_untimed()
        return self._close_through(max(self._pending.numbers(), default=None))

    def _closing_times(self) -> Iterable[ClosingTime]:
        if self._has_iteration_rows:
            return self._pending.closes_ns.items()
        return closing_times_by_operators(self._pending.starts_ns)

    def _close_through(self, last: int | None) -> Closed:
        """Close all open iterations up to `last` at once."""
        if last is None:
            return []
        # All that is known of these iterations is read before `take`, which forgets them.
        pending = self._pending
        numbers = pending.numbers(last)
        follows = pending.closed_through == numbers[0] - 1
        entry_ns = self._last_end_ns if follows else UNKNOWN
        own = [pending.iterations.get(number, _NOT_TOLD) for number in numbers]
        audits = [pending.audits.get(number, ()) for number in numbers]
        pauses = [pending.pauses.get(number, ()) for number in numbers]
        samples = self._samples.take(pending.end_ns(last))
        closes_ns = pending.closes_ns if self._has_iteration_rows else dict(self._closing_times())
        cuts, self._last_end_ns = pending.take(numbers, closes_ns)
        start_ns, elapsed_ns, phase, tokens, numerics, *_ = zip(*own, strict=True)
        closing = Closing(
            attempt=self._code, rank=self.announcement.rank, partition=self._partition, wide=self._wide,
            numbers=numbers, cuts=cuts, free_ns=start_ns if entry_ns == UNKNOWN else (entry_ns, *start_ns[1:]),
            entry_ns=entry_ns, start_ns=start_ns, elapsed_ns=elapsed_ns, phase=phase, tokens=tokens,
            numerics=numerics, audits=audits, pauses=pauses, late_rows=pending.take_late_rows(),
            lost_rows=self._arrivals.lost_rows, detectors=self._detectors, samples=samples,
        )  # fmt: skip
        return [closing]

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> AttemptState:
        """Everything that `from_state` needs."""
        if self._announcement_value is None:  # once: it goes into each snapshot, and never changes
            self._announcement_value = encode_announcement(self.announcement)
        return AttemptState(
            announcement=self._announcement_value, is_ended=self.is_ended, arrivals=self._arrivals.state(),
            pending=self._pending.state(), samples=self._samples.state(), heartbeat=self._heartbeat,
            last_end_ns=self._last_end_ns, detectors=None if self._detectors is None else self._detectors.state(),
            most_skipped=self._progress.most_skipped,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: AttemptState, partition: int, settings: JudgeSettings) -> RankAttempt:
        """Restore."""
        attempt = cls(decode_announcement(state.announcement), partition, settings)
        attempt._announcement_value = state.announcement
        attempt.is_ended = state.is_ended
        attempt._arrivals = state.arrivals.state()
        attempt._pending = PendingRows.from_state(state.pending)
        newest_ns, newest_iteration = attempt._arrivals.newest_ns, attempt._pending.newest
        attempt._progress = PlausibleProgress(
            None if newest_ns == UNKNOWN else newest_ns, newest_iteration, state.most_skipped
        )
        attempt._samples = NicSamples.from_state(state.samples)
        attempt._heartbeat = state.heartbeat
        attempt._last_end_ns = state.last_end_ns
        if attempt._detectors is not None and state.detectors is not None:
            attempt._detectors.restore(state.detectors)
        return attempt
