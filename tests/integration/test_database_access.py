"""Who may do what in ClickHouse, and delete what: the shipped users in force on a real server, and one behind TLS."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from irregulars.errors import InputError, ServiceRefused, ServiceUnavailable
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import database_settings, keep_days
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.login_password import new_producer
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings, rank_key
from irregulars.messages.announcements import encode_announcement
from irregulars.messages.opinions import encode_opinion
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import DatabaseSettings, connect, connected, translated
from irregulars.sinks.investigations import run as ask_question
from irregulars.sinks.investigations import shipped_investigations
from irregulars.sinks.migrate import access_sql
from irregulars.sinks.notices.mutes import opinion_on
from irregulars.sinks.tables import TABLES, table_of_opinions, table_of_samples, tables_of
from tests.integration.database_users import profiles_of, quotas_of, statements_of, with_access
from tests.integration.doctor_runs import WRONG, diagnosed, problems, require_one_cause
from tests.integration.pipelines import run_command, store
from tests.integration.secured_kafka import Authority, behind_tls
from tests.integration.worker_runs import ROOT
from tests.sinks import made_up_job

pytestmark = pytest.mark.integration

PASSWORD = "s3cret-of-all-three"
STATEMENTS = statements_of(access_sql())
"""Of ``sinks/sql/access.sql``, each in one line."""
DOCS = ROOT / "infra" / "docs"
SQL = ("BACKUP", "RESTORE", "ALTER")
OTHER = "somebody's; DROP TABLE verdicts --"
"""Names of jobs are input."""

USERS = ("irregulars_reader", "irregulars_writer", "irregulars_admin")


class GuardedDatabase(DemoDatabase):
    """Our server with the users, settings and quotas of ``sinks/sql/access.sql``.

    Its engine takes no ``CREATE USER``: the test carries grants, bounds and quotas over into its configuration.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "data")
        self.authority = Authority(directory / "ca")

    def settings(self, who: str, **others: Any) -> Settings:
        """Settings of one of the three; `irregulars sql` takes the reader."""
        values = {"clickhouse_url": self.url, "clickhouse_user": f"irregulars_{who}", "clickhouse_password": PASSWORD,
                  "clickhouse_reader_user": "irregulars_reader", "clickhouse_reader_password": PASSWORD}  # fmt: skip
        return Settings(**{**values, **others})

    def _users(self) -> str:
        hashes = dict.fromkeys(USERS, hashlib.sha256(PASSWORD.encode()).hexdigest())
        return with_access(super()._users(), STATEMENTS, hashes)


@pytest.fixture(scope="module")
def bare_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedDatabase]:
    """One server for all tests of this file: those that want no tables come before `database` makes them."""
    with GuardedDatabase(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture(scope="module")
def database(bare_database: GuardedDatabase) -> GuardedDatabase:
    done = run(bare_database.settings("admin"), "sql", "--create-tables")
    assert (done.returncode, done.stderr) == (0, "")
    return bare_database


def run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, settings=settings)


def ask(database: GuardedDatabase, who: str, sql: str) -> Any:
    with connected(database_settings(database.settings(who))) as client:
        return client.query(sql).result_rows


# --- what the doctor says -------------------------------------------------------------------------------------------


