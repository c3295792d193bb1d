"""The main job on Apache Kafka and ClickHouse: what `analyze` says of a recording, once each, whatever happens."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, monitor_settings
from irregulars.kafka.topic_admin import create_topics
from irregulars.messages.judgements import Verdict
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.tables import TABLES
from tests.conftest import ClickHouseAddress
from tests.integration.pipelines import ITERATIONS, RANKS, RECORDINGS, Pipeline, held_replay, own_database
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

FAULTY = ("gloo-slow-link", "gloo-slow-nic", "gloo-slow-rank")
REPLAYED = (*FAULTY, "gloo-clean")
MakePipeline = Callable[..., Pipeline]


@pytest.fixture(scope="module")
def make_pipeline(
    kafka_bootstrap: str, clickhouse: ClickHouseAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakePipeline]:
    """Make pipelines, each with a database of its own if none is given."""
    with ExitStack() as made:

        def make(database: DatabaseSettings | None = None) -> Pipeline:
            own = database or made.enter_context(own_database(clickhouse))
            pipeline = Pipeline(kafka_bootstrap, own, tmp_path_factory.mktemp("pipeline"))
            made.callback(pipeline.close)
            return pipeline

        yield make


def analysed(*names: str) -> dict[str, Analysis]:
    settings = monitor_settings(Settings())
    return {name: analyze(read_trace(RECORDINGS / name), settings) for name in names}


def verdicts_of(analyses: dict[str, Analysis]) -> dict[str, Verdict]:
    return {verdict.verdict_id: verdict for one in analyses.values() for verdict in one.verdicts}


@pytest.fixture(scope="module")
def analyses() -> dict[str, Analysis]:
    return analysed(*REPLAYED)


@pytest.fixture(scope="module")
def judged(make_pipeline: MakePipeline) -> Pipeline:
    """All recordings, replayed at once into one worker that nothing happens to."""
    pipeline = make_pipeline()
    worker = pipeline.start_worker()
    pipeline.replay(*REPLAYED)
    pipeline.wait_until_stored(len(REPLAYED))
    assert worker.stop() == 0
    assert "Traceback" not in worker.output()
    return pipeline


# --- what people find -----------------------------------------------------------------------------------------------


def test_the_database_holds_the_verdicts_of_analyze_alone(judged: Pipeline, analyses: dict[str, Analysis]) -> None:
    wanted = verdicts_of(analyses)
    assert len(wanted) == len(FAULTY)
    assert stored_verdicts(judged) == {name: verdict.to_json() for name, verdict in wanted.items()}
    assert judged.count("verdicts") == len(wanted)


def test_verdicts_of_detectors_are_those_of_analyze(make_pipeline: MakePipeline) -> None:
    """Of one of ours that settings let speak, until the judgement knows that it is uneven data."""
    detectors = ("river_gaussian(warm_up=10)!", "baseline(warm_up=10)!")
    name = "bench/ddp8-imbalance"
    found = analyze(read_trace(RECORDINGS / name), monitor_settings(Settings(detectors=detectors)))
    wanted = found.verdicts
    assert {verdict.close_reason for verdict in wanted if verdict.kind == "custom"} == {"merged"}
    pipeline = make_pipeline()
    worker = pipeline.start_worker(detectors=detectors)
    pipeline.replay(name)
    wait_until(lambda: pipeline.stored_iterations() == len(found.iterations), "all iterations stored")
    assert worker.stop() == 0
    assert stored_verdicts(pipeline) == {verdict.verdict_id: verdict.to_json() for verdict in wanted}
    newest = pipeline.newest()
    assert newest == {verdict.verdict_id: verdict for verdict in wanted}
    assert set(pipeline.rows("detector_scores")["detector"].to_pylist()) == {"river_gaussian", "baseline"}


def stored_verdicts(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    suspects = python_rows(pipeline.rows("suspects"))
    return {row["verdict_id"]: as_contract(row, suspects) for row in python_rows(pipeline.rows("verdicts"))}


def as_contract(row: dict[str, Any], suspects: list[dict[str, Any]]) -> dict[str, Any]:
    own = ("verdict_id", "revision")
    mine = [one for one in suspects if all(one[name] == row[name] for name in own)]
    row["iterations"] = [row.pop("first_iteration"), row.pop("past_last_iteration")]
    row["time_ns"] = row.pop("last_seen_at")
    row["explanation"] = None if row["explanation"] is None else json.loads(row["explanation"])
    for name in ("detector", "explanation"):
        if row[name] is None:
            del row[name]
    row["suspects"] = [
        {name: value for name, value in one.items() if name not in ("job", "position", *own)}
        for one in sorted(mine, key=lambda one: one["position"])
    ]
    return row


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as dictionaries, times in ns."""
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    fields = [field.with_type(kind) for field, kind in zip(table.schema, kinds, strict=True)]
    rows: list[dict[str, Any]] = table.cast(pa.schema(fields)).to_pylist()
    return rows


