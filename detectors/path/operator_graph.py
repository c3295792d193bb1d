"""Who waited for whom: the communication operator graph of some iterations, as arrays.

A row is one operator on one rank. Two kinds of edges lead from it: to the row of the partner that arrived last
(`OperatorGraph.blocker`: the same collective on another rank, or the other end of a send or recv) and to the operator
that this rank had ended last when it began (`OperatorGraph.previous`). Time that a row spends until its blocker
arrives is waiting; the rest is transfer; the time between the previous operator and its own start is the gap:
the rank's own work, or waiting that nobody logged.

Holmes (NSDI'25) searches the same graph breadth-first over abnormal operators; here all edges are computed at once,
for every row, from times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from irregulars.detectors.arrays.row_keys import largest_of_groups, sort_nearly, sort_rows
from irregulars.detectors.arrays.runs import begins_run, run_numbers
from irregulars.detectors.job.measured_time import resolutions_ns, slack_ns
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.graph_edges import (
    find_arrivals_of_partners,
    find_batches,
    find_blocks,
    find_gaps,
    find_ordinals,
    find_previous,
    group_partners,
    join_batches,
)
from irregulars.detectors.path.lost_rows import find_lost
from irregulars.detectors.path.operator_classes import class_parts, is_p2p
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.records import RECV, SEND, UNKNOWN

Derived = TypeVar("Derived")


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """Rows of any ranks and iterations, sorted by rank, iteration and end. All arrays have one length."""

    # As in ``commops``; ``communicator`` are the job's
    # codes, ``peer`` is `UNKNOWN` for collectives
    rank: Ints
    iteration: Ints
    communicator: Ints
    operator: Ints
    sequence: Ints
    peer: Ints
    # start_ns, end_ns: int64, on the common clock, relative to any origin
    start_ns: Ints
    end_ns: Ints
    size_bytes: Floats  # float64, NaN where not known
    group: Ints  # index of the collective, or of the send and its recv, that the row is a part of
    block: Ints  # index of the row's pair of rank and iteration
    # Index of the batch of sends and recvs that the row is a part of: they were issued and ended as one operator.
    # Every other row is a batch by itself.
    batch: Ints
    slack_ns: Ints  # how far the end of the row may be from the truth (`detectors.job.measured_time`)
    # When the last partner that this row waited for had arrived; its own start if it waited for nobody
    ready_ns: Ints
    blocker: Ints  # row of that partner; the row itself if it waited for nobody
    # Row of the rank's operator in this iteration that had ended last when this one began; -1 for the first ones
    previous: Ints
    # int64: from the end of `previous` (the entry of the iteration for the first ones), or of an operator after it
    # that was lost, to the start
    gap_ns: Ints
    # How many operators of the same rank, iteration, communicator, operator and peer came before, lost ones too
    ordinal: Ints
    # Whether so many rows of this collective or message were lost that the last to arrive may be among them
    is_partial: Flags
    _derived: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)  # asked often

    def __len__(self) -> int:
        return len(self.rank)

    def derive(self, name: str, make: Callable[[], Derived]) -> Derived:
        """Return the value computed from the graph under this name before; else compute it, and keep it."""
        if name not in self._derived:
            self._derived[name] = make()
        found: Derived = self._derived[name]
        return found

    @property
    def transfer_ns(self) -> Ints:
        """Time of each row from the arrival of its last partner to its end, ns."""
        return self.derive("transfer_ns", lambda: np.maximum(self.end_ns - self.ready_ns, 0))

    @property
    def moved_bytes(self) -> Floats:
        """Bytes of each row's collective or message, NaN where not known: the most that one of its members gave.

        The members of an all_to_all give unlike shares, and the largest share takes longest.
        """
        return self.derive("moved_bytes", lambda: largest_of_groups(self.group, self.size_bytes)[self.group])

    @property
    def is_batched(self) -> Flags:
        """Whether a row is one of several parts of a batch of sends and recvs."""
        return self.derive("is_batched", lambda: np.bincount(self.batch, minlength=len(self))[self.batch] > 1)

    @property
    def own_transfer_ns(self) -> Ints:
        """Upper bound of the time that each row's own message took, ns; below `transfer_ns` in some batches.

        The parts of a batch end together, so that one slow message delays all of them. But a message has two ends,
        and it took no longer than the transfer at either of them.
        """
        return self.derive("own_transfer_ns", self._least_of_both_ends)

    def _least_of_both_ends(self) -> Ints:
        transfer_ns = self.transfer_ns
        rows = np.flatnonzero(self.is_p2p)
        rows = rows[np.isin(self.group[rows], self.group[self.is_batched])]
        rows = rows[sort_rows([self.group[rows], self.operator[rows]])]
        pairs = np.flatnonzero(~begins_run(self.group[rows])) - 1
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
    def wait_ns(self) -> Ints:
        """Time that each row waited for partners, ns."""
        return self.ready_ns - self.start_ns

    @property
    def since_previous_ns(self) -> Ints:
        """From the start of `previous` to the own start, ns: the rank's work, if it worked during that operator."""
        since_ns = self.start_ns - self.start_ns[self.previous] if len(self) else self.gap_ns
        return np.where(self.previous >= 0, since_ns, self.gap_ns)

    def of_previous(self, values: Ints, none: int) -> Ints:
        """Values of each row's `previous`; `none` for the first rows."""
        return np.where(self.previous >= 0, values[self.previous], none)

    @property
    def since_same_communicator_ns(self) -> Ints:
        """From the end of the rank's operator before in the same communicator to the own start, ns.

        Where operators of other communicators run beside it, this is the rank's work. It is `gap_ns` where the
        communicator had no operator before in the iteration, or where that one was still open: nothing is known
        then, and a 0 would be taken for work that varies by nothing. The parts of a batch follow the operator before
        the batch.
        """
        if not len(self):
            return self.gap_ns
        order = sort_rows([self.block, self.communicator, self.start_ns])
        # The parts of a batch began together: none of them is the operator before another.
        first = np.full(len(order), len(order))  # of each batch the place in `order` where it begins
        np.minimum.at(first, self.batch[order], np.arange(len(order)))
        at = first[self.batch]
        before = order[np.maximum(at - 1, 0)]
        follows = (at > 0) & (self.block == self.block[before]) & (self.communicator == self.communicator[before])
        follows &= self.end_ns[before] - self.slack_ns[before] <= self.start_ns
        return np.where(follows, np.maximum(self.start_ns - self.end_ns[before], 0), self.gap_ns)

    @property
    def is_p2p(self) -> Flags:
        """Whether a row is a send or a recv."""
        return self.derive("is_p2p", lambda: is_p2p(self.operator))

    @property
    def is_worked_beside(self) -> Flags:
        """Whether the rank began another operator before this send or recv had ended, and so did not wait for it."""
        return self.derive("is_worked_beside", self._find_worked_beside)

    def _find_worked_beside(self) -> Flags:
        order = sort_rows([self.block, self.start_ns])
        one, two = order[:-1], order[1:]
        found = np.zeros(len(self), dtype=bool)
        is_beside = (self.block[one] == self.block[two]) & (self.batch[one] != self.batch[two])
        found[one] = is_beside & (self.start_ns[two] + self.slack_ns[one] < self.end_ns[one])
        return found & self.is_p2p

    def own_work_ns(self, iteration: int, *, to_last_message: bool = False) -> dict[int, float]:
        """Return the time that each rank worked in an iteration, ns, also while a send of its own was still open.

        A rank does not wait for a send that it leaves open, so such sends are taken out before gaps are summed up.

        `to_last_message`: count gaps to the rank's last message, and the work on its content if it is a recv:
        pipeline stages that are through wait for the others, and no operator need show it.
        """
        work = self.derive(f"own work of {iteration}", lambda: self._sum_up_work(iteration))
        return work[1 if to_last_message else 0]

    def _sum_up_work(self, iteration: int) -> tuple[dict[int, float], dict[int, float]]:
        """Return the work of each rank, and that to its last message."""
        rows = np.flatnonzero(self.iteration == iteration)
        if not len(rows):
            return {}, {}
        rows = rows[np.lexsort((self.start_ns[rows], self.rank[rows]))]
        is_closed = ~(self.is_worked_beside[rows] & (self.operator[rows] == SEND))
        message = np.flatnonzero(self.is_p2p[rows])
        rank = self.rank[rows[message]]
        is_last = np.zeros(len(rows), dtype=bool)  # whether a row is its rank's last message
        is_last[message] = np.append(rank[1:] != rank[:-1], True)[: len(message)]
        by_then = rows[is_closed | is_last]  # the last message ends the count, also a send that was left open
        return self._sum_up_gaps(rows[is_closed]), self._sum_up_gaps(by_then, is_last[is_closed | is_last])

    def _sum_up_gaps(self, rows: Ints, is_last: Flags | None = None) -> dict[int, float]:
        """Sum up the gaps of each rank's rows; with `is_last`, the last messages, as far as it surely worked."""
        if not len(rows):
            return {}
        is_first, owner = begins_run(self.rank[rows]), run_numbers(self.rank[rows])
        times, place = np.unique(self.end_ns[rows], return_inverse=True)
        lift = owner * len(times)
        # The latest end so far of each rank, in one pass: ends of later ranks are lifted above those of earlier ones.
        latest_ns = times[np.maximum.accumulate(place.ravel() + lift) - lift]
        gap_ns = np.append(0, np.maximum(self.start_ns[rows[1:]] - latest_ns[:-1], 0))
        gap_ns[is_first] = self.gap_ns[rows[is_first]]
        if is_last is not None:
            gap_ns = np.where(np.arange(len(rows)) <= self._ends_of_work(rows, owner, is_last)[owner], gap_ns, 0)
        return dict(zip(self.rank[rows[is_first]].tolist(), np.bincount(owner, gap_ns).tolist(), strict=True))

    def _ends_of_work(self, rows: Ints, owner: Ints, is_last: Flags) -> Ints:
        """Return for each owner the place of the last row before which it surely worked, and did not wait.

        That is its last message or, if that is a recv, the first operator after it that is no part of the work on a
        micro-batch. Communicators that are used between messages are such a part (of tensors, of experts); where
        there is but one micro-batch, those used before it.
        """
        ends = np.full(int(owner[-1]) + 1, len(rows))
        last = np.flatnonzero(is_last)
        ends[owner[last]] = last
        last = last[self.operator[rows[last]] == RECV]
        place, is_message = np.arange(len(rows)), self.is_p2p[rows]
        first = np.full(len(ends), len(rows))
        np.minimum.at(first, owner[is_message], place[is_message])
        key = owner * (int(self.communicator.max(initial=0)) + 1) + self.communicator[rows]
        is_before = ~is_message & (place < ends[owner])
        is_between = is_before & (place > first[owner])
        is_alone = np.bincount(owner, is_between) == 0
        is_part = np.isin(key, key[is_between | (is_before & is_alone[owner])])
        others = np.append(np.flatnonzero(~is_part & ~is_message), len(rows))
        after = others[np.searchsorted(others, last)]
        ends[owner[last]] = np.minimum(after, np.searchsorted(owner, owner[last], side="right") - 1)
        return ends

    @property
    def source(self) -> Ints:
        """Sending rank of p2p rows (elsewhere without meaning)."""
        return np.where(self.operator == SEND, self.rank, self.peer)

    @property
    def destination(self) -> Ints:
        """Receiving rank of p2p rows (elsewhere without meaning)."""
        return np.where(self.operator == SEND, self.peer, self.rank)


