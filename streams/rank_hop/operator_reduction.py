"""Sums of the operators of many iterations at once, for their evidence: numpy's cost is per call, not per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.compiled import KERNEL
from irregulars.detectors.arrays.row_keys import group_rows, pack_columns, sort_nearly
from irregulars.detectors.arrays.runs import begins_run, repeated_rows, run_lengths, run_starts
from irregulars.detectors.path.operator_classes import pack_class, unpack_class
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.evidence import CLASS_COLUMNS
from irregulars.messages.plain_messages import PlainColumns
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import UNKNOWN
from irregulars.streams.rank_hop.message_rows import Cut, shared_codes

OPERATOR_COLUMNS: Final = (
    "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration", "offset",
)  # fmt: skip
"""Columns of the rows that a RankMonitor keeps: those of ``commops``, and the Kafka offset of their batch."""

_CLASS: Final = ("communicator", "operator", "peer")
_LEADING_BITS: Final = np.uint32(0xFFFFE000)
_MAX_LIFTED: Final = 1 << 62


class Reduction(NamedTuple):
    """Sums over the operators of some blocks; a block is one iteration of one rank."""

    rows: Mapping[str, Column]  # the operators, without duplicates, by block and start
    # For each operator, the time between the rank's operators before it; NaN where it has no start time
    gap_ns: Floats
    # first_start_ns, last_end_ns: Of each block; `UNKNOWN` where no operator of it has a time
    first_start_ns: Ints
    last_end_ns: Ints
    # operators, unended: How many operators each block has, and how many of them were entered and never ended
    operators: Ints
    unended: Ints
    # work_ns, communication_ns: Sums of gaps, and of elapsed, of each block
    work_ns: Floats
    communication_ns: Floats
    offsets: Ragged  # distinct offsets of the batches that hold each block's operators, ascending
    classes: Ragged  # classes of operators of each block, columns as `messages.evidence.CLASS_COLUMNS` says


def reduce_blocks(
    rows: Mapping[str, Column], is_next: Flags, free_ns: Ints, is_classed: Flags | None = None
) -> Reduction:
    """Reduce the operators of many blocks at once; rows given twice count once.

    `rows`: `OPERATOR_COLUMNS` and ``block``, the number of each row's block, in any order. `is_next`: for each block
    whether it is the iteration after the block before it, of the same rank. `free_ns`: when the rank was free to
    begin each block; `UNKNOWN` where only its first operator shows it. Where `is_next`, the end of the block before
    takes its place. `is_classed`: for each row whether its class is wanted; None: all are.
    """
    if is_classed is not None:
        rows = {**rows, "is_classed": is_classed}
    block, start_ns = rows["block"], rows["start_ns"]
    is_new_block = block[1:] > block[:-1]
    ordered = dict(rows)
    # Most sources write their operators in order. Those that start at the same time are sorted by sequence.
    if not np.all(is_new_block | ((block[1:] == block[:-1]) & (start_ns[1:] >= start_ns[:-1]))):
        order = sort_nearly([block, start_ns], [rows["sequence"]])
        ordered = {name: column[order] for name, column in rows.items()}
    ordered = _without_duplicates(ordered)
    block, start_ns = ordered["block"], ordered["start_ns"]
    is_timed = start_ns != UNKNOWN
    elapsed_ns = _known(ordered["elapsed_ns"])
    # Without a start this means nothing: `is_timed` leaves such rows out wherever it is used.
    ended_ns = start_ns + elapsed_ns.astype(np.int64)
    size = len(free_ns)
    firsts, lasts = _bounds(block, start_ns, ended_ns, is_timed, size)
    # The rank was free to begin a block that follows another one when that one ended.
    free_ns = free_ns.copy()
    after = np.flatnonzero(is_next[1:] & (lasts[:-1] != UNKNOWN)) + 1
    free_ns[after] = lasts[after - 1]
    free_ns = np.where(free_ns == UNKNOWN, firsts, free_ns)
    gap_ns = _gaps(block, start_ns, ended_ns, is_timed, free_ns)
    begins = run_starts(block, ordered["offset"])  # rows of a message stand together: far fewer are left to sort
    offset_block, offset = block[begins], ordered["offset"][begins]
    _, first = group_rows([offset_block, offset])
    return Reduction(
        rows=ordered, gap_ns=gap_ns, first_start_ns=firsts, last_end_ns=lasts,
        operators=np.bincount(block, minlength=size),
        unended=np.bincount(block[np.isnan(ordered["elapsed_ns"])], minlength=size),
        work_ns=_sums(block, _known(gap_ns), size), communication_ns=_sums(block, elapsed_ns, size),
        offsets=Ragged(np.bincount(offset_block[first], minlength=size), {"offset": offset[first]}),
        classes=_classes(ordered, block, size),
    )  # fmt: skip


def _bounds(block: Ints, start_ns: Ints, ended_ns: Ints, is_timed: Flags, size: int) -> tuple[Ints, Ints]:
    """Return the first start and the last end of each block; `UNKNOWN` where no row has a time."""
    firsts, lasts = np.full(size, UNKNOWN), np.full(size, UNKNOWN)
    if not is_timed.all():
        block, start_ns, ended_ns = block[is_timed], start_ns[is_timed], ended_ns[is_timed]
    if len(block):
        begins = run_starts(block)
        firsts[block[begins]] = start_ns[begins]  # in order of start
        lasts[block[begins]] = np.maximum.reduceat(ended_ns, begins)
    return firsts, lasts


def _known(values: Floats) -> Floats:
    """Return the values with 0 in place of NaN, to sum them up."""
    is_unknown = np.isnan(values)
    return np.where(is_unknown, 0.0, values) if is_unknown.any() else values


def _sums(block: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(block, weights=values, minlength=size).astype(np.float64, copy=False)


def _without_duplicates(rows: dict[str, Column]) -> dict[str, Column]:
    """Keep one of the rows of the same operator: of those with the same start, the first.

    A producer that sends a batch again sends the same rows with the same starts.
    """
    rows = _without_overtaken(rows)
    start_ns = rows["start_ns"]
    tied = repeated_rows(start_ns)
    if not len(tied):
        return rows
    own = {name: rows[name][tied].astype(np.int64) for name in (*_CLASS, "block", "sequence")}
    _, first = group_rows([own["block"], pack_class(own), own["sequence"], start_ns[tied]])
    if len(first) == len(tied):
        return rows
    is_kept = np.ones(len(start_ns), dtype=bool)
    is_kept[tied] = False
    is_kept[tied[first]] = True
    return {name: column[is_kept] for name, column in rows.items()}


def _without_overtaken(rows: dict[str, Column]) -> dict[str, Column]:
    """Leave out operators that were reported while they ran, where they were reported again when they had ended.

    The start of the second report may differ: it is the better known one.
    """
    is_open = np.isnan(rows["elapsed_ns"])
    if not is_open.any() or is_open.all():  # most iterations: hardly any operator is reported before it ends
        return rows
    some = np.flatnonzero(np.isin(rows["sequence"], rows["sequence"][is_open]) & (rows["sequence"] != UNKNOWN))
    own = {name: rows[name][some].astype(np.int64) for name in (*_CLASS, "block", "sequence")}
    same, _ = group_rows([own["block"], pack_class(own), own["sequence"]])
    ended = np.unique(same[~is_open[some]])
    is_kept = np.ones(len(is_open), dtype=bool)
    is_kept[some[is_open[some] & np.isin(same, ended)]] = False
    return {name: column[is_kept] for name, column in rows.items()}


def _gaps(block: Ints, start_ns: Ints, ended_ns: Ints, is_timed: Flags, free_ns: Ints) -> Floats:
    """Return the start of each operator minus the latest end of those that began earlier in its block, not below 0.

    The first of a block is held against when the rank was free to begin the block.
    """
    gap_ns = np.full(len(block), np.nan)
    if not is_timed.any():
        return gap_ns
    block, start_ns, ended_ns = block[is_timed], start_ns[is_timed], ended_ns[is_timed]
    is_first = begins_run(block)
    before = np.empty_like(ended_ns)
    before[1:] = _latest_ends(block, ended_ns)[:-1]
    before[is_first] = free_ns[block[is_first]]
    gap_ns[is_timed] = np.maximum(start_ns - before, 0)
    return gap_ns


def _latest_ends(block: Ints, ended_ns: Ints) -> Ints:
    """Return the latest end so far in its block, for each row.

    One running maximum does for all blocks, since each block's ends are lifted above all ends of the block before it.
    Ends 5 3 | 4 6 of two blocks, less the lowest and with 4 more for each block, are 2 0 | 5 7. Their running maximum
    2 2 | 5 7 stands for 5 5 | 4 6.
    """
    lowest_ns = int(ended_ns.min())
    span = int(ended_ns.max()) - lowest_ns + 1
    if span * (int(block[-1]) + 1) < _MAX_LIFTED:
        return np.maximum.accumulate(ended_ns - lowest_ns + block * span) - block * span + lowest_ns
    times, place = np.unique(ended_ns, return_inverse=True)  # a clock from another age, or a year at once
    lift = block * len(times)
    return times[np.maximum.accumulate(place + lift) - lift]


def _classes(rows: Mapping[str, Column], block: Ints, size: int) -> Ragged:
    """Count and sum up the operators of each class (communicator, operator, peer) that is wanted."""
    wanted: Any = np.flatnonzero(rows["is_classed"]) if "is_classed" in rows else slice(None)
    block, known_ns = block[wanted], rows["elapsed_ns"][wanted]
    packed = pack_class({name: rows[name][wanted].astype(np.int64) for name in _CLASS})
    key = pack_columns([block, packed])
    order = np.argsort(key, kind="stable")
    begins = run_starts(key[order])
    communicator, operator, peer = unpack_class(packed[order][begins])
    found = {
        "communicator": communicator, "operator": operator, "peer": peer, "count": run_lengths(begins, len(order)),
        "shortest_ns": rounded_down(np.fmin.reduceat(known_ns[order], begins) if len(begins) else np.empty(0)),
    }  # fmt: skip
    assert found.keys() == CLASS_COLUMNS.keys()
    return Ragged(np.bincount(block[order][begins], minlength=size), found)


def rounded_down(values: Floats) -> Floats:
    """Keep 11 binary digits, which compress to half the bytes; the result is lower by 0.1 % at most."""
    return (values.astype(np.float32).view(np.uint32) & _LEADING_BITS).view(np.float32).astype(np.float64)


_SUMS: Final = np.dtype(
    [(name, np.int64) for name in ("first_start_ns", "last_end_ns", "operators", "offsets", "classes")]
    + [(name, np.float64) for name in ("work_ns", "communication_ns")]
)
_CLASSES: Final = np.dtype([("key", np.int64), ("count", np.int64), ("shortest_ns", np.float64)])


class Blocks(NamedTuple):
    """Blocks to sum up: a block is one iteration of one rank."""

    counts: Ints  # how many blocks each closing has
    # iteration, is_next, free_ns: Of each block; see `reduce_blocks`
    iteration: Ints
    is_next: Flags
    free_ns: Ints


def sum_blocks(
    blocks: Blocks, cuts: Sequence[Sequence[Cut]], names: Sequence[str], wide: Set[str]
) -> Reduction | Flags:
    """Reduce the operators of some closings, or return which of them are left to `reduce_blocks`.

    `cuts`: the operators of each closing, as they are in their messages. `names`: communicators; classes name them
    by their place here. `wide`: communicators of whose collectives classes are wanted. Returns all but the rows and
    their gaps, which are left empty.
    """
    assert KERNEL is not None
    sources = list({id(cut[0]): cut[0] for own in cuts for cut in own}.values())
    # No operators at all: numpy makes the empty sums.
    if not sources:
        return np.ones(len(cuts), dtype=np.bool_)
    places = {id(source): place for place, source in enumerate(sources)}
    columns = [source.columns for source in sources if isinstance(source.columns, PlainColumns)]
    rows = [(places[id(cut[0])], cut[1], cut[2], cut[0].offset) for own in cuts for cut in own]
    codes, begins = shared_codes(sources, names)
    found = KERNEL.reduce(
        [one.value for one in columns], [one.places for one in columns], begins, np.array(rows, np.int64),
        np.stack([np.fromiter(map(len, cuts), np.int64, len(cuts)), blocks.counts], axis=1), blocks.iteration,
        blocks.is_next, blocks.free_ns, codes, np.array([name in wide for name in names] or [False]),
    )  # fmt: skip
    if not isinstance(found, bytes):
        return _reduction(*found)
    # If it names none, all are left to numpy: else the caller would ask for the same closings again, without end.
    is_odd = np.frombuffer(found, np.bool_)
    return is_odd if is_odd.any() else np.ones(len(cuts), dtype=np.bool_)


def _reduction(sums: bytes, offsets: bytes, classes: bytes) -> Reduction:
    of_blocks, of_classes = np.frombuffer(sums, _SUMS), np.frombuffer(classes, _CLASSES)
    communicator, operator, peer = unpack_class(of_classes["key"])
    own: dict[str, Column] = {name: np.ascontiguousarray(of_blocks[name]) for name in _SUMS.names or ()}
    return Reduction(
        rows={},
        gap_ns=np.empty(0),
        first_start_ns=own["first_start_ns"],
        last_end_ns=own["last_end_ns"],
        operators=own["operators"],
        unended=np.zeros(len(of_blocks), dtype=np.int64),
        work_ns=own["work_ns"],
        communication_ns=own["communication_ns"],
        offsets=Ragged(own["offsets"], {"offset": np.frombuffer(offsets, np.int64)}),
        classes=Ragged(
            own["classes"],
            {
                "communicator": communicator,
                "operator": operator,
                "peer": peer,
                "count": np.ascontiguousarray(of_classes["count"]),
                "shortest_ns": rounded_down(of_classes["shortest_ns"]),
            },
        ),
    )
