"""What pages ask of jobs beside the questions that ship: their newest iterations, and their attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from irregulars.infra.showing.found import BINS, Cell, Iteration

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

NEWEST: Final = 120
"""Iterations of a job's small line: a minute or two of most jobs."""

SHOWN: Final = 1_800
"""Iterations of a job's page, as the server draws it: three a bar."""

_HEAT_ITERATIONS: Final = 60

JobStart = tuple[str, int]
"""A job and its attempt."""

_NEWEST: Final = """
SELECT job, attempt, iteration, toUnixTimestamp64Nano(started_at), elapsed_ns, reference_ns, is_irregular,
    notEmpty(verdict_ids)
FROM iterations FINAL
WHERE (job, attempt) IN {starts:Array(Tuple(String, Int64))} AND phase = 'train'
ORDER BY job, attempt, iteration DESC
LIMIT {each:UInt32} BY job, attempt"""

_ATTEMPTS: Final = """
SELECT places.attempt, places.world_size, places.hosts, times.first_at, times.last_at, times.iterations,
    times.irregular, times.newest
FROM
(
    SELECT attempt, max(world_size) AS world_size, uniqExact(host) AS hosts
    FROM jobs FINAL
    WHERE job = {job:String}
    GROUP BY attempt
) AS places
LEFT JOIN
(
    SELECT attempt, toNullable(min(started_at)) AS first_at, toNullable(max(started_at)) AS last_at,
        count() AS iterations, countIf(is_irregular) AS irregular, toNullable(max(iteration)) AS newest
    FROM iterations FINAL
    WHERE job = {job:String}
    GROUP BY attempt
) AS times ON times.attempt = places.attempt
ORDER BY places.attempt DESC
LIMIT {limit:UInt32}"""

_CELLS: Final = """
SELECT iteration, intDiv(rank, {bin_ranks:UInt32}) AS bin, max(work_ns), argMax(rank, work_ns)
FROM rank_iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= {first:Int64} AND iteration < {past:Int64}
    AND work_ns IS NOT NULL
GROUP BY iteration, bin
ORDER BY iteration, bin"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job; times are None where no iteration of it is judged."""

    attempt: int
    gpus: int
    hosts: int
    first_s: float | None
    last_s: float | None
    iterations: int
    irregular: int
    newest: int | None


def newest_iterations(
    client: Client, starts: Sequence[JobStart], each: int = NEWEST
) -> Mapping[JobStart, list[Iteration]]:
    """Return the newest iterations of each job, in their order."""
    found: dict[JobStart, list[Iteration]] = defaultdict(list)
    if not starts:
        return found
    rows = client.query(_NEWEST, parameters={"starts": list(starts), "each": each}).result_rows
    for job, attempt, *values in reversed(rows):
        iteration, started_ns, elapsed_ns, reference_ns, is_irregular, has_cause = values
        found[job, attempt].append(
            Iteration(iteration, started_ns, elapsed_ns, reference_ns, is_irregular, bool(has_cause))
        )
    return found


def attempts_of(client: Client, job: str, limit: int = 50) -> list[Attempt]:
    """Return the starts of a job, the newest first."""
    rows = client.query(_ATTEMPTS, parameters={"job": job, "limit": limit}).result_rows
    return [
        Attempt(attempt, gpus, hosts, _seconds(first), _seconds(last), iterations, irregular, newest)
        for attempt, gpus, hosts, first, last, iterations, irregular, newest in rows
    ]


def cells_of(client: Client, job: str, attempt: int, around: int, gpus: int) -> tuple[list[Cell], int]:
    """Return the heat map of the iterations around one, and how many ranks share one of its rows."""
    bin_ranks = -(-gpus // BINS) or 1
    first = max(0, around - _HEAT_ITERATIONS // 2)
    values = {"job": job, "attempt": attempt, "bin_ranks": bin_ranks, "first": first,
              "past": first + _HEAT_ITERATIONS}  # fmt: skip
    rows = client.query(_CELLS, parameters=values).result_rows
    return [Cell(iteration, number, float(work_ns), rank) for iteration, number, work_ns, rank in rows], bin_ranks


def _seconds(value: Any) -> float | None:
    return value.replace(tzinfo=value.tzinfo or UTC).timestamp() if isinstance(value, datetime) else None
