"""Who waited for whom: the communication operator graph of some iterations, as arrays.

A row is one operator on one rank. Two kinds of edges lead from it: to the row of the partner that arrived last
(`OperatorGraph.blocker`: the same collective on another rank, or the other end of a send or recv) and to the operator
that this rank had ended last when it began (`OperatorGraph.previous`). Time that a row spends until its blocker
arrives is waiting; what is left is transfer; what lies between the previous operator and its own start is the gap:
the rank's own work, or waiting that nobody logged.

Holmes (NSDI'25) searches the same graph breadth-first over abnormal operators; here all edges are computed at once,
for every row, from times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows, lift_times, sort_nearly, sort_rows, stable_order
from irregulars.detectors.job.measured_time import CLOCK_ERROR_NS, resolutions_ns, slack_ns
from irregulars.detectors.path.lost_rows import LostShares, common_base, find_lost, time_free
from irregulars.streams.messages.records import RECV, ROOTED, SEND, UNKNOWN

Array = np.ndarray

Derived = TypeVar("Derived")

_LEAVES_EARLY: Final = np.isin(np.arange(16), [SEND, *ROOTED])  # by operator
_MOST_BESIDE: Final = 64  # rows before a row that may not have been over when it began, all within their slack

NO_ORDINAL: Final = (1 << 20) - 1
"""Ordinal of an operator that most of its partners count to the iteration before."""


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """Rows of any ranks and iterations, sorted by rank, iteration and end. All arrays have one length.

    Parameters
    ----------
    rank, iteration, communicator, operator, sequence, peer
        As in ``commops``; ``communicator`` are the job's codes, ``peer`` is `UNKNOWN` for collectives.
    start_ns, end_ns
        int64, on the common clock, relative to any origin.
    size_bytes
        float64, NaN where not known.
    group
        Index of the collective, or of the send and its recv, that the row is a share of.
    block
        Index of the row's pair of rank and iteration.
    batch
        Index of the batch of sends and recvs that the row is a part of: they were issued and ended as one operator.
        Every other row is a batch by itself.
    slack_ns
        How far the end of the row may lie off (`detectors.job.measured_time`).
    ready_ns
        When the last partner had arrived whom this row waited for; its own start if it waited for nobody.
    blocker
        Row of that partner; the row itself if it waited for nobody.
    previous
        Row of the rank's operator in this iteration that had ended last when this one began; -1 for the first ones.
    gap_ns
        int64: from the end of `previous` (the entry of the iteration for the first ones), or of an operator after it
        that was lost, to the start.
    ordinal
        How many operators of the same rank, iteration, communicator, operator and peer came before, lost ones too.
    is_partial
        Whether so many shares of a row's collective or message were lost that who came last may be among them.
    """

    rank: Array
    iteration: Array
    communicator: Array
    operator: Array
    sequence: Array
    peer: Array
    start_ns: Array
    end_ns: Array
    size_bytes: Array
    group: Array
    block: Array
    batch: Array
    slack_ns: Array
    ready_ns: Array
    blocker: Array
    previous: Array
    gap_ns: Array
    ordinal: Array
    is_partial: Array
    _derived: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)  # asked often

    def __len__(self) -> int:
        return len(self.rank)

    def derive(self, name: str, make: Callable[[], Derived]) -> Derived:
        """Return what follows from the graph alone and was made under this name before; else make it."""
        if name not in self._derived:
            self._derived[name] = make()
        found: Derived = self._derived[name]
        return found

    @property
    def transfer_ns(self) -> Array:
        """What is left of each row when all partners are there, ns."""
        return self.derive("transfer_ns", lambda: np.maximum(self.end_ns - self.ready_ns, 0))

    @property
    def is_batched(self) -> Array:
        """Whether a row is one of several parts of a batch of sends and recvs."""
        return self.derive("is_batched", lambda: np.bincount(self.batch, minlength=len(self))[self.batch] > 1)

    @property
    def own_transfer_ns(self) -> Array:
        """What each row's own message took at most, ns: less than `transfer_ns` in some batches.

        The parts of a batch end together, so that one slow message delays all of them. But a message has two ends,
        and it took no longer than the transfer at either of them.
        """
        return self.derive("own_transfer_ns", self._least_of_both_ends)

    def _least_of_both_ends(self) -> Array:
        transfer_ns = self.transfer_ns
        rows = np.flatnonzero(self.is_p2p)
        rows = rows[np.isin(self.group[rows], self.group[self.is_batched])]
        rows = rows[sort_rows([self.group[rows], self.operator[rows]])]
        pairs = np.flatnonzero(self.group[rows[1:]] == self.group[rows[:-1]])
        one, two = rows[pairs], rows[pairs + 1]
        # A buffered send is over before its receiver comes: its end says nothing of the way.
        is_shared = np.minimum(self.end_ns[one], self.end_ns[two]) >= np.maximum(
            self.start_ns[one], self.start_ns[two]
        )
        one, two = one[is_shared], two[is_shared]
        own_ns = transfer_ns.copy()
        own_ns[one] = own_ns[two] = np.minimum(transfer_ns[one], transfer_ns[two])
        return own_ns

    @property
    def wait_ns(self) -> Array:
        """What each row waited for partners, ns."""
        return self.ready_ns - self.start_ns

    @property
    def since_previous_ns(self) -> Array:
        """From the start of `previous` to the own start: the work, where that operator kept nobody from it."""
        since_ns = self.start_ns - self.start_ns[self.previous] if len(self) else self.gap_ns
        return np.where(self.previous >= 0, since_ns, self.gap_ns)

    def of_previous(self, values: Array, none: int) -> Array:
        """Values of each row's `previous`; `none` for the first rows."""
        return np.where(self.previous >= 0, values[self.previous], none)

    @property
    def since_same_communicator_ns(self) -> Array:
        """From the end of the rank's operator before in the same communicator to the own start, ns.

        It is the work, where other communicators' operators run beside that. The gap, where no operator of the
        communicator came before in the iteration, or where that one was still open: it tells nothing then, and 0
        would be taken for a time without noise. The parts of a batch follow what came before the batch.
        """
        if not len(self):
            return self.gap_ns
        order = sort_rows([self.block, self.communicator, self.start_ns])
        first = np.full(len(order), len(order))  # of each batch the place in `order` where it begins
        np.minimum.at(first, self.batch[order], np.arange(len(order)))
        at = first[self.batch]
        before = order[np.maximum(at - 1, 0)]
        follows = (at > 0) & (self.block == self.block[before]) & (self.communicator == self.communicator[before])
        follows &= self.end_ns[before] - self.slack_ns[before] <= self.start_ns
        return np.where(follows, np.maximum(self.start_ns - self.end_ns[before], 0), self.gap_ns)

    @property
    def is_p2p(self) -> Array:
        """Whether a row is a send or a recv."""
        return self.derive("is_p2p", lambda: (self.operator == SEND) | (self.operator == RECV))

    @property
    def is_worked_beside(self) -> Array:
        """Whether the rank began another operator while this send or recv was still open: it did not wait for it."""
        order = np.lexsort((self.start_ns, self.block))
        one, two = order[:-1], order[1:]
        found = np.zeros(len(self), dtype=bool)
        is_beside = (self.block[one] == self.block[two]) & (self.batch[one] != self.batch[two])
        found[one] = is_beside & (self.start_ns[two] + self.slack_ns[one] < self.end_ns[one])
        return found & self.is_p2p

    def own_work_ns(self, iteration: int) -> dict[int, float]:
        """For each rank: its own work in an iteration, ns, with what it worked while a send of its was still open.

        A send that was left open keeps nobody from working: the gap before the next operator began before it ended.
        """
        rows = np.flatnonzero((self.iteration == iteration) & ~(self.is_worked_beside & (self.operator == SEND)))
        rows = rows[np.lexsort((self.start_ns[rows], self.rank[rows]))]
        if not len(rows):
            return {}
        is_first = np.append(True, self.rank[rows[1:]] != self.rank[rows[:-1]])
        owner = np.cumsum(is_first) - 1
        times, place = np.unique(self.end_ns[rows], return_inverse=True)
        lift = owner * len(times)
        latest_ns = times[np.maximum.accumulate(place.ravel() + lift) - lift]
        gap_ns = np.append(0, np.maximum(self.start_ns[rows[1:]] - latest_ns[:-1], 0))
        gap_ns[is_first] = self.gap_ns[rows[is_first]]
        sums = np.bincount(owner, gap_ns)
        return dict(zip(self.rank[rows[is_first]].tolist(), sums.tolist(), strict=True))

    @property
    def source(self) -> Array:
        """Sending rank of p2p rows (elsewhere without meaning)."""
        return np.where(self.operator == SEND, self.rank, self.peer)

    @property
    def destination(self) -> Array:
        """Receiving rank of p2p rows (elsewhere without meaning)."""
        return np.where(self.operator == SEND, self.peer, self.rank)


