"""Who waited for whom in one iteration, from the symptom to the cause, by the rows of table ``operators``.

The rows carry what the judge found: ``wait_ns`` (until the last partner came), ``transfer_ns`` (from then on) and
``gap_ns`` (the rank's own work before). The chain goes from a row to the partner that waited least, and from
there to the row before on the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Column, Floats, Ints
from irregulars.infra.showing.found import median_of
from irregulars.messages.judgements import Suspect
from irregulars.messages.records import UNKNOWN

_WORKERS: Final = ("gpu", "host", "stage")
_ROUNDED_NS: Final = 2_000  # an operator may end so much behind the next one's start: logs round both
_HANDOVERS_SHOWN: Final = 3


class Handover(NamedTuple):
    """Ranks that waited for one that came last.

    Parameters
    ----------
    waiting
        How many waited, in this operator.
    longest_rank, waited_ns
        Who of them waited longest, and how long.
    last_rank
        For whom they waited.
    through_rank
        The rank through which the chain goes here: it waited too, or it is the last one itself.
    """

    waiting: int
    longest_rank: int
    waited_ns: float
    last_rank: int
    operator: str
    communicator: str
    through_rank: int


class Piece(NamedTuple):
    """One piece of the chain, in which time passed without anybody being waited for.

    Parameters
    ----------
    is_work
        Whether `rank` worked; otherwise bytes moved, with all partners there.
    peer
        The other end of a send or recv.
    usual_ns, is_by_others
        `Expected`.
    """

    is_work: bool
    rank: int
    peer: int | None
    operator: str
    communicator: str
    elapsed_ns: float
    usual_ns: float
    is_by_others: bool

    @property
    def excess_ns(self) -> float:
        """How much longer than usual it took; all of it, where the usual is not known."""
        return self.elapsed_ns - (0.0 if math.isnan(self.usual_ns) else self.usual_ns)


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of one iteration.

    Parameters
    ----------
    handovers
        From the symptom to the cause, at most `_HANDOVERS_SHOWN` of them, those that waited longest.
    left_out
        How many others there were on the way.
    cause
        The piece of the accused device that took longest beyond usual; without one the piece of anybody.
    is_accused
        Whether `cause` is the accused device's.
    accused_members
        Where that is the transfer of a group: the accused device's ranks that are in it.
    """

    iteration: int
    handovers: tuple[Handover, ...]
    left_out: int
    cause: Piece
    is_accused: bool
    accused_members: tuple[int, ...] = ()


def find_chain(
    operators: Mapping[str, Column],
    candidates: Sequence[int],
    usual: Usual,
    suspect: Suspect | None,
    members: Mapping[str, Sequence[int]],
    worth_ns: float = 0.0,
) -> Chain | None:
    """Return the chain of the first candidate that leads to the suspect, else that of the first with operators.

    Parameters
    ----------
    operators
        Columns `found.OPERATOR_COLUMNS`.
    candidates
        Irregular iterations, best first.
    members
        Ranks of communicators.
    worth_ns
        Shorter waits are not worth telling.
    """
    first = None
    for number in candidates:
        chain = _chain_of(operators, number, usual, suspect, members, worth_ns)
        if chain is not None and chain.is_accused:
            return chain
        first = first or chain
    return first


def _chain_of(
    operators: Mapping[str, Column],
    iteration: int,
    usual: Usual,
    suspect: Suspect | None,
    members: Mapping[str, Sequence[int]],
    worth_ns: float,
) -> Chain | None:
    steps = list(_Rows(operators, iteration, usual).steps())
    if not steps:
        return None
    pieces = [(place, piece) for place, (_, own) in enumerate(steps) for piece in own]
    accused = [one for one in pieces if suspect is not None and is_on(one[1], suspect, members)]
    place, cause = max(accused or pieces, key=lambda one: one[1].excess_ns)
    # What passes before the last partner came belongs to the partner, whose work comes behind its hand-over.
    passed = [one for one, _ in steps[: place + (1 if cause.is_work else 0)] if one is not None]
    passed = [one for one in passed if one.waited_ns > worth_ns]
    shown = sorted(range(len(passed)), key=lambda at: -passed[at].waited_ns)[:_HANDOVERS_SHOWN]
    handovers = tuple(passed[at] for at in sorted(shown))
    is_accused = bool(accused) and cause.excess_ns > worth_ns
    is_of_group = is_accused and not cause.is_work and cause.peer is None
    own = sorted(_ends(cause, members) & set(suspect.ranks)) if suspect is not None and is_of_group else ()
    return Chain(iteration, handovers, len(passed) - len(handovers), cause, is_accused, tuple(own))


def is_on(piece: Piece, suspect: Suspect, members: Mapping[str, Sequence[int]]) -> bool:
    """Tell whether a piece may have been delayed by a device: work of its ranks, or a transfer that touches it."""
    if piece.is_work or suspect.device in _WORKERS:
        return piece.is_work and suspect.device in _WORKERS and piece.rank in suspect.ranks
    ends = _ends(piece, members)
    if suspect.device == "link":
        return set(suspect.ranks) <= ends
    return bool(ends & set(suspect.ranks))


