"""Stacks and functions of an incident's ranks, as agents found them in their processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from irregulars.messages.device_events import ONE_LOOK_NS
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import LOOKS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_SEEN: Final = """
SELECT rank, host, kind, toUnixTimestamp64Nano(reported_at) AS time_ns, device, code, detail
FROM events FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND kind IN {kinds:Array(String)}
    AND reported_at >= fromUnixTimestamp64Nano({begin:Int64}, 'UTC')
    AND reported_at <= fromUnixTimestamp64Nano({end:Int64}, 'UTC')
ORDER BY rank NOT IN {accused:Array(UInt32)}, time_ns DESC
LIMIT 400 BY rank, host, kind
LIMIT 5000"""


@dataclass(frozen=True, slots=True)
class Look:
    """The newest look into one rank's process."""

    rank: int
    host: str
    is_accused: bool
    at_s: float
    threads: tuple[tuple[str, tuple[str, ...]], ...]  # name of each, and its lines


def looks_of(verdict: Verdict, rows: Iterable[Sequence[Any]]) -> list[Look]:
    """Return the newest look at each rank, those at accused ranks first. Pure.

    `rows`: as `_SEEN` answers: rank, host, kind, ns since the epoch, thread, code, detail.
    """
    accused = verdict.suspects[0].ranks if verdict.suspects else ()
    found = []
    for (rank, host, kind), own in groupby(sorted(rows, key=lambda row: (row[:3], row[3])), lambda row: row[:3]):
        told = list(own)
        newest = [row for row in told if row[3] > told[-1][3] - ONE_LOOK_NS]
        threads: dict[str, list[str]] = {}
        for *_, thread, code, detail in newest:
            share = f"{code / 10:.0f} % " if kind == "function" and code is not None else ""
            threads.setdefault(thread, []).append(share + detail)
        lines = tuple((thread, tuple(own_lines)) for thread, own_lines in threads.items())
        found.append(Look(rank, host, rank in accused, newest[0][3] / 1e9, lines))
    return sorted(found, key=lambda one: (not one.is_accused, one.rank))


def read_looks(client: Client, verdict: Verdict, begin_ns: int, end_ns: int) -> list[Look]:
    """Return the looks into processes of a verdict's job that were taken in a span of time."""
    values = {
        "job": verdict.job, "attempt": verdict.attempt, "kinds": list(LOOKS), "begin": begin_ns, "end": end_ns,
        "accused": list(verdict.suspects[0].ranks[:1000]) if verdict.suspects else [],
    }  # fmt: skip
    return looks_of(verdict, client.query(_SEEN, parameters=values).result_rows)
