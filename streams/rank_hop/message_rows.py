"""Rows of a message as they came, undivided: ranks and iterations hold cuts of them until they are reduced.

A bundle holds rows of some ranks, and of some iterations of each. Cutting its columns for each of these would cost
more than reducing the rows does; a cut of two numbers costs nothing, and columns are joined once for all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Final, NamedTuple

import numpy as np

from irregulars.compiled import KERNEL, Kernel
from irregulars.detectors.arrays.runs import starts_of
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.bounds import usable_rows
from irregulars.messages.bundles import Bundle
from irregulars.messages.plain_messages import PlainColumns
from irregulars.messages.records import AUDIT, NUMERICS, PATHS, PAUSE, UNKNOWN, Batch, Header

_LOOK_VALUES: Final = 6
_RUN_VALUES: Final = 4
_ANY_NAME: Final = 1 << 16  # codes of communicators have 16 bits


class Runs(NamedTuple):
    """The iterations of one rank's operators, ascending: each one's rows stand together."""

    iterations: list[int]  # their numbers
    splits: list[int]  # row of the message at which each begins, and the row past the last of them
    # first_ns, last_ns: Earliest start and latest end of each, ns since the epoch; an operator that never ended
    # ends where it starts
    first_ns: list[int]
    last_ns: list[int]


class RowSummary(NamedTuple):
    """Extremes of one rank's rows in one message, and in which ways they are ordinary."""

    newest_ns: int  # a time at or after the end of the newest row; `UNKNOWN` if no row has a time
    newest_iteration: int  # the highest number of an iteration; `UNKNOWN` if no row has one
    is_usable: bool  # whether every row is one that an honest producer may send
    has_unended: bool = False  # whether some operator was entered and has not ended
    # Of operators that can all be used, all name their iteration, and all have a start time; None of others
    runs: Runs | None = None
    # Code of the NIC that all samples are of, if each is newer than the one before it; else None
    device: int | None = None


def summarize(schema: str, columns: Mapping[str, Column], counts: Sequence[int]) -> list[RowSummary]:
    """Summarize the rows of several ranks; `counts`: how many rows each of them has, at least one."""
    if schema == "commops" and KERNEL is not None and isinstance(columns, PlainColumns):
        return _look_compiled(KERNEL, columns, counts)
    firsts = starts_of(np.array(counts))
    times_ns = columns["start_ns"] if "start_ns" in columns else columns["time_ns"]
    newest_ns = np.maximum.reduceat(times_ns, firsts).tolist()
    if "elapsed_ns" in columns:
        # `fmax` passes over NaN, the length of an operator that has not ended.
        longest_ns = np.fmax.reduceat(columns["elapsed_ns"], firsts).tolist()
        newest_ns = [_after(ns, longest) for ns, longest in zip(newest_ns, longest_ns, strict=True)]
    newest = [UNKNOWN] * len(counts)
    if "iteration" in columns:
        newest = np.maximum.reduceat(columns["iteration"], firsts).tolist()
    is_usable_row = None if schema == "iterations" else usable_rows(schema, columns)  # those are read one by one
    usable = [True] * len(counts)
    if is_usable_row is not None:
        usable = np.logical_and.reduceat(is_usable_row, firsts).tolist()
    if schema != "commops":
        devices = _devices(columns, firsts) if schema == "bandwidth" and all(usable) else [None] * len(counts)
        ranks = zip(newest_ns, newest, usable, devices, strict=True)
        return [RowSummary(ns, number, is_usable, device=device) for ns, number, is_usable, device in ranks]
    is_unended = np.isnan(columns["elapsed_ns"])
    unended = np.logical_or.reduceat(is_unended, firsts).tolist() if is_unended.any() else [False] * len(counts)
    runs = _runs(columns, is_unended, firsts) if all(usable) else [None] * len(counts)
    return [RowSummary(*one) for one in zip(newest_ns, newest, usable, unended, runs, strict=True)]


