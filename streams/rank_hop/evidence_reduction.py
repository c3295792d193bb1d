"""Iterations that are complete, and their reduction to evidence.

Those of many ranks are reduced at once, since numpy's cost is per call and not per row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from irregulars.compiled import KERNEL
from irregulars.detectors.arrays.runs import starts_of
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.bounds import known_peers
from irregulars.messages.evidence import (
    AUDIT_COLUMNS,
    COLUMNS,
    NUMERIC_COLUMNS,
    NUMERIC_UNKNOWN,
    PAUSE_COLUMNS,
    Evidence,
    Membership,
    no_patterns,
)
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import RECV, UNKNOWN
from irregulars.streams.rank_hop.message_rows import Cut, MessageRows, shared_codes
from irregulars.streams.rank_hop.nic_patterns import Placed, place_in_blocks, reduce_patterns, sampled_blocks
from irregulars.streams.rank_hop.nic_samples import Piece
from irregulars.streams.rank_hop.operator_reduction import (
    OPERATOR_COLUMNS,
    Blocks,
    Reduction,
    reduce_blocks,
    sum_blocks,
)

if TYPE_CHECKING:
    from irregulars.streams.rank_hop.taught_detectors import TaughtDetectors

_MOST_ROWS: Final = 12_000 if KERNEL is None else 200_000
"""Rows reduced at once: of more, numpy's columns would fall out of the caches; the compiled loop makes none."""


class Closing(NamedTuple):
    """Complete iterations of one rank, at least one, with their operators and samples."""

    attempt: int
    rank: int
    partition: int
    wide: frozenset[str]  # ids of the communicators of more than `WIDE` ranks that were announced
    numbers: Sequence[int]  # the iterations, ascending
    cuts: Sequence[Cut]  # their operators; columns as those of ``commops``
    free_ns: Sequence[int]  # for each iteration when the rank was free to begin it, as `reduce_blocks` says
    # End of the rank's last operator before the first of them, if it was of the iteration before; else `UNKNOWN`
    entry_ns: int
    # start_ns, elapsed_ns, phase, tokens: Of each iteration, as its own row says; `UNKNOWN`, `PHASE_UNKNOWN` and NaN
    # where there is none
    start_ns: Sequence[int]
    elapsed_ns: Sequence[int]
    phase: Sequence[int]
    tokens: Sequence[float]
    numerics: Sequence[tuple[float | int, ...] | None]  # as `NUMERICS`
    audits: Sequence[Sequence[tuple[int, int]]]  # whose micro-batches were computed in it, with their checksums
    pauses: Sequence[Sequence[tuple[int, int, int]]]  # cause, start and length of each in it
    # late_rows, lost_rows: Rows that came too late since the closing before, and rows lost so far
    late_rows: int
    lost_rows: int
    detectors: TaughtDetectors | None = None
    samples: Sequence[Piece] = ()  # of the rank's NIC

    @property
    def rows(self) -> int:
        """How many operators these are."""
        return sum(cut.rows for cut in self.cuts)

    @property
    def is_plain(self) -> bool:
        """Whether its operators stand in their messages as they came."""
        return all(cut.source.is_plain for cut in self.cuts)


def reduce_closings(job: str, closed: Sequence[Closing | Membership]) -> list[Evidence | Membership]:
    """Reduce the closed iterations of one job's RankMonitors, each rank's oldest first.

    Nothing depends on the order of different ranks. So the memberships of ranks that came are put before the evidence
    and those of ranks that went behind it, and a few large reductions take the place of many small ones: a job of
    1,024 ranks begins and ends with as many memberships.
    """
    reduced: list[Evidence | Membership] = []
    members = [one for one in closed if isinstance(one, Membership)]
    if len({one.rank for one in members}) == len(members):  # else a rank ended and began again: its order is kept
        came = [one for one in members if one.reason is None]
        went = [one for one in members if one.reason is not None]
        closed = [*came, *(one for one in closed if isinstance(one, Closing)), *went]
    for run in _runs(closed):
        if isinstance(run, Membership):
            reduced.append(run)
        else:
            reduced += _reduce(job, run)
    return reduced


def _runs(closed: Sequence[Closing | Membership]) -> Iterator[Membership | list[Closing]]:
    """Yield memberships one by one, and the closings between them in lists of about `_MOST_ROWS` rows."""
    run: list[Closing] = []
    rows = 0
    for one in closed:
        if run and (isinstance(one, Membership) or rows >= _MOST_ROWS):
            yield run
            run, rows = [], 0
        if isinstance(one, Membership):
            yield one
        else:
            run.append(one)
            rows += one.rows
    if run:
        yield run


