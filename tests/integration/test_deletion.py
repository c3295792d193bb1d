"""Deleting one job's data, as infra/docs/keeping.md says, on a real database with the shipped users."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from irregulars.infra.configuration.settings import Settings
from irregulars.infra.configuration.wiring import database_settings
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import connect
from irregulars.sinks.notices.opinions import opinion_on
from irregulars.sinks.tables import TABLES, table_of_opinions, table_of_samples, tables_of
from tests.integration.test_database_access import GuardedDatabase, ask, run
from tests.sinks import made_up_job

pytestmark = pytest.mark.integration

OTHER = "somebody's; DROP TABLE verdicts --"
"""Names of jobs are input."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedDatabase]:
    """A database with the same rows of two jobs in all tables."""
    with GuardedDatabase(tmp_path_factory.mktemp("guarded")) as running:
        assert run(running.settings("admin"), "sql", "--create-tables").returncode == 0
        sink = ClickHouseSink(database_settings(running.settings("writer")))
        sink.open()
        said = opinion_on(made_up_job.verdict(1), is_right=True, who="ann", note="", time_ns=made_up_job.START_NS)
        sink.write(tables_of(made_up_job.judgements()))
        sink.write({"feedback": table_of_opinions([said])})
        for samples in (made_up_job.bandwidth(), made_up_job.gpu_health()):
            sink.write({samples.header.schema: table_of_samples([samples])})
        sink.close()
        client = connect(database_settings(running.settings("admin")))
        for name in TABLES:
            client.command(
                f"INSERT INTO {name} SELECT * REPLACE ({{job:String}} AS job) FROM {name}", parameters={"job": OTHER}
            )
        client.close_connections()
        yield running


def rows(settings: Settings, job: str, *more: str) -> dict[str, int]:
    done = run(settings, "sql", "--delete-job", job, "--json", *more)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, int] = json.loads(done.stdout)["rows"]
    return found


def test_a_job_s_rows_are_counted_by_who_reads_and_deleted_from_every_table_by_who_may(
    database: GuardedDatabase,
) -> None:
    reader, admin = database.settings("writer"), database.settings("admin")
    before = rows(reader, made_up_job.JOB)
    with_a_job = "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'job'"
    tables = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    wanted = {name for (name,) in ask(database, "admin", f"{with_a_job} AND table IN ({tables})")}
    assert before.keys() == wanted
    assert before.keys() >= {*TABLES, "transfers", "verdict_revisions"}
    assert all(before.values()), before
    other = rows(reader, OTHER)
    assert rows(reader, made_up_job.JOB) == before, "nothing was deleted"
    refused = run(reader, "sql", "--delete-job", made_up_job.JOB, "--write")
    assert (refused.returncode, "Not enough privileges" in refused.stderr) == (2, True)
    for job, kept in ((made_up_job.JOB, other), (OTHER, dict.fromkeys(before, 0))):
        rows(admin, job, "--write")
        assert set(rows(reader, job).values()) == {0}
        assert rows(reader, OTHER) == kept, "another job's rows stay"
    assert set(rows(admin, OTHER, "--write").values()) == {0}


def test_people_see_what_would_go_and_how_to_let_it_go(database: GuardedDatabase) -> None:
    told = run(database.settings("writer"), "sql", "--delete-job", "nobody\x1b[31m's")
    assert told.returncode == 0
    last = told.stdout.splitlines()[-1]
    assert last.split()[0] == "0"
    assert last.endswith("nothing is deleted; --write deletes them, as clickhouse_user")
    assert "\x1b" not in told.stdout