def _look_compiled(kernel: Kernel, columns: PlainColumns, counts: Sequence[int]) -> list[RowSummary]:
    """Summarize operators as they are in a message, without making columns of them."""
    looks = np.empty((len(counts), _LOOK_VALUES), np.int64)
    runs = np.empty((columns.rows, _RUN_VALUES), np.int64)
    count = kernel.look(columns.value, columns.places, np.array(counts, np.int64), _ANY_NAME, looks, runs)
    assert count >= 0, "codes are checked when a message is decoded"
    lists = runs[:count].T.tolist()
    found, first, past_row = [], 0, 0
    for (newest_ns, longest_ns, number, is_usable, has_unended, own), rows in zip(
        looks.tolist(), counts, strict=True
    ):
        past_row += rows
        cut = _cut(lists, first, first + own, past_row) if own else None
        newest_ns = _after(newest_ns, float(longest_ns))
        found.append(RowSummary(newest_ns, number, bool(is_usable), bool(has_unended), cut))
        first += own
    return found


def _after(newest_ns: int, longest_ns: float) -> int:
    """As `streams.rank_hop.plausible_progress` reckons."""
    is_known = newest_ns != UNKNOWN and np.isfinite(longest_ns)
    return newest_ns + max(int(longest_ns), 0) if is_known else newest_ns


def _devices(columns: Mapping[str, Column], firsts: Ints) -> list[int | None]:
    """Return for each rank the code of the one NIC of which its samples are, one after the other; None: no such."""
    device, time_ns = columns["device"], columns["time_ns"]
    is_plain = columns["path"] == PATHS.index("nic")
    is_next = (device[1:] == device[:-1]) & (time_ns[1:] > time_ns[:-1])
    # A rank's first sample follows the last one of another rank: there is nothing to compare.
    is_next[firsts[1:] - 1] = True
    is_plain[1:] &= is_next
    found = zip(device[firsts].tolist(), np.logical_and.reduceat(is_plain, firsts).tolist(), strict=True)
    return [code if is_own else None for code, is_own in found]


def _runs(columns: Mapping[str, Column], is_unended: Flags, firsts: Ints) -> list[Runs | None]:
    """Cut the operators of each rank where the iteration changes."""
    iteration, start_ns = columns["iteration"], columns["start_ns"]
    begins = np.ones(len(iteration), dtype=np.bool_)
    np.not_equal(iteration[1:], iteration[:-1], out=begins[1:])
    begins[firsts] = True
    rows = np.flatnonzero(begins)
    numbers = iteration[rows]
    first_ns = np.minimum.reduceat(start_ns, rows)  # UNKNOWN is the lowest of all
    elapsed_ns = columns["elapsed_ns"]
    known_ns = np.where(is_unended, 0.0, elapsed_ns) if is_unended.any() else elapsed_ns
    last_ns = np.maximum.reduceat(start_ns + known_ns.astype(np.int64), rows)
    ranks = np.searchsorted(rows, firsts)  # each rank's first run
    is_odd = (numbers == UNKNOWN) | (first_ns == UNKNOWN)
    is_odd[1:] |= numbers[1:] <= numbers[:-1]
    # A rank's first run follows one of another rank: its number may be any.
    is_odd[ranks] = (numbers[ranks] == UNKNOWN) | (first_ns[ranks] == UNKNOWN)
    is_plain = (~np.logical_or.reduceat(is_odd, ranks)).tolist()
    lists = [column.tolist() for column in (numbers, rows, first_ns, last_ns)]
    borders = [*ranks.tolist(), len(rows)]
    pasts = [*firsts.tolist()[1:], len(iteration)]
    found: list[Runs | None] = []
    for rank, is_own in enumerate(is_plain):
        found.append(_cut(lists, borders[rank], borders[rank + 1], pasts[rank]) if is_own else None)
    return found


def _cut(lists: Sequence[list[int]], first: int, past: int, end: int) -> Runs:
    numbers, rows, first_ns, last_ns = (column[first:past] for column in lists)
    return Runs(numbers, [*rows, end], first_ns, last_ns)


