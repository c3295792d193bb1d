"""Users of the database spend the quotas that ship: readers are told so, and nobody takes anything from a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from irregulars.errors import ServiceUnavailable
from irregulars.infra.wiring import database_settings
from irregulars.sinks.connection import DatabaseSettings, connect, connected, translated
from tests.integration.database_users import quotas_of
from tests.integration.pipelines import ITERATIONS, Pipeline
from tests.integration.test_database_access import STATEMENTS, GuardedDatabase, ask, run
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

MINUTES = 3
"""Quotas count by minutes of the clock: what is spent in one may be there again for the next question."""
COUNT = "SELECT count() FROM verdicts"
WRONG = "SELECT no FROM verdicts"
"""It is counted as an error, and refused as what it is however many there were."""
WORKERS = 50
"""That share one user, if each sends as many queries as one that catches up."""


class WatchedDatabase(GuardedDatabase):
    """With one user more, who sees what quotas count; `writer_quota` replaces that of the writer."""

    def __init__(self, directory: Path, writer_quota: str | None = None) -> None:
        super().__init__(directory)
        self.writer_quota = writer_quota

    def _users(self) -> str:
        xml = super()._users()
        if self.writer_quota is not None:
            quota = f"<irregulars_writer><interval>{self.writer_quota}</interval></irregulars_writer></quotas>"
            xml = re.sub(r"<irregulars_writer><interval>.*?</irregulars_writer>", "", xml, count=1)
            xml = xml.replace("</quotas>", quota)
        return xml.replace("</users>", "<observer><password>o</password><networks><ip>127.0.0.1</ip></networks>"
                           "<profile>default</profile><quota>default</quota><grants><query>GRANT SHOW QUOTAS ON *.*"
                           "</query><query>GRANT SELECT ON system.*</query></grants></observer></users>")  # fmt: skip

    def spent(self, who: str) -> int:
        """Queries of a user in the present minute."""
        with connected(DatabaseSettings(self.url, "observer", "o", "system")) as client:
            sql = "SELECT sum(queries) FROM system.quotas_usage WHERE duration = 60 AND quota_name = {quota:String}"
            found = client.query(sql, parameters={"quota": f"irregulars_{who}"}).result_rows
        return int(found[0][0] or 0)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[WatchedDatabase]:
    with WatchedDatabase(tmp_path / "guarded") as running:
        make_tables(running)
        yield running


def make_tables(database: WatchedDatabase) -> None:
    done = run(database.settings("admin"), "sql", "--create-tables")
    assert (done.returncode, done.stderr) == (0, "")


def spend(database: WatchedDatabase, who: str, sql: str, most: int) -> None:
    """Ask until `most` of what is counted is spent."""
    target = database_settings(database.settings(who))
    try:
        client = connect(target)
    except ServiceUnavailable:  # it is
        return
    with suppress(ServiceUnavailable):
        for _ in range(most + 1):
            with translated(target), suppress(DatabaseError) if sql == WRONG else nullcontext():
                client.query(sql)
    client.close_connections()


@pytest.mark.parametrize(("sql", "limit"), [(COUNT, "queries = 1200"), (WRONG, "errors = 200")])
def test_a_reader_beyond_its_quota_is_told_so_in_one_line(database: WatchedDatabase, sql: str, limit: str) -> None:
    assert limit in quotas_of(STATEMENTS)["irregulars_reader"][0][1]
    kind, most = limit.split(" = ")
    for question in ((COUNT,), ("blamed", "job=llama"), (COUNT, "--json")):
        for _ in range(MINUTES):
            spend(database, "reader", sql, int(most))
            done = run(database.settings("reader"), "sql", *question)
            if done.returncode:
                break
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("irregulars: user 'irregulars_reader' must keep within its quota; got ")
        assert re.search(rf"{kind} = \d+/{most}\b.*Interval will end at", done.stderr)
    assert ask(database, "writer", COUNT) == [(0,)], "its quota is its own"


@pytest.fixture
def pipeline(kafka_bootstrap: str, database: WatchedDatabase, tmp_path: Path) -> Iterator[Pipeline]:
    own = pipeline_of(kafka_bootstrap, database, tmp_path)
    yield own
    own.close()


def pipeline_of(bootstrap: str, database: WatchedDatabase, folder: Path) -> Pipeline:
    writer = database.settings("writer")
    where = DatabaseSettings(database.url, writer.clickhouse_user, writer.clickhouse_password, database.database)
    return Pipeline(bootstrap, where, folder)


def stored(database: WatchedDatabase) -> int:
    return int(ask(database, "admin", "SELECT count() FROM iterations FINAL")[0][0])


def test_workers_that_catch_up_stay_far_below_their_quota(pipeline: Pipeline, database: WatchedDatabase) -> None:
    """Of what stands on the topics already they read, judge and store as much as they can."""
    most = int(quotas_of(STATEMENTS)["irregulars_writer"][0][1].removeprefix("queries = "))
    pipeline.replay("gloo-clean", "gloo-slow-nic")
    worker = pipeline.start_worker()
    spent = []

    def is_stored() -> bool:
        spent.append(database.spent("writer"))
        return stored(database) == 2 * ITERATIONS

    wait_until(is_stored, "all stored")
    assert worker.stop() == 0
    print(f"queries of the worker in a minute: {max(spent)}")
    assert 0 < WORKERS * max(spent) < most
    assert "event=sink_busy" not in worker.output()


LIMIT = 40


def test_a_worker_whose_quota_is_spent_waits_and_loses_nothing(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Somebody else asks as its user, and leaves nothing of the quota."""
    quota = f"<duration>10</duration><queries>{LIMIT}</queries>"
    with WatchedDatabase(tmp_path / "guarded", quota) as database:
        make_tables(database)
        pipeline = pipeline_of(kafka_bootstrap, database, tmp_path)
        try:
            worker = pipeline.start_worker()
            wait_until(lambda: "event=restored hop=job" in worker.output(), "the partitions")
            replay = pipeline.start_replay("gloo-clean", 0.0)

            def is_choked() -> bool:
                spend(database, "writer", COUNT, LIMIT)
                return "event=sink_busy" in worker.output()

            wait_until(is_choked, "a spent quota")
            assert replay.wait() == 0
            wait_until(lambda: stored(database) == ITERATIONS, "all iterations stored")
            assert worker.stop() == 0
            assert "Quota for user" in worker.output()
            assert "Traceback" not in worker.output()
        finally:
            pipeline.close()
