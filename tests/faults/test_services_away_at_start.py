"""A worker is started while its database is away: it works without it, and says so."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from tests.integration.pipelines import Pipeline, says
from tests.integration.worker_runs import page_of, wait_until

pytestmark = pytest.mark.integration

STOP_S = 5.0
"""Within which a worker that waits ends when it is asked to; the usual `stop_s`."""
MARGIN_S = 25.0
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


def test_a_worker_judges_without_its_database_and_stores_later(pipeline: Pipeline, database: DemoDatabase) -> None:
    page = f"127.0.0.1:{free_port()}"
    worker = pipeline.start_worker(metrics_listen=page)
    wait_until(lambda: says(worker, "event=database_away"), "a line that the database is away")
    pipeline.replay("gloo-slow-nic")
    wait_until(lambda: bool(pipeline.revisions()), "an alert")
    why = "database must have answered since the start; it has not\n"
    wait_until(lambda: page_of(f"http://{page}/readyz") == (503, why), "a worker that only lacks its database")
    assert page_of(f"http://{page}/healthz")[0] == 200
    database.start()
    pipeline.wait_until_stored(1)
    wait_until(lambda: page_of(f"http://{page}/readyz")[0] == 200, "a worker that is ready")
    stored = pipeline.rows("verdicts")["verdict_id"].to_pylist()
    assert {one.verdict_id for one in pipeline.revisions()} == set(stored)
    assert worker.stop() == 0
    said = worker.output()
    assert (said.count("event=database_away"), said.count("event=sink_back")) == (1, 1)
    (line,) = [line for line in said.splitlines() if "event=database_away" in line]
    assert database.url in line
    assert "Traceback" not in said
    assert database.password not in said


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A place that takes connections and says nothing: each question to it takes its whole time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_a_worker_whose_database_is_away_stops_when_it_is_asked_to(
    pipeline: Pipeline, silent_url: str, is_silent: bool, how: signal.Signals
) -> None:
    url = silent_url if is_silent else pipeline.settings.clickhouse_url
    worker = pipeline.start_worker(stop_s=STOP_S, clickhouse_url=url)
    wait_until(lambda: says(worker, "event=database_away"), "a line that the database is away")
    time.sleep(ASKING_S)
    assert worker.stop(STOP_S + MARGIN_S, how) == 0
    assert "Traceback" not in worker.output()
    assert worker.output().splitlines()[-1].endswith("event=stop status=0")
