"""Rows of maps, a column an iteration: of transfers one for each way that bytes took, of own time one for each cause.

A way is a communicator, or the way from one rank to another on one. Ways of communicators of one kind carry the same,
so each is held against the median of those that no accused device is in: of a switch, half of all may be slow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from irregulars.grouping import grouped
from irregulars.messages.announcements import Announcement
from irregulars.messages.judgements import Columns, Suspect
from irregulars.messages.records import UNKNOWN
from irregulars.words import name_kind

TRANSFER_KINDS: Final = ("slow_nic", "slow_link", "slow_communicator")  # kinds of verdicts that are about transfers
SHOWN: Final = 40  # iterations of a map: the newest in which the cause was seen
_ROWS: Final = 24
_RANKS: Final = 32  # of a matrix: of more, those of the slowest transfers

# How long each way took in each iteration, all partners being there. A recv has both ends, so sends are left out.
TRANSFERS: Final = """
SELECT iteration, communicator, sender, receiver, toFloat64(sum(least_ns))
FROM
(
    SELECT iteration, communicator, operator, sequence, peer AS sender, if(peer IS NULL, NULL, rank) AS receiver,
        min(transfer_ns) AS least_ns
    FROM operators FINAL
    WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration IN {wanted:Array(Int64)}
        AND operator != 'send' AND transfer_ns IS NOT NULL
    GROUP BY iteration, communicator, operator, sequence, sender, receiver
)
GROUP BY iteration, communicator, sender, receiver"""

# Kind of each communicator, and which of some ranks are in it
MEMBERS: Final = """
SELECT communicator, any(kind), groupArrayIf(rank, rank IN {ranks:Array(UInt32)})
FROM jobs FINAL
ARRAY JOIN communicators AS communicator, communicator_kinds AS kind
WHERE job = {job:String} AND attempt = {attempt:Int64}
GROUP BY communicator"""

Members = Mapping[str, tuple[str, Sequence[int]]]  # of a communicator: its kind, and its ranks


# How long some ranks paused in each iteration, by cause: a row for each of these ranks
PAUSES: Final = """
SELECT cause, iteration, toFloat64(sum(elapsed_ns))
FROM pauses FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration IN {wanted:Array(Int64)}
    AND rank IN {ranks:Array(UInt32)}