class IterationTimes(NamedTuple):
    """Start, length, phase and tokens of an iteration, as a row of ``iterations`` gives them."""

    start_ns: int
    elapsed_ns: int
    phase: int
    tokens: float
    numerics: tuple[float | int, ...] | None = None  # as `NUMERICS`; None: none of them is known
    audit: tuple[int, int] | None = None  # whose micro-batch it is, and its checksum: the row is of an audit alone
    pause: tuple[int, int, int] | None = None  # cause, start and length: the row is of a pause alone

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.elapsed_ns


ToldIteration = tuple[int, IterationTimes | None]
"""Number and times, as a row of ``iterations`` says; None: no honest producer sends such a row."""


class MessageRows:
    """All rows of one message, or of one rank that had to be looked at one by one.

    `columns`: of the message's schema. Rows that were looked at have a column ``offset`` besides.
    `names`: the message's dictionary.
    `offset`: of the message on Kafka; None: each row says its own.
    """

    def __init__(self, columns: Mapping[str, Column], names: tuple[str, ...], offset: int | None) -> None:
        self.columns = columns
        self.names = names
        self.offset = offset
        self.is_plain = offset is not None and isinstance(columns, PlainColumns)  # as the compiled loop reads them

    @cached_property
    def iterations(self) -> list[ToldIteration]:
        """Rows of ``iterations``."""
        columns, is_usable = self.columns, usable_rows("iterations", self.columns)
        # An unusable length may have no integer value; such rows become None below.
        known_ns = columns["elapsed_ns"] if is_usable is None else np.where(is_usable, columns["elapsed_ns"], 0.0)
        start_ns, elapsed_ns = columns["start_ns"], known_ns.astype(np.int64)
        own = (column.tolist() for column in (start_ns, elapsed_ns, columns["phase"], columns["tokens"]))
        times: list[IterationTimes | None] = list(
            map(IterationTimes, *own, self._numerics(), self._events(AUDIT), self._events(PAUSE))
        )
        if is_usable is not None:
            times = [one if is_own else None for one, is_own in zip(times, is_usable.tolist(), strict=True)]
        return list(zip(columns["iteration"].tolist(), times, strict=True))

    def _numerics(self) -> Iterable[tuple[float | int, ...] | None]:
        columns = [self.columns[name] for name in NUMERICS if name in self.columns]
        if len(columns) < len(NUMERICS):  # of a source that knows nothing of them
            return repeat(None)
        is_known = np.any([~np.isnan(one) if one.dtype.kind == "f" else one != UNKNOWN for one in columns], axis=0)
        if not is_known.any():
            return repeat(None)
        rows = zip(*(one.tolist() for one in columns), strict=True)
        return [row if is_own else None for row, is_own in zip(rows, is_known.tolist(), strict=True)]

    def _events(self, names: Sequence[str]) -> Iterable[tuple[int, ...] | None]:
        """Return for each row the values of its audit, or of its pause; None: it is of none."""
        first = self.columns.get(names[0])
        if first is None or (first == UNKNOWN).all():
            return repeat(None)
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        return [None if row[0] == UNKNOWN else row for row in rows]

    @cached_property
    def times_ns(self) -> list[int]:
        """Times of samples."""
        times: list[int] = self.columns["time_ns"].tolist()
        return times

    @cached_property
    def middles_ns(self) -> list[int]:
        """Middles of the intervals between each sample and the row before it; of the first row its own time."""
        times_ns: Ints = self.columns["time_ns"]
        middle_ns = times_ns.copy()
        middle_ns[1:] = times_ns[:-1] + (times_ns[1:] - times_ns[:-1]) // 2
        found: list[int] = middle_ns.tolist()
        return found


class Cut(NamedTuple):
    """Some neighbouring rows of a message."""

    source: MessageRows
    first: int
    past: int

    @property
    def rows(self) -> int:
        """How many these are."""
        return self.past - self.first

    def column(self, name: str) -> Column:
        """Return a column of these rows."""
        columns = self.source.columns
        if isinstance(columns, PlainColumns):
            return columns.part(name, self.first, self.past)
        return columns[name][self.first : self.past]


