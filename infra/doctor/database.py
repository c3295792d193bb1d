"""ClickHouse: is it reachable, has it our tables and rights, has it room, does it keep up."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from irregulars.errors import InputError, IrregularsError, ServiceRefused
from irregulars.infra.doctor.broker import clock_finding
from irregulars.infra.doctor.facts import Obstacle
from irregulars.infra.doctor.findings import Finding, Level, Question, finding, names, ok, span, unread
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import database_settings, keep_days
from irregulars.printing import counted
from irregulars.sinks.connection import DatabaseSettings, connected, translated
from irregulars.sinks.migrate import shipped_migrations
from irregulars.sinks.tables import TABLES
from irregulars.words import size

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_TTL: Final = re.compile(r"TTL stored_at \+ toIntervalDay\((\d+)\)")
_LONGEST_REASON: Final = 120

_PARTS: Final = """
SELECT table, count() AS parts FROM system.parts WHERE active AND database = currentDatabase()
GROUP BY table, partition ORDER BY parts DESC LIMIT 1
"""
_REPLICAS: Final = "SELECT table, is_readonly, absolute_delay FROM system.replicas WHERE database = currentDatabase()"


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """Everything read from ClickHouse."""

    address: str
    user: str
    error: Obstacle | None = None  # why it could not be used
    reader: str | None = None  # the user who only reads; None: there is none apart
    reader_error: str | None = None
    version: str | None = None
    round_trip_s: float = 0.0
    clock_s: float | None = None  # its clock less ours, known to half the round trip at best
    missing_tables: tuple[str, ...] = ()
    missing_migrations: tuple[str, ...] = ()
    edited_migrations: tuple[str, ...] = ()
    rights: Mapping[str, bool] | None = None  # by operation; None: the server does not answer that
    keeps_days: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # in force and set, where unequal
    disks: Sequence[tuple[str, int, int]] = ()  # of each its name, and its free and all its bytes
    parts: tuple[str, int] | None = None  # table with the most parts in one partition
    replicas: Mapping[str, float | None] = field(default_factory=dict)  # s behind, by table; None: read-only
    stored_s: float | None = None  # when the newest iteration was stored
    unread: Mapping[str, str] = field(default_factory=dict)  # reasons, by the name of the part that could not be read


def read_database(settings: Settings, question: Question, on_step: Callable[[str], None]) -> DatabaseFacts:
    """Return the facts of the database; `error` is set if it is away or refuses us."""
    on_step("asking the database")
    try:
        # Half of the time at most: the rest is for reading.
        own = database_settings(settings, min(question.within_s / 2, 2.0), is_reading=question.only_reads)
    except InputError as error:
        obstacle = Obstacle("clickhouse_unusable", str(error))
        return DatabaseFacts(settings.clickhouse_url, settings.clickhouse_user, obstacle)
    try:
        with connected(own) as client:
            return _Reading(client, own).read(settings)
    except IrregularsError as error:
        return DatabaseFacts(own.address, own.user, _obstacle(error, _reason(error), own))


class _Reading:
    def __init__(self, client: Client, own: DatabaseSettings) -> None:
        self._client, self._own = client, own
        self._unread: dict[str, str] = {}

    def read(self, settings: Settings) -> DatabaseFacts:
        version, round_trip_s, clock_s = self._clock()
        engines = dict(self._rows("tables", "SELECT name, engine_full FROM system.tables "
                                            "WHERE database = currentDatabase()"))  # fmt: skip
        missing, edited = self._migrations(engines)
        grants = {
            right: self._rows("grants", f"CHECK GRANT {right} ON {self._own.database}.*")
            for right in ("SELECT", "INSERT")
        }
        rights = {right: bool(rows and rows[0][0]) for right, rows in grants.items()}
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
            rights=None if "grants" in self._unread else rights,
            keeps_days=_keeps(engines, keep_days(settings)),
            disks=[(str(name), int(free), int(total)) for name, free, total in disks],
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
        # The server read its clock about half-way through the round trip.
        return str(rows[0][0]), round_trip_s, int(rows[0][1]) / 1e6 - (begin_s + round_trip_s / 2)

    def _migrations(self, engines: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if "schema_migrations" not in engines:
            return tuple(one.name for one in shipped_migrations()), ()
        rows = self._rows("tables", "SELECT version, checksum FROM schema_migrations FINAL")
        applied = {int(version): str(checksum) for version, checksum in rows}
        # Reported as not read; from that nothing follows about migrations.
        if "tables" in self._unread:
            return (), ()
        shipped = shipped_migrations()
        missing = tuple(one.name for one in shipped if one.version not in applied)
        edited = tuple(one.name for one in shipped if applied.get(one.version, one.checksum) != one.checksum)
        return missing, edited

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
        with connected(own) as client:
            client.query("SELECT version FROM schema_migrations LIMIT 1" if has_tables else "SELECT 1")
    except IrregularsError as error:
        return settings.clickhouse_reader_user, _reason(error)
    return settings.clickhouse_reader_user, None


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
    """Return the cause of an error, without advice, and without ClickHouse's text after its first sentence."""
    text = str(error).split(". Check ")[0].split(". Is ClickHouse")[0].split(". Start a worker")[0]
    text = text.split(". To execute this query")[0].removeprefix("query must be SQL that the database understands; ")
    return text if len(text) <= 2 * _LONGEST_REASON else text[: 2 * _LONGEST_REASON] + "…"