def _ends(piece: Piece, members: Mapping[str, Sequence[int]]) -> set[int]:
    if piece.peer is not None:
        return {piece.rank, piece.peer}
    return {piece.rank, *members.get(piece.communicator, ())}


class Expected(NamedTuple):
    """A usual time, ns (NaN: not known), and whether others in the same iterations told it instead of the past."""

    elapsed_ns: float
    is_by_others: bool


_Key = tuple[object, ...]


class Usual:
    """What is usual of gaps and transfers: medians of the same operator in regular iterations.

    Where no regular iterations are stored, transfers are held against those of other ranks in the same iterations: of
    the same operator and size, and not touched by the suspect.

    Parameters
    ----------
    regular, irregular
        Iterations that say what is usual, and those with the cause.
    accused
        Ranks of the first suspect.
    """

    def __init__(
        self,
        operators: Mapping[str, Column],
        regular: Collection[int],
        irregular: Collection[int],
        accused: Collection[int],
        members: Mapping[str, Sequence[int]],
    ) -> None:
        self._past: dict[_Key, list[tuple[float, float]]] = {}
        for number in regular:
            rows = np.flatnonzero(operators["iteration"] == number)
            for key, row in zip(_places(operators, rows), rows.tolist(), strict=True):
                pair = (float(operators["gap_ns"][row]), float(operators["transfer_ns"][row]))
                self._past.setdefault(key, []).append(pair)
        self._others: dict[_Key, list[float]] = {}
        if not self._past:
            self._gather_others(operators, irregular, set(accused), members)

    def _gather_others(
        self,
        operators: Mapping[str, Column],
        irregular: Collection[int],
        accused: set[int],
        members: Mapping[str, Sequence[int]],
    ) -> None:
        touched = {name for name, ranks in members.items() if accused & set(ranks)}
        for row in np.flatnonzero(np.isin(operators["iteration"], list(irregular))).tolist():
            rank, peer = operators["rank"][row].item(), operators["peer"][row].item()
            is_touched = (
                operators["communicator"][row] in touched if peer == UNKNOWN else bool({rank, peer} & accused)
            )
            if not is_touched:
                self._others.setdefault(_alike(operators, row), []).append(float(operators["transfer_ns"][row]))

    def gap(self, key: _Key) -> Expected:
        """Return the usual gap before an operator at a place."""
        return Expected(median_of([gap for gap, _ in self._past.get(key, [])]), False)

    def transfer(self, key: _Key, alike: _Key) -> Expected:
        """Return the usual transfer of an operator at a place, else that of those alike elsewhere."""
        if self._past:
            return Expected(median_of([transfer for _, transfer in self._past.get(key, [])]), False)
        return Expected(median_of(self._others.get(alike, [])), True)


def _alike(operators: Mapping[str, Column], row: int) -> _Key:
    return operators["operator"][row], operators["size_bytes"][row].item()


def _places(operators: Mapping[str, Column], rows: Ints) -> list[_Key]:
    """Name each row by its rank, communicator, operator, peer, and how many alike came before it."""
    order = np.argsort(operators["sequence"][rows], kind="stable")
    counts: dict[_Key, int] = {}
    keys: list[_Key] = [()] * len(rows)
    columns = [operators[name][rows][order].tolist() for name in ("rank", "communicator", "operator", "peer")]
    for at, *named in zip(order.tolist(), *columns, strict=True):
        name = tuple(named)
        keys[at] = (*name, counts.setdefault(name, 0))
        counts[name] += 1
    return keys


