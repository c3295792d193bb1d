"""Ranks that call different collectives under one number: a program error, whatever the devices do.

The n-th collective of a communicator must be the same on all its members: the same operator, of the same size where
sizes must be equal. The first difference counts: after it one rank may be a call ahead for ever. Only numbers
of which two ranks have rows are compared: logs begin and end at different moments, and lose rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from irregulars.dtypes import Column
from irregulars.messages.records import OPERATOR_CODES, P2P, UNKNOWN

_EQUAL_SIZES = np.array([OPERATOR_CODES[name] for name in ("all_reduce", "broadcast", "reduce", "reduce_scatter",
                                                           "all_gather")])  # fmt: skip
"""Operators that take the same number of bytes from each rank. Of the last two there are variants that do not:
`_Calls` finds them."""
_MOST_TRIED = 1_000  # differences of one communicator that are tried as the first one
_UNEVEN_SHARE = 0.5  # of an operator's completed calls with different sizes, from which on they are meant to differ


class Side(NamedTuple):
    """Ranks that made the same call."""

    operator: int
    size_bytes: float  # NaN: not known, or it differs among them where it may
    ranks: tuple[int, ...]


class Mismatch(NamedTuple):
    """The first call that differs."""

    communicator: int
    sequence: int
    sides: tuple[Side, ...]  # largest first, then the one of the smallest rank
    agreed: int  # how many numbers of this communicator before it were compared, and are the same
    # Ranks of one side whose further calls are those of the other side a number later or earlier: this one has made
    # `extra` that the others have not; None: the calls do not continue so
    extra: Side | None
    is_swapped: bool  # whether the two sides made this call and the next one in the other order
    is_open: bool  # whether anybody stands in it or after it
    start_ns: int | None  # when the first rank entered it, its own clock; None: not known

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks that differ from the most; empty where no side is larger than all others."""
        first, second = self.sides[:2]
        if len(first.ranks) == len(second.ranks):
            return ()
        return tuple(sorted(rank for side in self.sides[1:] for rank in side.ranks))


def find_mismatch(columns: Mapping[str, Column]) -> Mismatch | None:
    """Find the first call in which ranks differ, of all communicators the one that was made first.

    A difference counts if everything after it differs too, or is shifted by one call, up to the last number that two
    ranks have; and a difference of sizes alone also where calls agree again. What all ranks completed, with another
    operator under one number and agreement later on, is a log that numbers calls otherwise.

    `columns`: rows of the newest iterations, or of a whole recording: ``rank, communicator, operator, sequence,
    start_ns, elapsed_ns, size_bytes``.
    """
    rows = np.flatnonzero(~np.isin(columns["operator"], P2P))
    if len(rows) < 2:
        return None
    names = ("communicator", "sequence", "rank", "operator", "size_bytes", "start_ns", "elapsed_ns")
    table = {name: columns[name][rows] for name in names}
    order = np.lexsort((table["rank"], table["sequence"], table["communicator"]))
    table = {name: column[order] for name, column in table.items()}
    calls = _Calls(table)
    found = [calls.first_difference(code) for code in np.unique(table["communicator"][calls.first[calls.differs]])]
    known = [one for one in found if one is not None]
    latest = np.iinfo(np.int64).max
    return min(known, key=lambda one: (not one.is_open, one.start_ns or latest, one.communicator), default=None)


