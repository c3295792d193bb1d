"""Rows of one rank whose iterations have not closed yet, and which of them an iteration takes when it closes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np

from irregulars.detectors.arrays.row_keys import stable_order
from irregulars.detectors.arrays.runs import is_ascending, run_starts
from irregulars.dtypes import Column, Flags, Ints
from irregulars.errors import RecordError
from irregulars.messages.bounds import MOST_EXACT
from irregulars.messages.records import UNKNOWN
from irregulars.streams.rank_hop.closing_times import (
    NEVER_NS,
    closing_time_ns,
    closing_times_by_operators,
    earliest_ns,
)
from irregulars.streams.rank_hop.message_rows import Cut, IterationTimes, MessageRows, Runs, ToldIteration
from irregulars.streams.rank_hop.operator_reduction import OPERATOR_COLUMNS

MOST_UNTOLD: Final = 1 << 18
"""Rows kept that name no iteration and start after all that were told; above that the oldest quarter goes. A script
that marks some iterations and then runs on for hours must not fill the worker: twice as many fit in no snapshot."""

MOST_OF_ONE: Final = 1 << 18
"""Rows kept of an open iteration; operators that ended and come later are late. An evaluation of hours between two
steps is in one iteration, with millions of them."""

MOST_NAMES: Final = 1 << 16
"""Communicators of one rank in an attempt, whose names are kept: batches number theirs with 16 bits."""

_MOST_EVENTS: Final = 64
"""Audits, and pauses, of one rank in one iteration: it computes its own micro-batch again and one or two more, and
`torch_comms` reports fewer pauses. Of later ones only pauses of a cause that none of those has, and audits, are left
out and counted as unusable."""

_NO_ROWS: Final = {name: np.empty(0, dtype=np.float64 if name.endswith(("elapsed_ns", "bytes")) else np.int64)
                   for name in OPERATOR_COLUMNS}  # fmt: skip

Event = TypeVar("Event", bound=tuple[int, ...])
Rows = dict[str, Column]  # operators as columns, `OPERATOR_COLUMNS`


@dataclass(frozen=True, slots=True)
class PendingState:
    """State of `PendingRows`, by the names of its attributes; the parts are joined in `operators`."""

    iterations: Mapping[int, IterationTimes]
    starts_ns: Mapping[int, int]
    closed_through: int | None
    operators: Mapping[str, Column]
    names: tuple[str, ...]
    late_rows: int
    audits: Mapping[int, list[tuple[int, int]]] = field(default_factory=dict)
    pauses: Mapping[int, list[tuple[int, int, int]]] = field(default_factory=dict)


Taken = tuple[list[Cut], int]
"""Operators of iterations that close, and when the last operator of the last of them ended (or `UNKNOWN`)."""


@dataclass(slots=True)
class _Part:
    """Some rows."""

    # The rows: of a message as it came where there are runs; else looked at, with our own codes and their offsets
    cut: Cut
    # How these rows stand together by iteration, so that they can be cut without a look at them
    runs: Runs | None = None
    taken: int = 0  # how many of the runs have gone

    def count_until(self, last: int) -> int:
        """Return how many runs there were up to an iteration, with those that have gone."""
        assert self.runs is not None
        return bisect_right(self.runs.iterations, last, self.taken)

    def take(self, count: int) -> Cut:
        """Take out the rows of the runs before number `count`; they may be none."""
        assert self.runs is not None
        source, first, past = self.cut
        row = self.runs.splits[count]
        self.cut, self.taken = Cut(source, row, past), count
        return Cut(source, first, row)


class PendingRows:
    """Operators and iteration rows of open iterations.

    An iteration is *told* once a row of ``iterations`` has given its start and its length. An operator names its
    iteration, or it names none and belongs to the told iteration in which it starts. So an operator is one of these:

    ==================================  =====================  ==================================================
    It names                            when it comes it is    and when the iterations up to `last` close it is
    ==================================  =====================  ==================================================
    an iteration that has closed        late                   (gone)
    one that holds `MOST_OF_ONE`        late, if it ended      (gone)
    one of those that close             kept                   taken; late if it ended after the closing time
    a later iteration                   kept                   kept
    none, and starts in a told one      kept                   as if it named that one
    none, and starts behind `last`      kept, within bounds    kept: an iteration that takes it may be told yet
    none, and starts elsewhere          kept                   dropped: no iteration to come can take it
    ==================================  =====================  ==================================================

    Late rows are left out and counted. With the iterations 0 (from 0 to 10 ns) and 1 (from 10 to 20 ns) told, and
    operators without an iteration that start at -5, 3, 12 and 25: when 0 closes it takes 3, and -5 is dropped; when 1
    closes it takes 12; 25 waits for the next iteration that is told.
    """

    def __init__(self) -> None:
        self.iterations: dict[int, IterationTimes] = {}  # open ones, as rows of `iterations` told them
        self.audits: dict[int, list[tuple[int, int]]] = {}  # of open ones: whose micro-batch, and its checksum
        self.pauses: dict[int, list[tuple[int, int, int]]] = {}  # of open ones: cause, start and length
        self.starts_ns: dict[int, int] = {}  # first start of each open iteration, by the operators that name it
        self.closed_through: int | None = None
        self.has_unended = False  # some operator had not ended when it was sent
        self._parts: list[_Part] = []
        self._rows_of: dict[int, int] = {}  # how many name each open iteration
        self._full: set[int] = set()  # of these, those that take no more
        self._untold_rows = 0  # rows of which `_is_untold` is true, or a few more: some may have been told since
        self._told_until_ns = UNKNOWN  # end of the last iteration that was told
        self.closes_ns: dict[int, int] = {}  # of each of `iterations`, the watermark that closes it
        self._first_told_close_ns = NEVER_NS  # no open iteration closes before it, by its row
        self._first_started_close_ns: int | None = None  # nor by the operators; None: to be found again
        self._codes: dict[str, int] = {}  # of communicators
        self._names: tuple[str, ...] | None = None  # of the last batch, and their codes
        self._codes_of_names: Ints = np.empty(0, dtype=np.int64)
        self._late_rows = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Communicator ids by their code in the rows."""
        return tuple(self._codes)

    @property
    def newest(self) -> int | None:
        """The newest iteration that is known, open or closed."""
        closed = () if self.closed_through is None else (self.closed_through,)
        return max((*self.starts_ns, *self.iterations, *closed), default=None)

    def numbers(self, last: int | None = None) -> list[int]:
        """Return the open iterations, ascending; only those up to `last` if it is given."""
        numbers = sorted(self.starts_ns.keys() | self.iterations.keys())
        return numbers if last is None else numbers[: bisect_right(numbers, last)]

    def end_ns(self, number: int) -> int:
        """Return when an open iteration ends: as its row says, or when the next one begins; never, if none says."""
        if number in self.iterations:
            return self.iterations[number].end_ns
        return min((ns for other, ns in self.starts_ns.items() if other > number), default=NEVER_NS)

    def first_close_ns(self, *, by_rows: bool, by_operators: bool) -> int:
        """Return a watermark below which no open iteration closes, so that each message need not ask all of them."""
        first_ns = self._first_told_close_ns if by_rows else NEVER_NS
        if not by_operators:
            return first_ns
        if self._first_started_close_ns is None:
            self._first_started_close_ns = earliest_ns(closing_times_by_operators(self.starts_ns))
        return min(first_ns, self._first_started_close_ns)

    # --- rows -------------------------------------------------------------------------------------------------------

    def require_names(self, names: Sequence[str]) -> None:
        """Raise `RecordError` for operators that name more communicators than a rank can have."""
        # A cheap bound first: the names are joined only where they may be too many.
        if len(self._codes) + len(names) > MOST_NAMES:
            count = len(self._codes.keys() | set(names))
            if count > MOST_NAMES:
                raise RecordError(
                    f"communicators of a rank must be at most {MOST_NAMES}; got {count} with this batch"
                )

    def add_operators(self, columns: Mapping[str, Column], names: Sequence[str], offset: int) -> None:
        """Take in columns of ``commops``, whose communicators are indices into `names`, of the batch at `offset`."""
        rows = self._coded(columns, names, offset)
        if self.closed_through is not None:
            is_closed = (rows["iteration"] <= self.closed_through) & (rows["iteration"] != UNKNOWN)
            rows = self._without_late(rows, is_closed)
        if self._full:
            # One that hangs counts, however many ended before it.
            is_full = np.isin(rows["iteration"], list(self._full)) & np.isfinite(rows["elapsed_ns"])
            rows = self._without_late(rows, is_full)
        if len(rows["offset"]):
            self._parts.append(_looked_at(rows))
            self._note_starts(rows)
            self._count(rows["iteration"])
            self.has_unended = self.has_unended or _has_unended(rows)
            self._untold_rows += int(self._is_untold(rows).sum())
            if self._untold_rows > MOST_UNTOLD:
                self._drop_oldest_untold()

    def has_open(self, runs: Runs) -> bool:
        """Whether all of these iterations take more rows."""
        is_open = self.closed_through is None or runs.iterations[0] > self.closed_through
        return is_open and self._full.isdisjoint(runs.iterations)

    def add_runs(self, cut: Cut, runs: Runs, *, has_unended: bool) -> None:
        """Take in rows of open iterations that stand together by iteration, without examining each row."""
        self._note_names(cut.source.names)
        self._parts.append(_Part(cut, runs))
        self.has_unended = self.has_unended or has_unended
        for number, first_ns, (begin, past) in zip(
            runs.iterations, runs.first_ns, pairwise(runs.splits), strict=True
        ):
            self._note_start(number, first_ns)
            self._note_rows(number, past - begin)

    def _count(self, iteration: Ints) -> None:
        numbers, counts = np.unique(iteration, return_counts=True)
        for number, rows in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number != UNKNOWN:
                self._note_rows(number, rows)

    def _note_rows(self, number: int, rows: int) -> None:
        self._rows_of[number] = self._rows_of.get(number, 0) + rows
        if self._rows_of[number] >= MOST_OF_ONE:
            self._full.add(number)

    def _note_names(self, names: Sequence[str]) -> None:
        if names is not self._names and names != self._names:
            codes = [self._codes.setdefault(name, len(self._codes)) for name in names]
            self._names, self._codes_of_names = tuple(names), np.array(codes, dtype=np.int64)

    def _coded(self, columns: Mapping[str, Column], names: Sequence[str], offset: int) -> Rows:
        self._note_names(names)
        rows = {name: columns[name] for name in OPERATOR_COLUMNS if name in columns}
        rows["communicator"] = self._codes_of_names[columns["communicator"]]
        rows["offset"] = np.full(len(rows["operator"]), offset, dtype=np.int64)
        return rows

    def _rows(self, part: _Part) -> Rows:
        """Return rows with our own codes."""
        source = part.cut.source
        if source.offset is None:
            return dict(source.columns)
        own = {name: part.cut.column(name) for name in source.columns}
        return self._coded(own, source.names, source.offset)

    def add_iterations(self, rows: Iterable[ToldIteration]) -> int:
        """Take in rows of ``iterations``; return how many of them can't be used."""
        unusable = 0
        for number, times in rows:
            if times is None:
                unusable += 1
            elif self.closed_through is not None and number <= self.closed_through:
                self._late_rows += 1
            elif times.audit is not None:
                unusable += not _added(times.audit, self.audits.setdefault(number, []))
            elif times.pause is not None:
                own, (cause, _, elapsed_ns) = self.pauses.setdefault(number, []), times.pause
                known = None
                if UNKNOWN not in times.pause and not _added(times.pause, own):
                    # The newest of its cause stands for it too: a hundred short ones are one long pause.
                    known = next((at for at in range(_MOST_EVENTS)[::-1] if own[at][0] == cause), None)
                if known is not None:
                    own[known] = (cause, own[known][1], min(own[known][2] + elapsed_ns, MOST_EXACT))
                else:
                    unusable += times.pause not in own
            else:
                self.iterations[number] = times
                self.closes_ns[number] = closing_time_ns(times)
                self._told_until_ns = max(self._told_until_ns, times.end_ns)
                self._first_told_close_ns = min(self._first_told_close_ns, self.closes_ns[number])
        return unusable

    def _without_late(self, rows: Rows, is_late: Flags) -> Rows:
        if not is_late.any():
            return rows
        self._late_rows += int(is_late.sum())
        return {name: column[~is_late] for name, column in rows.items()}

    def _note_starts(self, rows: Mapping[str, Column]) -> None:
        """Keep the earliest start of each iteration that these rows name."""
        iteration, start_ns = rows["iteration"], rows["start_ns"]
        is_timed = (iteration != UNKNOWN) & (start_ns != UNKNOWN)
        if not is_timed.all():
            iteration, start_ns = iteration[is_timed], start_ns[is_timed]
        if len(iteration) == 0:
            return
        if not is_ascending(iteration):
            order = stable_order(iteration)
            iteration, start_ns = iteration[order], start_ns[order]
        firsts = run_starts(iteration)
        earliest_ns = np.minimum.reduceat(start_ns, firsts)
        for number, first_ns in zip(iteration[firsts].tolist(), earliest_ns.tolist(), strict=True):
            self._note_start(number, first_ns)

    def _note_start(self, number: int, first_ns: int) -> None:
        known_ns = self.starts_ns.get(number)
        if known_ns is None or first_ns < known_ns:
            self.starts_ns[number] = first_ns
            # An earlier start also ends, and so closes, the iteration before it earlier.
            self._first_started_close_ns = None

    # --- rows that no told iteration takes, bounded -----------------------------------------------------------------

    def _is_untold(self, rows: Mapping[str, Column]) -> Flags:
        """Return which rows name no iteration and start behind all that were told, or at no known time."""
        is_unnamed: Flags = rows["iteration"] == UNKNOWN
        if not is_unnamed.any():  # as most sources have it
            return is_unnamed
        return is_unnamed & ((rows["start_ns"] >= self._told_until_ns) | (rows["start_ns"] == UNKNOWN))

    def _drop_oldest_untold(self) -> None:
        """Drop the oldest of the untold rows, as late, until three quarters of `MOST_UNTOLD` are left."""
        # The count may be too high: some rows may have been told since they came.
        self._recount()
        surplus = self._untold_rows - MOST_UNTOLD // 4 * 3 if self._untold_rows > MOST_UNTOLD else 0
        parts, self._parts = self._parts, []
        for part in parts:
            if part.runs is not None:  # all of them name their iteration
                self._parts.append(part)
                continue
            rows = self._rows(part)
            is_old = np.zeros(part.cut.rows, dtype=np.bool_)
            is_old[np.flatnonzero(self._is_untold(rows))[:surplus]] = True
            surplus -= int(is_old.sum())
            left = self._without_late(rows, is_old)
            if len(left["iteration"]):
                self._parts.append(_looked_at(left))
        self._recount()

    def _recount(self) -> None:
        """Bring `has_unended` and the number of untold rows up to date, after rows were taken or dropped.

        Fewer rows are left than before, so that a false or a zero holds still and needs no look at the rows.
        """
        self.has_unended = self.has_unended and any(_has_unended(self._rows(part)) for part in self._parts)
        self._untold_rows = self._untold_rows and sum(
            int(self._is_untold(self._rows(part)).sum()) for part in self._parts
        )

    # --- closing iterations -----------------------------------------------------------------------------------------

    def take(self, numbers: Sequence[int], closing_ns: Mapping[int, int]) -> Taken:
        """Close iterations: return their operators, and forget them and the rows that no later iteration can take.

        `numbers`: the oldest open iterations, ascending, at least one. `closing_ns`: when each of them closes, where
        that is known. Operators that ended later are late, also those that came in time: so the result does not show
        where batches happened to begin and end.
        """
        taken = self._take_runs(numbers[-1], closing_ns) or self._take_rows(numbers, closing_ns)
        self.closed_through = numbers[-1]
        self._recount()
        for number in numbers:
            self.starts_ns.pop(number, None)
            self._rows_of.pop(number, None)
            self._full.discard(number)
            if number in self.iterations:
                del self.iterations[number], self.closes_ns[number]
        self.audits = {number: own for number, own in self.audits.items() if number > numbers[-1]}
        self.pauses = {number: own for number, own in self.pauses.items() if number > numbers[-1]}
        self._find_first_closes()
        return taken

    def _take_rows(self, numbers: Sequence[int], closing_ns: Mapping[int, int]) -> Taken:
        """Take rows by the iteration of each."""
        parts, self._parts = self._parts, []
        taken: list[Rows] = []
        for part in parts:
            if part.runs is not None:  # all of them open and known: those that close are its first
                cut = part.take(part.count_until(numbers[-1]))
                taken += [self._rows(_Part(cut))] if cut.rows else []
                self._parts += [part] if part.cut.rows else []
                continue
            own, left = self._split_rows(self._rows(part), np.array(numbers, dtype=np.int64))
            taken += [own] if own is not None else []
            self._parts += [_looked_at(left)] if left is not None else []
        rows = taken[0] if len(taken) == 1 else _joined(taken)
        closes_ns = np.array([closing_ns.get(number, NEVER_NS) for number in numbers], dtype=np.int64)
        is_late = ends_ns(rows) > closes_ns[np.searchsorted(numbers, rows["iteration"])]
        rows = self._without_late(rows, is_late & (rows["start_ns"] != UNKNOWN))
        is_last = (rows["iteration"] == numbers[-1]) & (rows["start_ns"] != UNKNOWN)
        last_end_ns = int(ends_ns(rows)[is_last].max(initial=UNKNOWN))
        return [_cut_of(rows, self.names)], last_end_ns

    def _take_runs(self, last: int, closing_ns: Mapping[int, int]) -> Taken | None:
        """Take rows by their runs; None: some must be taken one by one, and nothing was taken.

        So it is where a part has no runs (its rows are not sorted by iteration, or some name none), and where an
        operator ended after its iteration closes: that one alone is late.
        """
        counts = []
        for part in self._parts:
            runs = part.runs
            if runs is None:
                return None
            counts.append(part.count_until(last))
            for place in range(part.taken, counts[-1]):
                if runs.last_ns[place] > closing_ns.get(runs.iterations[place], NEVER_NS):
                    return None
        cuts, left, last_end_ns = [], [], UNKNOWN
        for part, count in zip(self._parts, counts, strict=True):
            assert part.runs is not None
            if count > part.taken:
                if part.runs.iterations[count - 1] == last:
                    last_end_ns = max(last_end_ns, part.runs.last_ns[count - 1])
                cuts.append(part.take(count))
            if count < len(part.runs.iterations):
                left.append(part)
        self._parts = left
        return cuts, last_end_ns

    def _find_first_closes(self) -> None:
        self._first_told_close_ns = min(self.closes_ns.values(), default=NEVER_NS)
        self._first_started_close_ns = None

    def place_unfinished(self) -> None:
        """Give the number after the last iteration to the operators behind it, if one of them never ended.

        An iteration that hangs never ends, so that no source of iterations has a row of it.
        """
        last = max(self.iterations, default=self.closed_through)
        if last is None:
            return
        # Once the last one has closed, only rows behind it are left.
        end_ns = self.iterations[last].end_ns if last in self.iterations else UNKNOWN
        parts = [self._rows(part) for part in self._parts]
        own = [_starts_unnamed(part["iteration"], part["start_ns"], end_ns) for part in parts]
        if any(np.isnan(part["elapsed_ns"][mask]).any() for part, mask in zip(parts, own, strict=True)):
            for part, mask in zip(parts, own, strict=True):
                part["iteration"] = np.where(mask, last + 1, part["iteration"])
                self._note_starts(part)
            self._parts = list(map(_looked_at, parts))

    def note_untimed(self) -> None:
        """Open the iterations that operators name where nothing has a time: ranks still came and left in them."""
        if not self.starts_ns and not self.iterations:
            known = {number for part in self._parts for number in np.unique(part.cut.column("iteration")).tolist()}
            self.starts_ns = dict.fromkeys(sorted(known - {UNKNOWN}), UNKNOWN)
            self._find_first_closes()

    def take_late_rows(self) -> int:
        """Return how many rows were late since the last call."""
        late_rows, self._late_rows = self._late_rows, 0
        return late_rows

    def _split_rows(self, part: Rows, numbers: Ints) -> tuple[Rows | None, Rows | None]:
        """Return the rows that some iterations take, and those that are left for later ones."""
        iteration = self._told_iterations(part)
        first, last = int(numbers[0]), int(numbers[-1])
        lowest, highest = int(iteration.min()), int(iteration.max())
        if lowest > last:
            return None, part
        has_holes = len(numbers) <= last - first
        if first <= lowest and highest <= last and not has_holes:
            return {**part, "iteration": iteration}, None
        is_taken = np.isin(iteration, numbers) if has_holes else (iteration >= first) & (iteration <= last)
        # Where operators alone say when an iteration ends, nothing will ever place those that name none.
        end_ns = self.iterations[last].end_ns if last in self.iterations else NEVER_NS
        is_left = (iteration > last) | _starts_unnamed(iteration, part["start_ns"], end_ns)
        taken = {name: (iteration if name == "iteration" else part[name])[is_taken] for name in OPERATOR_COLUMNS}
        return taken, {name: column[is_left] for name, column in part.items()} if is_left.any() else None

    def _told_iterations(self, rows: Mapping[str, Column]) -> Ints:
        """Return the iteration of each row: that which it names, else the told one in which it starts."""
        iteration: Ints = rows["iteration"]
        is_unnamed = iteration == UNKNOWN
        if not is_unnamed.any() or not self.iterations:
            return iteration
        numbers = sorted(self.iterations)
        starts = np.array([self.iterations[number].start_ns for number in numbers])
        ends = np.array([self.iterations[number].end_ns for number in numbers])
        position = np.searchsorted(starts, rows["start_ns"], side="right") - 1
        is_inside = is_unnamed & (position >= 0) & (rows["start_ns"] < ends[np.maximum(position, 0)])
        return np.where(is_inside, np.array(numbers)[np.maximum(position, 0)], iteration)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> PendingState:
        """Everything that `from_state` needs."""
        return PendingState(
            iterations=dict(self.iterations), starts_ns=dict(self.starts_ns), closed_through=self.closed_through,
            operators=_joined([self._rows(part) for part in self._parts]), names=self.names,
            late_rows=self._late_rows, audits={number: list(own) for number, own in self.audits.items()},
            pauses={number: list(own) for number, own in self.pauses.items()},
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: PendingState) -> PendingRows:
        """Restore."""
        pending = cls()
        pending.iterations = dict(state.iterations)
        pending.closes_ns = {number: closing_time_ns(row) for number, row in pending.iterations.items()}
        pending._told_until_ns = max((row.end_ns for row in pending.iterations.values()), default=UNKNOWN)
        pending.starts_ns = dict(state.starts_ns)
        pending.audits = {number: list(own) for number, own in state.audits.items()}
        pending.pauses = {number: list(own) for number, own in state.pauses.items()}
        pending._find_first_closes()
        pending.closed_through = state.closed_through
        if len(state.operators["iteration"]):
            rows = dict(state.operators)
            pending._parts = [_looked_at(rows)]
            pending._count(rows["iteration"])
            pending.has_unended = _has_unended(rows)
            pending._untold_rows = int(pending._is_untold(rows).sum())
        pending._codes = {name: code for code, name in enumerate(state.names)}
        pending._late_rows = state.late_rows
        return pending


