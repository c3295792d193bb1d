"""The database goes away, and comes back: pages say so, and show what they know without it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from irregulars.infra.console.database import KafkaAddress
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.connection import DatabaseSettings
from tests.infra.console.visits import NOWHERE, Visit, text_of, visit
from tests.integration.pipelines import store
from tests.sinks.recorded_jobs import rows_of_recording

pytestmark = pytest.mark.integration

PATHS = ("/", "/jobs/gloo-slow-nic", "/incidents/gloo-slow-nic:0:60:0", "/devices", "/hosts/node-1", "/pipeline",
         "/questions/jobs_now", "/search?q=gloo", "/api/jobs/gloo-slow-nic/0/heat-map")  # fmt: skip
SHARED = ("/devices", "/hosts/node-1")
"""Pages whose answers are shared for 15 s: they are asked once the database is away."""

DEADLINE_S = 60.0


def test_pages_say_that_the_database_is_away_and_are_back_with_it(tmp_path: Path) -> None:
    port = free_port()
    with DemoDatabase(data_directory=tmp_path / "data", port=port) as database:
        reader = DatabaseSettings(database.url, database.reader, database.reader_password, database.database)
        writer = DatabaseSettings(database.url, database.user, database.password, database.database)
        store(writer, rows_of_recording("gloo-slow-nic"))
        with visit(reader) as somebody:
            somebody.log_in()
            assert {somebody.get(path).status_code for path in set(PATHS) - set(SHARED)} == {200}
            database.stop()
            wait_until(somebody, 503)
            for path in PATHS:
                answer = somebody.get(path)
                assert answer.status_code == 503, path
                assert "Traceback" not in answer.text
                assert "clickhouse_connect" not in answer.text
                assert database.reader_password not in answer.text
                if not path.startswith("/api/"):
                    assert "database" in text_of(answer).lower(), path
                    assert "This page tries again by itself." in text_of(answer) or path == "/pipeline", path
                    assert 'id="live"' in answer.text, path
            assert somebody.get("/questions").status_code == 200  # what needs no database is there
            assert somebody.get("/healthz").text == "ok\n"
            assert 'irregulars_console_database_seconds_count{outcome="failed"}' in somebody.get("/metrics").text
            database.start()
            wait_until(somebody, 200)


def test_a_form_is_not_sent_again_by_a_page_that_asks_again() -> None:
    nowhere = KafkaAddress("127.0.0.1:1", TopicSettings())
    with visit(NOWHERE, nowhere, takes_feedback=True) as somebody:
        somebody.log_in()
        said = {"csrf": somebody.csrf("/questions"), "verdict_id": "v", "word": "right", "who": "ann"}
        answer = somebody.client.post("/feedback", data=said)
        assert answer.status_code == 503
        assert "Go back, and send it again" in answer.text
        assert 'id="live"' not in answer.text


def wait_until(somebody: Visit, status: int) -> None:
    """Wait for each page: answers are shared for some seconds, and failures for two."""
    for path in PATHS:
        deadline = time.monotonic() + DEADLINE_S
        while (found := somebody.get(path).status_code) not in {303, status}:
            assert time.monotonic() < deadline, (path, found)
            time.sleep(0.3)