def build_graph(
    columns: Mapping[str, Column], entry_ns: Mapping[tuple[int, int], int], *, is_exact: bool = False
) -> OperatorGraph:
    """Compute the graph.

    `columns`: ``rank, iteration, communicator, operator, sequence, peer, start_ns`` (int64 or narrower),
    ``elapsed_ns, size_bytes`` (float64). Rows without a start or an end are left out, and so are rows that end before
    they start. ``resolution_ns`` (int64) is the resolution of the times as they were logged
    (`detectors.job.measured_time`). It must be given where times were corrected since, and is measured otherwise.
    `entry_ns`: for pairs of rank and iteration: when the rank was free to begin the iteration (the end of its last
    operator before, or the iteration's own start), on the clock of ``start_ns``. Pairs that are missing begin with
    their first operator. `is_exact`: whether the times are exact and of one clock, as only those of a simulator can
    be. Otherwise their slack is computed from their resolution (`detectors.job.measured_time`).
    """
    columns = _sorted(_known(columns))
    start_ns = columns["start_ns"]
    end_ns, slack = _ends(columns, is_exact=is_exact)
    block, is_first_of_block = find_blocks(columns["rank"], columns["iteration"])
    group = group_partners(columns)
    ready_ns, blocker = find_arrivals_of_partners(columns, group, end_ns + slack, _clock_error_ns(is_exact))
    batch = find_batches(columns, block, end_ns, slack)
    ready_ns, blocker = join_batches(batch, ready_ns, blocker)
    # Operators that follow each other at once overlap by some microseconds: one in its last hundredth is over.
    error_ns = np.minimum(JOB.negligible * (end_ns - start_ns), _clock_error_ns(is_exact)).astype(np.int64)
    previous = find_previous(block, start_ns, end_ns - np.maximum(slack, error_ns), is_first_of_block)
    # But not where another one had just ended: then that one was waited for.
    over = find_previous(block, start_ns, end_ns - slack, is_first_of_block)
    is_just_over = (over >= 0) & (start_ns - end_ns[over] <= np.maximum(slack, error_ns)[over])
    previous = np.where(is_just_over, over, previous)
    participation = find_lost(columns, group, end_ns)
    gap_ns = find_gaps(columns, end_ns, block, is_first_of_block, previous, entry_ns, participation.lost)
    return OperatorGraph(
        rank=columns["rank"],
        iteration=columns["iteration"],
        communicator=columns["communicator"],
        operator=columns["operator"],
        sequence=columns["sequence"],
        peer=columns["peer"],
        start_ns=start_ns,
        end_ns=end_ns,
        size_bytes=columns["size_bytes"],
        group=group,
        block=block,
        batch=batch,
        slack_ns=slack,
        ready_ns=ready_ns,
        blocker=blocker,
        previous=previous,
        gap_ns=gap_ns,
        ordinal=find_ordinals(columns, block),
        is_partial=participation.is_partial,
    )


