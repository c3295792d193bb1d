"""The two kinds of edges of the operator graph, computed for all rows at once.

Between ranks: whose arrival a row waited for (`find_arrivals_of_partners`, `join_batches`). Along one rank: which
operator had ended last when a row began (`find_previous`), and how much time lay between (`find_gaps`).

All functions take rows in the order of the graph: by rank, iteration and end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from irregulars.detectors.arrays.row_keys import (
    group_rows,
    last_in_group_until,
    lift_times,
    sort_nearly,
    sort_rows,
    stable_order,
)
from irregulars.detectors.arrays.runs import begins_run, run_ends, run_lengths
from irregulars.detectors.path.lost_rows import LostRows, common_base, time_free
from irregulars.detectors.path.operator_classes import class_parts, is_p2p, senders_and_receivers
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.records import ROOTED, SEND

NO_ORDINAL: Final = (1 << 20) - 1  # ordinal of an operator that most of its partners count to the iteration before
_LEAVES_EARLY: Final = np.isin(np.arange(16), [SEND, *ROOTED])  # by operator
_MOST_STEPS_BACK: Final = 64  # far more operators than can end within one slack of each other


# --- between ranks --------------------------------------------------------------------------------------------------


def group_partners(columns: Mapping[str, Column]) -> Ints:
    """Number the collectives, and the pairs of a send and its recv: one number for each row."""
    sender, receiver = senders_and_receivers(columns["operator"], columns["rank"], columns["peer"])
    return group_rows([columns["communicator"], sender, receiver, columns["sequence"]])[0]


def find_arrivals_of_partners(
    columns: Mapping[str, Column], group: Ints, latest_end_ns: Ints, clock_error_ns: int
) -> tuple[Ints, Ints]:
    """Find when the last partner that each row waited for arrived, and which row that is (itself if nobody).

    A collective in which all wait for all, and a recv, end after all partners have arrived, up to `clock_error_ns`.
    A buffered send returns before its receiver arrives, and the root of a broadcast before its leaves do: partners
    that arrived after such a row had ended were not waited for.

    `latest_end_ns`: the end of each row, with its slack. `clock_error_ns`: how far the clocks of two hosts may be
    apart.
    """
    start_ns = columns["start_ns"]
    order = sort_rows([group, start_ns])
    last_of_group = (np.cumsum(np.bincount(group)) - 1)[group]  # a position in `order`, for each row
    latest = order[last_of_group]
    may_leave_early = _LEAVES_EARLY[columns["operator"]]
    limit_ns = latest_end_ns + np.where(may_leave_early, 0, clock_error_ns)
    left_before = np.flatnonzero(start_ns[latest] > limit_ns)
    if len(left_before):
        # The row itself began in time, so that each of these questions has an answer.
        questions = group[left_before], limit_ns[left_before]
        latest[left_before] = order[last_in_group_until(group[order], start_ns[order], *questions)]
    blocker = np.where(start_ns[latest] > start_ns, latest, np.arange(len(order)))
    return start_ns[blocker], blocker


def find_batches(columns: Mapping[str, Column], block: Ints, end_ns: Ints, slack_ns: Ints) -> Ints:
    """Number the batches: sends and recvs of one rank with the same start and end, as far as the log can tell.

    Returns for each row the first row of its batch, which is the row itself where it is in none.
    """
    start_ns = columns["start_ns"]
    rows = np.flatnonzero(is_p2p(columns["operator"]))
    batch = np.arange(len(block))
    order = rows[sort_nearly([block[rows], start_ns[rows]], [end_ns[rows]])]
    one, two = order[:-1], order[1:]
    is_same = block[one] == block[two]
    for times_ns in (start_ns, end_ns):
        is_same &= np.abs(times_ns[two] - times_ns[one]) <= slack_ns[one]
    first = np.flatnonzero(np.append(True, ~is_same)[: len(order)])
    batch[order] = np.repeat(order[first], run_lengths(first, len(order)))
    return batch


def join_batches(batch: Ints, ready_ns: Ints, blocker: Ints) -> tuple[Ints, Ints]:
    """Treat the parts of a batch as one operator, which is ready when the last partner of any part has arrived.

    Returns `ready_ns` and `blocker`, changed for the rows of batches.

    Rows 0 and 1 are one batch. Row 0 was ready at 40, when its partner arrived (row 7); row 1 at 60, by row 8:

    >>> ready_ns, blocker = np.array([40, 60, 5, 0, 0, 0, 0, 40, 60]), np.array([7, 8, 2, 3, 4, 5, 6, 7, 8])
    >>> joined = join_batches(np.array([0, 0, 2, 3, 4, 5, 6, 7, 8]), ready_ns, blocker)
    >>> joined[0][:3], joined[1][:3]
    (array([60, 60,  5]), array([8, 8, 2]))
    """
    parts = np.flatnonzero(np.bincount(batch, minlength=len(batch))[batch] > 1)
    if len(parts) == 0:
        return ready_ns, blocker
    order = parts[sort_rows([batch[parts], ready_ns[parts]])]
    last = order[run_ends(batch[order])]  # of each batch, the part that was ready last
    last_of_batch = np.empty(len(batch), dtype=np.int64)
    last_of_batch[batch[last]] = last
    last_part = last_of_batch[batch[parts]]
    waited_for = blocker[last_part]
    ready_ns, blocker = ready_ns.copy(), blocker.copy()
    ready_ns[parts] = ready_ns[last_part]
    # A part that waited for nobody names itself. If even the last part did, then no part of the batch waited.
    blocker[parts] = np.where(waited_for == last_part, parts, waited_for)
    return ready_ns, blocker


# --- along one rank -------------------------------------------------------------------------------------------------


def find_blocks(rank: Ints, iteration: Ints) -> tuple[Ints, Flags]:
    """Number the pairs of rank and iteration: return the number of each row, and whether the row is its first."""
    is_first = begins_run(rank, iteration)
    return np.cumsum(is_first) - 1, is_first


def find_previous(block: Ints, start_ns: Ints, surely_ended_ns: Ints, is_first_of_block: Flags) -> Ints:
    """For each row find the operator of the same block that had ended last when the row began; -1 if none had.

    `surely_ended_ns`: the end of each row less its slack. An operator counts as over when that has passed, and only
    if it comes before the row in the order of the graph, so that no two rows are each other's previous one.

    A long operator (0 to 90) hides nothing of the others: before the one that begins at 50 came the one that ended at
    40, before the one that begins at 20 none:

    >>> block, start_ns, end_ns = np.zeros(3, dtype=np.int64), np.array([20, 50, 0]), np.array([40, 80, 90])
    >>> find_previous(block, start_ns, end_ns, np.array([True, False, False]))
    array([-1,  0, -1])
    """
    if len(block) == 0:
        return np.empty(0, dtype=np.int64)
    # The last row, of the same block or an earlier one, that was surely over when each row began; else -1.
    ended, begun = lift_times([block, block], [surely_ended_ns, start_ns])
    order = stable_order(ended)
    ended_before = np.searchsorted(ended[order], begun, side="right")  # how many rows were over
    # Rows are in the order of their ends: of those that were over, the last in the graph ended last.
    last = np.maximum.accumulate(order)  # of the first, of the first two, ... of them the last in the graph
    latest = np.where(ended_before > 0, last[ended_before - 1], -1)
    own = np.arange(len(block))
    previous = np.minimum(latest, own - 1)
    # A row's end less its slack may lie before its own start; then the search found the row itself, or one behind it.
    # From there go back row by row, until one was surely over.
    rows = np.flatnonzero(latest >= own)
    for _ in range(_MOST_STEPS_BACK):
        rows = rows[(previous[rows] >= 0) & (surely_ended_ns[previous[rows]] > start_ns[rows])]
        if not len(rows):
            break
        previous[rows] -= 1
    # Rows of earlier blocks were found as well, as the search runs over all of them: these are no previous ones.
    first_row = np.flatnonzero(is_first_of_block)[block]
    return np.where(previous >= first_row, previous, -1)


def find_gaps(
    columns: Mapping[str, Column],
    end_ns: Ints,
    block: Ints,
    is_first_of_block: Flags,
    previous: Ints,
    entry_ns: Mapping[tuple[int, int], int],
    lost: LostRows,
) -> Ints:
    """Return the time between each row and its previous one, or the rank's entry into the iteration, ns.

    An operator that was lost in between ends the wait: the gap begins with its end.
    """
    first = np.flatnonzero(is_first_of_block)
    start_ns, rank, iteration = columns["start_ns"], columns["rank"], columns["iteration"]
    earliest_ns = np.minimum.reduceat(start_ns, first) if len(first) else np.empty(0, dtype=np.int64)
    pairs = zip(rank[first].tolist(), iteration[first].tolist(), earliest_ns.tolist(), strict=True)
    entered_ns = np.array([entry_ns.get((r, i), earliest) for r, i, earliest in pairs], dtype=np.int64)
    free_ns = np.where(previous >= 0, end_ns[previous], entered_ns[block] if len(entered_ns) else 0)
    return np.maximum(start_ns - time_free(columns, block, is_first_of_block, free_ns, lost), 0)


def find_ordinals(columns: Mapping[str, Column], block: Ints) -> Ints:
    """Count each row from where its class begins in the iteration; `NO_ORDINAL` for rows before that."""
    sequence = columns["sequence"]
    if len(sequence) == 0:
        return sequence
    class_of_block, first = group_rows([block, *class_parts(columns)])
    # Not from 0: sequences count through the whole job, ordinals through one iteration.
    lowest = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(lowest, class_of_block, sequence)
    ordinal = sequence - common_base(columns, class_of_block, lowest)[class_of_block]
    return np.where(ordinal >= 0, ordinal, NO_ORDINAL)
