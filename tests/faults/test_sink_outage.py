"""The database goes away under a working worker, or refuses rows: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import monitor_settings
from irregulars.kafka.topics import RANK_TOPICS
from irregulars.producers.trace.directory import read_trace
from tests.integration.pipelines import ITERATIONS, RANKS, RECORDINGS, Pipeline, Process, held_replay
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

RECORDING = "gloo-slow-nic"
AWAY_S = 2.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[DemoDatabase]:
    """A database that the test may kill and start: rows and address stay."""
    database = DemoDatabase(tmp_path / "database", port=free_port())
    database.start()
    yield database
    database.kill()


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze(read_trace(RECORDINGS / RECORDING), monitor_settings(Settings()))


def start_and_store_something(pipeline: Pipeline, **settings: Any) -> Process:
    worker = pipeline.start_worker(**settings)
    pipeline.replay("gloo-clean")
    pipeline.wait_until_stored(1)
    return worker


def require_everything_once(pipeline: Pipeline, analysis: Analysis) -> None:
    pipeline.wait_until_stored(2)
    wanted = {(v.verdict_id, r + 1): 1 for v in analysis.verdicts for r in range(v.revision)}
    wait_until(lambda: pipeline.count("verdicts") == len(analysis.verdicts), "verdicts stored")
    assert pipeline.revision_counts("verdicts") == wanted
    rows = 2 * ITERATIONS * RANKS  # stored behind the verdicts, for which people wait
    wait_until(lambda: pipeline.count("rank_iterations") >= rows, "rows of ranks stored")
    assert pipeline.count("rank_iterations") == rows
    stored = pipeline.rows("verdicts").to_pylist()
    assert [(row["verdict_id"], row["revision"], row["lost_s"]) for row in stored] == [
        (verdict.verdict_id, verdict.revision, verdict.lost_s) for verdict in analysis.verdicts
    ]
    assert pipeline.bus.read("deadletter") == []


def count_samples(*names: str) -> int:
    return sum(pq.read_metadata(RECORDINGS / name / "bandwidth.parquet").num_rows for name in names)


def judge_one_more(pipeline: Pipeline, worker: Process, jobs: int) -> None:
    """Replay the recording as the job of this number; wait until all of it was told, or no more rows may wait."""
    folder = str(RECORDINGS / RECORDING)
    replay = pipeline.start("replay", folder, "--speed", "0", "--json", "--job", f"job-{jobs}")
    assert replay.wait() == 0, replay.output()

    def is_judged_or_full() -> bool:
        told = sum(verdict.event == "closed" for verdict in pipeline.revisions("verdicts"))
        return told == jobs or "event=store_full" in worker.output()

    wait_until(is_judged_or_full, "a judged job")


def offsets(pipeline: Pipeline, group: str) -> tuple[dict[tuple[str, int], int], int]:
    """Committed offsets, and how many snapshots stand on their topics."""
    bus = pipeline.bus
    config = {"bootstrap.servers": bus.bootstrap, "group.id": pipeline.settings.topic_prefix + group}
    names = [bus.topics.name(topic) for topic in (*RANK_TOPICS, "evidence")]
    consumer = Consumer(config)
    places = [TopicPartition(name, partition) for name in names for partition in range(bus.partitions)]
    committed = {(place.topic, place.partition): place.offset for place in consumer.committed(places, timeout=60)}
    consumer.close()
    return committed, len(bus.read("rank_snapshots")) + len(bus.read("job_snapshots"))


def test_the_worker_waits_for_a_database_that_is_killed_and_acknowledges_nothing_meanwhile(
    pipeline: Pipeline, database: DemoDatabase, analysis: Analysis
) -> None:
    worker = start_and_store_something(pipeline)
    database.kill()
    pipeline.replay(RECORDING)
    wait_until(lambda: "event=sink_busy" in worker.output(), "a busy sink")
    wait_until(lambda: pipeline.revision_counts("alerts").total() == 2, "alerts without a database")
    before = offsets(pipeline, "workers")
    time.sleep(AWAY_S)
    assert offsets(pipeline, "workers") == before
    database.start()
    require_everything_once(pipeline, analysis)
    wait_until(lambda: offsets(pipeline, "workers")[0] != before[0], "commits when all is stored")
    assert worker.stop() == 0
    assert "Traceback" not in worker.output()


def test_verdicts_and_alerts_go_on_while_the_database_is_away_and_a_killed_worker_leaves_all_rows_to_the_next(
    pipeline: Pipeline, database: DemoDatabase, analysis: Analysis
) -> None:
    worker = start_and_store_something(pipeline)
    database.kill()
    (verdict,) = analysis.verdicts
    told = {(verdict.verdict_id, revision + 1): 1 for revision in range(verdict.revision)}
    with held_replay(pipeline, RECORDING, 78):  # its fault is in iterations 60 to 79
        wait_until(lambda: verdict.verdict_id in pipeline.bus.verdict_ids("alerts"), "an alert while the job runs")
    wait_until(lambda: pipeline.revision_counts("verdicts") == told, "all revisions without a database")
    assert "event=sink_busy" in worker.output()
    worker.kill()
    database.start()
    worker = pipeline.start_worker()
    require_everything_once(pipeline, analysis)
    assert pipeline.rows("verdicts").column("state").to_pylist() == ["closed"]
    assert pipeline.revision_counts("alerts").total() == 2
    assert pipeline.rows("bandwidth").num_rows == count_samples("gloo-clean", RECORDING)
    assert worker.stop() == 0


def test_where_memory_is_full_judging_waits_and_nothing_is_lost(pipeline: Pipeline, database: DemoDatabase) -> None:
    worker = pipeline.start_worker(unstored_mib=1)
    pipeline.replay("gloo-clean")
    pipeline.wait_until_stored(1)
    database.kill()
    jobs = 0
    while "event=store_full" not in worker.output():
        jobs += 1
        judge_one_more(pipeline, worker, jobs)
    database.start()
    pipeline.wait_until_stored(1 + jobs)
    samples = count_samples("gloo-clean", *[RECORDING] * jobs)
    wait_until(lambda: pipeline.count("bandwidth") == samples, "all samples stored")
    wanted = {"rank_iterations": (1 + jobs) * ITERATIONS * RANKS, "verdicts": jobs}
    wait_until(lambda: all(pipeline.count(name) >= rows for name, rows in wanted.items()), "all rows stored")
    assert {name: pipeline.count(name) for name in wanted} == wanted
    assert worker.stop() == 0
    for event in ("sink_busy", "sink_back", "store_has_room", "samples_read_again"):
        assert f"event={event}" in worker.output(), event
    assert worker.output().count("event=store_full") < 5
    assert pipeline.bus.read("deadletter") == []


def test_a_worker_that_stops_without_its_database_leaves_its_rows_to_the_next(
    pipeline: Pipeline, database: DemoDatabase, analysis: Analysis
) -> None:
    worker = start_and_store_something(pipeline, stop_s=20.0)  # of which it tries to store for a third
    database.kill()
    pipeline.replay(RECORDING)
    wait_until(lambda: "event=sink_busy" in worker.output(), "a busy sink")
    assert worker.stop() == 2
    lines = worker.output().splitlines()
    assert "Traceback" not in worker.output()
    assert lines[-1].startswith("irregulars: database must take rows; got ")
    database.start()
    worker = pipeline.start_worker()
    require_everything_once(pipeline, analysis)
    assert worker.stop() == 0


def test_rows_that_the_database_refuses_go_to_the_dead_letters_and_all_others_are_stored(pipeline: Pipeline) -> None:
    worker = start_and_store_something(pipeline)
    pipeline.query(f"ALTER TABLE rank_iterations ADD CONSTRAINT c CHECK job != '{RECORDING}' OR iteration != 100")
    pipeline.replay(RECORDING)
    pipeline.wait_until_stored(2)
    assert worker.stop() == 0
    letters = pipeline.bus.read("deadletter")
    headers = [{name: value.decode() for name, value in letter.headers()} for letter in letters]
    assert {one["topic"] for one in headers} == {"table rank_iterations"}
    assert all("c" in one["reason"] and "rank_iterations" in one["reason"] for one in headers)
    refused = pa.concat_tables([pa.ipc.open_stream(letter.value()).read_all() for letter in letters])
    assert sum(int(one["rows"]) for one in headers) == refused.num_rows > 0
    assert 100 in refused.column("iteration").to_pylist()
    stored = pipeline.rows("rank_iterations")
    assert keys(stored).isdisjoint(keys(refused))
    assert len(keys(stored) | keys(refused)) == 2 * ITERATIONS * RANKS


def keys(table: pa.Table) -> set[tuple[object, ...]]:
    return set(zip(*(table.column(name).to_pylist() for name in ("job", "iteration", "rank")), strict=True))
