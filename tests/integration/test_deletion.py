"""Deleting one job's data, as infra/docs/operating.md says, on a real database with the shipped users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from irregulars.infra.settings import Settings
from irregulars.infra.wiring import database_settings
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.login_password import new_producer
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings, rank_key
from irregulars.messages.announcements import encode_announcement
from irregulars.messages.opinions import encode_opinion
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import connect
from irregulars.sinks.notices.mutes import opinion_on
from irregulars.sinks.tables import TABLES, table_of_opinions, table_of_samples, tables_of
from tests.integration.test_database_access import GuardedDatabase, ask, run
from tests.integration.worker_runs import ROOT
from tests.sinks import made_up_job

pytestmark = pytest.mark.integration

DOCS = ROOT / "infra" / "docs"
SQL = ("BACKUP", "RESTORE", "ALTER")
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


def test_what_topics_keep_of_a_job_for_ever_goes_from_the_partitions_in_which_it_stands(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    topics = TopicSettings(topic_prefix, 4)
    create_topics(kafka_bootstrap, topics)
    settings = Settings(kafka_bootstrap=kafka_bootstrap, topic_prefix=topic_prefix, partitions=4)
    producer = new_producer({"bootstrap.servers": kafka_bootstrap})
    for job in (made_up_job.JOB, f"{made_up_job.JOB}/2"):
        for rank in range(3):
            announced = encode_announcement(replace(made_up_job.announcement(rank), job=job))
            producer.produce(topics.name("jobs"), announced, rank_key(job, rank), 1)  # of its group, not of its key
        said = opinion_on(replace(made_up_job.verdict(1), job=job), is_right=True, who="ann", note="", time_ns=1)
        producer.produce(topics.name("feedback"), encode_opinion(said), said.key + job.encode())
    producer.produce(topics.name("jobs"), b"no JSON", b"x", 0)
    assert producer.flush(60) == 0

    def counts(*more: str) -> dict[str, int]:
        done = run(settings, "topics", "forget-job", made_up_job.JOB, "--json", *more)
        assert (done.returncode, done.stderr) == (0, "")
        return {name.removeprefix(topic_prefix): one for name, one in json.loads(done.stdout)["messages"].items()}

    wanted = {"jobs": 3, "notices": 0, "feedback": 1}
    assert counts() == counts() == counts("--do-it") == wanted
    assert set(counts().values()) == {0}
    reader = LogReader(kafka_bootstrap, {})
    newest = {one.key(): one.value() for one in reader.read_tail(topics.name("jobs"), 1)}
    reader.close()
    assert [key for key, value in newest.items() if value] == [
        rank_key(f"{made_up_job.JOB}/2", at) for at in range(3)
    ]


def test_the_sql_of_the_pages_is_sql_of_clickhouse(database: GuardedDatabase) -> None:
    lines = [line for page in ("operating.md", "access.md") for line in (DOCS / page).read_text().splitlines()]
    found = [line.strip() for line in lines if line.startswith(tuple(f"    {one} " for one in SQL))]
    assert {line.split()[0] for line in found} == set(SQL)
    for line in found:
        assert ask_formatted(database, line)


def ask_formatted(database: GuardedDatabase, sql: str) -> str:
    client = connect(database_settings(database.settings("reader")))
    try:
        return str(client.command("SELECT formatQuery({sql:String})", parameters={"sql": sql}))
    finally:
        client.close_connections()
