"""Operators that a log has lost, told by their partners: all members of a collective run it, both ends send and recv.

A lost row leaves a hole in its rank's time that looks like work, makes a collective look as if it had waited for
nobody, and moves the operators behind it one place ahead in the count of their kind. Its partners say that it was
there, and when it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import first_rows, group_rows, lift_times, pack_columns, sort_rows
from irregulars.detectors.job.measured_time import CLOCK_ERROR_NS
from irregulars.streams.messages.records import RECV, SEND

Array = np.ndarray

_MOST_LOST: Final = 0.1  # more of a transfer's shares are missing, and who came last may be among them


class LostShares(NamedTuple):
    """Shares that must have been, and were not logged. ``end_ns`` is when the first of their partners ended."""

    rank: Array
    iteration: Array
    end_ns: Array


class Sides(NamedTuple):
    """Who takes part in what, by the rows that there are.

    Parameters
    ----------
    share
        Number, for each row, of its collective or message in its iteration.
    is_partial
        Whether so many shares of it are missing that whoever came last may be among them.
    lost
        What is missing.
    """

    share: Array
    is_partial: Array
    lost: LostShares


def find_lost(columns: Mapping[str, Array], group: Array, end_ns: Array) -> Sides:
    """Find the operators that ranks must have run, since their partners did.

    A rank takes part in a communicator's collectives (in messages from one rank to another) of an iteration if it has
    any row of them there. Of ranks that logged none nothing is said.

    Parameters
    ----------
    columns
        Rows as `detectors.path.operator_graph.build_graph` takes them.
    group
        Number of the collective, or of the send and its recv, of each row.
    end_ns
        When each row ended.
    """
    side = _sides(columns)
    share, first_of_share = group_rows([columns["iteration"], group])
    present = np.bincount(share, minlength=len(first_of_share))
    _, first_of_pair = group_rows([side, columns["rank"]])
    expected = np.bincount(side[first_of_pair], minlength=int(side.max(initial=-1)) + 1)[side[first_of_share]]
    holed = np.flatnonzero(present < expected)
    is_partial = (expected - present > _MOST_LOST * expected)[share]
    if len(holed) == 0:
        nothing = np.empty(0, dtype=np.int64)
        return Sides(share, is_partial, LostShares(nothing, nothing, nothing))
    ends = np.full(len(present), np.iinfo(np.int64).max)
    np.minimum.at(ends, share, end_ns)
    # `first_of_pair` ascends by side: the members of a side stand together.
    firsts = np.searchsorted(side[first_of_pair], side[first_of_share[holed]])
    counts = expected[holed]
    of_share = np.repeat(holed, counts)
    turn = np.arange(len(of_share)) - np.repeat(np.cumsum(counts) - counts, counts)
    rank = columns["rank"][first_of_pair[np.repeat(firsts, counts) + turn]]
    beside = np.flatnonzero((present < expected)[share])  # rows of shares of which some are missing
    both = [np.concatenate([share[beside], of_share]), np.concatenate([columns["rank"][beside], rank])]
    key = pack_columns(both)
    is_lost = ~np.isin(key[len(beside) :], key[: len(beside)])
    of_share = of_share[is_lost]
    lost = LostShares(rank[is_lost], columns["iteration"][first_of_share[of_share]], ends[of_share])
    return Sides(share, is_partial, lost)


def common_base(columns: Mapping[str, Array], class_of_block: Array, base: Array) -> Array:
    """Sequence at which each class of operators begins in its iteration, as most of its ranks have it.

    Parameters
    ----------
    class_of_block
        For each row, the number of its rank's, iteration's and class's block.
    base
        For each of these blocks the lowest sequence that was logged. A rank that lost the first row has a higher one.
    """
    first = first_rows(class_of_block, len(base))
    own = {name: columns[name][first] for name in ("iteration", "communicator", "operator", "rank", "peer")}
    side, _ = group_rows([_sides(own), own["operator"] * ~_is_p2p(own)])
    order = sort_rows([side, base])
    sizes = np.bincount(side)
    firsts = np.cumsum(sizes) - sizes
    return np.asarray(base[order][firsts + (sizes - 1) // 2][side])


def time_free(
    columns: Mapping[str, Array], block: Array, is_first_of_block: Array, free_ns: Array, lost: LostShares
) -> Array:
    """Say when each row's rank was free to begin it: not before an operator that was lost had ended.

    Parameters
    ----------
    free_ns
        The same by the rows that there are.
    """
    if len(lost.rank) == 0:
        return free_ns
    firsts = np.flatnonzero(is_first_of_block)
    both = [np.concatenate([columns[name][firsts], getattr(lost, name)]) for name in ("rank", "iteration")]
    key = pack_columns(both)
    known, asked = key[: len(firsts)], key[len(firsts) :]
    at = np.minimum(np.searchsorted(known, asked), len(known) - 1)  # blocks ascend by rank and iteration
    rows = sort_rows([block, columns["start_ns"]])
    starts, ends = lift_times([block[rows], at], [columns["start_ns"][rows], lost.end_ns - CLOCK_ERROR_NS])
    position = np.searchsorted(starts, ends)
    inside = np.minimum(position, len(rows) - 1)
    is_after = (known[at] == asked) & (position < len(rows)) & (block[rows[inside]] == at)
    free_ns = free_ns.copy()
    np.maximum.at(free_ns, rows[inside[is_after]], lost.end_ns[is_after])
    return free_ns


def _is_p2p(columns: Mapping[str, Array]) -> Array:
    return (columns["operator"] == SEND) | (columns["operator"] == RECV)


def _sides(columns: Mapping[str, Array]) -> Array:
    """Number for each row of its iteration, communicator and, of p2p rows, sender and receiver."""
    is_p2p, is_send = _is_p2p(columns), columns["operator"] == SEND
    source = np.where(is_p2p, np.where(is_send, columns["rank"], columns["peer"]), -1)
    destination = np.where(is_p2p, np.where(is_send, columns["peer"], columns["rank"]), -1)
    return group_rows([columns["iteration"], columns["communicator"], source, destination])[0]
