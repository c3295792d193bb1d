"""Checks of ClickHouse: does it answer, has it our tables, may we use them, has it room, does it keep up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from irregulars.infra.doctor.checks.broker import clock_finding
from irregulars.infra.doctor.checks.facts import DatabaseFacts
from irregulars.infra.doctor.checks.findings import Finding, Level, finding, ok, unread
from irregulars.infra.doctor.checks.words import count, names, size, span

GROUP: Final = "clickhouse"
FEW_FREE: Final = 0.2
NO_FREE: Final = 0.05
"""Shares of a disk. Merges write a second copy of what they merge, and stop where there is no room for it."""

MANY_PARTS: Final = 300
TOO_MANY_PARTS: Final = 1000
"""Of one partition of a table. ClickHouse delays inserts from 1000 on, and refuses them from 3000 on."""

LAG_S: Final = 60.0
STUCK_LAG_S: Final = 600.0


def check_database(seen: DatabaseFacts, now_s: float, *, only_reads: bool = False) -> Iterator[Finding]:
    """Give what is found of the database; `only_reads`: for whoever writes nothing there."""
    if seen.error is not None:
        yield finding("problem", GROUP, "server", seen.error.text, seen.error.code)
        return
    yield from _server(seen)
    yield from _schema(seen)
    yield from _grants(seen, ("SELECT",) if only_reads else ("SELECT", "INSERT"))
    if not only_reads:
        yield _reader(seen)
    yield from _room(seen)
    for table, (found, wanted) in sorted(seen.keeps_days.items()):
        text = f"{table} keeps rows {found}, and the settings say {count(wanted, 'day')}"
        yield finding("warning", GROUP, "retention", text, "retention_differs")
    yield from _replicas(seen)
    if seen.stored_s is not None:
        yield ok(GROUP, "stored", f"the newest iteration was stored {span(max(now_s - seen.stored_s, 0.0))} ago")
    for reason in dict.fromkeys(seen.unread.values()):
        yield unread(GROUP, ", ".join(what for what, own in seen.unread.items() if own == reason), reason)


def _server(seen: DatabaseFacts) -> Iterator[Finding]:
    text = f"ClickHouse {seen.version} at {seen.address}, answered in {span(seen.round_trip_s)}"
    yield ok(GROUP, "server", text)
    if seen.clock_s is not None:
        least_s = max(abs(seen.clock_s) - seen.round_trip_s / 2, 0.0)
        yield clock_finding(GROUP, "the database's clock", least_s if seen.clock_s > 0 else -least_s)


def _schema(seen: DatabaseFacts) -> Iterator[Finding]:
    if "tables" in seen.unread:
        return
    if seen.missing_migrations:
        text = f"{count(len(seen.missing_migrations), 'migration')} not applied: {names(seen.missing_migrations)}"
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


def _reader(seen: DatabaseFacts) -> Finding:
    if seen.reader is None:
        return ok(GROUP, "reader", "none apart: `irregulars sql` reads as the user who writes")
    if seen.reader_error is not None:
        return finding("problem", GROUP, "reader", seen.reader_error, "reader_refused", user=seen.reader)
    return ok(GROUP, "reader", f"{seen.reader} may read, and only read")


def _room(seen: DatabaseFacts) -> Iterator[Finding]:
    for disk in seen.disks or ():
        share = disk.free_bytes / disk.total_bytes if disk.total_bytes else 1.0
        text = f"disk {disk.name}: {size(disk.free_bytes)} of {size(disk.total_bytes)} free ({share:.0%})"
        if share < FEW_FREE:
            level: Level = "problem" if share < NO_FREE else "warning"
            yield finding(level, GROUP, "disk", text, "disk_full")
        else:
            yield ok(GROUP, "disk", text)
    if seen.parts is not None:
        table, parts = seen.parts
        text = f"{table} has {count(parts, 'part')} in one partition"
        if parts >= MANY_PARTS:
            yield finding("problem" if parts >= TOO_MANY_PARTS else "warning", GROUP, "parts", text, "many_parts")
        else:
            yield ok(GROUP, "parts", f"{count(parts, 'part')} in one partition at most ({table})")


def _replicas(seen: DatabaseFacts) -> Iterator[Finding]:
    stands = [table for table, lag_s in seen.replicas.items() if lag_s is None]
    late = {table: lag_s for table, lag_s in seen.replicas.items() if lag_s is not None and lag_s > LAG_S}
    if stands:
        yield finding("problem", GROUP, "replicas", f"read-only here: {names(stands)}", "replica_stands")
    if late:
        worst = max(late, key=lambda table: late[table])
        level: Level = "problem" if late[worst] > STUCK_LAG_S else "warning"
        yield finding(level, GROUP, "replicas", f"{worst} is {span(late[worst])} behind the others", "replica_stands")
    if seen.replicas and not stands and not late:
        yield ok(GROUP, "replicas", f"{count(len(seen.replicas), 'table')} are replicated, and keep up")