def test_each_revision_stands_once_on_its_topics(judged: Pipeline, analyses: dict[str, Analysis]) -> None:
    require_each_revision_once(judged, analyses, REPLAYED)


def require_each_revision_once(pipeline: Pipeline, analyses: dict[str, Analysis], names: tuple[str, ...]) -> None:
    wanted = verdicts_of({name: analyses[name] for name in names})
    revisions = pipeline.revisions()
    found = [(verdict.verdict_id, verdict.revision) for verdict in revisions]
    assert sorted(found) == sorted((name, r + 1) for name, v in wanted.items() for r in range(v.revision))
    assert {v.verdict_id: v for v in revisions} == wanted  # the newest comes last
    alerts = [alert for verdict in revisions if (alert := alert_of(verdict)) is not None]
    assert sorted(alerts_of(pipeline)) == sorted(alerts)
    assert pipeline.bus.read("deadletter") == []


def alerts_of(pipeline: Pipeline) -> list[bytes]:
    """Alerts as they stand there; each has its verdict's id as key."""
    messages = pipeline.bus.read("alerts")
    ids = [verdict.verdict_id.encode() for verdict in pipeline.revisions("alerts")]
    assert [message.key() for message in messages] == ids
    return [message.value() for message in messages]


def test_alerts_tell_when_a_verdict_opens_and_closes(judged: Pipeline, analyses: dict[str, Analysis]) -> None:
    told: dict[str, list[str]] = {}
    for alert in judged.revisions("alerts"):
        told.setdefault(alert.job, []).append(alert.event)
    assert told.keys() == set(FAULTY)
    for first, last in told.values():
        assert first in ("opened", "raised")  # what opens as a note is told when it has cost enough
        assert last == "closed"


def test_the_database_holds_every_iteration_and_rank_once(judged: Pipeline, analyses: dict[str, Analysis]) -> None:
    wanted = {
        (name, one.iteration, one.elapsed_ns, one.is_irregular, one.ranks_reported, one.verdict_ids)
        for name, analysis in analyses.items()
        for one in analysis.iterations
    }
    names = ("job", "iteration", "elapsed_ns", "is_irregular", "ranks_reported", "verdict_ids")
    sql = f"SELECT {', '.join(names)} FROM judged_iterations"
    rows = judged.client.query_arrow(sql, use_strings=True).to_pylist()
    assert {tuple(as_key(row[name]) for name in names) for row in rows} == wanted
    assert len(rows) == len(wanted) == len(REPLAYED) * ITERATIONS
    sql = "SELECT groupArray(c) FROM (SELECT uniqExact(iteration, rank) AS c FROM rank_iterations FINAL GROUP BY job)"
    assert judged.query(sql) == str([ITERATIONS * RANKS] * len(REPLAYED)).replace(" ", "")
    assert judged.count("rank_iterations") == len(REPLAYED) * ITERATIONS * RANKS
    assert judged.count("jobs") == len(REPLAYED) * RANKS


def as_key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_every_sample_of_bandwidth_is_stored(judged: Pipeline) -> None:
    sent = [batch for name in REPLAYED for batch in read_trace(RECORDINGS / name).batches("bandwidth").values()]
    found = judged.rows("bandwidth")
    assert found.num_rows == sum(map(len, sent))
    assert sorted(times_ns(found)) == sorted(np.concatenate([batch.columns["time_ns"] for batch in sent]).tolist())


def times_ns(table: pa.Table) -> list[int]:
    times: list[int] = table.column("sampled_at").cast(pa.int64()).to_pylist()
    return times


# --- a worker that is killed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kill:
    """When a worker is killed: the replay stops before iteration `held_at`, until `is_due` says yes."""

    recording: str
    snapshot_s: float
    held_at: int
    is_due: Callable[[Pipeline], bool]


def is_stored_and_nobody_accused(pipeline: Pipeline) -> bool:
    return pipeline.stored_iterations() > 0 and not pipeline.revisions()


def is_open_and_not_stored(pipeline: Pipeline) -> bool:
    return is_open(pipeline.revisions()) and pipeline.stored_iterations() == 0


def is_open_and_stored(pipeline: Pipeline) -> bool:
    return is_open(pipeline.revisions()) and pipeline.count("verdicts") == 1


def is_open(revisions: list[Verdict]) -> bool:
    return bool(revisions) and revisions[-1].state == "open"


# The faults are in iterations 60 to 79.
KILLS = {
    "before the verdict": Kill("gloo-slow-link", 0.3, 50, is_stored_and_nobody_accused),
    "told and not stored": Kill("gloo-slow-nic", 3600.0, 78, is_open_and_not_stored),
    "told and stored": Kill("gloo-slow-rank", 0.3, 78, is_open_and_stored),
}


@pytest.fixture(scope="module")
def killed(make_pipeline: MakePipeline) -> dict[str, Pipeline]:
    """One pipeline for each kill, all at the same time: most of it is waiting for the broker to miss a worker."""
    pipelines = {name: make_pipeline() for name in KILLS}
    with ThreadPoolExecutor(len(KILLS)) as pool:
        list(pool.map(run_with_kill, pipelines.values(), KILLS.values()))
    return pipelines


