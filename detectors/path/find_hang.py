"""Who keeps everybody waiting for ever: operators that some ranks entered and that never ended.

A rank stands in its oldest operator without an end: a GPU runs in order, and never reached those enqueued behind it.
The first of these that is found is to blame:

1. **missing**: a rank that never arrived in an operator in which others wait, and waits nowhere itself; where rows
   are lost, in one that nobody else is known to hold up;
2. **stopped**: a rank that stands in an operator that all have entered and others have left;
3. **last in line**: each rank waits for those who do not stand where it stands. These chains end in a circle of
   ranks, which is the order of calls and no device, or in an operator that all have entered and nobody has left;
4. **silent**: where only some ranks are logged, these chains all end in one operator, and its members that log
   nothing are all that nobody saw arrive. A process that has died leaves no dump. Collectives that all who are known
   have entered do not count here, unless somebody waits for their ranks;
5. **owing**: of two ranks that receive from each other, and so stand in a circle, the one that has got more messages
   from the other than it sent back: it posted its next recv early, and stopped at its work on the last;
6. **nobody known**: each rank that logs stands in such an operator, and behind ranks that log nothing. The job hangs,
   and nothing shows for whom.

All others wait, and are victims. Before all of these, ranks that call different collectives under one number hang for
that: `find_mismatch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.find_mismatch import Mismatch, find_mismatch
from irregulars.dtypes import Column
from irregulars.messages.records import RECV, SEND, UNKNOWN, UNTOLD_CALLS, number_of

Operation = tuple[int, int, int, int]  # communicator, sequence, and sender and receiver of p2p (-1 elsewhere)
_UNTOLD = -1  # in place of ranks of which nothing is known
_MOST_SILENT = 8  # most ranks that log nothing and are named: those of a host. Of more only the number is reported


class Standing(NamedTuple):
    """Where one rank stands."""

    rank: int
    operator: int
    communicator: int
    sequence: int
    peer: int  # `UNKNOWN` in collectives


class Hang(NamedTuple):
    """A hang: the ranks to look at, and the operator in which the others wait."""

    # Those to look at: that did not arrive, or that stopped inside. Empty: too many log nothing to name them, and if
    # `silent` is 0 not even the operator is known at which all wait.
    ranks: tuple[int, ...]
    waiting: int  # how many other ranks are inside an operator that has not ended
    # Codes of the operator in which most ranks wait for them, or in which they stopped
    communicator: int
    operator: int
    # When the first rank entered an operator that never ended, ns since the epoch, its own clock; None: not known
    since_ns: int | None
    has_arrived: bool  # whether `ranks` stopped inside
    # Whether nobody came out of that operator: then one of them is to blame, or the network between them
    is_shared: bool = False
    silent: int = 0  # how many members of that operator log nothing, where all others stand in it: `ranks` are these
    sequence: int | None = None  # of that operator, a collective; None: not known, or none
    ahead: Standing | None = None  # who stands furthest ahead of `ranks`, on the same communicator
    mismatch: Mismatch | None = None  # ranks called different collectives: `ranks` are the odd ones
    circle: tuple[Standing, ...] = ()  # ranks each of which waits for another of them: `ranks` are none
    places: tuple[Standing, ...] = ()  # where each of `ranks` stands, if they are all that is known to wait

    @property
    def is_program_error(self) -> bool:
        """Whether the order or the arguments of calls are to blame, and no device."""
        return self.mismatch is not None or bool(self.circle)

    @property
    def is_nobody_missing(self) -> bool:
        """Whether all who take part stand in that operator."""
        return self.is_shared and not self.is_program_error

    @property
    def accused(self) -> tuple[int, ...]:
        """Ranks that a verdict may name: none of more than wait for them, nor of those who are all inside.

        Of those that log nothing none of as many as wait: their log, that of the other node, may not be there.
        """
        most = self.waiting - 1 if self.silent else max(self.waiting, 1)
        return () if self.is_nobody_missing or len(self.ranks) > most else self.ranks


def find_hang(
    columns: Mapping[str, Column], topology: Topology, trusted: Collection[int], lossy: Collection[int] = ()
) -> Hang | None:
    """Find who keeps operators from ending that never ended.

    Among hundreds of ranks that lose a row in a thousand, some lose the one that shows them waiting. So where a rank
    stopped inside an operator, which all entered and others left, ranks that lost rows do not count as missing.

    `columns`: rows of the last iterations of all ranks, as `detectors.path.operator_graph.build_graph` takes them.
    `trusted`: ranks that are logged and lost no rows, or hardly any: only of them a missing row means that they did
    not arrive. `lossy`: those of them that lost some.
    """
    # The oldest first; rows without a start stay as the log has them, before all others.
    rows = np.flatnonzero(np.isnan(columns["elapsed_ns"]))
    open_rows: list[int] = rows[np.argsort(columns["start_ns"][rows], kind="stable")].tolist()
    if len(open_rows) == 0:
        return None
    mismatch = find_mismatch(columns)
    # Before all other rules: ranks that are a call apart also seem to wait for each other.
    if mismatch is not None and mismatch.is_open:
        return _mismatched(mismatch, columns)
    columns = _numbered(columns)
    standing = _Standing(columns, open_rows, topology, frozenset(trusted))
    stopped = standing.stopped()
    missing = standing.missing_everywhere(loses_rows=bool(lossy))
    if any(standing.have_all_entered(standing.head[rank]) for rank in stopped):
        missing -= set(lossy)
    if missing:
        # Once for each operation, of which thousands of ranks may have a row
        late = {one for one in standing.inside if not missing.isdisjoint(standing.missing(one))}
        behind = [row for row in open_rows if _operation(columns, row) in late]
        return _hang(missing, columns, behind or open_rows, standing, has_arrived=False)
    is_shared = not stopped
    if is_shared:
        stopped = standing.last_in_line()
        owing = standing.owing(stopped)
        if owing:
            waiting = [row for rank, row in standing.head_rows.items() if rank in stopped - owing]
            return _hang(owing, columns, waiting, standing, has_arrived=False)
        circle = standing.circle(stopped) if not set(lossy) & stopped else set()
        if circle:
            found = _hang(set(), columns, [standing.head_rows[rank] for rank in sorted(circle)], standing,
                          has_arrived=True, is_shared=True)  # fmt: skip
            return found._replace(circle=tuple(standing.place(rank) for rank in sorted(circle)), sequence=None)
    if not stopped:
        return _silence(columns, standing)
    heads = [row for rank, row in standing.head_rows.items() if rank in stopped]
    found = _hang(stopped, columns, heads, standing, has_arrived=True, is_shared=is_shared)
    places = tuple(standing.place(rank) for rank in found.ranks) if is_shared else ()
    return found._replace(places=places)


def lost_shares(columns: Mapping[str, Column]) -> dict[int, float]:
    """Return the share of each rank's operators that is missing, 0 to 1: sequences of one communicator have holes.

    Collectives of a communicator share one sequence, and sends and recvs have one for each peer. A rank with the
    sequences 3, 4 and 7 on one communicator ran 5 operators and logged 3: it lost two fifths.
    """
    is_p2p = np.isin(columns["operator"], (SEND, RECV))
    operator, peer = (np.where(is_p2p, columns[name], -1) for name in ("operator", "peer"))
    group, first = group_rows([columns["rank"], columns["communicator"], operator, peer])
    sequence = columns["sequence"]
    lowest, highest = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), -1)
    np.minimum.at(lowest, group, sequence)
    np.maximum.at(highest, group, sequence)
    ranks, rank = np.unique(columns["rank"][first], return_inverse=True)
    ran = np.bincount(rank, highest - lowest + 1)
    logged = np.bincount(rank, np.bincount(group, minlength=len(first)))
    return dict(zip(ranks.tolist(), np.maximum(1 - logged / ran, 0.0).tolist(), strict=True))


class _Standing:
    """Where each rank stands.

    `columns`, `topology`, `trusted`: as for `find_hang`. `open_rows`: rows of operators that never ended, of each
    rank the oldest first.
    """

    def __init__(
        self, columns: Mapping[str, Column], open_rows: list[int], topology: Topology, trusted: frozenset[int]
    ) -> None:
        self._columns, self._topology, self._trusted = columns, topology, trusted
        self.inside = {_operation(columns, row) for row in open_rows}
        self._arrived = _arrivals(columns, self.inside)
        # Each is asked for by all ranks that stand in an operation, and may hold as many: found once.
        self._absent = {one: self._members(one) - self._arrived[one].keys() for one in self.inside}
        self._missing = {one: absent & trusted for one, absent in self._absent.items()}
        self.head_rows: dict[int, int] = {}
        for row in open_rows:
            rank = int(columns["rank"][row])
            # The oldest row first: later ones of the rank are enqueued behind it, unless they began with it.
            if rank not in self.head_rows or self._is_held_up_instead(row, self.head_rows[rank]):
                self.head_rows[rank] = row
        self.head = {rank: _operation(columns, row) for rank, row in self.head_rows.items()}

    def _is_held_up_instead(self, row: int, head: int) -> bool:
        """Whether the other end holds up a row, and not `head`, which began in one batch with it.

        A batch of sends and recvs ends as one: a send that was received stays open beside a recv that waits.
        """
        columns, p2p = self._columns, (SEND, RECV)
        is_batch = columns["start_ns"][row] == columns["start_ns"][head] != UNKNOWN
        if not is_batch or columns["operator"][row] not in p2p or columns["operator"][head] not in p2p:
            return False
        return self._is_held_up(_operation(columns, row)) and not self._is_held_up(_operation(columns, head))

    def _is_held_up(self, one: Operation) -> bool:
        return bool(self._absent[one]) or not any(self._arrived[one].values())

    def missing(self, one: Operation) -> frozenset[int]:
        """Trusted ranks that take part in an operation and never entered it."""
        return self._missing[one]

    def missing_everywhere(self, *, loses_rows: bool) -> set[int]:
        """Return the ranks that are missing from an operation and wait in none.

        Of hundreds of ranks that lose a row in a thousand one or two lose their last one, and nothing shows the
        loss. So in a job that loses rows, a rank that is missing only where somebody else is known to stand before
        the operation is not accused, unless there is nobody else.

        `loses_rows`: whether any rank of the job has lost rows.
        """
        nowhere = {one: self._missing[one] - self.head.keys() for one in self.inside}
        needed = set[int]().union(*(ranks for one, ranks in nowhere.items() if not self._has_somebody_before(one)))
        return needed if needed and loses_rows else set[int]().union(*nowhere.values())

    def _has_somebody_before(self, one: Operation) -> bool:
        """Whether somebody who takes part in an operation stands elsewhere, and has not come out of it."""
        return any(self.head[rank] != one for rank in self._absent[one] & self.head.keys()) or any(
            not is_out and self.head.get(rank, one) != one for rank, is_out in self._arrived[one].items()
        )

    def stopped(self) -> set[int]:
        """Return the ranks that stand in an operation that all have entered and others have left."""
        left = {one for one in self.inside if not self._missing[one] and any(self._arrived[one].values())}
        return {rank for rank, one in self.head.items() if one in left}

    def have_all_entered(self, one: Operation) -> bool:
        """Whether an operation has a row of everybody who takes part."""
        return not self._absent[one]

    def have_all_stopped(self) -> bool:
        """Whether each trusted rank stands in an operation."""
        return self._trusted <= self.head.keys()

    def last_in_line(self) -> set[int]:
        """Return the ranks at which all chains of waiting end; none that may wait for a rank that logs nothing."""
        chains = self._chains()
        ends = [group for group in last_groups(chains) if _UNTOLD not in group]
        circles = {node for group in ends if len(group) > 1 for node in group if isinstance(node, int)}
        held_up_by_nobody = {node for group in ends if len(group) == 1 for node in group}
        if not circles and held_up_by_nobody <= self._apart(chains) and self.kept_by_silent_ranks() is not None:
            return set()
        return circles | {rank for rank, one in self.head.items() if one in held_up_by_nobody}

    def kept_by_silent_ranks(self) -> Operation | None:
        """Return the operation at which all known chains of waiting end, if none but silent ranks hold it up."""
        chains = self._chains()
        apart = self._apart(chains)
        ends = last_groups({node: waits_for - {_UNTOLD} for node, waits_for in chains.items()
                            if node not in apart and apart.isdisjoint(waits_for)})  # fmt: skip
        # Whoever has no row of an operation, and stands nowhere, must log nothing at all.
        logged = self._topology.places.keys() - self._topology.unlogged
        is_clear = len(ends) == 1 and all(logged.isdisjoint(self.silent(one)) for one in self.inside)
        # Chains that end at several places, or in a circle, accuse nobody.
        (end,) = ends[0] if is_clear and len(ends[0]) == 1 else (None,)
        return end if isinstance(end, tuple) and self.silent(end) else None

    def silent(self, one: Operation) -> set[int]:
        """Return who takes part in an operation, has no row of it and stands nowhere else."""
        return set(self._absent[one] - self.head.keys())

    def _chains(self) -> dict[int | Operation, set[int | Operation]]:
        """Return who waits for whom: a rank for its operation, an operation for those that keep it from ending."""
        edges: dict[int | Operation, set[int | Operation]] = {}
        for rank, one in self.head.items():
            edges[rank] = {one}
            if one in edges:
                continue
            # Who keeps an operation from ending: who has not entered it, or stands somewhere before it
            absent = self._absent[one]
            behind = {
                rank for rank, is_out in self._arrived[one].items() if not is_out and self.head.get(rank, one) != one
            }
            known = {rank for rank in absent if rank in self._trusted and rank in self.head}
            edges[one] = {*behind, *known, *([_UNTOLD] if absent - known else [])}
        return edges

    def _apart(self, chains: Mapping[int | Operation, set[int | Operation]]) -> set[Operation]:
        """Return collectives that all who are known have entered, and for whose ranks nobody waits.

        A rank that others are seen to miss explains more: the reason of these is not told, or begins with that rank.
        """
        waited_for = set[int | Operation]().union(
            *(ends for node, ends in chains.items() if not isinstance(node, int))
        )
        awaited = {one for rank, one in self.head.items() if rank in waited_for}
        return {one for one in self.head.values() if one[2] < 0 and not self._absent[one] and one not in awaited}

    def owing(self, circle: Collection[int]) -> set[int]:
        """Return which of two ranks that wait for each other's message owes the other one an answer; else nobody."""
        # A lost row would miscount the messages between the two.
        if len(circle) != 2 or not self._trusted.issuperset(circle):
            return set()
        one, two = sorted(circle)
        if {self.head[one][2:], self.head[two][2:]} != {(one, two), (two, one)}:
            return set()
        if any(self._columns["operator"][self.head_rows[rank]] != RECV for rank in circle):
            return set()
        more = {one: self._unanswered(one, two), two: self._unanswered(two, one)}
        return {rank for rank, messages in more.items() if messages > 0}

    def _unanswered(self, rank: int, peer: int) -> int:
        """Return how many messages more a rank has got from another one than it sent to it."""
        columns = self._columns
        own = (columns["rank"] == rank) & (columns["peer"] == peer)
        has_got = own & (columns["operator"] == RECV) & np.isfinite(columns["elapsed_ns"])
        return int(has_got.sum()) - int((own & (columns["operator"] == SEND)).sum())

    def circle(self, ranks: Collection[int]) -> set[int]:
        """Return those of some ranks that stand in different operations, each waiting for another one of them.

        Trusted ones alone: where a row is missing, a circle may be none.
        """
        ends = [group for group in last_groups(self._chains()) if len(group) > 1 and _UNTOLD not in group]
        found = {node for group in ends for node in group if isinstance(node, int) and node in ranks}
        return found if found <= self._trusted else set()

    def place(self, rank: int) -> Standing:
        """Return where a rank stands."""
        row = self.head_rows[rank]
        return Standing(
            *(int(self._columns[name][row]) for name in ("rank", "operator", "communicator", "said", "peer"))
        )

    def _members(self, one: Operation) -> frozenset[int]:
        communicator, _, source, destination = one
        return frozenset(self._topology.members.get(communicator, ()) if source < 0 else (source, destination))