class _Rows:
    """The rows of one iteration, and how to go back in time on them."""

    def __init__(self, operators: Mapping[str, Column], iteration: int, usual: Usual) -> None:
        kept = np.flatnonzero((operators["iteration"] == iteration) & np.isfinite(operators["wait_ns"])
                              & (operators["start_ns"] != UNKNOWN))  # fmt: skip
        self._columns = {name: column[kept] for name, column in operators.items()}
        self._places = _places(operators, kept)
        self._usual = usual
        self._start: Ints = self._columns["start_ns"].astype(np.int64)
        self._end: Ints = self._start + np.nan_to_num(self._columns["elapsed_ns"].astype(np.float64)).astype(np.int64)
        self._wait: Floats = self._columns["wait_ns"].astype(np.float64)
        self._partners = self._group()
        self._of_rank = {
            rank: np.flatnonzero(self._columns["rank"] == rank) for rank in np.unique(self._columns["rank"]).tolist()
        }

    def _group(self) -> list[list[int]]:
        """Return for each row all rows of its collective, or both of its message."""
        groups: dict[_Key, list[int]] = {}
        names = ("communicator", "sequence", "rank", "peer", "operator")
        own: list[list[int]] = []
        for row, (communicator, sequence, rank, peer, operator) in enumerate(
            zip(*(self._columns[name].tolist() for name in names), strict=True)
        ):
            ends = () if peer == UNKNOWN else (rank, peer) if operator == "send" else (peer, rank)
            group = groups.setdefault((communicator, sequence, *ends), [])
            group.append(row)
            own.append(group)
        return own

    def steps(self) -> Iterator[tuple[Handover | None, tuple[Piece, ...]]]:
        """Yield hand-overs and pieces from the end of the iteration back to its begin."""
        row = self._last_row()
        for _ in range(len(self._start)):  # each step goes back in time
            if row < 0:
                return
            last = min(self._partners[row], key=self._wait.item)
            yield self._handover(row, last), (self._transfer(row), self._work(last))
            row = self._before(last)

    def _last_row(self) -> int:
        """Return the last row of the rank whose iteration was longest, by its own clock."""
        longest = max(self._of_rank.values(), key=self._duration, default=None)
        return -1 if longest is None else int(longest[np.argmax(self._end[longest])])

    def _duration(self, rows: Ints) -> float:
        first = rows[np.argmin(self._start[rows])]
        return float(self._end[rows].max() - self._start[first] + np.nan_to_num(self._columns["gap_ns"][first]))

    def _handover(self, row: int, last: int) -> Handover | None:
        waiting = [one for one in self._partners[row] if one != last and self._wait[one] > self._wait[last]]
        if not waiting:
            return None
        longest = max(waiting, key=self._wait.item)
        rank, waited_ns = self._columns["rank"], float(self._wait[longest])
        return Handover(
            len(waiting), int(rank[longest]), waited_ns, int(rank[last]), *self._name(row), int(rank[row])
        )

    def _name(self, row: int) -> tuple[str, str]:
        return str(self._columns["operator"][row]), str(self._columns["communicator"][row])

    def _transfer(self, row: int) -> Piece:
        usual = self._usual.transfer(self._places[row], _alike(self._columns, row))
        return self._piece(False, row, float(self._columns["transfer_ns"][row]), usual)

    def _work(self, row: int) -> Piece:
        return self._piece(True, row, float(self._columns["gap_ns"][row]), self._usual.gap(self._places[row]))

    def _piece(self, is_work: bool, row: int, elapsed_ns: float, usual: Expected) -> Piece:
        peer = self._columns["peer"][row].item()
        return Piece(is_work, int(self._columns["rank"][row]), None if peer == UNKNOWN else int(peer),
                     *self._name(row), elapsed_ns, *usual)  # fmt: skip

    def _before(self, row: int) -> int:
        """Return the row of the same rank that had ended last when this one began; -1 at the begin."""
        own = self._of_rank[int(self._columns["rank"][row])]
        own = own[(self._end[own] <= self._start[row] + _ROUNDED_NS) & (self._start[own] < self._start[row])]
        return int(own[np.argmax(self._end[own])]) if len(own) else -1


class Way(NamedTuple):
    """Transfers of one rank to or from another one, or on a communicator: medians, and how many in an iteration."""

    name: str
    now_ns: float
    usual_ns: float
    is_by_others: bool
    times: float

    @property
    def excess_ns(self) -> float:
        """How much longer than usual they took in an iteration, together."""
        return self.times * (self.now_ns - self.usual_ns)


def find_ways(operators: Mapping[str, Column], irregular: Collection[int], usual: Usual, rank: int) -> list[Way]:
    """Return the ways on which a rank sends or receives, the slowest against its usual time first.

    Messages are told by their recvs: a send may be over before the receiver comes.
    """
    ways: dict[str, list[tuple[float, Expected]]] = {}
    read = 0
    for number in irregular:
        rows = np.flatnonzero(operators["iteration"] == number)
        read += bool(len(rows))
        for key, row in zip(_places(operators, rows), rows.tolist(), strict=True):
            if _is_of(operators, row, rank):
                pair = (float(operators["transfer_ns"][row]), usual.transfer(key, _alike(operators, row)))
                ways.setdefault(_way(operators, row, rank), []).append(pair)
    found = [_medians(name, pairs, read) for name, pairs in ways.items()]
    known = [one for one in found if math.isfinite(one.now_ns) and one.usual_ns > 0]
    return sorted(known, key=lambda one: -one.now_ns / one.usual_ns)


def _medians(name: str, pairs: Sequence[tuple[float, Expected]], read: int) -> Way:
    now_ns = median_of([elapsed_ns for elapsed_ns, _ in pairs])
    usual_ns = median_of([expected.elapsed_ns for _, expected in pairs])
    return Way(name, now_ns, usual_ns, pairs[0][1].is_by_others, len(pairs) / read)


def _is_of(operators: Mapping[str, Column], row: int, rank: int) -> bool:
    is_own = operators["rank"][row] == rank
    if operators["operator"][row] == "recv":
        return bool(is_own or operators["peer"][row] == rank)
    return bool(is_own and operators["operator"][row] != "send")


def _way(operators: Mapping[str, Column], row: int, rank: int) -> str:
    if operators["operator"][row] != "recv":
        return f"on {operators['communicator'][row]}"
    receiver = int(operators["rank"][row])
    return f"from rank {int(operators['peer'][row])}" if receiver == rank else f"to rank {receiver}"