GROUP BY cause, iteration, rank"""


class Way(NamedTuple):
    """A row of the map: times of one way by iteration, ns, and the median of its kind, accused ways aside."""

    name: str
    is_accused: bool
    usual_ns: float
    took_ns: Mapping[int, float]

    @property
    def ratio(self) -> float:
        """Its median time over that of its kind."""
        return float(np.median(list(self.took_ns.values()))) / self.usual_ns if self.usual_ns > 0 else 1.0


def ways_of(transfers: Iterable[Sequence[Any]], members: Members, suspect: Suspect | None) -> list[Way]:
    """Return the rows: accused ways first, the slowest against its kind first.

    Kept are kinds of which some ways are accused and others are not: a map of one colour would say nothing. Without a
    suspect all kinds with several ways are.

    `transfers`: as `TRANSFERS` answers; `members`: with the suspect's ranks at least.
    """
    times: defaultdict[tuple[str, bool], defaultdict[tuple[Any, ...], dict[int, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for iteration, communicator, sender, receiver, took_ns in transfers:
        kind = members.get(communicator, ("unknown", ()))[0], sender is None
        times[kind][communicator, sender, receiver][int(iteration)] = float(took_ns)
    found: list[Way] = []
    for own in times.values():
        accused = [_is_through(way, members, suspect) for way in own]
        if len(own) > 1 and (suspect is None or len(set(accused)) > 1):
            innocent = [took for took, is_own in zip(own.values(), accused, strict=True) if not is_own]
            usual_ns = float(np.median([took_ns for took in innocent for took_ns in took.values()]))
            found += [Way(way[0] if way[1] is None else f"rank {way[1]} to {way[2]}", is_own, usual_ns, took)
                      for (way, took), is_own in zip(own.items(), accused, strict=True)]  # fmt: skip
    found.sort(key=lambda way: (-way.ratio, way.name))
    mine, others = ([way for way in found if way.is_accused is own] for own in (True, False))
    # Half of the rows are for accused ways, and more where the others leave some.
    mine = mine[: max(_ROWS // 2, _ROWS - len(others))]
    return [*mine, *others[: _ROWS - len(mine)]]


def matrix_of(cells: Iterable[Mapping[str, Any]], *, is_rate: bool) -> list[Way]:
    """Return a row for each sender, by receiver: the latency of a transfer, or the time of a gigabyte at their rate.

    `cells`: as the question `transfer_matrix` answers; usual is the median of all.
    """
    took: dict[tuple[int, int], float] = {}
    for one in cells:
        ns = 1e9 / (one["median_gbytes_per_s"] or math.inf) if is_rate else 1e6 * one["latency_ms"]
        took |= {(one["sender"], one["receiver"]): ns} if ns > 0 else {}
    if not took:
        return []
    slowest = sorted(took, key=lambda ends: -took[ends])
    shown = set([*dict.fromkeys(chain.from_iterable(slowest))][:_RANKS])
    rows = grouped((sender, (receiver, ns)) for (sender, receiver), ns in took.items() if {sender, receiver} <= shown)
    usual_ns = float(np.median([*took.values()]))
    return [Way(f"rank {sender}", False, usual_ns, dict(own)) for sender, own in sorted(rows.items())]


def communicators_of(slices: Iterable[Mapping[str, Any]]) -> list[Way]:
    """Return a row for each communicator and operator over time, the slowest against its like first.

    `slices`: as the question `slowest_communicators` answers.
    """
    found: dict[str, Way] = {}
    for one in slices:
        ns, name = 1e6 * one["median_ms"], f"{one['communicator']} {one['operator']}"
        if one["times_its_like"]:
            way = found.setdefault(name, Way(name, False, ns / one["times_its_like"], {}))
            found[name] = way._replace(took_ns={**way.took_ns, one["from_iteration"]: ns})
    return [*found.values()][:_ROWS]


def _is_through(way: tuple[Any, ...], members: Members, suspect: Suspect | None) -> bool:
    """Return whether the bytes of a way crossed a device."""
    communicator, sender, receiver = way
    if suspect is None:
        return False
    if sender is None:
        inside = set(members.get(communicator, ("unknown", ()))[1]) & set(suspect.ranks)
        # Of a link both ends must be in it, of another device one of its ranks.
        return len(inside) > suspect.traits.is_way
    if suspect.traits.is_way:
        return (sender, receiver) == (suspect.rank, suspect.peer)
    return not {sender, receiver}.isdisjoint(suspect.ranks)


def pauses_by_cause(pauses: Iterable[Sequence[Any]], wanted: Sequence[int], first: int) -> list[Way]:
    """Return a row for each cause of pauses, the one that grew most first; its usual time is that before the verdict.

    Of several ranks, the one that paused longest in an iteration counts.

    `pauses`: as `PAUSES` answers; `wanted`: iterations of the map; `first`: the first one of the verdict.
    """
    times: defaultdict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(wanted, 0.0))
    for cause, iteration, own_ns in pauses:
        times[cause][int(iteration)] = max(times[cause][int(iteration)], float(own_ns))

    def median(took: Mapping[int, float], *, is_before: bool) -> float:
        return float(np.median([ns for at, ns in took.items() if (at < first) is is_before] or [0.0]))

    rows = [Way(name_kind(cause), False, median(took, is_before=True), took) for cause, took in times.items()]
    return sorted(rows, key=lambda row: (row.usual_ns - median(row.took_ns, is_before=False), row.name))


def pauses_in(pauses: Columns, wanted: Iterable[int], ranks: Iterable[int]) -> Iterator[Sequence[Any]]:
    """Yield the answer to `PAUSES` of a recording that was just judged."""
    if not pauses:
        return
    kept = np.isin(pauses["iteration"], list(wanted)) & np.isin(pauses["rank"], list(ranks))
    table = pa.table({name: pauses[name][kept] for name in ("cause", "iteration", "rank", "elapsed_ns")})
    own = table.group_by(["cause", "iteration", "rank"]).aggregate([("elapsed_ns", "sum")])
    yield from zip(*(own[name].to_pylist() for name in ("cause", "iteration", "elapsed_ns_sum")), strict=True)


def transfers_in(operators: Columns, wanted: Iterable[int]) -> Iterator[Sequence[Any]]:
    """Yield the answer to `TRANSFERS` of a recording that was just judged with columns of operators."""
    if not operators:
        return
    kept = np.isin(operators["iteration"], list(wanted)) & np.isfinite(operators["transfer_ns"])
    kept &= operators["operator"] != "send"
    names = ("iteration", "communicator", "operator", "sequence", "peer", "rank", "transfer_ns")
    columns = {name: operators[name][kept] for name in names}
    columns["receiver"] = np.where(columns["peer"] == UNKNOWN, UNKNOWN, columns["rank"])
    way = ["iteration", "communicator", "peer", "receiver"]
    least = pa.table(columns).group_by([*way, "operator", "sequence"]).aggregate([("transfer_ns", "min")])
    took = least.group_by(way).aggregate([("transfer_ns_min", "sum")])
    for iteration, communicator, sender, receiver, took_ns in zip(*(took[name].to_pylist() for name in (
        *way, "transfer_ns_min_sum")), strict=True):  # fmt: skip
        ends = (None, None) if sender == UNKNOWN else (sender, receiver)
        yield iteration, communicator, *ends, took_ns


def members_in(announcements: Iterable[Announcement]) -> Members:
    """Return the communicators that ranks announced."""
    return {one.id: (one.kind, one.ranks) for said in announcements for one in said.communicators}
