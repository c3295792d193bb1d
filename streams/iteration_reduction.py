"""From the operators of some iterations of one rank to their evidence: one vectorised pass, whatever their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from detectors.codes import group_rows
from detectors.operator_graph import pack_class, unpack_class
from streams.evidence import CLASS_COLUMNS
from streams.records import UNKNOWN

Array = np.ndarray

OPERATOR_COLUMNS: Final = (
    "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration", "offset",
)  # fmt: skip
"""Columns of the rows that a RankMonitor keeps: those of ``commops``, and the Kafka offset of their batch."""

_MAX_LIFTED: Final = 1 << 62


class Reduction(NamedTuple):
    """Evidence of some iterations; arrays have one value per iteration unless said otherwise.

    ``rows`` are the operators in the order of iteration and start, without duplicates, and ``gap_ns`` what lay before
    each of them; ``classes`` and ``offsets`` hold all iterations' values one after the other.
    """

    rows: dict[str, Array]
    gap_ns: Array
    first_start_ns: Array
    last_end_ns: Array
    operators: Array
    work_ns: Array
    communication_ns: Array
    offsets: Array
    offset_counts: Array
    classes: dict[str, Array]
    class_counts: Array


def reduce_iterations(rows: Mapping[str, Array], iterations: Array, free_ns: Array) -> Reduction:
    """Reduce the operators of `iterations` (ascending; rows of others must not be given).

    Parameters
    ----------
    rows
        `OPERATOR_COLUMNS`, in any order; rows given twice count once.
    free_ns
        When the rank was free to begin each iteration, int64; `UNKNOWN` where only its first operator shows it. The
        value of an iteration whose predecessor is among `iterations` is replaced by that one's last end.
    """
    ordered = _without_duplicates(_in_order(rows))
    at = np.searchsorted(iterations, ordered["iteration"])
    start_ns = ordered["start_ns"]
    is_timed = start_ns != UNKNOWN
    elapsed_ns = _known(ordered["elapsed_ns"])
    ended_ns = start_ns + elapsed_ns.astype(np.int64)
    size = len(iterations)
    firsts = np.full(size, np.iinfo(np.int64).max)
    lasts = np.full(size, UNKNOWN)
    np.minimum.at(firsts, at[is_timed], start_ns[is_timed])
    np.maximum.at(lasts, at[is_timed], ended_ns[is_timed])
    firsts[lasts == UNKNOWN] = UNKNOWN
    free_ns = _free_times(iterations, firsts, lasts, free_ns)
    gap_ns = _gaps(at, start_ns, ended_ns, is_timed, free_ns)
    known_gap_ns = _known(gap_ns)
    classes, class_counts = _classes(ordered, at, size, known_gap_ns, elapsed_ns)
    offsets, offset_counts = _offsets(at, ordered["offset"], size)
    return Reduction(
        rows=ordered,
        gap_ns=gap_ns,
        first_start_ns=firsts,
        last_end_ns=lasts,
        operators=np.bincount(at, minlength=size),
        work_ns=np.bincount(at, weights=known_gap_ns, minlength=size),
        communication_ns=np.bincount(at, weights=elapsed_ns, minlength=size),
        offsets=offsets,
        offset_counts=offset_counts,
        classes=classes,
        class_counts=class_counts,
    )


def _known(values: Array) -> Array:
    """Values with 0 for NaN, for sums."""
    is_unknown = np.isnan(values)
    return np.where(is_unknown, 0.0, values) if is_unknown.any() else values


def _in_order(rows: Mapping[str, Array]) -> dict[str, Array]:
    iteration, start_ns = rows["iteration"], rows["start_ns"]
    if np.all(iteration[1:] >= iteration[:-1]) and np.all(start_ns[1:] >= start_ns[:-1]):
        return dict(rows)  # what a source that writes in order sends
    order = np.lexsort((rows["sequence"], start_ns, iteration))
    return {name: column[order] for name, column in rows.items()}


def _without_duplicates(rows: dict[str, Array]) -> dict[str, Array]:
    """Keep the first of rows that are shares of the same operator; they can only be neighbours in start."""
    start_ns = rows["start_ns"]
    if len(start_ns) < 2 or not np.any(start_ns[1:] == start_ns[:-1]):
        return rows
    _, kept = group_rows([pack_class(rows), rows["sequence"]])
    if len(kept) == len(start_ns):
        return rows
    kept.sort()
    return {name: column[kept] for name, column in rows.items()}


def _free_times(iterations: Array, firsts: Array, lasts: Array, free_ns: Array) -> Array:
    free_ns = free_ns.copy()
    follows = np.flatnonzero((np.diff(iterations) == 1) & (lasts[:-1] != UNKNOWN)) + 1
    free_ns[follows] = lasts[follows - 1]
    return np.where(free_ns == UNKNOWN, firsts, free_ns)


def _gaps(at: Array, start_ns: Array, ended_ns: Array, is_timed: Array, free_ns: Array) -> Array:
    """Start minus the latest end of the rank's operators that began earlier in the iteration, not below 0."""
    gap_ns = np.full(len(at), np.nan)
    if not is_timed.any():
        return gap_ns
    at, start_ns, ended_ns = at[is_timed], start_ns[is_timed], ended_ns[is_timed]
    is_first = np.ones(len(at), dtype=bool)
    is_first[1:] = at[1:] != at[:-1]
    before = np.empty_like(ended_ns)
    before[1:] = _latest_ends(at, ended_ns)[:-1]
    before[is_first] = free_ns[at[is_first]]
    gap_ns[is_timed] = np.maximum(start_ns - before, 0)
    return gap_ns