class _Calls:
    """Rows by communicator and number; a call is all rows of one communicator and number."""

    def __init__(self, table: Mapping[str, Column]) -> None:
        self._table = table
        communicator, sequence = table["communicator"], table["sequence"]
        is_first = np.ones(len(sequence), bool)
        is_first[1:] = (communicator[1:] != communicator[:-1]) | (sequence[1:] != sequence[:-1])
        self.first = np.flatnonzero(is_first)
        self._past = np.append(self.first[1:], len(sequence))
        rank = table["rank"]
        is_compared = np.maximum.reduceat(rank, self.first) != np.minimum.reduceat(rank, self.first)
        operator = table["operator"].astype(np.int64)
        least, most = np.minimum.reduceat(operator, self.first), np.maximum.reduceat(operator, self.first)
        self._has_operators = is_compared & (least != most)
        size = np.where(np.isnan(table["size_bytes"]), -1.0, table["size_bytes"])
        known = np.where(size < 0, np.inf, size)
        self._has_sizes = is_compared & (least == most) & np.isin(least, _EQUAL_SIZES)
        self._has_sizes &= np.minimum.reduceat(known, self.first) < np.maximum.reduceat(size, self.first)
        self._is_open = np.logical_or.reduceat(np.isnan(table["elapsed_ns"]), self.first)
        self._is_compared, self._operator = is_compared, least
        # Which calls are of a communicator and operator whose completed calls mostly have different sizes. Such are
        # all_gather and reduce_scatter of uneven shards. Calls that are open do not count: they may hang for their
        # sizes.
        names = np.stack([self._table["communicator"][self.first], self._operator], axis=1)
        _, kind = np.unique(names, axis=0, return_inverse=True)
        is_done = self._is_compared & ~self._is_open
        done = np.bincount(kind, is_done)
        uneven = np.bincount(kind, is_done & self._has_sizes)
        is_meant = (uneven > 0) & (uneven >= _UNEVEN_SHARE * done)
        may_be = np.isin(self._operator, [OPERATOR_CODES["all_gather"], OPERATOR_CODES["reduce_scatter"]])
        self._has_sizes &= ~np.asarray(is_meant[kind] & may_be)
        self.differs = self._has_operators | self._has_sizes

    def first_difference(self, communicator: int) -> Mismatch | None:
        """Return the first difference of one communicator that counts."""
        own = np.flatnonzero(self._table["communicator"][self.first] == communicator)
        differs = self.differs[own]
        compared = np.flatnonzero(self._is_compared[own])
        is_open_after = np.logical_or.accumulate(self._is_open[own][::-1])[::-1]
        # Whether this number and all later ones that two ranks have differ
        ends_so = np.logical_and.accumulate((differs | ~self._is_compared[own])[::-1])[::-1]
        for at in np.flatnonzero(differs)[:_MOST_TRIED].tolist():
            sides = self._sides(own[at])
            extra, is_swapped = self._continuation(communicator, own[at], sides)
            is_silent = bool(self._has_sizes[own[at]]) and not self._is_open[own[at]]
            is_cause = bool(is_open_after[at]) and (bool(ends_so[at]) or extra is not None)
            # Without a hang nothing but the calls that agree shows that the log numbers them as the program does
            is_believed = is_cause or 2 * differs.sum() <= len(compared)
            if (ends_so[at] or extra is not None or is_silent) and is_believed:
                shift = extra, is_swapped, is_cause
                call = own[at]
                agreed = int((compared < at).sum())
                starts = self._table["start_ns"][self.first[call] : self._past[call]]
                known = starts[starts != UNKNOWN]
                number = int(self._table["sequence"][self.first[call]])
                start_ns = int(known.min()) if len(known) else None
                return Mismatch(int(communicator), number, sides, agreed, *shift, start_ns)
        return None

    def _sides(self, call: int) -> tuple[Side, ...]:
        rows = range(self.first[call], self._past[call])
        is_sized = bool(self._has_sizes[call])
        sides: dict[tuple[int, float], list[int]] = {}
        for row in rows:
            operator, size = int(self._table["operator"][row]), float(self._table["size_bytes"][row])
            # Where sizes differ, a rank that logs none is on neither side.
            if is_sized and np.isnan(size):
                continue
            # Sizes of different operators are reported, and do not divide their ranks further.
            key = (operator, size if is_sized else -1.0)
            ranks = sides.setdefault(key, [])
            rank = int(self._table["rank"][row])
            if rank not in ranks:
                ranks.append(rank)
        made = [Side(operator, self._common_size(rows, operator, size, is_sized), tuple(ranks))
                for (operator, size), ranks in sides.items()]  # fmt: skip
        return tuple(sorted(made, key=lambda side: (-len(side.ranks), side.ranks)))

    def _common_size(self, rows: range, operator: int, size: float, is_sized: bool) -> float:
        if is_sized:
            return size
        sizes = {float(self._table["size_bytes"][row]) for row in rows if self._table["operator"][row] == operator}
        return sizes.pop() if len(sizes) == 1 else np.nan

    def _continuation(self, communicator: int, call: int, sides: Sequence[Side]) -> tuple[Side | None, bool]:
        """Return which of two sides is a call ahead of the other from here on, and whether two calls are swapped."""
        # Three different calls are no shift of one.
        if len(sides) != 2:
            return None, False
        number = self._table["sequence"][self.first[call]]
        one, other = (self._calls_from(communicator, number, side.ranks[0]) for side in sides)
        is_swapped = len(one) > 1 and one[:2] == other[1::-1]
        for side, longer, shorter in ((sides[0], one, other), (sides[1], other, one)):
            # Logs end at different calls: only those that both have are compared.
            count = min(len(longer) - 1, len(shorter))
            if count >= 1 and longer[1 : 1 + count] == shorter[:count] and not is_swapped:
                return side, False
        return None, is_swapped

    def _calls_from(self, communicator: int, number: int, rank: int) -> list[tuple[int, float]]:
        table = self._table
        is_own = (table["communicator"] == communicator) & (table["rank"] == rank) & (table["sequence"] >= number)
        rows = np.flatnonzero(is_own)
        # NaN equals nothing: with it no two lists of calls would ever agree.
        sizes = np.nan_to_num(table["size_bytes"][rows], nan=-1.0)
        return list(zip(table["operator"][rows].tolist(), sizes.tolist(), strict=True))