class Part(NamedTuple):
    """The rows of one rank in one message; the other fields are those of the message's header."""

    schema: str
    attempt: int
    rank: int
    rows_before: int
    watermark_ns: int | None
    cut: Cut  # these rows
    summary: RowSummary  # of its rows; its runs count rows from the beginning of the message
    group: str | None = None
    job: str = ""
    start: str | None = None
    since_ns: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The message's dictionary."""
        return self.cut.source.names

    @property
    def offset(self) -> int:
        """Of the message on Kafka."""
        assert self.cut.source.offset is not None
        return self.cut.source.offset

    @property
    def iterations(self) -> list[ToldIteration]:
        """The rank's rows of ``iterations``."""
        return self.cut.source.iterations[self.cut.first : self.cut.past]

    def batch(self) -> Batch:
        """Return the rows as a batch, for steps that examine each of them."""
        header = Header(
            self.schema, self.job, self.attempt, self.rank, self.rows_before, self.watermark_ns, self.names,
            self.group, self.start, self.since_ns,
        )  # fmt: skip
        return Batch(header, {name: self.cut.column(name) for name in self.cut.source.columns})


def part_of(batch: Batch, offset: int, summary: RowSummary | None = None) -> Part:
    """Return a batch as the only part of its message; it must have a row."""
    own, rows = batch.header, len(batch)
    summary = summary or summarize(own.schema, batch.columns, [rows])[0]
    cut = Cut(MessageRows(batch.columns, own.names, offset), 0, rows)
    return Part(
        own.schema, own.attempt, own.rank, own.rows_before, own.watermark_ns, cut, summary, own.group, own.job,
        own.start, own.since_ns,
    )  # fmt: skip


def parts_of(rows: Batch | Bundle, offset: int) -> Iterator[Part]:
    """Yield the part of each rank that has rows in a message; the rows of all are summarized together."""
    if isinstance(rows, Batch):
        if len(rows):
            yield part_of(rows, offset)
        return
    own, source = rows.header, MessageRows(rows.columns, rows.header.names, offset)
    cuts = [Cut(source, *border) for border in pairwise((0, *accumulate(own.rows)))]
    counts = [count for count in own.rows if count]
    summaries = iter(summarize(own.schema, rows.columns, counts) if counts else ())
    ranks = zip(own.ranks, own.rows_before, own.watermarks_ns, own.sinces_ns, cuts, strict=True)
    for rank, rows_before, watermark_ns, since_ns, cut in ranks:
        if cut.rows:
            yield Part(
                own.schema, own.attempt, rank, rows_before, watermark_ns, cut, next(summaries), own.group, own.job,
                own.start, since_ns,
            )  # fmt: skip


def shared_codes(sources: Sequence[MessageRows], names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the codes that stand for the same communicators in all messages: their places in `names`.

    Returns a table of the codes of each dictionary, and where that of each message begins in it. Where the messages
    have the names ``dp tp`` and ``tp pp``, the table is ``0 1 1 2``. The second message's names begin at its place 2,
    so that its code 1 stands at place 3: ``pp``.

    >>> messages = [MessageRows({}, own, 0) for own in (("dp", "tp"), ("tp", "pp"))]
    >>> [column.tolist() for column in shared_codes(messages, ("dp", "tp", "pp"))]
    [[0, 1, 1, 2], [0, 2]]
    """
    codes = {name: code for code, name in enumerate(names)}
    dictionaries = list(dict.fromkeys(source.names for source in sources))
    table = np.array([codes[name] for own in dictionaries for name in own] or [0], dtype=np.int64)
    begins = starts_of(np.array([len(own) for own in dictionaries])).tolist()
    begin_of = dict(zip(dictionaries, begins, strict=True))
    return table, np.array([begin_of[source.names] for source in sources], dtype=np.int64)