def run_with_kill(pipeline: Pipeline, kill: Kill) -> None:
    worker = pipeline.start_worker(snapshot_s=kill.snapshot_s)
    with held_replay(pipeline, kill.recording, kill.held_at) as go_on:
        wait_until(lambda: kill.is_due(pipeline), kill.is_due.__name__)
        go_on.set()  # rows come while the worker dies
        worker.kill()
        worker = pipeline.start_worker()
    pipeline.wait_until_stored(1)
    assert worker.stop() == 0
    assert "Traceback" not in worker.output()


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_worker_changes_nothing_in_the_result(
    killed: dict[str, Pipeline], judged: Pipeline, analyses: dict[str, Analysis], moment: str
) -> None:
    pipeline, recording = killed[moment], KILLS[moment].recording
    require_each_revision_once(pipeline, analyses, (recording,))
    assert stored_verdicts(pipeline) == {v.verdict_id: v.to_json() for v in analyses[recording].verdicts}
    for table in TABLES:
        assert rows_of_job(pipeline, table, recording).equals(rows_of_job(judged, table, recording)), table


def rows_of_job(pipeline: Pipeline, table: str, job: str) -> pa.Table:
    rows = comparable_rows(pipeline, table)
    return rows.filter(pa.compute.equal(rows.column("job"), job)).combine_chunks()


def comparable_rows(pipeline: Pipeline, table: str) -> pa.Table:
    """Rows without the detectors' scores: those depend on what closes together, and begin anew with a worker."""
    rows = pipeline.rows(table)
    return rows.drop_columns(["score"]) if table == "rank_iterations" else rows


def test_what_was_told_before_the_kill_is_not_told_again(killed: dict[str, Pipeline]) -> None:
    _, restarted = [one for one in killed["told and not stored"].processes if one.log.name.startswith("worker")]
    assert "event=sent_before" in restarted.output()


# --- the same again -------------------------------------------------------------------------------------------------


def test_a_replay_with_other_batch_borders_changes_no_row(
    judged: Pipeline, make_pipeline: MakePipeline, analyses: dict[str, Analysis]
) -> None:
    """Of two of the recordings, into the database that has them."""
    pipeline, names = make_pipeline(judged.database), ("gloo-slow-link", "gloo-slow-nic")
    told = Counter(
        {one: count for one, count in judged.revision_counts("alerts").items() if one[0].startswith(names)}
    )
    with no_row_changing(judged, names):
        worker = pipeline.start_worker()
        for number, name in enumerate(names, start=1):
            source = TraceSource(read_trace(RECORDINGS / name), 0, max_rows=29 * number, max_span_s=0.02 * number)
            Agent(source, agent_settings(pipeline.settings)).run()
        wait_until(lambda: pipeline.revision_counts("alerts") == told, "all alerts")
        assert worker.stop() == 0
    require_each_revision_once(pipeline, analyses, names)


def test_reading_the_topics_again_from_their_start_changes_no_row_and_tells_nothing_twice(judged: Pipeline) -> None:
    told, stored_at = judged.revision_counts("verdicts"), newest_row_time(judged)
    forget_snapshots(judged)
    with no_row_changing(judged):
        worker = judged.start_worker("again")
        wait_until(lambda: newest_row_time(judged) > stored_at, "all jobs again")
        assert worker.stop() == 0
    assert judged.revision_counts("verdicts") == told


@contextmanager
def no_row_changing(pipeline: Pipeline, names: tuple[str, ...] = REPLAYED) -> Iterator[None]:
    """Require that rows of some jobs were written again, and that all are as they were."""
    before = {table: comparable_rows(pipeline, table) for table in TABLES}
    stored_at = newest_row_time(pipeline, names)
    time.sleep(1.1)  # `stored_at` counts seconds
    yield
    assert newest_row_time(pipeline, names) > stored_at, "nothing was written"
    after = {table: comparable_rows(pipeline, table) for table in TABLES}
    assert {name: rows.num_rows for name, rows in after.items()} == {n: rows.num_rows for n, rows in before.items()}
    assert [name for name, rows in after.items() if not rows.equals(before[name])] == []


def newest_row_time(pipeline: Pipeline, names: tuple[str, ...] = REPLAYED) -> str:
    newest = f"SELECT max(stored_at) AS t FROM iterations WHERE job IN {names} GROUP BY job"
    return str(pipeline.query(f"SELECT min(t) FROM ({newest})"))


def forget_snapshots(pipeline: Pipeline) -> None:
    """Empty the topics that say how far workers have come."""
    bus = pipeline.bus
    names = [bus.topics.name("rank_snapshots"), bus.topics.name("job_snapshots")]
    admin = AdminClient({"bootstrap.servers": bus.bootstrap})
    for deletion in admin.delete_topics(names).values():
        deletion.result(60)
    wait_until(lambda: bool(create_topics(bus.bootstrap, bus.topics).created), "new topics of snapshots")
