"""Who waited for whom in one iteration, from the symptom to the cause, by the rows of table ``operators``.

The rows carry what the judge found: ``wait_ns`` (until the last partner came), ``transfer_ns`` (from then on) and
``gap_ns`` (the rank's own work before). So the chain needs no clock that two hosts share: it goes from a row to the
partner that waited least, and from there to the row before on the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Column, Floats, Ints
from irregulars.infra.showing.found import median_of
from irregulars.streams.messages.judgements import Suspect
from irregulars.streams.messages.records import UNKNOWN

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
    """

    waiting: int
    longest_rank: int
    waited_ns: float
    last_rank: int
    operator: str
    communicator: str


class Piece(NamedTuple):
    """One piece of the chain, in which time passed without anybody being waited for.

    Parameters
    ----------
    is_work
        Whether `rank` worked; otherwise bytes moved, with all partners there.
    peer
        The other end of a send or recv.
    usual_ns
        The same piece in regular iterations; NaN where none are stored.
    """

    is_work: bool
    rank: int
    peer: int | None
    operator: str
    communicator: str
    elapsed_ns: float
    usual_ns: float

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
    """

    iteration: int
    handovers: tuple[Handover, ...]
    left_out: int
    cause: Piece
    is_accused: bool


def find_chain(
    operators: Mapping[str, Column],
    candidates: Sequence[int],
    regular: Collection[int],
    suspect: Suspect | None,
    members: Mapping[str, Sequence[int]],
) -> Chain | None:
    """Return the chain of the first candidate that leads to the suspect, else that of the first with operators.

    Parameters
    ----------
    operators
        Columns `found.OPERATOR_COLUMNS`.
    candidates
        Irregular iterations, best first.
    regular
        Iterations that say what is usual.
    members
        Ranks of communicators.
    """
    found = [
        chain for number in candidates
        if (chain := _chain_of(operators, number, regular, suspect, members)) is not None
    ]  # fmt: skip
    return next((chain for chain in found if chain.is_accused), found[0] if found else None)


def _chain_of(
    operators: Mapping[str, Column],
    iteration: int,
    regular: Collection[int],
    suspect: Suspect | None,
    members: Mapping[str, Sequence[int]],
) -> Chain | None:
    rows = _Rows(operators, iteration, _Usual(operators, regular))
    steps = list(rows.steps())
    if not steps:
        return None
    pieces = [(place, piece) for place, (_, own) in enumerate(steps) for piece in own]
    accused = [one for one in pieces if suspect is not None and is_on(one[1], suspect, members)]
    place, cause = max(accused or pieces, key=lambda one: one[1].excess_ns)
    # What passes before the last partner came belongs to the partner, whose work comes behind its hand-over.
    passed = [handover for handover, _ in steps[: place + (1 if cause.is_work else 0)] if handover is not None]
    shown = sorted(range(len(passed)), key=lambda at: -passed[at].waited_ns)[:_HANDOVERS_SHOWN]
    handovers = tuple(passed[at] for at in sorted(shown))
    return Chain(iteration, handovers, len(passed) - len(handovers), cause, bool(accused) and cause.excess_ns > 0)


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


class _Usual:
    """Medians of gap and transfer in regular iterations, of the same operator at the same place."""

    def __init__(self, operators: Mapping[str, Column], regular: Collection[int]) -> None:
        self._values: dict[tuple[object, ...], list[tuple[float, float]]] = {}
        for number in regular:
            rows = np.flatnonzero(operators["iteration"] == number)
            for key, row in zip(_places(operators, rows), rows.tolist(), strict=True):
                pair = (float(operators["gap_ns"][row]), float(operators["transfer_ns"][row]))
                self._values.setdefault(key, []).append(pair)

    def of(self, key: tuple[object, ...]) -> tuple[float, float]:
        """Return usual gap and transfer; NaN where never seen."""
        seen = self._values.get(key, [])
        return median_of([gap for gap, _ in seen]), median_of([transfer for _, transfer in seen])


def _places(operators: Mapping[str, Column], rows: Ints) -> list[tuple[object, ...]]:
    """Name each row by its rank, communicator, operator, peer, and how many alike came before it."""
    order = np.argsort(operators["sequence"][rows], kind="stable")
    counts: dict[tuple[object, ...], int] = {}
    keys: list[tuple[object, ...]] = [()] * len(rows)
    columns = [operators[name][rows][order].tolist() for name in ("rank", "communicator", "operator", "peer")]
    for at, *named in zip(order.tolist(), *columns, strict=True):
        name = tuple(named)
        keys[at] = (*name, counts.setdefault(name, 0))
        counts[name] += 1
    return keys


class _Rows:
    """The rows of one iteration, and how to go back in time on them."""

    def __init__(self, operators: Mapping[str, Column], iteration: int, usual: _Usual) -> None:
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
        groups: dict[tuple[object, ...], list[int]] = {}
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
        return Handover(len(waiting), int(self._columns["rank"][longest]), float(self._wait[longest]),
                        int(self._columns["rank"][last]), *self._name(row))  # fmt: skip

    def _name(self, row: int) -> tuple[str, str]:
        return str(self._columns["operator"][row]), str(self._columns["communicator"][row])

    def _transfer(self, row: int) -> Piece:
        usual_ns = self._usual.of(self._places[row])[1]
        return self._piece(False, row, float(self._columns["transfer_ns"][row]), usual_ns)

    def _work(self, row: int) -> Piece:
        usual_ns = self._usual.of(self._places[row])[0]
        return self._piece(True, row, float(self._columns["gap_ns"][row]), usual_ns)

    def _piece(self, is_work: bool, row: int, elapsed_ns: float, usual_ns: float) -> Piece:
        peer = self._columns["peer"][row].item()
        return Piece(is_work, int(self._columns["rank"][row]), None if peer == UNKNOWN else int(peer),
                     *self._name(row), elapsed_ns, usual_ns)  # fmt: skip

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
    times: float

    @property
    def excess_ns(self) -> float:
        """How much longer than usual they took in an iteration, together."""
        return self.times * (self.now_ns - self.usual_ns)


def find_ways(
    operators: Mapping[str, Column], irregular: Collection[int], regular: Collection[int], rank: int
) -> list[Way]:
    """Return the ways on which a rank sends or receives, the slowest against its usual time first.

    Messages are told by their recvs: a send may be over before the receiver comes.
    """
    ways: dict[str, tuple[list[float], list[float]]] = {}
    is_recv = operators["operator"] == "recv"
    is_own = (operators["rank"] == rank) & (operators["operator"] != "send")
    is_own |= is_recv & (operators["peer"] == rank)
    for iterations, period in ((irregular, 0), (regular, 1)):
        for row in np.flatnonzero(is_own & np.isin(operators["iteration"], list(iterations))).tolist():
            own = ways.setdefault(_way(operators, row, rank), ([], []))
            own[period].append(float(operators["transfer_ns"][row]))
    read = max(1, len(np.intersect1d(operators["iteration"].astype(np.int64), list(irregular))))
    found = [Way(name, median_of(now), median_of(usual), len(now) / read) for name, (now, usual) in ways.items()]
    known = [one for one in found if math.isfinite(one.now_ns) and one.usual_ns > 0]
    return sorted(known, key=lambda one: -one.now_ns / one.usual_ns)


def _way(operators: Mapping[str, Column], row: int, rank: int) -> str:
    if operators["operator"][row] != "recv":
        return f"on {operators['communicator'][row]}"
    receiver = int(operators["rank"][row])
    return f"from rank {int(operators['peer'][row])}" if receiver == rank else f"to rank {receiver}"
