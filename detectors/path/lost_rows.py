"""Operators that a log has lost, found by partners: all members of a collective run it, both ends send and recv.

A lost row leaves a hole in its rank's time that looks like work, makes a collective look as if it had waited for
nobody, and moves the operators behind it one place ahead in the count of their kind. Its partners show that it was
there, and when it ended.

Three words are used here. A *stream* is work that ranks repeat together in one iteration: the collectives of a
communicator, or the messages from one rank to another. An *instance* is one of these collectives or messages. Every
member of a stream takes part in each of its instances, so a member without a row in one of them has lost it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_medians
from irregulars.detectors.arrays.row_keys import (
    find_sorted,
    first_in_group_from,
    first_rows,
    group_rows,
    pack_columns,
    sort_rows,
)
from irregulars.detectors.arrays.runs import places_in_runs, starts_of
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.operator_classes import is_p2p, senders_and_receivers
from irregulars.dtypes import Column, Flags, Ints


class LostRows(NamedTuple):
    """Rows that must have been, and were not logged; `end_ns` is when the first of their partners ended."""

    rank: Ints
    iteration: Ints
    end_ns: Ints


class Participation(NamedTuple):
    """Which instances are complete, and which rows are missing from the others."""

    # For each logged row, whether its instance misses so many rows that the last to arrive may be among them
    is_partial: Flags
    lost: LostRows  # the missing rows


def find_lost(columns: Mapping[str, Column], group: Ints, end_ns: Ints) -> Participation:
    """Find the operators that ranks must have run, since their partners did.

    A rank is a member of a stream if it logged any row of it. Of a rank that logged none nothing is known.

    `columns`: rows as `detectors.path.operator_graph.build_graph` takes them. `group`: number of the collective, or
    of the send and its recv, of each row. `end_ns`: when each row ended.

    Ranks 5 and 6 ran two all_reduces in iteration 3; of the second one, which ended at 90, rank 6 has lost its row:

    >>> columns = {name: np.array(values) for name, values in {
    ...     "rank": [5, 5, 6], "iteration": [3, 3, 3], "communicator": [0, 0, 0], "operator": [0, 0, 0],
    ...     "peer": [-1, -1, -1]}.items()}
    >>> found = find_lost(columns, group=np.array([0, 1, 0]), end_ns=np.array([50, 90, 50]))
    >>> found.lost
    LostRows(rank=array([6]), iteration=array([3]), end_ns=array([90]))
    >>> found.is_partial
    array([False,  True, False])
    """
    stream_id = _streams(columns)
    instance_id, first_of_instance = group_rows([columns["iteration"], group])
    rank = columns["rank"]
    _, first = group_rows([stream_id, rank])
    counts = np.bincount(stream_id[first], minlength=int(stream_id.max(initial=-1)) + 1)
    members = rank[first]  # of each stream, those of one behind those of the other
    stream_of_instance = stream_id[first_of_instance]
    logged = np.bincount(instance_id, minlength=len(first_of_instance))
    missing = counts[stream_of_instance] - logged
    is_partial = (missing > JOB.least_share * (logged + missing))[instance_id]
    is_incomplete = missing > 0
    incomplete = np.flatnonzero(is_incomplete)
    # A pair of instance and rank for each member that an incomplete instance should have
    stream = stream_of_instance[incomplete]
    position = np.repeat(starts_of(counts)[stream], counts[stream]) + places_in_runs(counts[stream])
    expected_in, expected_rank = np.repeat(incomplete, counts[stream]), members[position]
    beside = np.flatnonzero(is_incomplete[instance_id])  # the rows that incomplete instances do have
    both = (expected_in, instance_id[beside]), (expected_rank, columns["rank"][beside])
    pair, count = pack_columns([np.concatenate(one) for one in both]), len(expected_in)
    is_lost = ~np.isin(pair[:count], pair[count:])
    lost_in = expected_in[is_lost]
    first_end_ns = np.full(len(logged), np.iinfo(np.int64).max)
    np.minimum.at(first_end_ns, instance_id[beside], end_ns[beside])
    iteration = columns["iteration"][first_of_instance[lost_in]]
    return Participation(is_partial, LostRows(expected_rank[is_lost], iteration, first_end_ns[lost_in]))


def common_base(columns: Mapping[str, Column], class_of_block: Ints, base: Ints) -> Ints:
    """Sequence at which each class of operators begins in its iteration, as most of its ranks have it.

    `class_of_block`: for each row, the number of its rank's, iteration's and class's block. `base`: for each of these
    blocks the lowest sequence that was logged. A rank that lost the first row has a higher one.
    """
    first = first_rows(class_of_block, len(base))
    own = {name: columns[name][first] for name in ("iteration", "communicator", "operator", "rank", "peer")}
    # Collectives of a communicator are apart by operator, whose sequences need not begin alike; messages are not:
    # the send and its recv count the same sequence.
    role, _ = group_rows([_streams(own), own["operator"] * ~is_p2p(own["operator"])])
    return np.asarray(lower_medians(role, base)[role])


def time_free(
    columns: Mapping[str, Column], block: Ints, is_first_of_block: Flags, free_ns: Ints, lost: LostRows
) -> Ints:
    """Return when each row's rank was free to begin it: not before a lost operator in front of it had ended.

    `block`, `is_first_of_block`: index of each row's pair of rank and iteration, and whether the row is the first of
    it; blocks ascend by rank, then by iteration. `free_ns`: when each row's rank was free, by the logged rows alone.
    """
    if len(lost.rank) == 0:
        return free_ns
    # The block that each lost row belongs to, and whether its rank logged anything of the iteration.
    first_rows = np.flatnonzero(is_first_of_block)
    key = pack_columns(
        [
            np.concatenate([columns["rank"][first_rows], lost.rank]),
            np.concatenate([columns["iteration"][first_rows], lost.iteration]),
        ]
    )
    block_of_lost, is_known = find_sorted(key[: len(first_rows)], key[len(first_rows) :])
    order = sort_rows([block, columns["start_ns"]])
    # The first row that began after the lost one had ended; the clocks of its partners may be a little ahead.
    earliest_ns = lost.end_ns - JOB.clock_error_ns
    found = first_in_group_from(block[order], columns["start_ns"][order], block_of_lost, earliest_ns)
    has_next = is_known & (found >= 0)
    free_ns = free_ns.copy()
    np.maximum.at(free_ns, order[found[has_next]], lost.end_ns[has_next])
    return free_ns


def _streams(columns: Mapping[str, Column]) -> Ints:
    """Number for each row of its iteration, communicator and, of sends and recvs, sender and receiver."""
    sender, receiver = senders_and_receivers(columns["operator"], columns["rank"], columns["peer"])
    return group_rows([columns["iteration"], columns["communicator"], sender, receiver])[0]
