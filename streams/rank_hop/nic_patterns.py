"""Samples of NICs in the iterations of many ranks at once: where each lies, and behaviour patterns with operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import places_in_runs, starts_of
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.behaviour_patterns import Executions, Intervals, merge_executions, shares, statistics
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.evidence import PATTERN_COLUMNS, no_patterns
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import UNKNOWN
from irregulars.streams.rank_hop.nic_samples import Piece, Samples, joined_samples

_LONGEST_NS: Final = 86_400_000_000_000  # a longer iteration has wrong times, of which a sum might overflow
_LEADING_BITS: Final = np.uint32(0xFFFC0000)
_HALF: Final = np.uint32(0x20000)
_ALL: Final = -1  # communicator and operator of the iteration as a whole
_MAX_LIFTED: Final = 1 << 62


# --- in which iteration a sample lies -------------------------------------------------------------------------------


class Placed(NamedTuple):
    """Samples whose middle lies in a block; a block is one iteration of one rank."""

    samples: Samples  # those of one rank after those of another
    rank: Ints  # which of the ranks each is of, by place
    block: Ints  # in which each lies

    def peaks(self, blocks: int) -> Floats:
        """Return the highest rates of each block, sent and received; NaN where no sample lies in it."""
        found = np.full((2, blocks), np.nan)
        for peak, rate in zip(found, (self.samples.tx, self.samples.rx), strict=True):
            np.fmax.at(peak, self.block, rate)
        return found


def place_in_blocks(parts: Sequence[tuple[Sequence[Piece], slice]], start_ns: Ints, elapsed_ns: Ints) -> Placed:
    """Give each sample to the block in whose time the middle of its interval lies; leave out those of none.

    `parts`: the samples of a rank, in pieces, and its blocks; at least one rank.
    `start_ns`, `elapsed_ns`: of all blocks; a rank's starts are ascending.
    """
    samples = joined_samples([piece for pieces, _ in parts for piece in pieces])
    counts = [sum(piece.rows for piece in pieces) for pieces, _ in parts]
    rank = np.repeat(np.arange(len(parts)), counts)
    middle_ns = samples.middle_ns
    block = _blocks_begun([own for _, own in parts], start_ns, middle_ns, rank)
    is_inside = (block >= 0) & (middle_ns < (start_ns + elapsed_ns)[np.maximum(block, 0)])
    if is_inside.all():
        return Placed(samples, rank, block)
    return Placed(samples.where(is_inside), rank[is_inside], block[is_inside])


def _blocks_begun(parts: Sequence[slice], start_ns: Ints, middle_ns: Ints, rank: Ints) -> Ints:
    """Return the last block of each sample's rank that began before it; -1: none did.

    One search does for all ranks, since each rank's times are lifted above all times of the rank before it.
    """
    lengths = np.array([own.stop - own.start for own in parts])
    blocks = np.repeat(np.array([own.start for own in parts]), lengths) + places_in_runs(lengths)
    starts_ns, firsts = start_ns[blocks], starts_of(lengths)
    lowest_ns = min(int(starts_ns.min()), int(middle_ns.min(initial=int(starts_ns[0]))))
    span = max(int(starts_ns.max()), int(middle_ns.max(initial=int(starts_ns[0])))) - lowest_ns + 1
    if lowest_ns == UNKNOWN or span * len(parts) >= _MAX_LIFTED:  # no time, or a clock from another age
        borders = np.searchsorted(rank, np.arange(len(parts) + 1)).tolist()
        found = [
            np.searchsorted(start_ns[own], middle_ns[first:past], side="right") - 1
            for own, (first, past) in zip(parts, pairwise(borders), strict=True)
        ]
        own_block = np.concatenate(found)
        return np.where(own_block < 0, -1, own_block + np.array([own.start for own in parts])[rank])
    lifted_ns = starts_ns - lowest_ns + np.repeat(np.arange(len(parts)), lengths) * span
    place = np.searchsorted(lifted_ns, middle_ns - lowest_ns + rank * span, side="right") - 1
    return np.where(place < firsts[rank], -1, blocks[np.maximum(place, 0)])


# --- patterns -------------------------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """Samples of many blocks, in order of block and time; a block is one iteration of one rank."""

    block: Ints  # in which each sample lies
    # begin_ns, end_ns: Of its interval, since the beginning of the block
    begin_ns: Ints
    end_ns: Ints
    # tx, rx: Bytes per second sent and received
    tx: Floats
    rx: Floats


def sampled_blocks(placed: Placed, start_ns: Ints, elapsed_ns: Ints) -> Sampled:
    """Bring placed samples in order of block and time, and cut each off at the borders of its block.

    Those of a rank whose intervals can't be of one counter are left out.
    """
    is_sane = (start_ns != UNKNOWN) & (elapsed_ns > 0) & (elapsed_ns < _LONGEST_NS)
    kept = np.flatnonzero(is_sane[placed.block])
    kept = kept[np.lexsort((placed.samples.end_ns[kept], placed.block[kept], placed.rank[kept]))]
    # A rank of which two samples overlap was sampled by more than one counter (`behaviour_patterns.is_one_counter`).
    samples, rank = placed.samples, placed.rank[kept]
    is_overlap = (rank[1:] == rank[:-1]) & (samples.begin_ns[kept][1:] < samples.end_ns[kept][:-1])
    if is_overlap.any():
        kept = kept[~np.isin(rank, rank[1:][is_overlap])]
    block = placed.block[kept]
    begin_ns = np.maximum(samples.begin_ns[kept] - start_ns[block], 0)
    past_ns = np.minimum(samples.end_ns[kept] - start_ns[block], elapsed_ns[block])
    return Sampled(block, begin_ns, past_ns, samples.tx[kept], samples.rx[kept])


def reduce_patterns(rows: Mapping[str, Column], elapsed_ns: Ints, start_ns: Ints, sampled: Sampled) -> Ragged:
    """Make the patterns of all blocks: of each class of operators, and of the iteration as a whole.

    `rows`: operators with ``block``, ``communicator``, ``operator``, ``start_ns`` and ``elapsed_ns``.
    `elapsed_ns`, `start_ns`: of each block.

    Returns for each block its patterns, columns as `messages.evidence.PATTERN_COLUMNS` says.
    """
    blocks = len(elapsed_ns)
    has_samples = np.bincount(sampled.block, minlength=blocks) >= NICS.min_samples
    if not has_samples.any():
        return no_patterns(blocks)
    length_ns = np.where(has_samples, elapsed_ns, 0)
    lifted_ns = starts_of(length_ns)  # one block after the other on one axis of time
    classes, begin_ns, end_ns = _executions(rows, has_samples, start_ns, length_ns)
    group, first = group_rows(classes)
    block, communicator, operator = (column[first] for column in classes)
    lift_ns = lifted_ns[classes[0]]
    is_used = has_samples[sampled.block]
    columns: tuple[Any, ...] = tuple(column[is_used] for column in sampled)
    sampled = Sampled(*columns)
    merged = merge_executions(Executions(group, begin_ns + lift_ns, end_ns + lift_ns))
    found = {"communicator": communicator, "operator": operator, "share": _rounded(shares(merged, length_ns[block]))}
    sample_lift_ns = lifted_ns[sampled.block]
    for way, rate in (("tx", sampled.tx), ("rx", sampled.rx)):
        intervals = Intervals(sampled.begin_ns + sample_lift_ns, sampled.end_ns + sample_lift_ns, rate)
        known = statistics(merged, intervals, len(first))
        found |= {f"{way}_mean": _rounded(known.mean), f"{way}_deviation": _rounded(known.deviation)}
    is_known = np.isfinite(found["tx_mean"]) | np.isfinite(found["rx_mean"])
    kept = np.flatnonzero(is_known & (found["share"] > JOB.negligible))  # the others are never abnormal
    assert found.keys() == PATTERN_COLUMNS.keys()
    counts = np.bincount(block[kept], minlength=blocks)
    return Ragged(counts, {name: column[kept] for name, column in found.items()})


def _executions(
    rows: Mapping[str, Column], has_samples: Flags, start_ns: Ints, length_ns: Ints
) -> tuple[tuple[Ints, Ints, Ints], Ints, Ints]:
    """Return the operators of sampled blocks, and each of these blocks as a whole, as one operator more.

    Returns their classes (block, communicator, operator), and their begins and ends since the beginning of the block.
    """
    is_used = has_samples[rows["block"]] & (rows["start_ns"] != UNKNOWN) & np.isfinite(rows["elapsed_ns"])
    at, whole = np.flatnonzero(is_used), np.flatnonzero(has_samples)
    block = np.concatenate([rows["block"][at], whole])
    most_ns = length_ns[rows["block"][at]]
    since_ns = rows["start_ns"][at] - start_ns[rows["block"][at]]
    # An operator may begin before its iteration, or end after it: only the part inside counts.
    begin_ns = np.clip(since_ns, 0, most_ns)
    end_ns = np.clip(since_ns + rows["elapsed_ns"][at].astype(np.int64), 0, most_ns)
    communicator, operator = (
        np.concatenate([rows[name][at].astype(np.int64), np.full(len(whole), _ALL)])
        for name in ("communicator", "operator")
    )
    return (
        (block, communicator, operator),
        np.concatenate([begin_ns, np.zeros(len(whole), np.int64)]),
        np.concatenate([end_ns, length_ns[whole]]),
    )


def _rounded(values: Floats) -> Floats:
    """Keep 6 binary digits: 1.6 % is far below the difference between two patterns, and noise does not compress."""
    bits = values.astype(np.float32).view(np.uint32)
    # Adding half of the last digit kept rounds to the nearest; a carry into the exponent is right as well.
    rounded = ((bits + _HALF) & _LEADING_BITS).view(np.float32).astype(np.float64)
    return np.where(np.isfinite(values), rounded, np.nan)