class CollectiveRows(NamedTuple):
    """Rows of some collectives, as those of an `OperatorGraph`; all arrays have one length."""

    rank: Ints
    communicator: Ints
    operator: Ints
    peer: Ints
    ordinal: Ints
    transfer_ns: Ints
    moved_bytes: Floats


def collective_rows(
    columns: Mapping[str, Column], communicators: Collection[int], *, is_exact: bool = False
) -> CollectiveRows:
    """Compute the graph's values for the collectives of some communicators, without the other operators.

    Who waited for whom in a communicator does not depend on operators beside it; gaps do, and are left out.

    `columns`, `is_exact`: as for `build_graph`.
    """
    known = _known(columns)  # all of a rank's operators show how exactly its times were logged
    is_own = np.isin(known["communicator"], list(communicators)) & ~is_p2p(known["operator"])
    own = _sorted({name: column[is_own] for name, column in known.items()})
    end_ns, slack = _ends(own, is_exact=is_exact)
    block, _ = find_blocks(own["rank"], own["iteration"])
    group = group_partners(own)
    ready_ns, _ = find_arrivals_of_partners(own, group, end_ns + slack, _clock_error_ns(is_exact))
    return CollectiveRows(
        rank=own["rank"],
        communicator=own["communicator"],
        operator=own["operator"],
        peer=own["peer"],
        ordinal=find_ordinals(own, block),
        transfer_ns=np.maximum(end_ns - ready_ns, 0),
        moved_bytes=largest_of_groups(group, own["size_bytes"])[group],
    )