def build_graph(
    columns: Mapping[str, Array], entry_ns: Mapping[tuple[int, int], int], *, is_exact: bool = False
) -> OperatorGraph:
    """Compute the graph.

    Parameters
    ----------
    columns
        ``rank, iteration, communicator, operator, sequence, peer, start_ns`` (int64 or narrower), ``elapsed_ns,
        size_bytes`` (float64). Rows without a start or an end take no part, nor do those that end before they start.
        ``resolution_ns`` (int64), where clocks were set right since the log was written: of the times as they were
        logged (`detectors.job.measured_time`); else it is measured.
    entry_ns
        For pairs of rank and iteration: when the rank was free to begin the iteration (the end of its last operator
        before, or the iteration's own start), on the clock of ``start_ns``. Pairs that are missing begin with their
        first operator.
    is_exact
        Whether the times are exact and of one clock, as only those of a simulator can be. Else what they can tell is
        measured from them (`detectors.job.measured_time`).
    """
    columns = _sorted_and_known(columns)
    elapsed_ns = columns["elapsed_ns"].astype(np.int64)
    end_ns = columns["start_ns"] + elapsed_ns
    slack = slack_ns(columns["resolution_ns"], elapsed_ns)
    slack = np.zeros_like(slack) if is_exact else slack
    block, is_first_of_block = _blocks(columns["rank"], columns["iteration"])
    group = _groups(columns)
    clock_error_ns = 0 if is_exact else CLOCK_ERROR_NS
    ready_ns, blocker = _arrivals(columns, group, end_ns + slack, clock_error_ns)
    batch = _batches(columns, block, end_ns, slack)
    ready_ns, blocker = _join_batched(batch, ready_ns, blocker)
    previous = _previous(block, columns["start_ns"], end_ns - slack, is_first_of_block)
    sides = find_lost(columns, group, end_ns)
    return OperatorGraph(
        rank=columns["rank"],
        iteration=columns["iteration"],
        communicator=columns["communicator"],
        operator=columns["operator"],
        sequence=columns["sequence"],
        peer=columns["peer"],
        start_ns=columns["start_ns"],
        end_ns=end_ns,
        size_bytes=columns["size_bytes"],
        group=group,
        block=block,
        batch=batch,
        slack_ns=slack,
        ready_ns=ready_ns,
        blocker=blocker,
        previous=previous,
        gap_ns=_gaps(columns, end_ns, block, is_first_of_block, previous, entry_ns, sides.lost),
        ordinal=_ordinals(columns, block),
        is_partial=sides.is_partial,
    )


