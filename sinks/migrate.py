"""Bringing the database's tables up to date: numbered SQL files, each applied once, forward only.

Two workers may migrate at the same moment. There is no lock to take (one would need a coordinator that small
installations lack): every statement may run twice, and an applied version is a row that both write alike.

In a database of the engine ``Replicated`` (several replicas of one shard, over Keeper) the same files make replicated
tables: ClickHouse runs each statement on every replica, and rows travel between tables whose engine says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from irregulars.errors import InputError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_NAME: Final = re.compile(r"(?P<version>\d{4})_(?P<title>[a-z0-9_]+)\.sql")

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
    return read_migrations({path.name: path.read_text("utf-8") for path in folder.iterdir()})


def read_migrations(texts: dict[str, str]) -> tuple[Migration, ...]:
    """Make migrations of file names and texts.

    Raises
    ------
    InputError
        If a name is not ``NNNN_title.sql``, or the numbers are not 1, 2, 3, ….
    """
    found = []
    for name, text in sorted(texts.items()):
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(f"migration name must be NNNN_title.sql; got {name!r} (sinks/sql/migrations)")
        found.append(Migration(int(match["version"]), name, text))
    versions = [migration.version for migration in found]
    if versions != list(range(1, len(found) + 1)):
        raise InputError(f"migration numbers must be 1, 2, 3 and on; got {versions} (sinks/sql/migrations)")
    return tuple(found)


def migrate(client: Client, migrations: Sequence[Migration] | None = None) -> list[int]:
    """Apply the migrations that the database lacks; return their numbers.

    Migrations that a newer release has applied are left alone: releases only add, and workers are updated one by one.

    Parameters
    ----------
    client
        Of clickhouse-connect, over HTTP or embedded.
    migrations
        Default: those that ship.

    Raises
    ------
    InputError
        If the text of an applied migration changed; nothing is applied then.
    """
    wanted = shipped_migrations() if migrations is None else migrations
    is_replicated = client.command(_DATABASE_ENGINE) == "Replicated"
    # Asked first: a worker that may not make tables can use those which an administrator has made.
    if not client.command("EXISTS TABLE schema_migrations"):
        client.command(for_replicas(_REGISTER) if is_replicated else _REGISTER)
    applied = _applied(client)
    for migration in wanted:
        _require_unchanged(migration, applied)
    missing = [migration for migration in wanted if migration.version not in applied]
    for migration in missing:
        _apply(client, migration, is_replicated)
    return [migration.version for migration in missing]


def _applied(client: Client) -> dict[int, str]:
    rows = client.query("SELECT version, checksum FROM schema_migrations FINAL").result_rows
    return {int(version): str(checksum) for version, checksum in rows}


def _require_unchanged(migration: Migration, applied: dict[int, str]) -> None:
    checksum = applied.get(migration.version, migration.checksum)
    if checksum != migration.checksum:
        raise InputError(
            f"migration {migration.name} must stay as it was applied, checksum {checksum[:12]}; "
            f"got {migration.checksum[:12]}. Undo the edit, and put the change into a new migration"
        )


def for_replicas(statement: str) -> str:
    """Return a statement with the engine whose rows travel between the replicas of a database.

    Path and replica's name are the server's defaults, as a ``Replicated`` database wants them.

    >>> for_replicas("CREATE TABLE t (a Int8) ENGINE = ReplacingMergeTree(a) ORDER BY a")
    'CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a) ORDER BY a'
    """
    return _ENGINE.sub("ENGINE = ReplicatedReplacingMergeTree", statement)


def _apply(client: Client, migration: Migration, is_replicated: bool) -> None:
    for statement in migration.statements():
        client.command(for_replicas(statement) if is_replicated else statement)
    client.insert(
        "schema_migrations",
        [[migration.version, migration.name, migration.checksum]],
        column_names=["version", "name", "checksum"],
        settings={"async_insert": 0},
    )
