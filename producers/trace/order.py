"""Rows of a trace file in their order, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.messages.bounds import LATEST_NS
from irregulars.messages.records import PHASES, UNKNOWN

# Rows ordered at once: whole ranks, few enough for the caches, with the arrays that sorting needs.
_ROWS_AT_ONCE: Final = 1 << 18
_RANK: Final = ""  # name of the ranks among the columns


class Keys(NamedTuple):
    """The keys by which rows are ordered, and by which copies are recognised."""

    # When a row was complete (end of an operator or iteration, time of a sample); `UNKNOWN` where not known
    event_ns: np.ndarray
    identity: Sequence[np.ndarray]  # columns that two copies of the same row have in common, beside the rank


@dataclass(frozen=True, slots=True)
class Rows:
    """Good rows of one file, in numpy, in the file's order."""

    rank: np.ndarray  # int32, one per row
    columns: dict[str, np.ndarray]  # those of the batch's schema
    # Makes the keys of some rows of their columns: they are as large as the columns, and wanted of few at once
    keys: Callable[[Mapping[str, np.ndarray]], Keys]
    names: Callable[[int], tuple[str, ...]]  # dictionary of each rank: the names of its codes


class RowsGatherer:
    """Gathers the rows of the parts of one file. A part is copied at once and may go: its memory is used again."""

    def __init__(self) -> None:
        self._first: Rows | None = None
        self._count = 0
        self._arrays: dict[str, np.ndarray] = {}  # the columns, and among them the ranks

    def add(self, part: Rows, capacity: int) -> None:
        """Add the rows of one part of a file of `capacity` rows. Unused room costs no memory."""
        if self._first is None:
            self._first = part
            return
        if not self._arrays:  # now it is known that there are several
            self._copy(self._first, capacity)
            self._first = Rows(self._first.rank[:0], {}, self._first.keys, self._first.names)
        self._copy(part, capacity)

    def take(self) -> Rows | None:
        """Return all rows, and forget them; None if there was no part."""
        first, self._first = self._first, None
        if first is None or not self._arrays:
            return first
        arrays, self._arrays = self._arrays, {}
        arrays = {name: column[: self._count] for name, column in arrays.items()}
        return Rows(arrays.pop(_RANK), arrays, first.keys, first.names)

    def _copy(self, part: Rows, capacity: int) -> None:
        first, past = self._count, self._count + len(part.rank)
        arrays = {_RANK: part.rank, **part.columns}
        if not self._arrays:
            self._arrays = {name: np.empty(capacity, dtype=column.dtype) for name, column in arrays.items()}
        for name, column in arrays.items():
            self._arrays[name][first:past] = column
        self._count = past


class _Taken(dict[str, np.ndarray]):
    """Columns of some rows, each taken when it is asked for."""

    def __init__(self, rows: Rows, at: Any) -> None:
        self._rows, self._at = rows, at

    def __missing__(self, name: str) -> np.ndarray:
        self[name] = found = take(self._rows.columns[name], self._at)
        return found


def take(column: np.ndarray, at: Any) -> np.ndarray:
    """Take rows by a slice or by their indices, which is faster than indexing by the same."""
    return column[at] if isinstance(at, slice) else column.take(at)


def arrange(rows: Rows) -> np.ndarray:
    """Order rows by rank, event time (unknown last), then all other columns, and keep the first of copies.

    Any order and any duplication of the rows gives the same result.

    Returns indices of the rows that stay, in order.
    """
    by_rank = None
    if not (rows.rank[1:] >= rows.rank[:-1]).all():
        # numpy sorts 16 bits by radix, ten times as fast
        by_rank = np.argsort(rows.rank.astype(np.uint16) if rows.rank.max() < 1 << 16 else rows.rank, kind="stable")
    found = []
    for first, past in _blocks(rows.rank):
        at: Any = slice(first, past) if by_rank is None else by_rank[first:past]
        columns = _Taken(rows, at)
        known_ns, identity = rows.keys(columns)
        event_ns = np.where(known_ns == UNKNOWN, np.iinfo(np.int64).max, known_ns)
        rank = take(rows.rank, at).astype(np.int64)
        order = _order(rank, event_ns)
        names = sorted(rows.columns, key=lambda name: name != "start_ns")  # which comes first, where there is one
        _order_ties(order, [rank, event_ns], columns, names)
        order = order[~_are_copies([rank, *identity], order)]
        found.append(order + first if by_rank is None else at[order])
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def newest_passes(rows: Rows, order: np.ndarray) -> np.ndarray:
    """Leave out iterations that their rank began again after later ones; `order`: as `arrange` returns it.

    So a job does that goes back to a checkpoint and goes on in the same directory: its parameters are those of the
    newest pass. Audits of such an iteration go too, as they do not tell their pass.
    """
    rank, number = rows.rank[order], rows.columns["iteration"][order]
    if not ((rank[1:] == rank[:-1]) & (number[1:] < number[:-1])).any():
        return order
    # By their starts: an evaluation beside later steps ends behind them.
    by_start = np.lexsort((rows.columns["start_ns"][order], rank))
    rank, number = rank[by_start], number[by_start]
    # An evaluation of an earlier step may begin beside later steps: it is no new pass.
    is_step = rows.columns["phase"][order][by_start] != PHASES.index("eval")
    steps = np.flatnonzero(is_step)
    back = steps[1:][(rank[steps[1:]] == rank[steps[:-1]]) & (number[steps[1:]] < number[steps[:-1]])]
    goes_back = np.zeros(max(len(rank) - 1, 0), dtype=np.bool_)
    goes_back[back - 1] = True
    # Starts at 0, 1, 2, 1, 2, 3 are passes 0, 0, 0, 1, 1, 1: of iterations 1 and 2 the first is left out.
    passes = np.cumsum(np.insert(goes_back, 0, False))
    _, key = np.unique(np.stack([rank.astype(np.int64), number]), axis=1, return_inverse=True)
    key = key.reshape(-1)
    newest = np.zeros(int(key.max()) + 1, dtype=np.int64)
    np.maximum.at(newest, key, passes)
    is_gone = passes < newest[key]
    is_audit = rows.columns["audit_of_rank"][order][by_start] != UNKNOWN
    is_gone |= is_audit & np.isin(key, key[is_gone])
    return np.delete(order, by_start[is_gone])