def pack_class(columns: Mapping[str, Array]) -> Array:
    """Pack communicator, operator and peer of each row into one int64 (peers and communicators below 2**28)."""
    peer = np.where(columns["peer"] == UNKNOWN, -1, columns["peer"]) + 1
    return (columns["communicator"] << 33) | (columns["operator"] << 29) | peer


def class_parts(columns: Mapping[str, Array]) -> list[Array]:
    """Return communicator, operator and peer of each row, which sort as `pack_class` does, in few bits."""
    return [columns["communicator"], columns["operator"], np.maximum(columns["peer"], -1)]


def unpack_class(packed: Array) -> tuple[Array, Array, Array]:
    """Undo `pack_class`: communicators, operators, and peers (-1 for collectives)."""
    return packed >> 33, (packed >> 29) & 15, (packed & ((1 << 29) - 1)) - 1


def _sorted_and_known(columns: Mapping[str, Array]) -> dict[str, Array]:
    elapsed_ns = np.where(np.isnan(columns["elapsed_ns"]), -1.0, columns["elapsed_ns"]).astype(np.int64)
    end_ns = columns["start_ns"] + elapsed_ns  # where a clock told nonsense it wraps: then it ends before its start
    known = (elapsed_ns >= 0) & (columns["start_ns"] != UNKNOWN) & (end_ns >= columns["start_ns"])
    ints = ("rank", "iteration", "communicator", "operator", "sequence", "peer", "start_ns")
    kept = {name: columns[name].astype(np.int64, copy=False) for name in ints}
    kept |= {name: columns[name] for name in ("elapsed_ns", "size_bytes")}
    if not known.all():
        kept, end_ns = {name: column[known] for name, column in kept.items()}, end_ns[known]
    if "resolution_ns" in columns:
        kept["resolution_ns"] = columns["resolution_ns"] if known.all() else columns["resolution_ns"][known]
    else:
        elapsed_ns = kept["elapsed_ns"].astype(np.int64)
        kept["resolution_ns"] = resolutions_ns(kept["rank"], kept["start_ns"], elapsed_ns)
    # Parts of a p2p batch have one start and one end.
    ties = [kept["start_ns"], *class_parts(kept), kept["sequence"]]
    order = sort_nearly([kept["rank"], kept["iteration"], end_ns], ties)
    if np.all(order[1:] > order[:-1]):
        return kept
    return {name: column[order] for name, column in kept.items()}


