"""From the operators of some iterations of one rank to their evidence: one vectorised pass, whatever their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows, pack_columns
from irregulars.detectors.path.operator_graph import pack_class, unpack_class
from irregulars.streams.messages.evidence import CLASS_COLUMNS
from irregulars.streams.messages.records import UNKNOWN

Array = np.ndarray

OPERATOR_COLUMNS: Final = (
    "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration", "offset",
)  # fmt: skip
"""Columns of the rows that a RankMonitor keeps: those of ``commops``, and the Kafka offset of their batch."""

_CLASS: Final = ("communicator", "operator", "peer")
_LEADING_BITS: Final = np.uint32(0xFFFFE000)
_MAX_LIFTED: Final = 1 << 62


class Reduction(NamedTuple):
    """Evidence of some iterations; arrays have one value per iteration unless said otherwise.

    ``rows`` are the operators in the order of iteration and start, without duplicates, and ``gap_ns`` what lay before
    each of them; ``classes`` and ``offsets`` hold all iterations' values one after the other. ``unended`` counts the
    operators that were entered and never ended.
    """

    rows: dict[str, Array]
    gap_ns: Array
    first_start_ns: Array
    last_end_ns: Array
    operators: Array
    unended: Array
    work_ns: Array
    communication_ns: Array
    offsets: Array
    offset_counts: Array
    classes: dict[str, Array]
    class_counts: Array


def reduce_blocks(
    rows: Mapping[str, Array], follows: Array, free_ns: Array, is_classed: Array | None = None
) -> Reduction:
    """Reduce the operators of many blocks at once: a block is one iteration of one rank.

    Parameters
    ----------
    rows
        `OPERATOR_COLUMNS` and ``block``, the number of each row's block, in any order; rows given twice count once.
    follows
        For each block whether it is the next iteration of the rank of the block before it.
    free_ns
        When the rank was free to begin each block, int64; `UNKNOWN` where only its first operator shows it. The value
        of a block that follows the one before it is replaced by that one's last end.
    is_classed
        For each row whether its class is wanted; None: all are.
    """
    if is_classed is not None:
        rows = {**rows, "is_classed": is_classed}
    ordered = _without_duplicates(_in_order(rows))
    at = ordered["block"]
    start_ns = ordered["start_ns"]
    is_timed = start_ns != UNKNOWN
    elapsed_ns = _known(ordered["elapsed_ns"])
    ended_ns = start_ns + elapsed_ns.astype(np.int64)
    size = len(free_ns)
    firsts, lasts = _bounds(at, start_ns, ended_ns, is_timed, size)
    free_ns = _free_times(follows, firsts, lasts, free_ns)
    gap_ns = _gaps(at, start_ns, ended_ns, is_timed, free_ns)
    known_gap_ns = _known(gap_ns)
    classes, class_counts = _classes(ordered, at, size)
    offsets, offset_counts = _offsets(at, ordered["offset"], size)
    return Reduction(
        rows=ordered,
        gap_ns=gap_ns,
        first_start_ns=firsts,
        last_end_ns=lasts,
        operators=np.bincount(at, minlength=size),
        unended=np.bincount(at[np.isnan(ordered["elapsed_ns"])], minlength=size),
        work_ns=np.bincount(at, weights=known_gap_ns, minlength=size),
        communication_ns=np.bincount(at, weights=elapsed_ns, minlength=size),
        offsets=offsets,
        offset_counts=offset_counts,
        classes=classes,
        class_counts=class_counts,
    )


def _bounds(at: Array, start_ns: Array, ended_ns: Array, is_timed: Array, size: int) -> tuple[Array, Array]:
    """First start and last end of each block; `UNKNOWN` where no row has a time."""
    firsts, lasts = np.full(size, UNKNOWN), np.full(size, UNKNOWN)
    if not is_timed.all():
        at, start_ns, ended_ns = at[is_timed], start_ns[is_timed], ended_ns[is_timed]
    if len(at):
        begins = np.flatnonzero(np.diff(at, prepend=-1))
        firsts[at[begins]] = start_ns[begins]  # in order of start
        lasts[at[begins]] = np.maximum.reduceat(ended_ns, begins)
    return firsts, lasts


def _known(values: Array) -> Array:
    """Values with 0 for NaN, for sums."""
    is_unknown = np.isnan(values)
    return np.where(is_unknown, 0.0, values) if is_unknown.any() else values


def _in_order(rows: Mapping[str, Array]) -> dict[str, Array]:
    """Rows by block and start; what starts at the same time by sequence."""
    block, start_ns = rows["block"], rows["start_ns"]
    is_next = block[1:] > block[:-1]
    if np.all(is_next | ((block[1:] == block[:-1]) & (start_ns[1:] >= start_ns[:-1]))):
        return dict(rows)  # what a source that writes in order sends
    order = _order(block, start_ns, rows["sequence"])
    return {name: column[order] for name, column in rows.items()}


def _order(block: Array, start_ns: Array, sequence: Array) -> Array:
    low, high = int(start_ns.min()), int(start_ns.max())
    if low == UNKNOWN or (high - low + 1) * (int(block.max()) + 1) > _MAX_LIFTED:
        return np.lexsort((sequence, start_ns, block))
    key = block * (high - low + 1) + (start_ns - low)
    order = np.argsort(key, kind="stable")
    key = key[order]
    return order if np.all(key[1:] != key[:-1]) else np.lexsort((sequence, start_ns, block))


def _without_duplicates(rows: dict[str, Array]) -> dict[str, Array]:
    """Keep the first of rows that are shares of the same operator; they can only be neighbours in start."""
    rows = _without_overtaken(rows)
    start_ns = rows["start_ns"]
    is_tie = start_ns[1:] == start_ns[:-1]
    if not is_tie.any():
        return rows
    tied = np.flatnonzero(np.append(is_tie, False) | np.insert(is_tie, 0, False))
    own = {name: rows[name][tied].astype(np.int64) for name in (*_CLASS, "block", "sequence")}
    _, first = group_rows([own["block"], pack_class(own), own["sequence"]])
    if len(first) == len(tied):
        return rows
    is_kept = np.ones(len(start_ns), dtype=bool)
    is_kept[tied] = False
    is_kept[tied[first]] = True
    return {name: column[is_kept] for name, column in rows.items()}


def _without_overtaken(rows: dict[str, Array]) -> dict[str, Array]:
    """Leave out what was told before it had ended, and was told again when it had: its start is better known then."""
    is_open = np.isnan(rows["elapsed_ns"])
    if not is_open.any() or is_open.all():  # hardly any operator is told before it ends
        return rows
    some = np.flatnonzero(np.isin(rows["sequence"], rows["sequence"][is_open]) & (rows["sequence"] != UNKNOWN))
    own = {name: rows[name][some].astype(np.int64) for name in (*_CLASS, "block", "sequence")}
    same, _ = group_rows([own["block"], pack_class(own), own["sequence"]])
    ended = np.unique(same[~is_open[some]])
    is_kept = np.ones(len(is_open), dtype=bool)
    is_kept[some[is_open[some] & np.isin(same, ended)]] = False
    return {name: column[is_kept] for name, column in rows.items()}


def _free_times(follows: Array, firsts: Array, lasts: Array, free_ns: Array) -> Array:
    free_ns = free_ns.copy()
    after = np.flatnonzero(follows[1:] & (lasts[:-1] != UNKNOWN)) + 1
    free_ns[after] = lasts[after - 1]
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


def _classes(rows: Mapping[str, Array], at: Array, size: int) -> tuple[dict[str, Array], Array]:
    wanted: Any = np.flatnonzero(rows["is_classed"]) if "is_classed" in rows else slice(None)
    at, known_ns = at[wanted], rows["elapsed_ns"][wanted]
    packed = pack_class({name: rows[name][wanted].astype(np.int64) for name in _CLASS})
    key = pack_columns([at, packed])
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    communicator, operator, peer = unpack_class(packed[order][begins])
    found = {
        "communicator": communicator,
        "operator": operator,
        "peer": peer,
        "count": np.diff(np.append(begins, len(order))),
        "shortest_ns": _rounded_down(np.fmin.reduceat(known_ns[order], begins) if len(begins) else np.empty(0)),
    }
    assert found.keys() == CLASS_COLUMNS.keys()
    return found, np.bincount(at[order][begins], minlength=size)


def _rounded_down(values: Array) -> Array:
    """Keep 11 binary digits, which compress to half the bytes: it stays a bound from below, off by 0.1 % at most."""
    return (values.astype(np.float32).view(np.uint32) & _LEADING_BITS).view(np.float32).astype(np.float64)


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
