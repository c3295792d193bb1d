"""Turn batches of ``commops`` that were read back into the rows of whole iterations of many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows, pack_columns, stable_order
from irregulars.detectors.arrays.runs import begins_run
from irregulars.detectors.job.clocks import Clocks
from irregulars.detectors.job.measured_time import logged_resolutions_ns
from irregulars.detectors.judging.iteration_rows import IterationSpan
from irregulars.detectors.path.operator_classes import class_parts
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.bounds import known_peers, usable_rows
from irregulars.messages.records import UNKNOWN, Batch

_COLUMNS: Final = ("operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration")
_FLOATS: Final = ("elapsed_ns", "size_bytes")

NO_OPERATORS: Final[Mapping[str, Column]] = {
    name: np.empty(0, dtype=np.float64 if name in _FLOATS else np.int64)
    for name in ("rank", "communicator", *_COLUMNS)
}

Spans = Mapping[tuple[int, int], IterationSpan]
"""For pairs of rank and iteration: the times of the iteration on that rank."""


def gather_rows(batches: Iterable[Batch], codes: Mapping[str, int], spans: Spans) -> dict[str, Column]:
    """Join batches into columns and keep the rows of the iterations in `spans`; a row that comes twice counts once.

    Rows without an iteration belong to the one in which they start. Rows that end after the last operator that the
    evidence of their iteration knows are left out: they came too late for it.

    `codes`: the job's code of each communicator id. Returns columns ``rank, communicator, operator, sequence, peer,
    start_ns, iteration`` (int64), ``elapsed_ns, size_bytes`` (float64).
    """
    wanted = _Wanted.of(spans)
    parts = [] if wanted is None else _near(list(batches), wanted)
    if wanted is None or not parts:
        return dict(NO_OPERATORS)
    rows = _taken(parts, codes, wanted)
    is_open = np.isnan(rows["elapsed_ns"])
    if is_open.any():  # an operator may be logged while it runs and again when it has ended: the latter counts
        order = stable_order(is_open.astype(np.int64))
        rows = {name: column[order] for name, column in rows.items()}
    own = [rows["rank"], *class_parts(rows), rows["sequence"]]
    if begins_run(np.sort(pack_columns(own))).all():  # no two rows are equal: cheaper than to number them
        return rows
    _, kept = group_rows(own)
    # Groups are numbered by key: this restores the order of the log.
    kept.sort()
    return {name: column[kept] for name, column in rows.items()}


class _Wanted(NamedTuple):
    """Which ranks are wanted in which iterations."""

    spans: Spans  # the times of each pair of rank and iteration that is wanted
    # The wanted ranks and iterations, ascending
    ranks: Ints
    numbers: Ints
    # Tables, a row for each rank and a column for each iteration: whether the pair is wanted,
    # and the end of its last operator, ns
    is_wanted: Flags
    last_end_ns: Ints

    @classmethod
    def of(cls, spans: Spans) -> _Wanted | None:
        """Make the table; None if nothing is wanted."""
        if not spans:
            return None
        pairs = np.array(list(spans), dtype=np.int64)
        ranks, at_rank = np.unique(pairs[:, 0], return_inverse=True)
        numbers, at_number = np.unique(pairs[:, 1], return_inverse=True)
        is_wanted = np.zeros((len(ranks), len(numbers)), dtype=bool)
        last_end_ns = np.zeros(is_wanted.shape, dtype=np.int64)
        is_wanted[at_rank, at_number] = True
        last_end_ns[at_rank, at_number] = [span.last_end_ns for span in spans.values()]
        return cls(spans, ranks, numbers, is_wanted, last_end_ns)

    def by_rank(self) -> dict[int, dict[int, IterationSpan]]:
        """Return for each rank the iterations that are wanted of it."""
        found: dict[int, dict[int, IterationSpan]] = {}
        for (rank, number), span in self.spans.items():
            found.setdefault(rank, {})[number] = span
        return found

    def is_near(self, iteration: Ints, start_ns: Sequence[Ints]) -> Flags:
        """Whether rows may be wanted: by their iteration, or, where that is not known, by their start."""
        is_near: Flags = (iteration >= self.numbers[0]) & (iteration <= self.numbers[-1])
        unknown = np.flatnonzero(iteration == UNKNOWN)
        if len(unknown):
            starts_ns = np.concatenate(start_ns)[unknown]
            first_ns = min(span.start_ns for span in self.spans.values())
            past_ns = max(span.past_ns for span in self.spans.values())
            is_near[unknown] = (starts_ns >= first_ns) & (starts_ns < past_ns)
        return is_near


def _near(batches: Sequence[Batch], wanted: _Wanted) -> list[tuple[Batch, int, int]]:
    """Find in each batch of a wanted rank the first and the last row that may be wanted.

    A batch may hold many iterations, of which one is wanted: the rest is read once and never copied.

    Returns batches, each with its first row and past its last row.
    """
    ranks = np.array([batch.header.rank for batch in batches], dtype=np.int64)
    batches = [batches[at] for at in np.flatnonzero(np.isin(ranks, wanted.ranks)).tolist()]
    if not batches:
        return []
    iteration = np.concatenate([batch.columns["iteration"] for batch in batches])
    at = np.flatnonzero(wanted.is_near(iteration, [batch.columns["start_ns"] for batch in batches]))
    lengths = np.array([len(batch) for batch in batches])
    pasts = np.cumsum(lengths)
    begins = pasts - lengths
    first, last = np.searchsorted(at, begins), np.searchsorted(at, pasts) - 1
    found = np.flatnonzero(last >= first)
    firsts, lasts = at[first[found]] - begins[found], at[last[found]] - begins[found]
    of_batch = zip(found.tolist(), firsts.tolist(), (lasts + 1).tolist(), strict=True)
    return [(batches[number], begin, past) for number, begin, past in of_batch]


def _taken(parts: Sequence[tuple[Batch, int, int]], codes: Mapping[str, int], wanted: _Wanted) -> dict[str, Column]:
    """Join parts of batches, and keep the rows that are wanted."""
    names = ("communicator", *_COLUMNS)
    columns = {name: np.concatenate([one.columns[name][begin:past] for one, begin, past in parts]) for name in names}
    rank = np.array([one.header.rank for one, _, _ in parts], dtype=np.int64)
    lengths = np.array([past - begin for _, begin, past in parts])
    of_part = np.repeat(np.arange(len(parts)), lengths)
    iteration = _all_placed(columns, rank, lengths, wanted)
    is_usable = usable_rows("commops", columns)  # the RankMonitor left the same rows out of the evidence
    if is_usable is not None:
        columns = {name: column[is_usable] for name, column in columns.items()}
        iteration, of_part = iteration[is_usable], of_part[is_usable]
    kept = np.flatnonzero(_in_time(columns, iteration, rank[of_part], wanted))
    if len(kept) < len(iteration):
        columns = {name: column[kept] for name, column in columns.items()}
        iteration, of_part = iteration[kept], of_part[kept]
    # One table of codes for all parts: each batch numbers its own names from 0, so its numbers are shifted.
    # One without names still has an entry.
    counts = np.array([max(len(one.header.names), 1) for one, _, _ in parts])
    table = np.array([c for one, _, _ in parts for c in [codes[name] for name in one.header.names] or [0]])
    communicator = table[columns["communicator"].astype(np.int64) + (np.cumsum(counts) - counts)[of_part]]
    taken = columns | {"iteration": iteration, "communicator": communicator, "rank": rank[of_part]}
    taken["peer"] = known_peers(columns)
    return {
        name: column.astype(np.float64 if name in _FLOATS else np.int64, copy=False) for name, column in taken.items()
    }


def _in_time(columns: Mapping[str, Column], iteration: Ints, rank: Ints, wanted: _Wanted) -> Flags:
    """Whether each row is of a wanted iteration and came in time for its evidence."""
    number = np.minimum(np.searchsorted(wanted.numbers, iteration), len(wanted.numbers) - 1)
    at = np.searchsorted(wanted.ranks, rank), number
    start_ns, elapsed_ns = columns["start_ns"], columns["elapsed_ns"]
    end_ns = start_ns + np.where(np.isfinite(elapsed_ns), elapsed_ns, 0).astype(np.int64)
    # Of a row without a start it is not known when it ended: it stays.
    is_in_time = (end_ns <= wanted.last_end_ns[at]) | (start_ns == UNKNOWN)
    return (wanted.numbers[number] == iteration) & wanted.is_wanted[at] & is_in_time


def _all_placed(columns: Mapping[str, Column], rank: Ints, lengths: Ints, wanted: _Wanted) -> Ints:
    """Return the iteration of each row; the rows come in parts, whose ranks and lengths are given."""
    iteration, start_ns = columns["iteration"], columns["start_ns"]
    if not (iteration == UNKNOWN).any():
        return iteration
    placed, spans = iteration.copy(), wanted.by_rank()
    pasts = np.cumsum(lengths)
    for one, begin, past in zip(rank.tolist(), (pasts - lengths).tolist(), pasts.tolist(), strict=True):
        is_unknown, began_ns = iteration[begin:past] == UNKNOWN, start_ns[begin:past]
        own = placed[begin:past]  # a view: a row without an iteration is of the one in whose span it starts
        for number, span in spans[one].items() if is_unknown.any() else ():
            own[is_unknown & (began_ns >= span.start_ns) & (began_ns < span.past_ns)] = number
    return placed


def on_one_clock(columns: Mapping[str, Column], clocks: Clocks) -> Mapping[str, Column]:
    """Return operators with their starts on the common clock, and with the resolution at which they were logged."""
    if not clocks.ahead_ns:
        return columns
    start_ns = columns["start_ns"]
    return {
        **columns,
        # Measured before the correction, which hides how coarse the log is.
        "resolution_ns": logged_resolutions_ns(columns),
        "start_ns": np.where(start_ns == UNKNOWN, UNKNOWN, start_ns - clocks.ahead(columns["rank"], start_ns)),
    }


def joined(parts: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Join columns of the same names, leaving out parts without columns."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
