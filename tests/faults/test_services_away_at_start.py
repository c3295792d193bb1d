"""A worker is started while a service that it needs is away: it waits, says for which, and can be stopped."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from irregulars.infra.services.demo_database import DemoDatabase
from irregulars.infra.services.kafka_broker import KafkaBroker
from irregulars.infra.services.loopback import free_port
from irregulars.sinks.connection import DatabaseSettings
from tests.integration.pipelines import Pipeline, Process
from tests.integration.worker_runs import Bus, Job, Worker, require_each_once, wait_until

pytestmark = pytest.mark.integration

AWAY_S = 15.0
"""Longer than a start used to wait for the database: 10 s."""
STOP_S = 5.0
"""Within which a worker that waits ends when it is asked to; the usual `stop_s`."""
MARGIN_S = 1.0
"""For a busy machine to take the process away."""
ASKING_S = 1.0
"""Longer than the first pause: the next question is on its way, and a silent service lets it wait."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[DemoDatabase]:
    """A database that is away, with its address and password known; the test may start it."""
    database = DemoDatabase(tmp_path / "database", port=free_port())
    database.start()
    database.kill()
    yield database
    database.kill()


@pytest.fixture
def pipeline(kafka_bootstrap: str, database: DemoDatabase, tmp_path: Path) -> Iterator[Pipeline]:
    where = DatabaseSettings(database.url, database.user, database.password, database.database)
    pipeline = Pipeline(kafka_bootstrap, where, tmp_path)
    yield pipeline
    pipeline.close()


def waits(worker: Process, service: str) -> bool:
    """Whether it has said that it waits; a worker that has ended says nothing any more."""
    assert worker.is_running, worker.output()
    return f"event={service}_away" in worker.output()


def test_a_worker_waits_for_its_database_and_says_so_once(pipeline: Pipeline, database: DemoDatabase) -> None:
    worker = pipeline.start_worker()
    wait_until(lambda: waits(worker, "database"), "a line that the database is away")
    time.sleep(AWAY_S)
    assert worker.is_running, worker.output()
    database.start()
    pipeline.replay("gloo-clean")
    pipeline.wait_until_stored(1)
    assert worker.stop() == 0
    said = worker.output()
    assert said.count("event=database_away") == said.count("event=database_back") == 1
    (line,) = [line for line in said.splitlines() if "event=database_away" in line]
    assert database.url in line
    assert "waits_s=300" in line
    assert "Traceback" not in said
    assert database.password not in said


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A place that takes connections and says nothing: each question to it takes its whole time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_a_worker_that_waits_for_its_database_stops_when_it_is_asked_to(
    pipeline: Pipeline, silent_url: str, is_silent: bool, how: signal.Signals
) -> None:
    url = silent_url if is_silent else pipeline.settings.clickhouse_url
    worker = pipeline.start_worker(stop_s=STOP_S, clickhouse_url=url)
    wait_until(lambda: waits(worker, "database"), "a line that the database is away")
    time.sleep(ASKING_S)
    assert worker.stop(STOP_S + MARGIN_S, how) == 0
    assert "Traceback" not in worker.output()
    assert worker.output().splitlines()[-1].endswith("event=stop status=0")


def test_a_worker_gives_up_on_a_database_that_stays_away_and_says_which(
    pipeline: Pipeline, database: DemoDatabase
) -> None:
    worker = pipeline.start_worker(database_away_s=2.0)
    assert worker.wait(30.0) == 2
    last = worker.output().splitlines()[-1]
    assert last.startswith("irregulars: database must answer; got ")
    assert database.url in last
    assert last.endswith("A start waits 2 s for it")
    assert "Traceback" not in worker.output()


def test_a_worker_waits_for_a_broker_that_is_away_when_it_starts(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bus = Bus(kafka_broker.bootstrap)
    job = Job(bus, "later", ranks=4)
    kafka_broker.kill()
    worker = Worker(bus, tmp_path, broker_timeout_s=2.0)
    try:
        wait_until(lambda: "event=broker_away" in worker.output() or not worker.is_running, "a broker that is away")
        time.sleep(6.0)
        assert worker.is_running, worker.output()
        kafka_broker.start()
        job.announce()
        job.run(5)
        job.end()
        bus.flush()
        require_each_once(bus, job.wanted_ids(), worker)
        said = worker.output()
        assert said.count("event=broker_away") == said.count("event=broker_back") == 1
        assert "Traceback" not in said
    finally:
        print(worker.output()[-6000:])
        if worker.is_running:
            worker.kill()
        bus.close()
