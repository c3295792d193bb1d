"""The database's tables: made by numbered SQL files, each applied once; how long rows stay; who may read and write.

Two workers may migrate at the same moment. There is no lock to take (one would need a coordinator that small
installations lack): every statement may run twice, and an applied version is a row that both write alike.

In a database of the engine ``Replicated`` (several replicas of one shard, over Keeper) the same files make replicated
tables: ClickHouse runs each statement on every replica, and rows travel between tables whose engine says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from irregulars.errors import InputError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_REGISTER: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations
(
    version UInt32 COMMENT 'Number of the migration',
    name String COMMENT 'Name of its file',
    checksum String COMMENT 'SHA-256 of the file, in hexadecimal',
    applied_at DateTime('UTC') DEFAULT now() COMMENT 'When a worker applied it'
)
ENGINE = ReplacingMergeTree
ORDER BY version
COMMENT 'Migrations that were applied to this database'
"""

_ENGINE: Final = re.compile(r"\bENGINE = ReplacingMergeTree\b")
_DATABASE_ENGINE: Final = "SELECT engine FROM system.databases WHERE name = currentDatabase()"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of ``sinks/sql/migrations``."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hexadecimal; line endings do not count."""
        return hashlib.sha256(self.sql.replace("\r\n", "\n").encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        """Split at semicolons that end a line; comments of whole lines are left out."""
        lines = [line for line in self.sql.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        for statement in re.split(r";[ \t]*$", "\n".join(lines), flags=re.MULTILINE):
            if statement.strip():
                yield statement.strip()


def shipped_migrations() -> tuple[Migration, ...]:
    """Return the files of ``sinks/sql/migrations``, in their order.

    >>> [migration.name for migration in shipped_migrations()][0]
    '0001_tables.sql'
    """
    folder = files("irregulars.sinks").joinpath("sql", "migrations")
    shipped = sorted((path.name, path.read_text("utf-8")) for path in folder.iterdir())
    return tuple(Migration(int(name[:4]), name, text) for name, text in shipped)  # NNNN_title.sql


def migrate(client: Client, migrations: Sequence[Migration] | None = None) -> list[int]:
    """Apply the migrations (default: those that ship) that the database lacks; return their numbers.

    Migrations that a newer release has applied are left alone: releases only add, and workers are updated one by one.
    Raises `InputError` if the text of an applied migration changed; nothing is applied then.
    """
    wanted = shipped_migrations() if migrations is None else migrations
    is_replicated = client.command(_DATABASE_ENGINE) == "Replicated"
    # Asked first: a worker that may not make tables can use those which an administrator has made.
    if not client.command("EXISTS TABLE schema_migrations"):
        client.command(for_replicas(_REGISTER) if is_replicated else _REGISTER)
    rows = client.query("SELECT version, checksum FROM schema_migrations FINAL").result_rows
    applied = {int(version): str(checksum) for version, checksum in rows}
    for migration in wanted:
        checksum = applied.get(migration.version, migration.checksum)
        if checksum != migration.checksum:
            raise InputError(
                f"migration {migration.name} must stay as it was applied, checksum {checksum[:12]}; "
                f"got {migration.checksum[:12]}. Undo the edit, and put the change into a new migration"
            )
    missing = [migration for migration in wanted if migration.version not in applied]
    for migration in missing:
        for statement in migration.statements():
            client.command(for_replicas(statement) if is_replicated else statement)
        # Registered last: where a worker dies in between, the next one runs the statements again.
        client.insert(
            "schema_migrations",
            [[migration.version, migration.name, migration.checksum]],
            column_names=["version", "name", "checksum"],
            # An asynchronous insert may be acknowledged before the row is there (wait_for_async_insert = 0).
            settings={"async_insert": 0},
        )
    return [migration.version for migration in missing]


def for_replicas(statement: str) -> str:
    """Return a statement with the engine whose rows travel between the replicas of a database.

    Path and replica's name are the server's defaults, as a ``Replicated`` database wants them.

    >>> for_replicas("CREATE TABLE t (a Int8) ENGINE = ReplacingMergeTree(a) ORDER BY a")
    'CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a) ORDER BY a'
    """
    return _ENGINE.sub("ENGINE = ReplicatedReplacingMergeTree", statement)


# The sum of ``stored_at`` and many more days passes 2106, where ClickHouse's DateTime begins anew: rows would go at
# once
LONGEST_DAYS: Final = 3_650

_ENGINES: Final = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"


def keep(client: Client, days: Mapping[str, int]) -> list[str]:
    """Make tables keep rows for `days` after they were stored; return the tables that were changed.

    A table that `days` (1 to `LONGEST_DAYS`) does not name, or that keeps its rows for so long already, is not
    touched: a worker that may not alter tables can use it. Where the time gets shorter ClickHouse drops the older
    rows in the background.
    """
    if not days:
        return []
    engines = {str(name): str(engine) for name, engine in client.query(_ENGINES).result_rows}
    changed = [
        name
        for name, kept in days.items()
        # ClickHouse shows ``INTERVAL n DAY`` as this call, and settings behind it.
        # Of a table that is gone rows wait until somebody has repaired the database.
        if name in engines
        and f"stored_at + toIntervalDay({kept})" not in engines[name].partition(" SETTINGS ")[0].split("TTL ")
    ]
    for name in changed:
        client.command(f"ALTER TABLE {name} MODIFY TTL stored_at + INTERVAL {days[name]:d} DAY")
    return changed


_TABLES: Final = """
SELECT columns.table
FROM system.columns AS columns
INNER JOIN system.tables AS tables ON tables.database = columns.database AND tables.name = columns.table
WHERE columns.database = currentDatabase() AND columns.name = 'job' AND tables.engine LIKE '%MergeTree'
ORDER BY columns.table
"""


def rows_of_job(client: Client, job: str) -> dict[str, int]:
    """Return how many rows each table holds of a job, those included that a merge has yet to replace."""
    found = {}
    for (name,) in client.query(_TABLES).result_rows:
        rows = client.query(f"SELECT count() FROM {name} WHERE job = {{job:String}}", parameters={"job": job})
        found[str(name)] = int(rows.result_rows[0][0])
    return found


def delete_job(client: Client, job: str) -> dict[str, int]:
    """Delete a job's rows from all tables; return how many there were. Twice is fine.

    No query sees them when this returns. On disk they stay until ClickHouse merges the parts that hold them.
    """
    before = rows_of_job(client, job)
    for name, count in before.items():
        if count:
            client.command(f"DELETE FROM {name} WHERE job = {{job:String}}", parameters={"job": job})
    return before


def access_sql(database: str = "irregulars") -> str:
    """Return the statements of ``sinks/sql/access.sql`` for a database of that name.

    >>> "GRANT SELECT ON other.* TO irregulars_reader" in access_sql("other")
    True
    """
    text = files("irregulars.sinks").joinpath("sql", "access.sql").read_text("utf-8")
    named = text.replace("irregulars.*", f"{database}.*")
    return named.replace("CREATE DATABASE IF NOT EXISTS irregulars;", f"CREATE DATABASE IF NOT EXISTS {database};")
