"""Deleting one job: its rows in every table that names a job, also in those that views fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_TABLES: Final = """
SELECT columns.table
FROM system.columns AS columns
INNER JOIN system.tables AS tables ON tables.database = columns.database AND tables.name = columns.table
WHERE columns.database = currentDatabase() AND columns.name = 'job' AND tables.engine LIKE '%MergeTree'
ORDER BY columns.table
"""


def rows_of_job(client: Client, job: str) -> dict[str, int]:
    """Return how many rows each table holds of a job, those included that a merge has yet to replace.

    Parameters
    ----------
    client
        From `sinks.connection.connect`; a user who reads is enough.
    """
    return {name: _count(client, name, job) for name in _tables(client)}


def delete_job(client: Client, job: str) -> dict[str, int]:
    """Delete a job's rows from all tables; return how many there were. Twice is fine.

    No query sees them when this returns. On disk they stay until ClickHouse merges the parts that hold them.

    Parameters
    ----------
    client
        Of a user who may alter tables.
    """
    before = rows_of_job(client, job)
    for name, count in before.items():
        if count:
            client.command(f"DELETE FROM {name} WHERE job = {{job:String}}", parameters={"job": job})
    return before


def _tables(client: Client) -> list[str]:
    return [str(name) for (name,) in client.query(_TABLES).result_rows]


def _count(client: Client, table: str, job: str) -> int:
    found = client.query(f"SELECT count() FROM {table} WHERE job = {{job:String}}", parameters={"job": job})
    return int(found.result_rows[0][0])