def _added(event: Event, own: list[Event]) -> bool:
    """Add an audit or a pause to those of its iteration, once; return whether there was room."""
    if event in own:
        return True
    if len(own) < _MOST_EVENTS:
        own.append(event)
        return True
    return False


def _cut_of(rows: Rows, names: tuple[str, ...]) -> Cut:
    return Cut(MessageRows(rows, names, None), 0, len(rows["offset"]))


def _looked_at(rows: Rows) -> _Part:
    return _Part(_cut_of(rows, ()))


def ends_ns(rows: Mapping[str, Column]) -> Ints:
    """Return the end of each operator; one that never ended ends where it starts."""
    elapsed_ns = rows["elapsed_ns"]
    ended: Ints = rows["start_ns"] + np.where(np.isfinite(elapsed_ns), elapsed_ns, 0).astype(np.int64)
    return ended


def _starts_unnamed(iteration: Ints, start_ns: Ints, since_ns: int) -> Flags:
    """Return which rows are of no iteration and start at a time or after it."""
    return np.asarray((iteration == UNKNOWN) & (start_ns >= since_ns))


def _has_unended(rows: Mapping[str, Column]) -> bool:
    return bool(np.isnan(rows["elapsed_ns"]).any())


def _joined(parts: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts or [_NO_ROWS]]) for name in OPERATOR_COLUMNS}
