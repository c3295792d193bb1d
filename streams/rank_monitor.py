"""The first hop: one rank's rows become one evidence row per iteration. Reduces, and never judges the job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np

from streams.closings import Closing, reduce_closings
from streams.evidence import Evidence, Membership
from streams.iteration_reduction import OPERATOR_COLUMNS
from streams.monitor_settings import MonitorSettings
from streams.records import (
    PHASE_UNKNOWN,
    UNKNOWN,
    Announcement,
    Batch,
    Heartbeat,
    SourceProgress,
    decode_announcement,
    decode_batch,
    decode_heartbeat,
    encode_announcement,
    encode_batch,
    encode_heartbeat,
)
from streams.row_checks import is_usable_iteration, usable_operators

Array = np.ndarray

CLOSING_SHARE: Final = 0.5
MAX_CLOSING_NS: Final = 1_000_000_000
"""An iteration closes when the watermark has passed its end by `CLOSING_SHARE` of its length, at most
`MAX_CLOSING_NS`: operators on a second stream may end after the iteration that they belong to."""

_NEVER_NS: Final = int(np.iinfo(np.int64).max)

MAX_HELD_BATCHES: Final = 1000
"""Batches held for a rank that nobody has announced yet; more are handed back by `RankMonitor.take_unannounced`."""

_NO_ROWS: Final = {name: np.empty(0, dtype=np.float64 if name.endswith(("elapsed_ns", "bytes")) else np.int64)
                   for name in OPERATOR_COLUMNS}  # fmt: skip


class RankMonitor:
    """Gather what one rank sends until an iteration is complete, and reduce it.

    Parameters
    ----------
    job, rank
        Whose rows these are.
    settings
        How long to wait, and the detectors of operators.
    partition
        Of ``commops``; goes into the evidence with the offsets.

    Notes
    -----
    Nothing here depends on how topics interleave: an iteration closes when each source that the rank announced has
    passed its end, and a heartbeat takes effect when the rows it counts have arrived.
    """

    def __init__(self, job: str, rank: int, settings: MonitorSettings, *, partition: int = 0) -> None:
        self.job = job
        self.rank = rank
        self.settings = settings
        self.partition = partition
        self._closed: list[Closing | Membership] = []
        self._held: list[tuple[Batch, int]] = []  # of an attempt that was not announced yet, with their offsets
        self._beats: list[Heartbeat] = []
        self._heartbeat: Heartbeat | None = None
        self._waiting_since_s: float | None = None
        self._successor: Announcement | None = None  # of the next attempt
        self._successor_since_s: float | None = None
        self._begin(None)

    @property
    def is_ended(self) -> bool:
        """Whether the rank's last row has been reduced."""
        return self._is_ended

    def announce(self, announcement: Announcement) -> None:
        """Take in the rank's announcement.

        One of a higher attempt ends the attempt before, once the operators of the new one come (then those of the old
        one have all been read), or when the grace is over.
        """
        if self._announcement is None:
            self._take_up(announcement)
        elif announcement.attempt > self._announcement.attempt:
            self._successor = announcement
            if self._is_ended or self._has_held_operators(announcement.attempt):
                self._succeed()

    def _take_up(self, announcement: Announcement) -> None:
        self._begin(announcement)
        self._closed.append(Membership(self.job, announcement.attempt, self.rank, announcement))
        if not announcement.is_logged:
            self._end("not logged")
        held, self._held = self._held, []
        beats, self._beats = self._beats, []
        for batch, offset in held:
            self.add(batch, offset)
        for beat in beats:
            self.beat(beat)

    def _succeed(self) -> None:
        """End the attempt for the one that was announced after it."""
        successor, self._successor = self._successor, None
        assert successor is not None
        self._end_attempt()
        self._take_up(successor)

    def _has_held_operators(self, attempt: int) -> bool:
        return any(b.header.schema == "commops" and b.header.attempt >= attempt for b, _ in self._held)

    def add(self, batch: Batch, offset: int) -> None:
        """Take in a batch; rows of an attempt that was not announced yet are held."""
        attempt = batch.header.attempt
        if self._announcement is None or attempt > self._announcement.attempt:
            self._held.append((batch, offset))
            if self._successor is not None and self._has_held_operators(self._successor.attempt):
                self._succeed()
            return
        if attempt < self._announcement.attempt or self._is_ended or len(batch) == 0:
            return
        self._count(batch)
        if batch.header.schema == "commops":
            self._add_operators(batch, offset)
        elif batch.header.schema == "iterations":
            self._add_iterations(batch)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat."""
        if self._announcement is None or heartbeat.attempt > self._announcement.attempt:
            self._beats = [*self._beats[-1:], heartbeat]
            return
        if heartbeat.attempt == self._announcement.attempt and not self._is_ended:
            self._heartbeat = heartbeat

    def tick(self, now_s: float) -> None:
        """Let the wall clock speak: what has waited for longer than the grace is closed."""
        if self._successor is None:
            self._successor_since_s = None
        elif self._successor_since_s is None:
            self._successor_since_s = now_s
        elif self._is_ended or now_s - self._successor_since_s >= self.settings.grace_s:
            self._succeed()
        if self._is_ended or not self._is_waiting():
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = now_s
        elif now_s - self._waiting_since_s >= self.settings.grace_s:
            self._waiting_since_s = None
            if self._heartbeat is not None and self._heartbeat.state == "ended":
                self._end(self._heartbeat.reason or "ended")
            else:
                self._close_through(self._overdue())

    def drain(self) -> list[Evidence | Membership]:
        """Reduce what is complete; return what is new, oldest first, and forget it.

        The cost is per call and not per iteration: drain after many batches, not after each; and where there are many
        monitors, reduce what `take_closed` gives of all of them at once.
        """
        return reduce_closings(self.job, self.take_closed())

    def take_closed(self) -> list[Closing | Membership]:
        """Close what is complete; return it unreduced, oldest first, for `streams.closings.reduce_closings`."""
        if self._announcement is not None and not self._is_ended:
            self._settle()
        closed, self._closed = self._closed, []
        return closed

    def take_unannounced(self) -> list[tuple[Batch, int]]:
        """Give up batches above `MAX_HELD_BATCHES` of a rank that was never announced, oldest first."""
        surplus = max(len(self._held) - MAX_HELD_BATCHES, 0)
        given_up, self._held = self._held[:surplus], self._held[surplus:]
        return given_up

    # --- what comes in ----------------------------------------------------------------------------------------------

    def _begin(self, announcement: Announcement | None) -> None:
        self._announcement = announcement
        self._is_ended = False
        self._heartbeat = None
        self._waiting_since_s = None
        self._rows: dict[str, int] = {}  # received of each schema
        self._watermarks_ns: dict[str, int] = {}
        self._lost_rows = (announcement.lost_rows or 0) if announcement else 0
        self._late_rows = 0
        self._names: dict[str, int] = {}
        self._pending: list[dict[str, Array]] = []
        self._starts_ns: dict[int, int] = {}  # first start of each pending iteration, by operators
        self._iterations: dict[int, tuple[int, int, int, float]] = {}  # start, elapsed, phase, tokens
        self._closed_through: int | None = None
        self._last_end_ns = UNKNOWN
        self._detectors = [make() for make in self.settings.operator_detectors]
        self._sizes = {c.id: len(c.ranks) for c in announcement.communicators} if announcement else {}

    def _end_attempt(self) -> None:
        """The next attempt begins: end this one, unless its last word has been said."""
        if not self._is_ended:
            self._settle()
        if not self._is_ended:
            self._end("restarted")

    def _count(self, batch: Batch) -> None:
        header = batch.header
        received = self._rows.get(header.schema, 0)
        self._lost_rows += max(header.rows_before - received, 0)
        self._rows[header.schema] = max(received, header.rows_before + len(batch))
        if header.watermark_ns is not None:
            self._raise_watermark(header.schema, header.watermark_ns)

    def _raise_watermark(self, schema: str, watermark_ns: int) -> None:
        self._watermarks_ns[schema] = max(self._watermarks_ns.get(schema, UNKNOWN), watermark_ns)

    def _add_operators(self, batch: Batch, offset: int) -> None:
        columns = self._usable(batch.columns)
        codes = [self._names.setdefault(name, len(self._names)) for name in batch.header.names]
        rows = {name: columns[name] for name in OPERATOR_COLUMNS if name in columns}
        rows["communicator"] = np.array(codes, dtype=np.int64)[columns["communicator"]]
        rows["offset"] = np.full(len(rows["operator"]), offset, dtype=np.int64)
        rows = self._without_late(rows)
        if len(rows["offset"]):
            self._pending.append(rows)
            self._note_starts(rows)

    def _usable(self, columns: Mapping[str, Array]) -> Mapping[str, Array]:
        """Leave out rows that no honest producer sends, as lost, and those that no iteration can take."""
        is_usable = usable_operators(columns)
        if is_usable is not None:
            self._lost_rows += int((~is_usable).sum())
            columns = {name: column[is_usable] for name, column in columns.items()}
        if self._has_iteration_rows:
            return columns
        is_placed = columns["iteration"] != UNKNOWN  # nothing will tell where the others belong
        return columns if is_placed.all() else {name: column[is_placed] for name, column in columns.items()}

    def _without_late(self, rows: dict[str, Array]) -> dict[str, Array]:
        if self._closed_through is None:
            return rows
        is_late = (rows["iteration"] <= self._closed_through) & (rows["iteration"] != UNKNOWN)
        if not is_late.any():
            return rows
        self._late_rows += int(is_late.sum())
        return {name: column[~is_late] for name, column in rows.items()}

    def _note_starts(self, rows: Mapping[str, Array]) -> None:
        is_timed = (rows["iteration"] != UNKNOWN) & (rows["start_ns"] != UNKNOWN)
        iteration, start_ns = rows["iteration"][is_timed], rows["start_ns"][is_timed]
        if len(iteration) == 0:
            return
        if iteration[0] == iteration[-1] and np.all(iteration == iteration[0]):
            known = {int(iteration[0]): int(start_ns.min())}
        else:
            order = np.lexsort((start_ns, iteration))
            numbers, firsts = np.unique(iteration[order], return_index=True)
            known = dict(zip(numbers.tolist(), start_ns[order][firsts].tolist(), strict=True))
        for number, first_ns in known.items():
            self._starts_ns[number] = min(first_ns, self._starts_ns.get(number, first_ns))

    def _add_iterations(self, batch: Batch) -> None:
        columns = batch.columns
        rows = zip(*(columns[name].tolist() for name in ("iteration", "start_ns", "elapsed_ns", "phase", "tokens")),
                   strict=True)  # fmt: skip
        for number, start_ns, elapsed_ns, phase, tokens in rows:
            if not is_usable_iteration(number, start_ns, elapsed_ns):
                self._lost_rows += 1
            elif self._closed_through is not None and number <= self._closed_through:
                self._late_rows += 1
            else:
                self._iterations[number] = (start_ns, int(elapsed_ns), phase, tokens)

    # --- when iterations close --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Apply a heartbeat whose rows have arrived, then close what is complete."""
        beat = self._heartbeat
        if beat is not None and all(self._has(schema, progress) for schema, progress in beat.sources.items()):
            for schema, progress in beat.sources.items():
                if progress.watermark_ns is not None:
                    self._raise_watermark(schema, progress.watermark_ns)
            if beat.state == "ended":
                self._end(beat.reason or "ended")
                return
        self._close_through(self._complete())

    def _has(self, schema: str, progress: SourceProgress) -> bool:
        return self._rows.get(schema, 0) >= progress.rows or schema == "bandwidth"

    @property
    def _has_iteration_rows(self) -> bool:
        return self._announcement is not None and "iterations" in self._announcement.sources

    def _complete(self) -> int | None:
        """Return the newest iteration which all sources have passed, None if there is none."""
        watermark_ns = self._watermarks_ns.get("commops")
        if watermark_ns is None and self._announcement is not None and "commops" not in self._announcement.sources:
            watermark_ns = self._watermarks_ns.get("iterations")
        if watermark_ns is None:
            return None
        passed = [number for number, close_ns in self._closing_times() if close_ns <= watermark_ns]
        return max(passed, default=None)

    def _closing_times(self) -> list[tuple[int, int]]:
        """For each pending iteration whose end is known: when, on the watermark of ``commops``, it closes."""
        if not self._has_iteration_rows:
            return self._closing_times_by_operators()
        spans = [(number, start, start + elapsed) for number, (start, elapsed, _, _) in self._iterations.items()]
        return [(number, end + _closing_ns(end - start)) for number, start, end in spans]

    def _closing_times_by_operators(self) -> list[tuple[int, int]]:
        """The same, where an iteration ends when the next one begins."""
        starts = sorted(self._starts_ns.items())
        return [(number, after + _closing_ns(after - start)) for (number, start), (_, after) in pairwise(starts)]

    def _is_waiting(self) -> bool:
        return self._overdue() is not None or (self._heartbeat is not None and self._heartbeat.state == "ended")

    def _overdue(self) -> int | None:
        """Newest iteration that some source has left behind by the grace, although others have not passed it."""
        newest_ns = max(self._watermarks_ns.values(), default=UNKNOWN)
        grace_ns = int(self.settings.grace_s * 1e9)
        known = [*self._closing_times(), *self._closing_times_by_operators()]
        return max((number for number, end in known if end + grace_ns <= newest_ns), default=None)

    def _end(self, reason: str) -> None:
        numbers = set(self._starts_ns) | set(self._iterations)
        self._close_through(max(numbers, default=None))
        self._is_ended = True
        self._pending, self._starts_ns, self._iterations = [], {}, {}
        assert self._announcement is not None
        self._closed.append(Membership(self.job, self._announcement.attempt, self.rank, reason=reason))

    def _close_through(self, last: int | None) -> None:
        """Reduce all pending iterations up to `last` at once."""
        if last is None:
            return
        numbers = sorted(n for n in set(self._starts_ns) | set(self._iterations) if n <= last)
        rows = self._without_overlong(self._take_rows(np.array(numbers, dtype=np.int64)), numbers)
        free_ns = np.full(len(numbers), UNKNOWN)
        if numbers[0] - 1 == self._closed_through:
            free_ns[0] = self._last_end_ns
        for at, number in enumerate(numbers):
            if free_ns[at] == UNKNOWN and number in self._iterations:
                free_ns[at] = self._iterations[number][0]
        self._closed.append(self._closing(numbers, rows, free_ns))
        self._closed_through = last
        self._last_end_ns = _last_end_ns(rows, numbers[-1])
        for number in numbers:
            self._starts_ns.pop(number, None)
            self._iterations.pop(number, None)

    def _take_rows(self, numbers: Array) -> dict[str, Array]:
        """Take the rows of these iterations out of what is pending; rows of older or no iteration go with them."""
        pending, self._pending = self._pending, []
        taken = [part for part in (self._split(part, numbers) for part in pending) if part is not None]
        if len(taken) == 1:
            return taken[0]
        if not taken:
            return dict(_NO_ROWS)
        return {name: np.concatenate([part[name] for part in taken]) for name in OPERATOR_COLUMNS}

    def _split(self, part: dict[str, Array], numbers: Array) -> dict[str, Array] | None:
        """Return what a pending part has of these iterations, and keep pending what it has of later ones."""
        iteration = self._with_inferred(part)
        first, last = int(numbers[0]), int(numbers[-1])
        lowest, highest = int(iteration.min()), int(iteration.max())
        if lowest > last:
            self._pending.append(part)
            return None
        has_holes = len(numbers) <= last - first
        if first <= lowest and highest <= last and not has_holes:
            return {**part, "iteration": iteration}
        is_taken = np.isin(iteration, numbers) if has_holes else (iteration >= first) & (iteration <= last)
        is_kept = ~is_taken & ((iteration > last) | self._is_unplaced(part, iteration, last))
        if is_kept.any():
            self._pending.append({name: column[is_kept] for name, column in part.items()})
        return {name: (iteration if name == "iteration" else part[name])[is_taken] for name in OPERATOR_COLUMNS}

    def _without_overlong(self, rows: dict[str, Array], numbers: list[int]) -> dict[str, Array]:
        """Leave out rows that ended after their iteration had closed: so no border of a batch shows in the result."""
        closing_ns = dict(self._closing_times())
        closes_ns = np.array([closing_ns.get(number, _NEVER_NS) for number in numbers], dtype=np.int64)
        ended_ns = rows["start_ns"] + np.where(np.isfinite(rows["elapsed_ns"]), rows["elapsed_ns"], 0).astype(
            np.int64
        )
        is_late = ended_ns > closes_ns[np.searchsorted(numbers, rows["iteration"])]
        if not is_late.any():
            return rows
        self._late_rows += int(is_late.sum())
        return {name: column[~is_late] for name, column in rows.items()}

    def _with_inferred(self, rows: Mapping[str, Array]) -> Array:
        """Iteration of each row; rows without one take that in which they start, where iteration rows tell."""
        iteration = rows["iteration"]
        is_unknown = iteration == UNKNOWN
        if not is_unknown.any() or not self._iterations:
            return iteration
        numbers = sorted(self._iterations)
        starts = np.array([self._iterations[n][0] for n in numbers])
        ends = np.array([sum(self._iterations[n][:2]) for n in numbers])
        position = np.searchsorted(starts, rows["start_ns"], side="right") - 1
        is_inside = is_unknown & (position >= 0) & (rows["start_ns"] < ends[np.maximum(position, 0)])
        return np.where(is_inside, np.array(numbers)[np.maximum(position, 0)], iteration)

    def _is_unplaced(self, rows: Mapping[str, Array], iteration: Array, last: int) -> Array:
        """Rows without an iteration that may still fall into a later one."""
        if last not in self._iterations:
            return np.zeros(len(iteration), dtype=bool)
        start_ns, elapsed_ns, _, _ = self._iterations[last]
        return (iteration == UNKNOWN) & (rows["start_ns"] >= start_ns + elapsed_ns)

    def _closing(self, numbers: list[int], rows: Mapping[str, Array], free_ns: Array) -> Closing:
        assert self._announcement is not None
        nothing = (UNKNOWN, UNKNOWN, PHASE_UNKNOWN, np.nan)
        own = [self._iterations.get(number, nothing) for number in numbers]
        start_ns, elapsed_ns, phase, tokens = zip(*own, strict=True)
        is_next = self._closed_through is not None and self._closed_through == numbers[0] - 1
        closing = Closing(
            attempt=self._announcement.attempt,
            rank=self.rank,
            partition=self.partition,
            names=tuple(self._names),
            sizes=self._sizes,
            numbers=np.array(numbers, dtype=np.int64),
            rows=rows,
            free_ns=free_ns,
            entry_ns=self._last_end_ns if is_next else UNKNOWN,
            start_ns=np.array(start_ns, dtype=np.int64),
            elapsed_ns=np.array(elapsed_ns, dtype=np.int64),
            phase=np.array(phase, dtype=np.uint8),
            tokens=np.array(tokens, dtype=np.float64),
            late_rows=self._late_rows,
            lost_rows=self._lost_rows,
            detectors=self._detectors,
        )
        self._late_rows = 0
        return closing

    # --- snapshots --------------------------------------------------------------------------------------------------

    _PLAIN: Final = ("_is_ended", "_lost_rows", "_late_rows", "_closed_through", "_last_end_ns")

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays; detectors begin anew after it."""
        pending = self._pending or [_NO_ROWS]
        return {
            "job": self.job,
            "rank": self.rank,
            "partition": self.partition,
            "announcement": None if self._announcement is None else encode_announcement(self._announcement).decode(),
            "successor": None if self._successor is None else encode_announcement(self._successor).decode(),
            "plain": {name: getattr(self, name) for name in self._PLAIN},
            "rows": dict(self._rows),
            "watermarks_ns": dict(self._watermarks_ns),
            "names": list(self._names),
            "starts_ns": [[number, ns] for number, ns in self._starts_ns.items()],
            "iterations": [[number, *row] for number, row in self._iterations.items()],
            "pending": {name: np.concatenate([part[name] for part in pending]) for name in OPERATOR_COLUMNS},
            "held": [[b.header.schema, offset, np.frombuffer(encode_batch(b), np.uint8)] for b, offset in self._held],
            "heartbeats": [encode_heartbeat(beat).decode() for beat in self._beats],
            "heartbeat": None if self._heartbeat is None else encode_heartbeat(self._heartbeat).decode(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], settings: MonitorSettings) -> RankMonitor:
        """Restore."""
        monitor = cls(state["job"], state["rank"], settings, partition=state["partition"])
        announced = state["announcement"]
        monitor._begin(None if announced is None else decode_announcement(announced.encode()))
        successor = state["successor"]
        monitor._successor = None if successor is None else decode_announcement(successor.encode())
        for name, value in state["plain"].items():
            setattr(monitor, name, value)
        monitor._rows = dict(state["rows"])
        monitor._watermarks_ns = dict(state["watermarks_ns"])
        monitor._names = {name: code for code, name in enumerate(state["names"])}
        monitor._starts_ns = dict(state["starts_ns"])
        monitor._iterations = {row[0]: (row[1], row[2], row[3], row[4]) for row in state["iterations"]}
        if len(state["pending"]["iteration"]):
            monitor._pending = [dict(state["pending"])]
        monitor._held = [(decode_batch(value.tobytes(), schema), offset) for schema, offset, value in state["held"]]
        monitor._beats = [decode_heartbeat(beat.encode()) for beat in state["heartbeats"]]
        beat = state["heartbeat"]
        monitor._heartbeat = None if beat is None else decode_heartbeat(beat.encode())
        return monitor


def _last_end_ns(rows: Mapping[str, Array], number: int) -> int:
    """End of the last operator of an iteration; `UNKNOWN` if none has a time."""
    own = (rows["iteration"] == number) & (rows["start_ns"] != UNKNOWN)
    elapsed_ns = rows["elapsed_ns"][own]
    ends_ns = rows["start_ns"][own] + np.where(np.isfinite(elapsed_ns), elapsed_ns, 0).astype(np.int64)
    return int(ends_ns.max()) if len(ends_ns) else UNKNOWN


def _closing_ns(elapsed_ns: int) -> int:
    return min(int(CLOSING_SHARE * elapsed_ns), MAX_CLOSING_NS)