def _mismatched(mismatch: Mismatch, columns: Mapping[str, Column]) -> Hang:
    inside = {int(rank) for rank in columns["rank"][np.isnan(columns["elapsed_ns"])]}
    odd, first = mismatch.odd, mismatch.sides[0]
    return Hang(odd, len(inside - set(odd)), mismatch.communicator, first.operator, mismatch.start_ns,
                has_arrived=True, sequence=mismatch.sequence, mismatch=mismatch)  # fmt: skip


def _numbered(columns: Mapping[str, Column]) -> Mapping[str, Column]:
    """Put calls of an unknown operator in one order with the others; ``said``: their numbers as they were logged."""
    said = columns["sequence"]
    is_untold = (said >= UNTOLD_CALLS.start) & (said < UNTOLD_CALLS.stop)
    return {**columns, "sequence": np.where(is_untold, said - UNTOLD_CALLS.start, said), "said": said}


def _operation(columns: Mapping[str, Column], row: int) -> Operation:
    rank, peer, operator = (int(columns[name][row]) for name in ("rank", "peer", "operator"))
    ends = (rank, peer) if operator == SEND else (peer, rank) if operator == RECV else (-1, -1)
    return int(columns["communicator"][row]), int(columns["sequence"][row]), *ends


def _arrivals(columns: Mapping[str, Column], wanted: Collection[Operation]) -> dict[Operation, dict[int, bool]]:
    """For each of these operations: the ranks that entered it, and whether they came out.

    Who has a later collective on the same communicator, and none of this number, has left this one behind: logs are
    cut at their beginning, and a communicator's collectives run in order.
    """
    arrived: dict[Operation, dict[int, bool]] = {one: {} for one in wanted}
    sequences = np.array(sorted({one[1] for one in wanted}))
    for row in np.flatnonzero(np.isin(columns["sequence"], sequences)).tolist():
        one = _operation(columns, row)
        if one in arrived:
            arrived[one][int(columns["rank"][row])] = bool(np.isfinite(columns["elapsed_ns"][row]))
    newest = _newest_collectives(columns)
    for one in wanted:
        for rank, sequence in newest.get(one[0], {}).items() if one[2] < 0 else ():
            # `setdefault`: an own row of the operation, which shows whether the rank came out, counts more.
            if sequence > one[1]:
                arrived[one].setdefault(rank, True)
    return arrived


