"""Rows of a message as they came, undivided: ranks and iterations hold cuts of them until they are reduced.

A bundle holds rows of some ranks, and of some iterations of each. Cutting its columns for each of these would cost
more than reducing the rows does; a cut of two numbers costs nothing, and columns are joined once for all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.runs import starts_of
from irregulars.dtypes import Column, Ints
from irregulars.messages.bounds import usable_rows
from irregulars.messages.bundles import Bundle
from irregulars.messages.plain_messages import PlainColumns
from irregulars.messages.records import Batch, Header
from irregulars.streams.rank_hop.rows.row_summaries import RowSummary, summarize


class IterationTimes(NamedTuple):
    """Start, length, phase and tokens of an iteration, as a row of ``iterations`` gives them."""

    start_ns: int
    elapsed_ns: int
    phase: int
    tokens: float

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.elapsed_ns


ToldIteration = tuple[int, IterationTimes | None]
"""Number and times, as a row of ``iterations`` says; None: no honest producer sends such a row."""


class MessageRows:
    """All rows of one message, or of one rank that had to be looked at one by one.

    Parameters
    ----------
    columns
        Of the message's schema. Rows that were looked at have a column ``offset`` besides.
    names
        The message's dictionary.
    offset
        Of the message on Kafka; None: each row says its own.
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
        known_ns = columns["elapsed_ns"] if is_usable is None else np.where(is_usable, columns["elapsed_ns"], 0.0)
        start_ns, elapsed_ns = columns["start_ns"], known_ns.astype(np.int64)
        own = (column.tolist() for column in (start_ns, elapsed_ns, columns["phase"], columns["tokens"]))
        times: list[IterationTimes | None] = list(map(IterationTimes, *own))
        if is_usable is not None:
            times = [one if is_own else None for one, is_own in zip(times, is_usable.tolist(), strict=True)]
        return list(zip(columns["iteration"].tolist(), times, strict=True))

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
    """The rows of one rank in one message; the other fields are those of the message's header.

    Parameters
    ----------
    cut
        These rows.
    summary
        Of its rows; its runs count rows from the beginning of the message.
    """

    schema: str
    attempt: int
    rank: int
    rows_before: int
    watermark_ns: int | None
    cut: Cut
    summary: RowSummary
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
        """Return the rows as a batch, for where each of them must be looked at."""
        header = Header(
            self.schema,
            self.job,
            self.attempt,
            self.rank,
            self.rows_before,
            self.watermark_ns,
            self.names,
            self.group,
            self.start,
            self.since_ns,
        )
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
    """Give the part of each rank that has rows in a message, which are looked at together."""
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

    Returns
    -------
    A table of the codes of each dictionary, and where that of each message begins in it. Where the messages have the
    names ``dp tp`` and ``tp pp``, the table is ``0 1 1 2``. The second message's names begin at its place 2, so that
    its code 1 stands at place 3: ``pp``.

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
