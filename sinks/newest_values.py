"""Values that a question leaves to the database: the newest job, its newest verdict, its newest irregular iteration.

They are looked up beforehand, each with a query of its own, so that the questions themselves stay SQL with plain
values: ClickHouse then reads by key, and the same text runs in Grafana.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

NEWEST: Final = "NEWEST"
"""Default of a parameter whose value is looked up."""

_JOB: Final = """
    SELECT job
    FROM
    (
        SELECT job, max(started_at) AS seen_at FROM iterations GROUP BY job
        UNION ALL
        SELECT job, max(last_seen_at) AS seen_at FROM verdicts GROUP BY job
        UNION ALL
        SELECT job, max(toDateTime64(stored_at, 9, 'UTC')) AS seen_at
        FROM jobs
        WHERE job NOT IN (SELECT job FROM iterations)
        GROUP BY job
    )
    ORDER BY seen_at DESC NULLS LAST, job
    LIMIT 1
"""
# A job that was announced and has no iteration yet counts by the moment of its announcement.

_VERDICT: Final = """
    SELECT verdict_id
    FROM verdicts FINAL
    WHERE {job:String} = '' OR job = {job:String}
    ORDER BY last_seen_at DESC NULLS LAST, verdict_id
    LIMIT 1
"""

# Of an irregular iteration that a verdict explains the operators were read, and stand in the database.
_ITERATION: Final = """
    SELECT iteration
    FROM iterations FINAL
    WHERE job = {job:String} AND is_irregular
        AND ({attempt:Nullable(Int64)} IS NULL OR attempt = {attempt:Nullable(Int64)})
    ORDER BY attempt DESC, notEmpty(verdict_ids) DESC, iteration DESC
    LIMIT 1
"""

NEWEST_OF: Final[Mapping[str, str]] = {"job": _JOB, "verdict_id": _VERDICT, "iteration": _ITERATION}
"""Parameters that can be looked up, in the order in which one needs the other, and how."""


def look_up(client: Client, names: Sequence[str], values: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Return the newest values of some parameters; None where nothing is stored.

    Parameters
    ----------
    client
        A connection that may read.
    names
        Which parameters, of `NEWEST_OF`.
    values
        Values of the question's other parameters.
    """
    found: dict[str, str | int | None] = {}
    for name in (one for one in NEWEST_OF if one in names):
        known = {"job": "", "attempt": None, **values, **found}
        if known["job"] is None:
            found[name] = None
            continue
        rows = client.query(NEWEST_OF[name], parameters=known).result_rows
        found[name] = rows[0][0] if rows else None
    return found