class _Blocks:
    """The iterations of several closings, one after the other: a block is one iteration of one rank.

    Rank 4 closes the iterations 7 and 8, and rank 5 closes 7 and 9. That makes four blocks:

    ==========  ====  =====  ====  =====
    block       0     1      2     3
    ==========  ====  =====  ====  =====
    rank        4     4      5     5
    iteration   7     8      7     9
    is first    yes   no     yes   no      of its closing
    is next     no    yes    no    no      the iteration after that of the block before, of the same rank
    ==========  ====  =====  ====  =====
    """

    def __init__(self, closings: Sequence[Closing]) -> None:
        self.closings = closings
        self.counts: Ints = np.array([len(one.numbers) for one in closings])
        self.firsts: Ints = starts_of(self.counts)
        self.iteration: Ints = self.joined("numbers", np.int64)
        self.is_next: Flags = np.zeros(len(self), dtype=np.bool_)
        self.is_next[1:] = self.iteration[1:] == self.iteration[:-1] + 1
        self.is_next[self.firsts] = False

    def __len__(self) -> int:
        return int(self.counts.sum())

    def joined(self, name: str, dtype: Any) -> Column:
        """Return a field that closings have once for each iteration."""
        return np.array(list(chain.from_iterable(getattr(one, name) for one in self.closings)), dtype=dtype)

    def spread(self, name: str) -> Ints:
        """Return a field that closings have once, for each of their blocks."""
        return np.repeat(np.array([getattr(one, name) for one in self.closings], dtype=np.int64), self.counts)

    def at_firsts(self, name: str, elsewhere: int) -> Ints:
        """Return a field that closings have once, for the first of their blocks alone."""
        found = np.full(len(self), elsewhere)
        found[self.firsts] = [getattr(one, name) for one in self.closings]
        return found

    def slices(self) -> Iterator[tuple[Closing, slice]]:
        """Yield each closing with its blocks."""
        for one, first in zip(self.closings, self.firsts.tolist(), strict=True):
            yield one, slice(first, first + len(one.numbers))

    def sampled(self) -> list[tuple[Sequence[Piece], slice]]:
        """Return the samples of each rank whose NIC was sampled, with the rank's blocks."""
        return [(one.samples, own) for one, own in self.slices() if any(piece.rows for piece in one.samples)]

    def of_rows(self, iteration: Ints) -> Ints:
        """Return the block of each operator, given the iterations of those of all closings."""
        lengths = [one.rows for one in self.closings]
        first = np.array([one.numbers[0] for one in self.closings])
        last = np.array([one.numbers[-1] for one in self.closings])
        if np.array_equal(last - first + 1, self.counts):  # no number was left out, as always in training
            return np.asarray(iteration + np.repeat(self.firsts - first, lengths))
        past = np.cumsum(lengths)
        of_closing = zip(self.slices(), (past - lengths).tolist(), past.tolist(), strict=True)
        found = [own.start + np.searchsorted(one.numbers, iteration[a:b]) for (one, own), a, b in of_closing]
        return np.concatenate(found)


def _reduce(job: str, closings: Sequence[Closing]) -> Iterator[Evidence]:
    """Reduce closings by the compiled loop; those of ranks whose rows it cannot read, by numpy in a second run."""
    work = _work_on(closings)
    found = _compiled_sums(work)
    if isinstance(found, Reduction):
        yield _evidence(job, work, found)
        return
    odd_ranks = {one.rank for one, is_odd in zip(closings, found.tolist(), strict=True) if is_odd}
    odd = [one for one in closings if one.rank in odd_ranks]  # all of a rank: its oldest iteration comes first
    if len(odd) < len(closings):
        yield from _reduce(job, [one for one in closings if one.rank not in odd_ranks])
        work = _work_on(odd)
    rows = _operators(work)
    # The evidence has class summaries of recvs, and of collectives of more than `WIDE` ranks.
    # Never empty: without names it would be an array of floats.
    is_wide = np.array([name in work.wide for name in work.names] or [False])
    is_summed = (rows["operator"] == RECV) | (is_wide[rows["communicator"]] & (rows["peer"] == UNKNOWN))
    yield _evidence(job, work, reduce_blocks(rows, work.blocks.is_next, work.free_ns, is_summed))


class _Work(NamedTuple):
    """Blocks to reduce, their operators, and the communicators that these name."""

    blocks: _Blocks
    cuts: Sequence[Cut]
    names: tuple[str, ...]

    @property
    def wide(self) -> frozenset[str]:
        """Communicators of more than `WIDE` ranks."""
        return frozenset[str]().union(*{one.wide for one in self.blocks.closings})

    @property
    def free_ns(self) -> Ints:
        """When the rank was free to begin each block."""
        return self.blocks.joined("free_ns", np.int64)