def _newest_collectives(columns: Mapping[str, Column]) -> dict[int, dict[int, int]]:
    """For each communicator: the highest sequence of a collective that each rank has."""
    rows = np.flatnonzero(~np.isin(columns["operator"], (SEND, RECV)))
    communicator, rank, sequence = (columns[name][rows] for name in ("communicator", "rank", "sequence"))
    newest: dict[int, dict[int, int]] = {}
    if len(rows):
        group, first = group_rows([communicator, rank])
        highest = np.full(len(first), -1)
        np.maximum.at(highest, group, sequence)
        for c, r, s in zip(communicator[first].tolist(), rank[first].tolist(), highest.tolist(), strict=True):
            newest.setdefault(c, {})[r] = s
    return newest


def _silence(columns: Mapping[str, Column], standing: _Standing) -> Hang | None:
    """Describe a hang in which all others wait for silent ranks, or each trusted rank at least stands; else None."""
    one = standing.kept_by_silent_ranks()
    if one is None:
        if not standing.have_all_stopped():
            return None
        return _hang(set(), columns, list(standing.head_rows.values()), standing, has_arrived=False)
    silent = standing.silent(one)
    rows = [row for row in standing.head_rows.values() if _operation(columns, row) == one]
    named = silent if len(silent) <= _MOST_SILENT else set()
    return _hang(named, columns, rows, standing, has_arrived=False)._replace(silent=len(silent))