def test_why_a_database_can_not_be_used_is_told_in_one_line(bare_database: GuardedDatabase, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "a stranger")
    https = bare_database.url.replace("http:", "https:")
    own = {"clickhouse_ca_file": bare_database.authority.certificate}
    with (
        behind_tls(bare_database.url, bare_database.authority) as safe,
        behind_tls(bare_database.url, bare_database.authority, days=-1) as expired,
    ):
        cases: tuple[tuple[dict[str, Any], str, str], ...] = (
            ({}, "migrations_missing", "not applied: 0001_tables.sql"),
            ({"clickhouse_password": WRONG}, "clickhouse_refuses", "password is incorrect"),
            ({"clickhouse_user": "nobody"}, "clickhouse_refuses", "there is no user with such name"),
            ({"clickhouse_database": "other"}, "database_hidden", "may not see database 'other', or it does not"),
            ({"clickhouse_url": https}, "clickhouse_no_tls", "speaks no TLS"),
            ({"clickhouse_url": safe.replace("https:", "http:")}, "clickhouse_tls", "speaks TLS"),
            ({"clickhouse_url": safe}, "clickhouse_untrusted", "clickhouse_ca_file is not set"),
            ({"clickhouse_url": safe, "clickhouse_ca_file": stranger.certificate}, "clickhouse_untrusted", "another"),
            ({"clickhouse_url": expired, **own}, "clickhouse_untrusted", "has expired"),
            ({"clickhouse_url": safe, "clickhouse_ca_file": tmp_path / "no"}, "clickhouse_unusable", "ca_file must"),
        )
        with ThreadPoolExecutor(len(cases)) as pool:
            seen = pool.map(
                lambda one: diagnosed(bare_database.settings("writer", **one[0]), None, "clickhouse"), cases
            )
            for (given, code, words), found in zip(cases, seen, strict=True):
                require_one_cause(str(given), found, code, words, PASSWORD)


def test_a_user_who_may_not_insert_is_well_for_a_console_and_not_for_a_worker(database: GuardedDatabase) -> None:
    assert problems(diagnosed(database.settings("writer"), "worker", "clickhouse")) == []
    assert problems(diagnosed(database.settings("reader"), "console", "clickhouse")) == []
    as_worker = diagnosed(database.settings("reader"), "worker", "clickhouse")
    require_one_cause("reader", as_worker, "grant_missing", "lacks INSERT", PASSWORD)
    wrong = diagnosed(database.settings("writer", clickhouse_reader_password=WRONG), "worker", "clickhouse")
    require_one_cause("reader's password", wrong, "reader_refused", "irregulars_reader", PASSWORD)


# --- who may do what ------------------------------------------------------------------------------------------------


def test_every_shipped_statement_is_one_that_clickhouse_understands(database: GuardedDatabase) -> None:
    target = DatabaseSettings(database.url, database.user, database.password)
    with connected(target) as client:
        for statement in STATEMENTS:
            assert client.query("SELECT formatQuery({sql:String})", parameters={"sql": statement}).result_rows
    assert set(USERS) == profiles_of(STATEMENTS).keys()
    assert quotas_of(STATEMENTS)["irregulars_reader"][0] == ("minute", "queries = 1200, errors = 200")


WRITES = (
    "drop table verdicts", "INSERT INTO verdicts (job) VALUES ('x')", "ALTER TABLE verdicts DELETE WHERE 1",
    "TRUNCATE TABLE verdicts", "DROP TABLE verdicts SETTINGS readonly = 0",
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
)  # fmt: skip


def test_irregulars_sql_drops_nothing_even_with_the_admin_s_password(database: GuardedDatabase) -> None:
    settings = database.settings("admin", clickhouse_reader_user=None, clickhouse_reader_password="")
    done = run(settings, "sql", "drop table verdicts")
    assert (done.returncode, done.stdout) == (2, "")
    assert "query must only read" in done.stderr
    assert "--write" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert ask(database, "admin", "EXISTS TABLE verdicts") == [(1,)]


def test_a_user_who_may_only_read_is_told_how_to_write(database: GuardedDatabase) -> None:
    done = run(database.settings("reader"), "sql", "drop table verdicts")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "query must only read" in done.stderr
    assert "Check user, password" not in done.stderr


def test_told_to_write_it_may_what_the_user_may(database: GuardedDatabase) -> None:
    settings = database.settings("admin")  # there is a reader, who is not asked
    made = "CREATE TABLE mine (a Int8) ENGINE = ReplacingMergeTree ORDER BY a"
    for sql in (made, "INSERT INTO mine SELECT 1", "DROP TABLE mine"):
        refused = run(settings, "sql", sql)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
        done = run(settings, "sql", sql, "--write")
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\ntrue\n", "")
    denied = run(database.settings("writer"), "sql", "DROP TABLE verdicts", "--write")
    assert (denied.returncode, "Not enough privileges" in denied.stderr) == (2, True)
    assert ask(database, "admin", "EXISTS TABLE verdicts") == [(1,)]