def _blocks(rank: Array, iteration: Array) -> tuple[Array, Array]:
    """Index of the pair of rank and iteration of each (sorted) row, and whether the row is its first."""
    is_first = np.ones(len(rank), dtype=bool)
    is_first[1:] = (rank[1:] != rank[:-1]) | (iteration[1:] != iteration[:-1])
    return np.cumsum(is_first) - 1, is_first


def _groups(columns: Mapping[str, Array]) -> Array:
    """Index of the collective or p2p pair of each row: equal communicator and sequence, and equal ends of a pair."""
    operator, peer, rank = columns["operator"], columns["peer"], columns["rank"]
    is_p2p = (operator == SEND) | (operator == RECV)
    source = np.where(is_p2p, np.where(operator == SEND, rank, peer), -1)
    destination = np.where(is_p2p, np.where(operator == SEND, peer, rank), -1)
    return group_rows([columns["communicator"], source, destination, columns["sequence"]])[0]


def _arrivals(
    columns: Mapping[str, Array], group: Array, latest_end_ns: Array, clock_error_ns: int
) -> tuple[Array, Array]:
    """When each row's last partner arrived, and who that was.

    A collective in which all wait for all, and a recv, end after all partners have arrived, whatever the clocks say.
    A buffered send returns before its receiver arrives, and the root of a broadcast before its leaves do: partners
    that arrived after such a row had ended were not waited for. ``latest_end_ns``: the end of each row, with its
    slack.
    """
    start_ns = columns["start_ns"]
    order = sort_rows([group, start_ns])
    latest_at = (np.cumsum(np.bincount(group)) - 1)[group]  # in `order`: the last of each row's group
    may_leave_early = _LEAVES_EARLY[columns["operator"]]
    limit_ns = latest_end_ns + np.where(may_leave_early, 0, clock_error_ns)
    too_late = np.flatnonzero(start_ns[order[latest_at]] > limit_ns)
    if len(too_late):
        latest_at[too_late] = _last_until(group[order], start_ns[order], group[too_late], limit_ns[too_late])
    latest = order[latest_at]
    blocker = np.where(start_ns[latest] > start_ns, latest, np.arange(len(order)))
    return start_ns[blocker], blocker


def _last_until(sorted_group: Array, sorted_start_ns: Array, group: Array, limit_ns: Array) -> Array:
    """Position of the last row of each given group that starts at its limit or before; rows by group and start."""
    keys, asked = lift_times([sorted_group, group], [sorted_start_ns, limit_ns])
    return np.searchsorted(keys, asked, side="right") - 1


def _batches(columns: Mapping[str, Array], block: Array, end_ns: Array, slack: Array) -> Array:
    """Number the batches: sends and recvs of one rank with the same start and end, as far as the log can tell."""
    start_ns = columns["start_ns"]
    rows = np.flatnonzero((columns["operator"] == SEND) | (columns["operator"] == RECV))
    batch = np.arange(len(block))
    order = rows[sort_nearly([block[rows], start_ns[rows]], [end_ns[rows]])]
    one, two = order[:-1], order[1:]
    is_same = block[one] == block[two]
    for times_ns in (start_ns, end_ns):
        is_same &= np.abs(times_ns[two] - times_ns[one]) <= slack[one]
    first = np.flatnonzero(np.append(True, ~is_same)[: len(order)])
    batch[order] = np.repeat(order[first], np.diff(np.append(first, len(order))))
    return batch