def _hang(
    accused: set[int],
    columns: Mapping[str, Column],
    rows: list[int],
    standing: _Standing,
    *,
    has_arrived: bool,
    is_shared: bool = False,
) -> Hang:
    """Describe a hang by the operator that is most frequent among `rows`."""
    pairs = [(int(columns["communicator"][row]), int(columns["operator"][row])) for row in rows]
    count = Counter(pairs)
    communicator, operator = max(sorted(count), key=count.__getitem__)
    starts = columns["start_ns"][np.isnan(columns["elapsed_ns"])]
    known = starts[starts != UNKNOWN]
    since_ns = int(known.min()) if len(known) else None
    waiting = len(standing.head.keys() - accused)
    sequences = [
        int(columns["said"][row])
        for row, pair in zip(rows, pairs, strict=True)
        if pair == (communicator, operator) and operator not in (SEND, RECV)
    ]
    sequence = min(sequences, key=number_of, default=None)
    heads = [standing.place(rank) for rank in sorted(standing.head)]
    ahead = max((one for one in heads if one.communicator == communicator and one.rank not in accused),
                key=lambda one: number_of(one.sequence), default=None)  # fmt: skip
    # A rank that is not ahead explains nothing.
    if ahead is None or sequence is None or number_of(ahead.sequence) <= number_of(sequence):
        ahead = None
    return Hang(tuple(sorted(accused)), waiting, communicator, operator, since_ns, has_arrived, is_shared,
                sequence=sequence, ahead=ahead)  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Who waits for whom: the ends of all chains of waiting, in a graph of any size and with cycles.