def _blocks(rank: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut rows in the order of their ranks between ranks, into blocks of about `_ROWS_AT_ONCE`."""
    pasts = np.cumsum(np.bincount(rank)) if len(rank) else np.empty(0, dtype=np.int64)
    first = 0
    while first < len(rank):
        at = int(np.searchsorted(pasts, first + _ROWS_AT_ONCE, side="right")) - 1
        # A rank with more rows than that is a block by itself.
        past = int(pasts[at]) if at >= 0 and pasts[at] > first else int(pasts[at + 1])
        yield first, past
        first = past


def _order(rank: np.ndarray, event_ns: np.ndarray) -> np.ndarray:
    # Most files are in order already: seeing that is much cheaper than sorting.
    is_same = rank[1:] == rank[:-1]
    if ((rank[1:] > rank[:-1]) | (is_same & (event_ns[1:] >= event_ns[:-1]))).all():
        return np.arange(len(rank))
    is_known = event_ns != np.iinfo(np.int64).max
    low = int(event_ns.min(initial=np.iinfo(np.int64).max))
    span = int(event_ns.max(initial=low, where=is_known)) - low + 2
    least = int(rank.min())
    if span * (int(rank.max()) - least + 1) < LATEST_NS:  # one sort of one key
        # Order keys from 0 on: with places in their lowest bits they sort several times as fast as places by keys.
        key = (rank - least) * span + np.minimum(event_ns - low, span - 1)
        bits = (len(key) - 1).bit_length()
        if int(key.max()) >> (62 - bits):  # no room for them
            return np.argsort(key, kind="stable")
        packed = (key << bits) | np.arange(len(key))
        packed.sort()
        return np.asarray(packed & ((1 << bits) - 1))
    return np.lexsort((event_ns, rank))


def _order_ties(
    order: np.ndarray, keys: Sequence[np.ndarray], columns: Mapping[str, np.ndarray], names: Sequence[str]
) -> None:
    """Order rows that are next to each other, in `order`, and of equal keys: by the first column, and so on."""
    is_tie = np.logical_and.reduce([_equal_next(key[order]) for key in keys])
    places = np.arange(len(order))
    for name in names:
        # Keep the places that tie with a neighbour, and number the runs of them.
        is_left = np.append(is_tie, False) | np.insert(is_tie, 0, False) if len(places) else np.empty(0, dtype=bool)
        places, run = places[is_left], np.cumsum(~np.insert(is_tie, 0, False)[is_left]) if len(places) else places
        if not places.size:
            return
        own = columns[name][order[places]]
        is_same_run = _equal_next(run)
        if (_equal_next(own) | ~is_same_run).all():  # as where one communicator has all of a run
            is_tie = is_same_run
            continue
        by_column = np.lexsort((own, run))
        order[places] = order[places][by_column]
        is_tie = _equal_next(own[by_column]) & is_same_run


def _equal_next(values: np.ndarray) -> np.ndarray:
    """Return whether each value is the same as the next one; NaN equals NaN."""
    is_equal: np.ndarray = values[1:] == values[:-1]
    if values.dtype.kind == "f":
        is_nan = np.isnan(values)
        is_equal |= is_nan[1:] & is_nan[:-1]
    return is_equal


def _are_copies(keys: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
    """Return which rows, in `order`, are copies of an earlier one."""
    # Sorting one hash is much cheaper than sorting all keys.
    # A multiplier with bits everywhere (2**64 over the golden ratio) mixes the columns; overflow is wanted.
    hashes = keys[0].astype(np.uint64)
    for column in keys[1:]:
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64)
    in_order = np.sort(hashes)
    twice = in_order[1:][in_order[1:] == in_order[:-1]]
    is_copy = np.zeros(len(order), dtype=bool)
    suspects = np.flatnonzero(np.isin(hashes, twice)) if twice.size else twice
    if not suspects.size:
        return is_copy
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    places = np.sort(place[suspects])
    suspects = order[places]
    by_key = np.lexsort([key[suspects] for key in keys])  # stable: the earliest of copies stays first
    # Equal hashes only make suspects: copies are equal in all keys.
    is_same = np.logical_and.reduce([key[suspects[by_key]][1:] == key[suspects[by_key]][:-1] for key in keys])
    is_copy[places[by_key[1:][is_same]]] = True
    return is_copy