def _join_batched(batch: Array, ready_ns: Array, blocker: Array) -> tuple[Array, Array]:
    """Treat the parts of a batch as one operator: it was ready when the last partner of any of them had arrived."""
    rows = np.flatnonzero(np.bincount(batch, minlength=len(batch))[batch] > 1)
    if len(rows) == 0:
        return ready_ns, blocker
    order = rows[sort_rows([batch[rows], ready_ns[rows]])]
    lasts = np.flatnonzero(np.append(batch[order[1:]] != batch[order[:-1]], True))
    latest = np.empty(len(batch), dtype=np.int64)
    latest[batch[order[lasts]]] = order[lasts]  # of each batch, the part whose partner came last
    latest = latest[batch[rows]]
    joined_ready_ns, joined_blocker = ready_ns.copy(), blocker.copy()
    joined_ready_ns[rows] = ready_ns[latest]
    joined_blocker[rows] = np.where(blocker[latest] == latest, rows, blocker[latest])
    return joined_ready_ns, joined_blocker


def _previous(block: Array, start_ns: Array, surely_ended_ns: Array, is_first_of_block: Array) -> Array:
    """Row of the rank's operator in this iteration that had ended last when each row began; -1 if none had.

    ``surely_ended_ns``: the end of each row less its slack. An operator counts as over when that has passed, and only
    if it stands before the row in the order of the graph, so that no two rows are each other's previous one.
    """
    if len(block) == 0:
        return np.empty(0, dtype=np.int64)
    ended, begun = lift_times([block, block], [surely_ended_ns, start_ns])
    order = stable_order(ended)
    found = np.searchsorted(ended[order], begun, side="right") - 1
    latest = np.maximum.accumulate(order)  # of the rows that were over, the one that ended last
    own = np.arange(len(block))
    previous = np.where(found >= 0, latest[found], -1)
    # A long row may stand behind `own` though it was over, by its slack: then the last one before `own` is wanted.
    late = np.flatnonzero(previous >= own)
    previous[late] = own[late] - 1
    for _ in range(_MOST_BESIDE):
        late = late[(previous[late] >= 0) & (surely_ended_ns[previous[late]] > start_ns[late])]
        if not len(late):
            break
        previous[late] -= 1
    first_row = np.flatnonzero(is_first_of_block)[block]
    return np.where(previous >= first_row, previous, -1)


def _gaps(
    columns: Mapping[str, Array],
    end_ns: Array,
    block: Array,
    is_first_of_block: Array,
    previous: Array,
    entry_ns: Mapping[tuple[int, int], int],
    lost: LostShares,
) -> Array:
    first_rows = np.flatnonzero(is_first_of_block)
    start_ns, rank, iteration = columns["start_ns"], columns["rank"], columns["iteration"]
    earliest = np.minimum.reduceat(start_ns, first_rows) if len(first_rows) else np.empty(0, dtype=np.int64)
    pairs = zip(rank[first_rows].tolist(), iteration[first_rows].tolist(), earliest.tolist(), strict=True)
    entry = np.array([entry_ns.get((r, i), first) for r, i, first in pairs], dtype=np.int64)
    free_ns = np.where(previous >= 0, end_ns[previous], entry[block] if len(entry) else 0)
    return np.maximum(start_ns - time_free(columns, block, is_first_of_block, free_ns, lost), 0)


def _ordinals(columns: Mapping[str, Array], block: Array) -> Array:
    """Sequence of each row, counted from where its class begins in the iteration; `NO_ORDINAL` for those before."""
    sequence = columns["sequence"]
    if len(sequence) == 0:
        return sequence
    class_of_block, first = group_rows([block, *class_parts(columns)])
    lowest = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(lowest, class_of_block, sequence)
    ordinal = sequence - common_base(columns, class_of_block, lowest)[class_of_block]
    return np.where(ordinal >= 0, ordinal, NO_ORDINAL)
