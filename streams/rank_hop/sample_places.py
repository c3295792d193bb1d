"""In which iteration of its rank each sample of a NIC lies, for many ranks at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.runs import places_in_runs, starts_of
from irregulars.dtypes import Floats, Ints
from irregulars.streams.messages.records import UNKNOWN
from irregulars.streams.rank_hop.nic_samples import Piece, Samples, joined_samples

_MAX_LIFTED: Final = 1 << 62


class Placed(NamedTuple):
    """Samples whose middle lies in a block; a block is one iteration of one rank.

    Parameters
    ----------
    samples
        Those of one rank after those of another.
    rank
        Which of the ranks each is of, by place.
    block
        In which each lies.
    """

    samples: Samples
    rank: Ints
    block: Ints

    def peaks(self, blocks: int) -> Floats:
        """Return the highest rates of each block, sent and received; NaN where no sample lies in it."""
        found = np.full((2, blocks), np.nan)
        for peak, rate in zip(found, (self.samples.tx, self.samples.rx), strict=True):
            np.fmax.at(peak, self.block, rate)
        return found


def place_in_blocks(parts: Sequence[tuple[Sequence[Piece], slice]], start_ns: Ints, elapsed_ns: Ints) -> Placed:
    """Give each sample to the block in whose time the middle of its interval lies; leave out those of none.

    Parameters
    ----------
    parts
        The samples of a rank, in pieces, and its blocks; at least one rank.
    start_ns, elapsed_ns
        Of all blocks; a rank's starts are ascending.
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