_LOOK_S: Final = 2.0
_UNTRUSTED: Final = re.compile(r"certificate verify failed: ([^(]*[^( ])")


def _obstacle(error: IrregularsError, reason: str, own: DatabaseSettings) -> Obstacle:
    """Return the case of an error, with its text; `reason` is the error's in few words."""
    if isinstance(error, InputError):
        return Obstacle("clickhouse_unusable", reason)
    if isinstance(error, ServiceRefused):
        if reason.startswith("database must exist"):
            return Obstacle("database_missing", reason)
        if "Not enough privileges" in reason:  # the same for a database that is there and for one that is not
            text = f"{own.user} may not see database {own.database!r}, or it does not exist ({own.address})"
            return Obstacle("database_hidden", text)
        return Obstacle("clickhouse_refuses", reason)
    untrusted = _UNTRUSTED.search(reason)
    if untrusted is not None:
        text = f"the certificate of {own.address} can't be trusted: {untrusted[1]}"
        named = "names another authority" if own.ca_file is not None else "is not set"
        signed = f"; clickhouse_ca_file {named}" if "issuer" in text or "self-signed" in text else ""
        return Obstacle("clickhouse_untrusted", text + signed)
    if "WRONG_VERSION_NUMBER" in reason:
        return Obstacle("clickhouse_no_tls", f"{own.address} speaks no TLS, and clickhouse_url is https")
    if own.address.startswith("http://") and _speaks_tls(own):
        return Obstacle("clickhouse_tls", f"{own.address} speaks TLS, and clickhouse_url is http")
    return Obstacle("clickhouse_away", reason)


def _speaks_tls(own: DatabaseSettings) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the greeting alone is wanted
    parts = urlsplit(own.address)
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 0), _LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except OSError:
        return False


GROUP: Final = "clickhouse"
# Shares of a disk. Merges write a second copy of their parts, and stop where there is no room for it.
FEW_FREE: Final = 0.2
NO_FREE: Final = 0.05

# Of one partition of a table. ClickHouse delays inserts from 1000 on, and refuses them from 3000 on.
MANY_PARTS: Final = 300
TOO_MANY_PARTS: Final = 1000

LAG_S: Final = 60.0
STUCK_LAG_S: Final = 600.0