@pytest.mark.parametrize("login", ["the reader", "only the admin", "the demo's user"])
def test_sql_can_change_nothing_whoever_asks(database: GuardedDatabase, login: str) -> None:
    settings = {
        "the reader": database.settings("admin"),
        "only the admin": database.settings("admin", clickhouse_reader_user=None, clickhouse_reader_password=""),
        "the demo's user": Settings(clickhouse_url=database.url, clickhouse_user=database.user,
                                    clickhouse_password=database.password),
    }[login]  # fmt: skip
    target = database_settings(settings, is_reading=True)
    with connected(target) as client:
        for sql in WRITES:
            with pytest.raises((InputError, ServiceRefused)), translated(target):
                client.query(sql)
    assert ask(database, "admin", "EXISTS TABLE verdicts") == [(1,)]


def test_the_reader_reads_within_bounds(database: GuardedDatabase) -> None:
    assert ask(database, "reader", "SELECT count() FROM verdicts SETTINGS max_execution_time = 5") == [(0,)]
    with pytest.raises(ServiceUnavailable, match="max_execution_time"):
        ask(database, "reader", "SELECT 1 SETTINGS max_execution_time = 100000")


FOREIGN = (
    "DROP TABLE verdicts", "CREATE TABLE t (a Int8) ENGINE = ReplacingMergeTree ORDER BY a",
    "ALTER TABLE verdicts DELETE WHERE 1", "SELECT * FROM url('http://127.0.0.1:1/', 'TSV')",
    "CREATE USER other", "GRANT SELECT ON *.* TO irregulars_writer",
)  # fmt: skip


@pytest.mark.parametrize("sql", FOREIGN)
def test_the_writer_writes_and_changes_no_table(database: GuardedDatabase, sql: str) -> None:
    with pytest.raises(ServiceRefused):
        ask(database, "writer", sql)


def test_the_admin_makes_tables_and_no_users(database: GuardedDatabase) -> None:
    ask(database, "admin", "CREATE TABLE made (a Int8) ENGINE = ReplacingMergeTree ORDER BY a")
    ask(database, "admin", "DROP TABLE made")
    with pytest.raises(ServiceRefused):
        ask(database, "admin", "CREATE USER other")


def test_how_long_tables_keep_rows_is_the_admin_s_to_say(database: GuardedDatabase) -> None:
    done = run(database.settings("admin", keep_operators_days=20), "sql", "--create-tables")
    assert (done.returncode, done.stderr) == (0, "")
    assert "retention changed of operators, transfers, behaviour_patterns" in done.stdout
    assert "up to date" in run(database.settings("admin", keep_operators_days=20), "sql", "--create-tables").stdout
    open_as_worker(database.settings("writer", keep_operators_days=20))
    with pytest.raises(ServiceRefused, match="Not enough privileges"):
        open_as_worker(database.settings("writer", keep_operators_days=21))


def open_as_worker(settings: Settings) -> None:
    sink = ClickHouseSink(database_settings(settings), keep_days=keep_days(settings))
    sink.open()
    sink.close()


def test_what_a_writer_stores_of_operators_fills_the_transfers(database: GuardedDatabase) -> None:
    store(database_settings(database.settings("writer")), tables_of(made_up_job.judgements()))
    [[recvs]] = ask(database, "reader", "SELECT countIf(operator = 'recv') FROM operators FINAL")
    assert ask(database, "reader", "SELECT count() FROM transfers FINAL") == [(recvs,)]
    assert recvs > 0


class StrictDatabase(DemoDatabase):
    """Our server, whose reader has a profile with ``readonly = 1``: no setting of a query may be set."""

    def _users(self) -> str:
        return super()._users().replace("<readonly>2</readonly>", "<readonly>1</readonly>")


