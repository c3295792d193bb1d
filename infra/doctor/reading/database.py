"""All that is read from ClickHouse, question by question; what one can't read the others do without."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from irregulars.errors import InputError, IrregularsError, ServiceRefused
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.configuration.wiring import database_settings, keep_days
from irregulars.infra.doctor.checks.facts import DatabaseFacts, Disk, Obstacle
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.reading.database_obstacle import obstacle_of
from irregulars.sinks.connection import DatabaseSettings, connect, translated
from irregulars.sinks.migrate import shipped_migrations
from irregulars.sinks.tables import TABLES

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_TTL: Final = re.compile(r"TTL stored_at \+ toIntervalDay\((\d+)\)")
_LONGEST_REASON: Final = 120

_PARTS: Final = """
SELECT table, count() AS parts FROM system.parts WHERE active AND database = currentDatabase()
GROUP BY table, partition ORDER BY parts DESC LIMIT 1
"""
_REPLICAS: Final = "SELECT table, is_readonly, absolute_delay FROM system.replicas WHERE database = currentDatabase()"


def read_database(settings: Settings, question: Question, on_step: Callable[[str], None]) -> DatabaseFacts:
    """Read what the database knows; one that is away, or refuses us, is told in what comes back."""
    on_step("asking the database")
    try:
        own = database_settings(settings, min(question.within_s / 2, 5.0), is_reading=question.only_reads)
    except InputError as error:
        obstacle = Obstacle("clickhouse_unusable", str(error))
        return DatabaseFacts(settings.clickhouse_url, settings.clickhouse_user, obstacle)
    try:
        with _connected(own) as client:
            return _Reading(client, own).read(settings)
    except IrregularsError as error:
        return DatabaseFacts(own.address, own.user, obstacle_of(error, _reason(error), own))


class _Reading:
    def __init__(self, client: Client, own: DatabaseSettings) -> None:
        self._client, self._own = client, own
        self._unread: dict[str, str] = {}

    def read(self, settings: Settings) -> DatabaseFacts:
        version, round_trip_s, clock_s = self._clock()
        engines = dict(self._rows("tables", "SELECT name, engine_full FROM system.tables "
                                            "WHERE database = currentDatabase()"))  # fmt: skip
        missing, edited = self._migrations(engines)
        rights = self._rights()
        disks = self._rows("disks", "SELECT name, free_space, total_space FROM system.disks")
        parts = self._rows("parts", _PARTS)
        is_replicated = any(engine.startswith("Replicated") for engine in engines.values())
        replicas = self._rows("replicas", _REPLICAS) if is_replicated else []
        stored = self._rows("stored rows", "SELECT toUnixTimestamp(max(stored_at)) FROM iterations") if (
            "iterations" in engines) else []  # fmt: skip
        reader, reader_error = _reader(settings, self._own, has_tables="schema_migrations" in engines)
        return DatabaseFacts(
            self._own.address,
            self._own.user,
            reader=reader,
            reader_error=reader_error,
            version=version,
            round_trip_s=round_trip_s,
            clock_s=clock_s,
            missing_tables=tuple(sorted(TABLES.keys() - engines.keys())),
            missing_migrations=missing,
            edited_migrations=edited,
            rights=rights,
            keeps_days=_keeps(engines, keep_days(settings)),
            disks=[Disk(str(name), int(free), int(total)) for name, free, total in disks] or None,
            parts=(str(parts[0][0]), int(parts[0][1])) if parts else None,
            replicas={str(table): None if is_standing else float(lag) for table, is_standing, lag in replicas},
            stored_s=float(stored[0][0]) if stored and stored[0][0] else None,
            unread=self._unread,
        )

    def _clock(self) -> tuple[str, float, float | None]:
        begin_s, begin_ns = time.time(), time.monotonic_ns()
        rows = self._rows("clock", "SELECT version(), toUnixTimestamp64Micro(now64(6))")
        round_trip_s = (time.monotonic_ns() - begin_ns) / 1e9
        if not rows:
            return str(self._client.server_version), round_trip_s, None
        return str(rows[0][0]), round_trip_s, int(rows[0][1]) / 1e6 - (begin_s + round_trip_s / 2)

    def _migrations(self, engines: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if "schema_migrations" not in engines:
            return tuple(one.name for one in shipped_migrations()), ()
        rows = self._rows("tables", "SELECT version, checksum FROM schema_migrations FINAL")
        applied = {int(version): str(checksum) for version, checksum in rows}
        if "tables" in self._unread:
            return (), ()
        shipped = shipped_migrations()
        missing = tuple(one.name for one in shipped if one.version not in applied)
        edited = tuple(one.name for one in shipped if applied.get(one.version, one.checksum) != one.checksum)
        return missing, edited

    def _rights(self) -> dict[str, bool] | None:
        database = self._own.database
        found = {
            right: self._rows("grants", f"CHECK GRANT {right} ON {database}.*") for right in ("SELECT", "INSERT")
        }
        if "grants" in self._unread:
            return None
        return {right: bool(rows and rows[0][0]) for right, rows in found.items()}

    def _rows(self, what: str, sql: str) -> list[Any]:
        try:
            with translated(self._own):
                return list(self._client.query(sql).result_rows)
        except ServiceRefused:
            self._unread[what] = f"{self._own.user} may not read it"
        except IrregularsError as error:
            self._unread[what] = _reason(error)
        return []


def _reader(settings: Settings, writer: DatabaseSettings, *, has_tables: bool) -> tuple[str | None, str | None]:
    """Return the user who only reads, if there is one apart, and why they can't be used."""
    if settings.clickhouse_reader_user is None or writer.is_reading:
        return None, None
    try:
        own = database_settings(settings, 0.0, is_reading=True)
        with _connected(own) as client, translated(own):
            client.query("SELECT version FROM schema_migrations LIMIT 1" if has_tables else "SELECT 1")
    except IrregularsError as error:
        return settings.clickhouse_reader_user, _reason(error)
    return settings.clickhouse_reader_user, None


@contextmanager
def _connected(own: DatabaseSettings) -> Iterator[Client]:
    client = connect(own)
    try:
        yield client
    finally:
        client.close_connections()
        client.close()


def _keeps(engines: Mapping[str, Any], wanted: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    """Return the tables that keep their rows for another time than is set."""
    found = {}
    for table, days in wanted.items():
        if table in engines:
            match = _TTL.search(str(engines[table]))
            if match is None or int(match[1]) != days:
                found[table] = (f"{match[1]} days" if match else "for ever", days)
    return found


def _reason(error: IrregularsError) -> str:
    """Return what went wrong, without advice and what ClickHouse says behind its first sentence."""
    text = str(error).split(". Check ")[0].split(". Is ClickHouse")[0].split(". Start a worker")[0]
    text = text.split(". To execute this query")[0].removeprefix("query must be SQL that the database understands; ")
    return text if len(text) <= 2 * _LONGEST_REASON else text[: 2 * _LONGEST_REASON] + "…"