Node = TypeVar("Node", bound=Hashable)


def last_groups(edges: Mapping[Node, Iterable[Node]]) -> list[set[Node]]:
    """Find the groups of nodes at which every walk along the edges ends.

    A group is one node without an edge to others, or several that wait for each other in a circle: the strongly
    connected components without a way out (Tarjan's algorithm, SIAM J. Comput. 1972, without recursion).

    `edges`: from each node to those that it waits for; nodes without edges need not have a key.

    >>> last_groups({1: [2], 2: [3], 4: [2], 5: [6], 6: [5]})
    [{3}, {5, 6}]
    """
    group_of: dict[Node, int] = {}
    groups: list[set[Node]] = []
    for start in edges:
        if start not in group_of:
            _walk(start, lambda node: edges.get(node, ()), group_of, groups)
    has_way_out = {group_of[a] for a, ends in edges.items() for b in ends if group_of[a] != group_of[b]}
    return [group for at, group in enumerate(groups) if at not in has_way_out]


def _walk(
    start: Node, ends_of: Callable[[Node], Iterable[Node]], group_of: dict[Node, int], groups: list[set[Node]]
) -> None:
    order: dict[Node, int] = {start: 0}
    lowest = {start: 0}
    path, open_nodes = [(start, iter(ends_of(start)))], [start]
    while path:
        node, ends = path[-1]
        for end in ends:
            # A finished group has no way back to here, so it is another one.
            if end in group_of:
                continue
            if end not in order:
                order[end] = lowest[end] = len(order)
                open_nodes.append(end)
                path.append((end, iter(ends_of(end))))
                break
            lowest[node] = min(lowest[node], order[end])
        else:
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            # Nothing behind this node leads further back: it and all that were opened since are one group.
            if lowest[node] == order[node]:
                at = open_nodes.index(node)
                group = set(open_nodes[at:])
                del open_nodes[at:]
                group_of.update(dict.fromkeys(group, len(groups)))
                groups.append(group)