def _work_on(closings: Sequence[Closing]) -> _Work:
    cuts = [cut for one in closings for cut in one.cuts] or [_NO_ROWS]
    dictionaries = dict.fromkeys(cut.source.names for cut in _distinct(cuts))
    return _Work(_Blocks(closings), cuts, tuple(dict.fromkeys(chain.from_iterable(dictionaries))))


def _evidence(job: str, work: _Work, reduction: Reduction) -> Evidence:
    # The times of an iteration are those of its own row, where there is one, and else of its operators.
    start_ns, elapsed_ns = work.blocks.joined("start_ns", np.int64), work.blocks.joined("elapsed_ns", np.int64)
    has_row = start_ns != UNKNOWN
    start_ns = np.where(has_row, start_ns, reduction.first_start_ns)
    elapsed_ns = np.where(has_row, elapsed_ns, reduction.last_end_ns - reduction.first_start_ns)
    entry_ns = work.blocks.at_firsts("entry_ns", UNKNOWN)
    nexts = np.flatnonzero(work.blocks.is_next)
    entry_ns[nexts] = reduction.last_end_ns[nexts - 1]
    # Operators without start times have no gaps between them: then work is the rest of the iteration.
    is_untimed = has_row & (reduction.first_start_ns == UNKNOWN)
    left_ns = np.maximum(elapsed_ns - reduction.communication_ns, 0.0)
    times = _Times(start_ns, elapsed_ns, entry_ns, np.where(is_untimed, left_ns, reduction.work_ns))
    parts = work.blocks.sampled()
    placed, patterns = None, no_patterns(len(work.blocks))
    if parts:
        placed = place_in_blocks(parts, times.start_ns, times.elapsed_ns)
        sampled = sampled_blocks(placed, times.start_ns, times.elapsed_ns)
        patterns = reduce_patterns(reduction.rows, times.elapsed_ns, times.start_ns, sampled)
    return Evidence(
        job=job, names=work.names,
        columns=_columns(work.blocks, reduction, times, placed) | _numerics(work.blocks.closings),
        offsets=reduction.offsets, classes=reduction.classes, patterns=patterns,
        audits=_events([one.audits for one in work.blocks.closings], AUDIT_COLUMNS),
        pauses=_events([one.pauses for one in work.blocks.closings], PAUSE_COLUMNS),
    )  # fmt: skip


def _compiled_sums(work: _Work) -> Reduction | Flags:
    """Sum up the operators of all closings, or return which of the closings are left to numpy."""
    closings, blocks = work.blocks.closings, work.blocks
    is_odd = np.array([KERNEL is None or one.detectors is not None or not one.is_plain for one in closings])
    if is_odd.any():
        return is_odd
    asked = Blocks(blocks.counts, blocks.iteration, blocks.is_next, work.free_ns)
    found = sum_blocks(asked, [one.cuts for one in closings], work.names, work.wide)
    return found._replace(rows=_LazyRows(partial(_operators, work))) if isinstance(found, Reduction) else found


class _LazyRows(Mapping[str, Column]):
    """Rows that are made when the first of their columns is asked for: most often none is."""

    def __init__(self, make: Callable[[], Mapping[str, Column]]) -> None:
        self._make = make

    @cached_property
    def _rows(self) -> Mapping[str, Column]:
        return self._make()

    def __getitem__(self, name: str) -> Column:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


# --- operators of all closings --------------------------------------------------------------------------------------


_NO_ROWS: Final = Cut(MessageRows({name: np.empty(0, np.int64) for name in OPERATOR_COLUMNS}, (), None), 0, 0)


