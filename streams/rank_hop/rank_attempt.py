"""One rank in one attempt of its job: from what it sends to iterations that are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from irregulars.streams.messages.announcements import (
    Announcement,
    Heartbeat,
    decode_announcement,
    decode_heartbeat,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.streams.messages.evidence import Membership
from irregulars.streams.messages.records import PHASE_UNKNOWN, UNKNOWN, Batch
from irregulars.streams.messages.usable_rows import usable_operators, usable_samples
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.closing_times import (
    ClosingTime,
    IterationTimes,
    closing_times_by_operators,
    closing_times_by_rows,
    newest_closed,
)
from irregulars.streams.rank_hop.evidence_reduction import Closing
from irregulars.streams.rank_hop.nic_samples import NicSamples, Samples
from irregulars.streams.rank_hop.pending_rows import PendingRows, ends_ns
from irregulars.streams.rank_hop.source_arrivals import SourceArrivals
from irregulars.streams.rank_hop.waiting_timer import Patience

Array = np.ndarray

Closed = list[Closing | Membership]
"""What is complete, and who came and went; oldest first."""

_OF_TRAINING: Final = ("commops", "iterations")
"""Sources that fall silent when a rank hangs; samples of its GPU and its NIC flow on."""

_NOT_SAID = IterationTimes(UNKNOWN, UNKNOWN, PHASE_UNKNOWN, np.nan)


class RankAttempt:
    """Gathers rows until their iterations are complete, and closes these.

    Parameters
    ----------
    announcement
        What the rank said of itself: its sources tell what to wait for.
    partition
        Of ``commops``; goes into the evidence with the offsets.
    settings
        How long to wait, and the detectors of operators.
    """

    def __init__(self, announcement: Announcement, partition: int, settings: MonitorSettings) -> None:
        self.announcement = announcement
        self.is_ended = False
        self._partition = partition
        self._settings = settings
        self._arrivals = SourceArrivals(announcement.lost_rows or 0)
        self._pending = PendingRows()
        self._samples = NicSamples(announcement.nic)
        self._heartbeat: Heartbeat | None = None
        self._patience = Patience(settings.grace_s)
        self._silence = Patience(settings.silence_s)
        self._last_end_ns = UNKNOWN  # of the operators that were closed last
        self._detectors = [make() for make in settings.operator_detectors]
        self._sizes = {c.id: len(c.ranks) for c in announcement.communicators}
        self._has_iteration_rows = "iterations" in announcement.sources

    # --- what comes in ----------------------------------------------------------------------------------------------

    def add(self, batch: Batch, offset: int) -> None:
        """Take in a batch of this attempt."""
        if self.is_ended or len(batch) == 0:
            return
        if batch.header.schema in _OF_TRAINING:
            self._silence.renew()
        self._arrivals.count(batch)
        if batch.header.schema == "commops":
            columns = self._placed(self._chosen(batch.columns, usable_operators(batch.columns)))
            self._pending.add_operators(columns, batch.header.names, offset)
        elif batch.header.schema == "iterations":
            self._arrivals.lost_rows += self._pending.add_iterations(batch)
        elif batch.header.schema == "bandwidth":
            columns = self._chosen(batch.columns, usable_samples(batch.columns))
            self._samples.add(Batch(batch.header, columns))

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat of this attempt."""
        if not self.is_ended:
            self._heartbeat = heartbeat

    def _chosen(self, columns: Mapping[str, Array], is_usable: Array | None) -> Mapping[str, Array]:
        """Leave out rows that no honest producer sends, as lost."""
        if is_usable is None:
            return columns
        self._arrivals.lost_rows += int((~is_usable).sum())
        return {name: column[is_usable] for name, column in columns.items()}

    def _placed(self, columns: Mapping[str, Array]) -> Mapping[str, Array]:
        """Leave out operators that no iteration can take."""
        if self._has_iteration_rows:
            return columns
        is_placed = columns["iteration"] != UNKNOWN  # nothing will tell where the others belong
        return columns if is_placed.all() else {name: column[is_placed] for name, column in columns.items()}

    # --- when iterations close --------------------------------------------------------------------------------------

    def settle(self) -> Closed:
        """Apply a heartbeat whose rows have arrived, then close what is complete."""
        if self.is_ended:
            return []
        beat = self._heartbeat
        if (
            beat is not None
            and self._arrivals.apply(beat.sources, self.announcement.sources)
            and beat.state == "ended"
        ):
            return self.end(beat.reason or "ended")
        until_ns = self._arrivals.complete_until_ns(self.announcement.sources)
        return [] if until_ns is None else self._close_through(newest_closed(self._closing_times(), until_ns))

    def tick(self, now_s: float) -> Closed:
        """Let the wall clock speak: what has waited for longer than the grace is closed.

        And all there is, once nothing came for the silence after an operator that has not ended: the job may hang.
        """
        if self.is_ended:
            return []
        if self._silence.is_over(self._pending.has_unended, now_s):
            return self._close_all()
        overdue = self._overdue()
        is_leaving = self._heartbeat is not None and self._heartbeat.state == "ended"
        if not self._patience.is_over(overdue is not None or is_leaving, now_s):
            return []
        if self._heartbeat is not None and is_leaving:
            return self.end(self._heartbeat.reason or "ended")
        return self._close_through(overdue)

    def end(self, reason: str) -> Closed:
        """Close all that there is: the rank sends no more in this attempt."""
        closed = self._close_all()
        self.is_ended = True
        self._pending = PendingRows()
        own = self.announcement
        return [*closed, Membership(own.job, own.attempt, own.rank, reason=reason)]

    def _close_all(self) -> Closed:
        self._pending.place_unfinished()
        self._pending.note_untimed()
        return self._close_through(max(self._pending.numbers(), default=None))

    def _closing_times(self) -> Iterable[ClosingTime]:
        if self._has_iteration_rows:
            return closing_times_by_rows(self._pending.iterations)
        return closing_times_by_operators(self._pending.starts_ns)

    def _overdue(self) -> int | None:
        """Newest iteration that some source has left behind by the grace, although others have not passed it."""
        known = chain(self._closing_times(), closing_times_by_operators(self._pending.starts_ns))
        return newest_closed(known, self._arrivals.newest_ns - int(self._settings.grace_s * 1e9))

    def _close_through(self, last: int | None) -> Closed:
        """Close all open iterations up to `last` at once."""
        if last is None:
            return []
        pending = self._pending
        numbers = pending.numbers(last)
        follows = pending.closed_through == numbers[0] - 1
        entry_ns = self._last_end_ns if follows else UNKNOWN
        own = [pending.iterations.get(number, _NOT_SAID) for number in numbers]
        samples = self._samples.take(pending.end_ns(last))
        rows = pending.take(numbers, dict(self._closing_times()))
        self._last_end_ns = _last_end_ns(rows, last)
        return [self._closing(numbers, own, rows, samples, entry_ns)]

    def _closing(
        self,
        numbers: Sequence[int],
        own: Sequence[IterationTimes],
        rows: Mapping[str, Array],
        samples: Samples,
        entry_ns: int,
    ) -> Closing:
        start_ns, elapsed_ns, phase, tokens = zip(*own, strict=True)
        free_ns = np.array(start_ns, dtype=np.int64)
        if entry_ns != UNKNOWN:
            free_ns[0] = entry_ns
        return Closing(
            attempt=self.announcement.attempt,
            rank=self.announcement.rank,
            partition=self._partition,
            names=self._pending.names,
            sizes=self._sizes,
            numbers=np.array(numbers, dtype=np.int64),
            rows=rows,
            free_ns=free_ns,
            entry_ns=entry_ns,
            start_ns=np.array(start_ns, dtype=np.int64),
            elapsed_ns=np.array(elapsed_ns, dtype=np.int64),
            phase=np.array(phase, dtype=np.uint8),
            tokens=np.array(tokens, dtype=np.float64),
            late_rows=self._pending.take_late_rows(),
            lost_rows=self._arrivals.lost_rows,
            detectors=self._detectors,
            samples=samples,
        )

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays; detectors begin anew after it."""
        return {
            "announcement": encode_announcement(self.announcement).decode(),
            "is_ended": self.is_ended,
            "arrivals": self._arrivals.state(),
            "pending": self._pending.state(),
            "samples": self._samples.state(),
            "heartbeat": None if self._heartbeat is None else encode_heartbeat(self._heartbeat).decode(),
            "last_end_ns": self._last_end_ns,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], partition: int, settings: MonitorSettings) -> RankAttempt:
        """Restore."""
        attempt = cls(decode_announcement(state["announcement"].encode()), partition, settings)
        attempt.is_ended = state["is_ended"]
        attempt._arrivals = SourceArrivals.from_state(state["arrivals"])
        attempt._pending = PendingRows.from_state(state["pending"])
        attempt._samples = NicSamples.from_state(state["samples"])
        beat = state["heartbeat"]
        attempt._heartbeat = None if beat is None else decode_heartbeat(beat.encode())
        attempt._last_end_ns = state["last_end_ns"]
        return attempt


def _last_end_ns(rows: Mapping[str, Array], number: int) -> int:
    """End of the last operator of an iteration; `UNKNOWN` if none has a time."""
    is_own = (rows["iteration"] == number) & (rows["start_ns"] != UNKNOWN)
    return int(ends_ns(rows)[is_own].max(initial=UNKNOWN))