def _latest_ends(at: Array, ended_ns: Array) -> Array:
    """Running maximum of the ends, anew in each iteration: each is lifted above all of the iteration before."""
    lowest_ns = int(ended_ns.min())
    span = int(ended_ns.max()) - lowest_ns + 1
    if span * (int(at[-1]) + 1) < _MAX_LIFTED:
        return np.maximum.accumulate(ended_ns - lowest_ns + at * span) - at * span + lowest_ns
    times, place = np.unique(ended_ns, return_inverse=True)  # a clock from another age, or a year at once
    lift = at * len(times)
    return times[np.maximum.accumulate(place + lift) - lift]


def _classes(
    rows: Mapping[str, Array], at: Array, size: int, gap_ns: Array, elapsed_ns: Array
) -> tuple[dict[str, Array], Array]:
    packed, which = np.unique(pack_class(rows), return_inverse=True)
    cell = at * max(len(packed), 1) + which
    cells = size * max(len(packed), 1)
    counts = np.bincount(cell, minlength=cells)
    shortest = np.full(cells, np.inf)
    longest = np.full(cells, -np.inf)
    is_known = np.isfinite(rows["elapsed_ns"])
    np.minimum.at(shortest, cell[is_known], elapsed_ns[is_known])
    np.maximum.at(longest, cell[is_known], elapsed_ns[is_known])
    used = np.flatnonzero(counts)
    communicator, operator, peer = unpack_class(packed[used % max(len(packed), 1)] if len(packed) else packed)
    found = {
        "communicator": communicator,
        "operator": operator,
        "peer": peer,
        "count": counts[used],
        "elapsed_ns": np.bincount(cell, weights=elapsed_ns, minlength=cells)[used],
        "shortest_ns": np.where(np.isfinite(shortest), shortest, np.nan)[used],
        "longest_ns": np.where(np.isfinite(longest), longest, np.nan)[used],
        "gap_ns": np.bincount(cell, weights=gap_ns, minlength=cells)[used],
    }
    assert found.keys() == CLASS_COLUMNS.keys()
    return found, np.bincount(used // max(len(packed), 1), minlength=size)


def _offsets(at: Array, offset: Array, size: int) -> tuple[Array, Array]:
    """Distinct offsets of each iteration's batches."""
    if len(at) == 0:
        return np.empty(0, dtype=np.int64), np.zeros(size, dtype=np.int64)
    differs = np.ones(len(at), dtype=bool)
    differs[1:] = (at[1:] != at[:-1]) | (offset[1:] != offset[:-1])
    at, offset = at[differs], offset[differs]
    order = np.lexsort((offset, at))
    at, offset = at[order], offset[order]
    is_new = np.ones(len(at), dtype=bool)
    is_new[1:] = (at[1:] != at[:-1]) | (offset[1:] != offset[:-1])
    return offset[is_new], np.bincount(at[is_new], minlength=size)