def check_database(seen: DatabaseFacts, now_s: float, *, only_reads: bool = False) -> Iterator[Finding]:
    """Yield the findings on the database; `only_reads`: for a user who writes nothing there."""
    if seen.error is not None:
        yield finding("problem", GROUP, "server", seen.error.text, seen.error.code)
        return
    text = f"ClickHouse {seen.version} at {seen.address}, answered in {span(seen.round_trip_s)}"
    yield ok(GROUP, "server", text)
    if seen.clock_s is not None:
        # The server took its time somewhere within the round trip: half of it is not known.
        least_s = max(abs(seen.clock_s) - seen.round_trip_s / 2, 0.0)
        yield clock_finding(GROUP, "the database's clock", least_s if seen.clock_s > 0 else -least_s)
    yield from _schema(seen)
    yield from _grants(seen, ("SELECT",) if only_reads else ("SELECT", "INSERT"))
    if not only_reads:
        if seen.reader is None:
            yield ok(GROUP, "reader", "none apart: `irregulars sql` reads as the user who writes")
        elif seen.reader_error is not None:
            yield finding("problem", GROUP, "reader", seen.reader_error, "reader_refused", user=seen.reader)
        else:
            yield ok(GROUP, "reader", f"{seen.reader} may read, and only read")
    yield from _room(seen)
    for table, (found, wanted) in sorted(seen.keeps_days.items()):
        text = f"{table} keeps rows {found}, and the settings say {counted(wanted, 'day')}"
        yield finding("warning", GROUP, "retention", text, "retention_differs")
    stands = [table for table, lag_s in seen.replicas.items() if lag_s is None]
    late = {table: lag_s for table, lag_s in seen.replicas.items() if lag_s is not None and lag_s > LAG_S}
    if stands:
        yield finding("problem", GROUP, "replicas", f"read-only here: {names(stands)}", "replica_stands")
    if late:
        worst = max(late, key=lambda table: late[table])
        level: Level = "problem" if late[worst] > STUCK_LAG_S else "warning"
        yield finding(level, GROUP, "replicas", f"{worst} is {span(late[worst])} behind the others", "replica_stands")
    if seen.replicas and not stands and not late:
        yield ok(GROUP, "replicas", f"{counted(len(seen.replicas), 'table')} are replicated, and keep up")
    if seen.stored_s is not None:
        yield ok(GROUP, "stored", f"the newest iteration was stored {span(max(now_s - seen.stored_s, 0.0))} ago")
    for reason in dict.fromkeys(seen.unread.values()):
        yield unread(GROUP, ", ".join(what for what, own in seen.unread.items() if own == reason), reason)


def _schema(seen: DatabaseFacts) -> Iterator[Finding]:
    # Reported among the parts that were not read.
    if "tables" in seen.unread:
        return
    if seen.missing_migrations:
        text = f"{counted(len(seen.missing_migrations), 'migration')} not applied: {names(seen.missing_migrations)}"
        yield finding("problem", GROUP, "tables", text, "migrations_missing")
    elif seen.missing_tables:
        text = f"tables are gone although their migrations were applied: {names(seen.missing_tables)}"
        yield finding("problem", GROUP, "tables", text, "tables_gone")
    else:
        yield ok(GROUP, "tables", "all tables of this release are there")
    if seen.edited_migrations:
        text = f"were made by another text of {names(seen.edited_migrations)}"
        yield finding("problem", GROUP, "tables", text, "migrations_edited")


def _grants(seen: DatabaseFacts, needed: Sequence[str]) -> Iterator[Finding]:
    # Reported among the parts that were not read: older servers do not know CHECK GRANT.
    if seen.rights is None:
        return
    lacking = [right for right in needed if not seen.rights.get(right, False)]
    if lacking:
        whose = "writes for the workers" if "INSERT" in needed else "reads"
        text = f"{seen.user} {whose}, and lacks {' and '.join(lacking)}"
        grants = ", ".join(needed)
        yield finding("problem", GROUP, "grants", text, "grant_missing", user=seen.user, grants=grants)
    else:
        yield ok(GROUP, "grants", f"{seen.user} may read{' and insert' if 'INSERT' in needed else ''}")


def _room(seen: DatabaseFacts) -> Iterator[Finding]:
    for name, free_bytes, total_bytes in seen.disks:
        # A disk that reports no size is not called full.
        share = free_bytes / total_bytes if total_bytes else 1.0
        text = f"disk {name}: {size(free_bytes)} of {size(total_bytes)} free ({share:.0%})"
        level: Level = "problem" if share < NO_FREE else "warning" if share < FEW_FREE else "ok"
        yield finding(level, GROUP, "disk", text, "disk_full")
    if seen.parts is not None:
        table, parts = seen.parts
        if parts >= MANY_PARTS:
            text = f"{table} has {counted(parts, 'part')} in one partition"
            yield finding("problem" if parts >= TOO_MANY_PARTS else "warning", GROUP, "parts", text, "many_parts")
        else:
            yield ok(GROUP, "parts", f"{counted(parts, 'part')} in one partition at most ({table})")
