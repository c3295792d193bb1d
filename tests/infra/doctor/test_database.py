from __future__ import annotations

from typing import Any

import pytest

from irregulars.infra.doctor.database import check_database
from irregulars.infra.doctor.facts import Obstacle
from tests.infra.doctor.installations import NOW_S, database, troubles


@pytest.mark.parametrize(("broken", "expected"), [
    ({}, []),
    ({"error": Obstacle("clickhouse_away", "database must answer")}, [("problem", "clickhouse_away")]),
    ({"clock_s": -9.0}, [("warning", "clock_off")]),
    ({"clock_s": 3.0, "round_trip_s": 4.0}, []),
    ({"missing_migrations": ("0002_later.sql",)}, [("problem", "migrations_missing")]),
    ({"missing_tables": ("jobs",)}, [("problem", "tables_gone")]),
    ({"edited_migrations": ("0001_tables.sql",)}, [("problem", "migrations_edited")]),
    ({"rights": {"SELECT": True, "INSERT": False}}, [("problem", "grant_missing")]),
    ({"reader": "irregulars_reader", "reader_error": "wrong password"}, [("problem", "reader_refused")]),
    ({"disks": [("default", 10 << 30, 100 << 30)]}, [("warning", "disk_full")]),
    ({"disks": [("default", 1 << 30, 100 << 30)]}, [("problem", "disk_full")]),
    ({"parts": ("operators", 400)}, [("warning", "many_parts")]),
    ({"parts": ("operators", 2000)}, [("problem", "many_parts")]),
    ({"keeps_days": {"operators": ("30 days", 60)}}, [("warning", "retention_differs")]),
    ({"replicas": {"jobs": 100.0}}, [("warning", "replica_stands")]),
    ({"replicas": {"jobs": 1000.0}}, [("problem", "replica_stands")]),
    ({"replicas": {"jobs": None}}, [("problem", "replica_stands")]),
    ({"unread": {"disks": "no right", "parts": "no right"}}, [("unknown", "not_read")]),
])  # fmt: skip
def test_what_is_found_of_the_database(broken: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert troubles(check_database(database(**broken), NOW_S)) == expected


def test_who_only_reads_needs_no_right_to_insert() -> None:
    reading = database(rights={"SELECT": True, "INSERT": False})
    assert troubles(check_database(reading, NOW_S, only_reads=True)) == []
