from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from irregulars.sinks.migrate import Migration, for_replicas, keep, shipped_migrations
from irregulars.sinks.tables import TABLES

# Rows that come twice replace each other, so that an INSERT of a SELECT may too.
REPEATABLE = re.compile(
    r"CREATE (TABLE|VIEW|MATERIALIZED VIEW) IF NOT EXISTS|CREATE OR REPLACE VIEW|DROP (TABLE|VIEW) IF EXISTS|"
    r"ALTER TABLE \w+ \w+ COLUMN IF (NOT )?EXISTS|ALTER TABLE \w+\n    MODIFY COMMENT|"
    r"INSERT INTO (transfers|verdict_revisions)\n"
)
STATEMENTS = [statement for migration in shipped_migrations() for statement in migration.statements()]


def test_every_statement_may_run_twice() -> None:
    assert [statement for statement in STATEMENTS if not REPEATABLE.match(statement)] == []


def test_every_table_replaces_rows_of_its_key_expires_by_storing_time_and_says_what_it_means() -> None:
    for table in TABLES:
        statement = next(text for text in STATEMENTS if text.startswith(f"CREATE TABLE IF NOT EXISTS {table}\n"))
        assert "ENGINE = ReplacingMergeTree" in statement, table
        assert "TTL stored_at + INTERVAL" in statement, table
        columns = [line for line in statement.splitlines() if line.startswith("    ")]
        assert all(" COMMENT '" in line for line in columns), table
        assert statement.splitlines()[-1].startswith("COMMENT '"), table


def test_comments_and_line_ends_do_not_split_statements() -> None:
    sql = "-- a; b\nCREATE TABLE t\n(\n    a String COMMENT 'one; two'\n)\nENGINE = Null;  \n\nSELECT 1;\n"
    assert list(Migration(1, "0001_a.sql", sql).statements()) == [
        "CREATE TABLE t\n(\n    a String COMMENT 'one; two'\n)\nENGINE = Null",
        "SELECT 1",
    ]


def test_the_checksum_does_not_see_line_endings_and_sees_all_else() -> None:
    unix, windows, other = (Migration(1, "a", text) for text in ("SELECT 1;\n", "SELECT 1;\r\n", "SELECT 2;\n"))
    assert unix.checksum == windows.checksum != other.checksum


def test_files_are_numbered_without_gaps() -> None:
    shipped = shipped_migrations()
    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", one.name) for one in shipped)
    assert [one.version for one in shipped] == [*range(1, len(shipped) + 1)]


def test_for_replicas_every_table_gets_the_engine_whose_rows_travel_and_nothing_else_changes() -> None:
    tables = [text for text in STATEMENTS if text.startswith("CREATE TABLE")]
    assert all("\nENGINE = ReplicatedReplacingMergeTree" in for_replicas(text) for text in tables)
    assert [text for text in STATEMENTS if text not in tables and for_replicas(text) != text] == []


def test_a_table_that_is_gone_keeps_no_other_from_being_kept_as_set() -> None:
    rows = [("events", "ReplacingMergeTree TTL stored_at + toIntervalDay(30)")]
    said: list[str] = []
    client: Any = SimpleNamespace(query=lambda _: SimpleNamespace(result_rows=rows), command=said.append)
    assert keep(client, {"operators": 60, "events": 60}) == ["events"]
    assert said == ["ALTER TABLE events MODIFY TTL stored_at + INTERVAL 60 DAY"]
