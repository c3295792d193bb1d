"""How long tables keep their rows: the migrations say it first, settings may say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

LONGEST_DAYS: Final = 3_650
"""The sum of ``stored_at`` and many more days passes 2106, where ClickHouse's DateTime begins anew: rows would go at
once."""

_TABLES: Final = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"


def keep(client: Client, days: Mapping[str, int]) -> list[str]:
    """Make tables keep rows for so many days after they were stored; return the tables that were changed.

    A table that `days` does not name stays as it is, also where an administrator has changed it. A table that keeps
    its rows for so long already is not touched: a worker that may not alter tables can use it. Where the time gets
    shorter ClickHouse drops the older rows in the background.

    Parameters
    ----------
    client
        From `sinks.connection.connect`.
    days
        By table; from 1 to `LONGEST_DAYS`.
    """
    if not days:
        return []
    engines = {str(name): str(engine) for name, engine in client.query(_TABLES).result_rows}
    changed = [
        name for name in days if _ttl(days[name]) not in engines[name].partition(" SETTINGS ")[0].split("TTL ")
    ]
    for name in changed:
        client.command(f"ALTER TABLE {name} MODIFY TTL stored_at + INTERVAL {days[name]:d} DAY")
    return changed


def _ttl(days: int) -> str:
    """As ``engine_full`` has it."""
    return f"stored_at + toIntervalDay({days})"
