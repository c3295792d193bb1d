"""Rows of one rank whose iterations have not closed yet, and which of them an iteration takes when it closes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from irregulars.detectors.arrays.row_keys import stable_order
from irregulars.streams.messages.records import UNKNOWN, Batch
from irregulars.streams.messages.usable_rows import is_usable_iteration
from irregulars.streams.rank_hop.closing_times import IterationTimes
from irregulars.streams.rank_hop.operator_reduction import OPERATOR_COLUMNS

Array = np.ndarray

MOST_UNPLACED: Final = 1 << 18
"""Rows kept that say no iteration, behind all iterations that were told; above that the oldest quarter goes. A script
that marks some iterations and then runs on for hours must not fill the worker: twice as many fit in no snapshot."""

_NEVER_NS: Final = int(np.iinfo(np.int64).max)
_NO_ROWS: Final = {name: np.empty(0, dtype=np.float64 if name.endswith(("elapsed_ns", "bytes")) else np.int64)
                   for name in OPERATOR_COLUMNS}  # fmt: skip


class PendingRows:
    """Operators and iteration rows of open iterations; what comes for an iteration that has closed is late."""

    def __init__(self) -> None:
        self.iterations: dict[int, IterationTimes] = {}  # as rows of `iterations` say
        self.starts_ns: dict[int, int] = {}  # first start of each iteration, by its operators
        self.closed_through: int | None = None
        self.has_unended = False  # some operator had not ended when it was told
        self._parts: list[dict[str, Array]] = []
        self._unplaced = 0  # rows that `_is_untold`, or a few more
        self._told_until_ns = UNKNOWN  # end of the last iteration that a row of `iterations` told
        self._codes: dict[str, int] = {}  # of communicators
        self._late_rows = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Communicator ids by their code in the rows."""
        return tuple(self._codes)

    def numbers(self, last: int | None = None) -> list[int]:
        """Return the open iterations, ascending; only those up to `last` if it is given."""
        numbers = sorted(self.starts_ns.keys() | self.iterations.keys())
        return numbers if last is None else numbers[: bisect_right(numbers, last)]

    def end_ns(self, number: int) -> int:
        """Return when an open iteration ends: as its row says, or when the next one begins; never, if none says."""
        if number in self.iterations:
            return self.iterations[number].end_ns
        return min((ns for other, ns in self.starts_ns.items() if other > number), default=_NEVER_NS)

    # --- what comes in ----------------------------------------------------------------------------------------------

    def add_operators(self, columns: Mapping[str, Array], names: Sequence[str], offset: int) -> None:
        """Take in columns of ``commops``, whose communicators are indices into `names`, of the batch at `offset`."""
        codes = [self._codes.setdefault(name, len(self._codes)) for name in names]
        rows = {name: columns[name] for name in OPERATOR_COLUMNS if name in columns}
        rows["communicator"] = np.array(codes, dtype=np.int64)[columns["communicator"]]
        rows["offset"] = np.full(len(rows["operator"]), offset, dtype=np.int64)
        rows = self._without_late(rows)
        if len(rows["offset"]):
            self._parts.append(rows)
            self._note_starts(rows)
            self.has_unended = self.has_unended or _has_unended(rows)
            self._unplaced += int(self._is_untold(rows).sum())
            if self._unplaced > MOST_UNPLACED:
                self._shed()

    def add_iterations(self, batch: Batch) -> int:
        """Take in a batch of ``iterations``; return how many of its rows can't be used."""
        columns = batch.columns
        rows = zip(*(columns[name].tolist() for name in ("iteration", "start_ns", "elapsed_ns", "phase", "tokens")),
                   strict=True)  # fmt: skip
        unusable, told_until_ns = 0, self._told_until_ns
        for number, start_ns, elapsed_ns, phase, tokens in rows:
            if not is_usable_iteration(number, start_ns, elapsed_ns):
                unusable += 1
            elif self.closed_through is not None and number <= self.closed_through:
                self._late_rows += 1
            else:
                elapsed_ns = int(elapsed_ns)
                self.iterations[number] = IterationTimes(start_ns, elapsed_ns, phase, tokens)
                if start_ns + elapsed_ns > told_until_ns:
                    told_until_ns = start_ns + elapsed_ns
        self._told_until_ns = told_until_ns
        return unusable

    def _is_untold(self, rows: Mapping[str, Array]) -> Array:
        """Say which rows name no iteration and lie behind all that were told."""
        is_unnamed: Array = rows["iteration"] == UNKNOWN
        if not is_unnamed.any():  # as most sources have it
            return is_unnamed
        return is_unnamed & ((rows["start_ns"] >= self._told_until_ns) | (rows["start_ns"] == UNKNOWN))

    def _shed(self) -> None:
        """Let the oldest rows that nobody told an iteration of go, as late, where they are too many."""
        self._recount()
        surplus = self._unplaced - MOST_UNPLACED // 4 * 3 if self._unplaced > MOST_UNPLACED else 0
        parts, self._parts = self._parts, []
        for part in parts:
            is_old = np.zeros(len(part["iteration"]), dtype=bool)
            is_old[np.flatnonzero(self._is_untold(part))[:surplus]] = True
            surplus -= int(is_old.sum())
            left = self._leave_out(part, is_old)
            if len(left["iteration"]):
                self._parts.append(left)
        self._recount()

    def _recount(self) -> None:
        self.has_unended = self.has_unended and any(map(_has_unended, self._parts))
        self._unplaced = self._unplaced and sum(int(self._is_untold(part).sum()) for part in self._parts)

    def _without_late(self, rows: dict[str, Array]) -> dict[str, Array]:
        if self.closed_through is None:
            return rows
        return self._leave_out(rows, (rows["iteration"] <= self.closed_through) & (rows["iteration"] != UNKNOWN))

    def _leave_out(self, rows: dict[str, Array], is_late: Array) -> dict[str, Array]:
        if not is_late.any():
            return rows
        self._late_rows += int(is_late.sum())
        return {name: column[~is_late] for name, column in rows.items()}

    def _note_starts(self, rows: Mapping[str, Array]) -> None:
        iteration, start_ns = rows["iteration"], rows["start_ns"]
        is_timed = (iteration != UNKNOWN) & (start_ns != UNKNOWN)
        if not is_timed.all():
            iteration, start_ns = iteration[is_timed], start_ns[is_timed]
        if len(iteration) == 0:
            return
        if not np.all(iteration[1:] >= iteration[:-1]):
            order = stable_order(iteration)
            iteration, start_ns = iteration[order], start_ns[order]
        is_first = np.ones(len(iteration), dtype=bool)
        np.not_equal(iteration[1:], iteration[:-1], out=is_first[1:])
        firsts = np.flatnonzero(is_first)
        earliest_ns = np.minimum.reduceat(start_ns, firsts)
        for number, first_ns in zip(iteration[firsts].tolist(), earliest_ns.tolist(), strict=True):
            known_ns = self.starts_ns.get(number)
            if known_ns is None or first_ns < known_ns:
                self.starts_ns[number] = first_ns

    # --- what an iteration takes ------------------------------------------------------------------------------------

    def take(self, numbers: Sequence[int], closing_ns: Mapping[int, int]) -> dict[str, Array]:
        """Close iterations: return the operators of `numbers`, the oldest open ones, ascending, and forget them.

        Rows of older or no iteration go with them. So do those that ended after their iteration had closed (at
        `closing_ns`, where that is known): they are late, so that no border of a batch shows in the result.
        """
        rows = self._without_overlong(self._take_parts(np.array(numbers, dtype=np.int64)), numbers, closing_ns)
        self.closed_through = numbers[-1]
        self._recount()
        for number in numbers:
            self.starts_ns.pop(number, None)
            self.iterations.pop(number, None)
        return rows

    def place_unfinished(self) -> None:
        """Take operators that never ended, and those beside them, for the iteration after the last one.

        An iteration that hangs never ends, so that no source of iterations has a row of it.
        """
        last = max(self.iterations, default=self.closed_through)
        if last is None:
            return
        own = [self._is_after(part, last) for part in self._parts]
        if any(np.isnan(part["elapsed_ns"][mask]).any() for part, mask in zip(self._parts, own, strict=True)):
            for part, mask in zip(self._parts, own, strict=True):
                part["iteration"] = np.where(mask, last + 1, part["iteration"])
                self._note_starts(part)

    def note_untimed(self) -> None:
        """Let operators stand for their iterations where nothing has a time: they still tell who came and left."""
        if not self.starts_ns and not self.iterations:
            known = {number for part in self._parts for number in np.unique(part["iteration"]).tolist()}
            self.starts_ns = dict.fromkeys(sorted(known - {UNKNOWN}), UNKNOWN)

    def take_late_rows(self) -> int:
        """Return how many rows were late since the last call."""
        late_rows, self._late_rows = self._late_rows, 0
        return late_rows

    def _take_parts(self, numbers: Array) -> dict[str, Array]:
        parts, self._parts = self._parts, []
        taken = [part for part in (self._split(part, numbers) for part in parts) if part is not None]
        if len(taken) == 1:
            return taken[0]
        if not taken:
            return dict(_NO_ROWS)
        return {name: np.concatenate([part[name] for part in taken]) for name in OPERATOR_COLUMNS}

    def _split(self, part: dict[str, Array], numbers: Array) -> dict[str, Array] | None:
        """Return what a part has of these iterations, and keep what it has of later ones."""
        iteration = self._with_inferred(part)
        first, last = int(numbers[0]), int(numbers[-1])
        lowest, highest = int(iteration.min()), int(iteration.max())
        if lowest > last:
            self._parts.append(part)
            return None
        has_holes = len(numbers) <= last - first
        if first <= lowest and highest <= last and not has_holes:
            return {**part, "iteration": iteration}
        is_taken = np.isin(iteration, numbers) if has_holes else (iteration >= first) & (iteration <= last)
        is_kept = ~is_taken & ((iteration > last) | self._is_unplaced(part, iteration, last))
        if is_kept.any():
            self._parts.append({name: column[is_kept] for name, column in part.items()})
        return {name: (iteration if name == "iteration" else part[name])[is_taken] for name in OPERATOR_COLUMNS}

    def _with_inferred(self, rows: Mapping[str, Array]) -> Array:
        """Iteration of each row; rows without one take that in which they start, where iteration rows tell."""
        iteration = rows["iteration"]
        is_unknown = iteration == UNKNOWN
        if not is_unknown.any() or not self.iterations:
            return iteration
        numbers = sorted(self.iterations)
        starts = np.array([self.iterations[n].start_ns for n in numbers])
        ends = np.array([self.iterations[n].end_ns for n in numbers])
        position = np.searchsorted(starts, rows["start_ns"], side="right") - 1
        is_inside = is_unknown & (position >= 0) & (rows["start_ns"] < ends[np.maximum(position, 0)])
        return np.where(is_inside, np.array(numbers)[np.maximum(position, 0)], iteration)

    def _is_unplaced(self, rows: Mapping[str, Array], iteration: Array, last: int) -> Array:
        """Rows without an iteration that may still fall into a later one."""
        if last not in self.iterations:
            return np.zeros(len(iteration), dtype=bool)
        return (iteration == UNKNOWN) & (rows["start_ns"] >= self.iterations[last].end_ns)

    def _is_after(self, rows: Mapping[str, Array], last: int) -> Array:
        """Rows without an iteration behind the last one; of a closed one only such rows are still pending."""
        if last not in self.iterations:
            return np.asarray(rows["iteration"] == UNKNOWN)
        return self._is_unplaced(rows, rows["iteration"], last)

    def _without_overlong(
        self, rows: dict[str, Array], numbers: Sequence[int], closing_ns: Mapping[int, int]
    ) -> dict[str, Array]:
        closes_ns = np.array([closing_ns.get(number, _NEVER_NS) for number in numbers], dtype=np.int64)
        is_late = ends_ns(rows) > closes_ns[np.searchsorted(numbers, rows["iteration"])]
        return self._leave_out(rows, is_late & (rows["start_ns"] != UNKNOWN))

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays."""
        parts = self._parts or [_NO_ROWS]
        return {
            "iterations": [[number, *row] for number, row in self.iterations.items()],
            "starts_ns": [[number, ns] for number, ns in self.starts_ns.items()],
            "closed_through": self.closed_through,
            "operators": {name: np.concatenate([part[name] for part in parts]) for name in OPERATOR_COLUMNS},
            "names": list(self._codes),
            "late_rows": self._late_rows,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PendingRows:
        """Restore."""
        pending = cls()
        pending.iterations = {number: IterationTimes(*row) for number, *row in state["iterations"]}
        pending._told_until_ns = max((row.end_ns for row in pending.iterations.values()), default=UNKNOWN)
        pending.starts_ns = dict(state["starts_ns"])
        pending.closed_through = state["closed_through"]
        if len(state["operators"]["iteration"]):
            pending._parts = [dict(state["operators"])]
            pending.has_unended = _has_unended(pending._parts[0])
            pending._unplaced = int(pending._is_untold(pending._parts[0]).sum())
        pending._codes = {name: code for code, name in enumerate(state["names"])}
        pending._late_rows = state["late_rows"]
        return pending


def ends_ns(rows: Mapping[str, Array]) -> Array:
    """End of each operator; one that never ended ends where it starts."""
    elapsed_ns = rows["elapsed_ns"]
    return rows["start_ns"] + np.where(np.isfinite(elapsed_ns), elapsed_ns, 0).astype(np.int64)


def _has_unended(rows: Mapping[str, Array]) -> bool:
    return bool(np.isnan(rows["elapsed_ns"]).any())