def _operators(work: _Work) -> dict[str, Column]:
    """Return the operators of all closings, each with its block, and its communicator as an index into the names."""
    blocks, cuts, names = work
    rows: dict[str, Column] = {}
    for name in OPERATOR_COLUMNS[:-1]:  # the last one is the offset
        parts = [cut.column(name) for cut in cuts]
        rows[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    rows["peer"] = known_peers(rows)
    lengths = [cut.rows for cut in cuts]
    known = [cut.source.offset for cut in cuts]
    # Rows that were looked at come from several messages, and hold the offset of each.
    if None in known:
        own = [
            cut.column("offset") if offset is None else np.full(cut.rows, offset, dtype=np.int64)
            for cut, offset in zip(cuts, known, strict=True)
        ]
        rows["offset"] = np.concatenate(own)
    else:
        rows["offset"] = np.repeat(np.array(known, dtype=np.int64), lengths)
    rows["block"] = blocks.of_rows(rows["iteration"])
    own_codes = rows["communicator"]
    # Detectors have learned the rank's own codes: those of this reduction depend on the other ranks in it.
    if any(one.detectors is not None for one in blocks.closings):
        rows["own_communicator"] = own_codes
    sources = [cut.source for cut in _distinct(cuts)]
    table, begins = shared_codes(sources, names)
    begin_of = {id(source): begin for source, begin in zip(sources, begins.tolist(), strict=True)}
    rows["communicator"] = table[own_codes + np.repeat([begin_of[id(cut.source)] for cut in cuts], lengths)]
    return rows


def _distinct(cuts: Sequence[Cut]) -> Collection[Cut]:
    """Return one cut of each message."""
    return {id(cut.source): cut for cut in cuts}.values()


# --- columns --------------------------------------------------------------------------------------------------------


class _Times(NamedTuple):
    """Times of each block as the evidence has them; see `messages.evidence.COLUMNS`."""

    start_ns: Ints
    elapsed_ns: Ints
    entry_ns: Ints
    work_ns: Floats


def _columns(blocks: _Blocks, reduction: Reduction, times: _Times, placed: Placed | None) -> dict[str, Column]:
    tx_peak, rx_peak = np.full((2, len(blocks)), np.nan) if placed is None else placed.peaks(len(blocks))
    scores = _scores(blocks, reduction, times.elapsed_ns)
    columns: dict[str, Column] = {
        "attempt": blocks.spread("attempt"), "rank": blocks.spread("rank"), "iteration": blocks.iteration,
        "start_ns": times.start_ns, "elapsed_ns": times.elapsed_ns, "entry_ns": times.entry_ns,
        "last_end_ns": reduction.last_end_ns, "work_ns": times.work_ns,
        "communication_ns": reduction.communication_ns, "operators": reduction.operators.astype(np.int64),
        "unended": reduction.unended.astype(np.int64), "late_rows": blocks.at_firsts("late_rows", 0),
        "lost_rows": blocks.spread("lost_rows"), "phase": blocks.joined("phase", np.uint8),
        "tokens": blocks.joined("tokens", np.float64), "score": scores.pop("score"), "nic_tx_peak": tx_peak,
        "nic_rx_peak": rx_peak, "partition": blocks.spread("partition"),
    }  # fmt: skip
    assert columns.keys() == COLUMNS.keys()
    return columns | scores


def _numerics(closings: Sequence[Closing]) -> dict[str, Column]:
    """Return the numerics of all blocks, without columns of which no value is known."""
    rows = list(chain.from_iterable(one.numerics for one in closings))
    if not any(rows):
        return {}
    nothing = tuple(NUMERIC_UNKNOWN.values())
    # Of a state of before another value came, a row is shorter.
    columns = zip(*(row if row and len(row) == len(nothing) else nothing for row in rows), strict=True)
    made: dict[str, Column] = {
        name: np.array(column, dtype=kind.to_pandas_dtype())
        for (name, kind), column in zip(NUMERIC_COLUMNS.items(), columns, strict=True)
    }
    return {
        name: one
        for name, one in made.items()
        if not (np.isnan(one) if one.dtype.kind == "f" else one == UNKNOWN).all()
    }


def _events(of_closings: Sequence[Sequence[Sequence[tuple[int, ...]]]], names: Iterable[str]) -> Ragged | None:
    """Return the audits, or the pauses, of all blocks; None: there are none."""
    rows = list(chain.from_iterable(of_closings))
    if not any(rows):
        return None
    entries = np.array(list(chain.from_iterable(rows)), dtype=np.int64)
    return Ragged(np.array(list(map(len, rows))), dict(zip(names, entries.T, strict=True)))


# --- scores of the first hop's detectors ----------------------------------------------------------------------------


def _scores(blocks: _Blocks, reduction: Reduction, elapsed_ns: Ints) -> dict[str, Column]:
    """Return, by column, the largest score of an operator of each block: of all detectors, and of each of them.

    Detectors score and then learn each iteration by itself: so their state, and with it every score, does not
    depend on which iterations happened to be closed together.
    """
    taught = [one.detectors for one in blocks.closings if one.detectors is not None]
    largest = {name: np.full(len(blocks), np.nan) for name in ["score", *(n for one in taught for n in one.columns)]}
    if not taught:
        return largest
    splits = np.searchsorted(reduction.rows["block"], np.arange(len(blocks) + 1)).tolist()
    frame: dict[str, Column] = {name: reduction.rows[name] for name in OPERATOR_COLUMNS}
    frame["communicator"] = reduction.rows.get("own_communicator", frame["communicator"])
    frame["gap_ns"] = reduction.gap_ns
    for one, own in blocks.slices():
        for block in range(own.start, own.stop):
            part = {name: column[splits[block] : splits[block + 1]] for name, column in frame.items()}
            if one.detectors is not None and len(part["gap_ns"]):
                for name, score in one.detectors.take(part, int(elapsed_ns[block])).items():
                    largest[name][block] = score
    return largest
