"""A first look at the rows of several ranks, all at once: numpy's cost is per call, and most rows are ordinary.

What each rank's part says of itself (how far it has come, whether every row can be used, which iterations it holds
and when these begin and end) decides whether its rows must be looked at one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.compiled import KERNEL, Kernel
from irregulars.detectors.arrays.runs import starts_of
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.bounds import usable_rows
from irregulars.messages.plain_messages import PlainColumns
from irregulars.messages.records import PATHS, UNKNOWN

_LOOK_VALUES: Final = 6
_RUN_VALUES: Final = 4
_ANY_NAME: Final = 1 << 16  # codes of communicators have 16 bits


class Runs(NamedTuple):
    """The iterations of one rank's operators, ascending: each one's rows stand together.

    Parameters
    ----------
    iterations
        Their numbers.
    splits
        Row of the message at which each begins, and the row past the last of them.
    first_ns, last_ns
        Earliest start and latest end of each, ns since the epoch; what never ended ends where it starts.
    """

    iterations: list[int]
    splits: list[int]
    first_ns: list[int]
    last_ns: list[int]


class RowSummary(NamedTuple):
    """What the rows of one rank in one message say as a whole.

    Parameters
    ----------
    newest_ns
        A time at or after the end of the newest row; `UNKNOWN` if no row has a time.
    newest_iteration
        The highest number of an iteration; `UNKNOWN` if no row has one.
    is_usable
        Whether every row is one that an honest producer may send.
    has_unended
        Whether some operator was entered and has not ended.
    runs
        Of operators that can all be used, all name their iteration, and all have a start time; None of others.
    device
        Code of the NIC that all samples are of, if each is newer than the one before it; else None.
    """

    newest_ns: int
    newest_iteration: int
    is_usable: bool
    has_unended: bool = False
    runs: Runs | None = None
    device: int | None = None


def summarize(schema: str, columns: Mapping[str, Column], counts: Sequence[int]) -> list[RowSummary]:
    """Look at the rows of several ranks.

    Parameters
    ----------
    schema, columns
        Of the message, rows of one rank after those of another.
    counts
        How many rows each of them has, at least one.
    """
    if schema == "commops" and KERNEL is not None and isinstance(columns, PlainColumns):
        return _look_compiled(KERNEL, columns, counts)
    firsts = starts_of(np.array(counts))
    times_ns = columns["start_ns"] if "start_ns" in columns else columns["time_ns"]
    newest_ns = np.maximum.reduceat(times_ns, firsts).tolist()
    if "elapsed_ns" in columns:
        longest_ns = np.fmax.reduceat(columns["elapsed_ns"], firsts).tolist()
        newest_ns = [_after(ns, longest) for ns, longest in zip(newest_ns, longest_ns, strict=True)]
    newest = [UNKNOWN] * len(counts)
    if "iteration" in columns:
        newest = np.maximum.reduceat(columns["iteration"], firsts).tolist()
    usable = _usable(schema, columns, firsts)
    if schema != "commops":
        devices = _devices(columns, firsts) if schema == "bandwidth" and all(usable) else [None] * len(counts)
        ranks = zip(newest_ns, newest, usable, devices, strict=True)
        return [RowSummary(ns, number, is_usable, device=device) for ns, number, is_usable, device in ranks]
    is_unended = np.isnan(columns["elapsed_ns"])
    unended = np.logical_or.reduceat(is_unended, firsts).tolist() if is_unended.any() else [False] * len(counts)
    runs = _runs(columns, is_unended, firsts) if all(usable) else [None] * len(counts)
    return [RowSummary(*one) for one in zip(newest_ns, newest, usable, unended, runs, strict=True)]


def _look_compiled(kernel: Kernel, columns: PlainColumns, counts: Sequence[int]) -> list[RowSummary]:
    """Do the same for operators as they stand in a message, without making columns of them."""
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


def _usable(schema: str, columns: Mapping[str, Column], firsts: Ints) -> list[bool]:
    found = None if schema == "iterations" else usable_rows(schema, columns)  # those are looked at one by one
    return [True] * len(firsts) if found is None else np.logical_and.reduceat(found, firsts).tolist()


def _devices(columns: Mapping[str, Column], firsts: Ints) -> list[int | None]:
    """Return for each rank the code of the one NIC of which its samples are, one after the other; None: no such."""
    device, time_ns = columns["device"], columns["time_ns"]
    is_plain = columns["path"] == PATHS.index("nic")
    is_next = (device[1:] == device[:-1]) & (time_ns[1:] > time_ns[:-1])
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