def test_every_question_can_be_asked_by_a_user_who_may_set_nothing(tmp_path: Path) -> None:
    with StrictDatabase(tmp_path) as strict:
        writer = DatabaseSettings(strict.url, strict.user, strict.password, strict.database)
        store(writer, tables_of(made_up_job.judgements()))
        target = DatabaseSettings(strict.url, strict.reader, strict.reader_password, strict.database, is_reading=True)
        with connected(target) as client:
            for name, one in shipped_investigations().items():
                given = {p.name: {"host": "node-0", "rank": 3}[p.name] for p in one.parameters if p.is_required}
                assert len(ask_question(client, name, given).columns) > 3
            with pytest.raises(InputError, match="query must only read"), translated(target):
                client.query("SELECT 1 SETTINGS max_threads = 1")


@pytest.fixture
def https_url(database: GuardedDatabase) -> Iterator[str]:
    with behind_tls(database.url, database.authority) as url:
        yield url


def test_tls_with_an_authority_of_our_own(database: GuardedDatabase, https_url: str, tmp_path: Path) -> None:
    url = https_url
    own = database.settings("reader", clickhouse_url=url, clickhouse_ca_file=database.authority.certificate)
    assert run(own, "sql", "SELECT 1").returncode == 0
    stranger = database.settings("reader", clickhouse_url=url)
    with pytest.raises(ServiceUnavailable, match="certificate verify failed"):
        connect(database_settings(stranger, wait_s=0.5))
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(InputError, match="clickhouse_ca_file must be a readable file in PEM"):
        connect(DatabaseSettings(url, ca_file=tmp_path / "no.pem"))
    with pytest.raises(InputError, match="must be https"):
        DatabaseSettings(database.url, ca_file=database.authority.certificate)


def test_a_password_of_a_file_serves_and_shows_nowhere(database: GuardedDatabase, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    own = database.settings("reader", clickhouse_reader_password="", clickhouse_reader_password_file=path)
    assert run(own, "sql", "SELECT 1").returncode == 0
    path.write_text("wrong-one")
    done = run(own, "sql", "SELECT 1")
    assert done.returncode == 2
    assert "wrong-one" not in done.stderr
    refused = run(Settings(), "--set", "clickhouse_password=on-the-command-line", "sql", "SELECT 1")
    assert refused.returncode == 2
    assert "must not be given by a flag" in refused.stderr
    assert "on-the-command-line" not in refused.stderr


# --- deleting one job's data, as infra/docs/operating.md says -------------------------------------------------------


@pytest.fixture(scope="module")
def two_jobs(database: GuardedDatabase) -> GuardedDatabase:
    """The same rows of two jobs in all tables."""
    said = opinion_on(made_up_job.verdict(1), is_right=True, who="ann", note="", time_ns=made_up_job.START_NS)
    samples = (made_up_job.bandwidth(), made_up_job.gpu_health(), made_up_job.events())
    store(
        database_settings(database.settings("writer")), tables_of(made_up_job.over()),
        {"feedback": table_of_opinions([said])},
        {one.header.schema: table_of_samples([one]) for one in samples},
    )  # fmt: skip
    with connected(database_settings(database.settings("admin"))) as client:
        for name in TABLES:
            client.command(
                f"INSERT INTO {name} SELECT * REPLACE ({{job:String}} AS job) FROM {name}", parameters={"job": OTHER}
            )
    return database


def rows(settings: Settings, job: str, *more: str) -> dict[str, int]:
    done = run(settings, "sql", "--delete-job", job, "--json", *more)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, int] = json.loads(done.stdout)["rows"]
    return found


def test_a_job_s_rows_are_counted_by_who_reads_and_deleted_everywhere_by_who_may(
    two_jobs: GuardedDatabase,
) -> None:
    reader, admin = two_jobs.settings("writer"), two_jobs.settings("admin")
    before = rows(reader, made_up_job.JOB)
    with_a_job = "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'job'"
    tables = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    wanted = {name for (name,) in ask(two_jobs, "admin", f"{with_a_job} AND table IN ({tables})")}
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


def test_what_topics_keep_of_a_job_for_ever_goes_from_its_partitions(kafka_bootstrap: str, topic_prefix: str) -> None:
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
    with connected(database_settings(database.settings("reader"))) as client:
        for line in found:
            assert client.command("SELECT formatQuery({sql:String})", parameters={"sql": line})
