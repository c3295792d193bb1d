"""Whether a rank can have come as far as its message says: one wrong number must not close all that is open.

A watermark of the year 2116 or the iteration 1,000,000,000 would close every open iteration, and all rows that follow
would be late. Earlier messages of the rank, and the clock, tell such a message from an honest one: jobs go on at
another iteration, are suspended for days, run on hosts with a wrong clock, and are replayed years later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from irregulars.dtypes import Column, Flags, Ints
from irregulars.errors import RecordError
from irregulars.messages.announcements import Heartbeat, SourceProgress
from irregulars.messages.records import BATCH_SCHEMAS, SCHEMAS, UNKNOWN, Batch
from irregulars.streams.rank_hop.message_rows import RowSummary
from irregulars.streams.rank_hop.thresholds import RANK_HOP
from irregulars.validation import LARGEST

MOST_LOST_ROWS: Final = 1 << 40
"""Rows that can be lost between two batches of a rank: a million a second, for twelve days."""

UNAWAITED: Final = tuple(name for name in BATCH_SCHEMAS if name not in SCHEMAS)  # sources that no iteration waits for


@dataclass(slots=True)
class SourceArrivals:
    """Rows received and watermark of each source of one rank in one attempt, and rows that never came."""

    rows: dict[str, int] = field(default_factory=dict)
    watermarks_ns: dict[str, int] = field(default_factory=dict)
    lost_rows: int = 0

    def count(self, schema: str, rows_before: int, rows: int, watermark_ns: int | None) -> None:
        """Count the rows of a message; rows that were published before them and have not arrived are lost.

        Of 30 rows before them, 20 have arrived: 10 are lost. Messages come in their order, so that these never will.
        `require` first: the number before them is of the message alone.
        """
        received = self.rows.get(schema, 0)
        self.lost_rows += max(rows_before - received, 0)
        self.rows[schema] = max(received, rows_before + rows)
        self._raise_watermark(schema, watermark_ns)

    def require(self, schema: str, rows_before: int) -> None:
        """Raise `RecordError` if more rows were published before a message than can be."""
        received = self.rows.get(schema, 0)
        if rows_before - received > MOST_LOST_ROWS:
            rule = f"at most {received + MOST_LOST_ROWS} after {received} rows that arrived"
            raise RecordError(f"rows_before must be {rule}; got {rows_before}")

    def apply(self, sources: Mapping[str, SourceProgress], announced: Collection[str]) -> bool:
        """Apply a heartbeat, if all rows that it counts have arrived; return whether so.

        Watermarks and lost rows never fall; an agent's dropped rows are among those that never came, so that the
        larger count of lost rows holds. It does not wait for states of GPUs, nor for samples of bandwidth that the
        rank did not announce.
        """
        unawaited = UNAWAITED if "bandwidth" in announced else (*UNAWAITED, "bandwidth")
        # All of them before any is applied: a heartbeat whose rows are on their way changes nothing.
        for schema, progress in sources.items():
            if self.rows.get(schema, 0) < progress.rows and schema not in unawaited:
                return False
        for schema, progress in sources.items():
            self._raise_watermark(schema, progress.watermark_ns)
        self.lost_rows = max(self.lost_rows, sum(progress.lost_rows for progress in sources.values()))
        return True

    @property
    def newest_ns(self) -> int:
        """Event time up to which the source that is ahead is complete; `UNKNOWN` if none has a watermark."""
        return max(self.watermarks_ns.values(), default=UNKNOWN)

    def complete_until_ns(self, announced: Collection[str]) -> int | None:
        """Return the event time until which iterations are complete; None if it is not known.

        The watermark of the operators decides, or that of the iteration rows if no operators were announced. Samples
        of bandwidth that were announced are waited for too: otherwise the peaks would depend on the order of arrival.
        """
        has_operators = "commops" in self.watermarks_ns or "commops" in announced
        until_ns = self.watermarks_ns.get("commops" if has_operators else "iterations")
        if until_ns is None or "bandwidth" not in announced:
            return until_ns
        sampled_ns = self.watermarks_ns.get("bandwidth")
        return None if sampled_ns is None else min(until_ns, sampled_ns)

    def _raise_watermark(self, schema: str, watermark_ns: int | None) -> None:
        if watermark_ns is not None and watermark_ns > self.watermarks_ns.get(schema, UNKNOWN):
            self.watermarks_ns[schema] = watermark_ns

    def state(self) -> SourceArrivals:
        """Return a copy: it is its own state."""
        return SourceArrivals(dict(self.rows), dict(self.watermarks_ns), self.lost_rows)


_DAY_NS: Final = 86_400 * 10**9
_CLOCK_IS_SET_NS: Final = 1_000_000_000 * 10**9
"""A clock before September 2001 was never set, and proves nothing: the next message may be of any time."""


class PlausibleProgress:
    """How far one rank has come in one attempt, and which messages can't be true.

    A message is refused if it runs ahead by more than the thresholds allow (`streams.rank_hop.thresholds`). If the
    next one does as well, the rank has indeed moved there: that one is believed. So an honest leap costs one batch. A
    watermark alone is never believed, if no row is as new.
    """

    def __init__(
        self,
        newest_ns: int | None = None,
        newest_iteration: int | None = None,
        most_skipped: int = RANK_HOP.most_skipped_iterations,
    ) -> None:
        self._newest_ns = newest_ns
        self._newest_iteration = newest_iteration
        self._most_skipped = most_skipped
        self._now_ns: int | None = None
        self._doubts = {"time": 0, "watermark": 0, "iteration": 0}  # refused of each, one after the other

    @property
    def most_skipped(self) -> int:
        """Iterations that the rank may skip at once; at most `LARGEST`."""
        return min(self._most_skipped, LARGEST)

    def note_clock(self, now_s: float) -> None:
        """Take in the present; one of a clock that was never set is ignored."""
        now_ns = int(now_s * 1e9)
        self._now_ns = now_ns if now_ns > _CLOCK_IS_SET_NS else None

    def is_ordinary(self, summary: RowSummary, watermark_ns: int | None) -> bool:
        """Whether a batch runs ahead in nothing; it is admitted then, and nothing of it need be looked at."""
        latest_ns = self._latest_ns(self._newest_ns)
        if self._newest_ns is None or latest_ns is None or summary.newest_ns > latest_ns:
            return False
        if summary.newest_iteration != UNKNOWN and (
            self._newest_iteration is None or summary.newest_iteration > self._newest_iteration + self._most_skipped
        ):
            return False
        newest_ns = max(self._newest_ns, summary.newest_ns)
        if watermark_ns is not None:
            most_ns = self._latest_ns(newest_ns)
            if most_ns is None or watermark_ns > most_ns:
                return False
            newest_ns = max(newest_ns, watermark_ns)
        # Nothing was changed above: a batch that is not ordinary comes to `admit` as if never seen.
        self._newest_ns = newest_ns
        if summary.newest_iteration != UNKNOWN:
            self._newest_iteration = _newest(self._newest_iteration, summary.newest_iteration)
            self._doubts["iteration"] = 0
        self._doubts["time"] = self._doubts["watermark"] = 0
        return True

    def admit(self, batch: Batch) -> tuple[Batch, Flags | None]:
        """Return a batch with a watermark that can be, and which of its rows can be (None: all).

        Raises `RecordError` if the message must be refused. Nothing is changed then.
        """
        columns = batch.columns
        is_wrong = self._early(columns)
        beyond = self._beyond(columns)
        if beyond is not None:
            is_wrong = beyond if is_wrong is None else is_wrong | beyond
        is_right = None if is_wrong is None else ~is_wrong
        rows_ns = _newest_ns(columns, is_right)
        watermark_ns = self._watermark(batch.header.watermark_ns, rows_ns, is_explained=is_wrong is not None)
        self._newest_ns = _newest(self._newest_ns, rows_ns, UNKNOWN if watermark_ns is None else watermark_ns)
        if "iteration" in columns:
            iteration = columns["iteration"] if is_right is None else columns["iteration"][is_right]
            self._newest_iteration = _newest(self._newest_iteration, int(iteration.max(initial=UNKNOWN)))
        if watermark_ns != batch.header.watermark_ns:
            batch = replace(batch, header=replace(batch.header, watermark_ns=watermark_ns))
        return batch, is_right

    def admit_heartbeat(self, beat: Heartbeat) -> Heartbeat:
        """Return a heartbeat with watermarks that can be; raises as `admit` does."""
        latest_ns = self._latest_ns(self._newest_ns)
        wrong = {
            name: one
            for name, one in beat.sources.items()
            if latest_ns is not None and one.watermark_ns is not None and one.watermark_ns > latest_ns
        }
        if not wrong:
            return beat
        name, first = next(iter(wrong.items()))
        self._doubt("watermark", f"watermark of {name}", first.watermark_ns, latest_ns)
        # The rows that it counts are believed, the watermark never: it alone would close everything.
        known = {name: SourceProgress(one.rows, None, one.lost_rows) for name, one in wrong.items()}
        return replace(beat, sources={**beat.sources, **known})

    # --- times ------------------------------------------------------------------------------------------------------

    def _latest_ns(self, newest_ns: int | None) -> int | None:
        """Return the latest time that a message may hold; None: neither the rank's time nor the clock is known."""
        if newest_ns is None or newest_ns < _CLOCK_IS_SET_NS:
            return None if self._now_ns is None else self._now_ns + RANK_HOP.most_ahead_days * _DAY_NS
        far_ns = newest_ns + RANK_HOP.most_ahead_days * _DAY_NS
        if self._now_ns is None:
            return far_ns
        return min(far_ns, max(newest_ns, self._now_ns) + RANK_HOP.most_ahead_of_clock_days * _DAY_NS)

    def _early(self, columns: Mapping[str, Column]) -> Flags | None:
        """Return which rows are of a time that has not come yet; None: none is."""
        times_ns = _times_ns(columns)
        latest_ns = self._latest_ns(self._newest_ns)
        # The rank's first times, and no clock: the lowest of them is taken as true, and the others must be near.
        if latest_ns is None:
            latest_ns = self._latest_ns(int(times_ns.min(where=times_ns != UNKNOWN, initial=np.iinfo(np.int64).max)))
        if latest_ns is None or _newest_ns(columns, None) <= latest_ns:
            self._doubts["time"] = 0
            return None
        elapsed_ns = np.nan_to_num(columns["elapsed_ns"]) if "elapsed_ns" in columns else 0.0
        # As floats: a damaged length would overflow an int64.
        is_early: Flags = times_ns.astype(np.float64) + elapsed_ns > latest_ns
        is_known = times_ns != UNKNOWN
        # All of them: the rank may have moved there, so the message is doubted; else the rows are damaged.
        if is_early.any() and is_early[is_known].all():
            self._doubt("time", "time", int(times_ns[is_known].max()), latest_ns)
            return None
        return is_early if is_early.any() else None

    def _watermark(self, watermark_ns: int | None, rows_ns: int, *, is_explained: bool) -> int | None:
        """Return a batch's watermark: that of its rows, if its own can't be, and a bad row explains it.

        So it is if the message before it had such a watermark as well.
        """
        newest_ns = max(rows_ns, UNKNOWN if self._newest_ns is None else self._newest_ns)
        latest_ns = self._latest_ns(None if newest_ns == UNKNOWN else newest_ns)
        if watermark_ns is None or latest_ns is None or watermark_ns <= latest_ns:
            self._doubts["watermark"] = 0
            return watermark_ns
        if not is_explained:
            self._doubt("watermark", "watermark", watermark_ns, latest_ns)
        return None if rows_ns == UNKNOWN else rows_ns

    # --- iterations -------------------------------------------------------------------------------------------------

    def _beyond(self, columns: Mapping[str, Column]) -> Flags | None:
        """Return which rows are of iterations that the rank can't have come to; None: none is."""
        iteration: Ints | None = columns.get("iteration")
        if iteration is None:
            return None
        if self._newest_iteration is None:
            return self._beyond_first(iteration)
        last = self._newest_iteration + self._most_skipped
        if int(iteration.max()) <= last:
            self._doubts["iteration"] = 0
            return None
        is_beyond: Flags = iteration > last
        if is_beyond[iteration != UNKNOWN].all():
            self._doubt("iteration", "iteration", int(iteration.max()), last)
            self._most_skipped = 2 * (int(iteration.max()) - self._newest_iteration)  # it numbers in wide steps
            return None
        return is_beyond

    def _beyond_first(self, iteration: Ints) -> Flags | None:
        """Do the same where nothing was numbered before: most rows of a batch are right."""
        numbers = np.unique(iteration[iteration != UNKNOWN])
        if len(numbers) < 2 or int(numbers[-1]) - int(numbers[0]) <= self._most_skipped:
            return None
        steps = np.sort(np.diff(numbers))
        # The lower quartile: damaged numbers make few steps, and long ones.
        usual = int(steps[len(steps) // 4])
        self._most_skipped = max(self._most_skipped, RANK_HOP.most_skipped_steps * usual)
        is_beyond: Flags = iteration > int(numbers[0]) + self._most_skipped
        return is_beyond if is_beyond.any() else None

    # --- both -------------------------------------------------------------------------------------------------------

    def _doubt(self, kind: str, what: str, found: int | None, most: int | None) -> None:
        """Refuse a message, unless the one before it was refused for the same reason."""
        self._doubts[kind] += 1
        if self._doubts[kind] == 1:
            raise RecordError(
                f"{what} must be plausible after what the rank sent before, at most {most}; got {found}"
            )


def _newest(known: int | None, *found: int) -> int | None:
    newest = max(UNKNOWN if known is None else known, *found)
    return None if newest == UNKNOWN else newest


def _times_ns(columns: Mapping[str, Column]) -> Ints:
    return columns["start_ns"] if "start_ns" in columns else columns["time_ns"]


def _newest_ns(columns: Mapping[str, Column], is_right: Flags | None) -> int:
    """Return a time at or after the end of the newest row; `UNKNOWN` if no row has a time."""
    times_ns, elapsed_ns = _times_ns(columns), columns.get("elapsed_ns")
    if is_right is not None:
        times_ns, elapsed_ns = times_ns[is_right], None if elapsed_ns is None else elapsed_ns[is_right]
    newest_ns = int(times_ns.max(initial=UNKNOWN))
    if newest_ns == UNKNOWN or elapsed_ns is None:
        return newest_ns
    longest_ns = np.fmax.reduce(elapsed_ns, initial=0.0)
    return newest_ns + (int(longest_ns) if np.isfinite(longest_ns) else 0)