def _ends(columns: Mapping[str, Column], *, is_exact: bool) -> tuple[Ints, Ints]:
    """Return the end of each row and its slack, ns."""
    elapsed_ns = columns["elapsed_ns"].astype(np.int64)
    end_ns = columns["start_ns"] + elapsed_ns
    slack = np.zeros_like(end_ns) if is_exact else slack_ns(columns["resolution_ns"], elapsed_ns)
    return end_ns, slack


def _clock_error_ns(is_exact: bool) -> int:
    return 0 if is_exact else JOB.clock_error_ns


def _known(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the rows whose start and end are known, with the resolution of their times."""
    elapsed_ns = np.where(np.isnan(columns["elapsed_ns"]), -1.0, columns["elapsed_ns"]).astype(np.int64)
    end_ns = columns["start_ns"] + elapsed_ns  # of a nonsensical start it wraps: then it lies before the start
    known = (elapsed_ns >= 0) & (columns["start_ns"] != UNKNOWN) & (end_ns >= columns["start_ns"])
    ints = ("rank", "iteration", "communicator", "operator", "sequence", "peer", "start_ns")
    kept = {name: columns[name].astype(np.int64, copy=False) for name in ints}
    kept |= {name: columns[name] for name in ("elapsed_ns", "size_bytes")}
    if not known.all():
        kept = {name: column[known] for name, column in kept.items()}
    if "resolution_ns" in columns:
        kept["resolution_ns"] = columns["resolution_ns"] if known.all() else columns["resolution_ns"][known]
    else:
        elapsed_ns = kept["elapsed_ns"].astype(np.int64)
        kept["resolution_ns"] = resolutions_ns(kept["rank"], kept["start_ns"], elapsed_ns)
    return kept


def _sorted(known: dict[str, Column]) -> dict[str, Column]:
    """Return rows in the order of the graph."""
    end_ns = known["start_ns"] + known["elapsed_ns"].astype(np.int64)
    # Parts of a p2p batch have one start and one end.
    ties = [known["start_ns"], *class_parts(known), known["sequence"]]
    order = sort_nearly([known["rank"], known["iteration"], end_ns], ties)
    # Already in order: no column need be copied.
    if np.all(order[1:] > order[:-1]):
        return known
    return {name: column[order] for name, column in known.items()}
