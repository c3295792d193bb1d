"""`irregulars doctor` on a real broker and database: nothing where all is well, and just what was broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public there, and not told to type checkers
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from irregulars.infra.doctor.broker import CLOCK_S
from irregulars.infra.doctor.diagnosis import diagnose, read_kafka, watch
from irregulars.infra.doctor.findings import Finding, Question
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.settings import LenientSettings, Settings
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import rank_key
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.migrate import migrate
from irregulars.streams.stages.stream_time import EVERY_S
from tests.conftest import ClickHouseAddress
from tests.integration.pipelines import Pipeline, own_database, run_command
from tests.integration.worker_runs import Bus, wait_until

pytestmark = pytest.mark.integration

KAFKA = ("kafka", "topics", "rights", "workers", "jobs", "alerts")
WORKERS = "workers"


def found(settings: Settings, *only: str, group: str = "nobody") -> list[Finding]:
    return diagnose(LenientSettings(settings), Question(group, only=only, within_s=30.0))


def codes(findings: list[Finding], *levels: str) -> list[str]:
    return sorted(str(one.code) for one in findings if one.level in (levels or ("problem",)))


def text_of(findings: list[Finding], code: str) -> str:
    return "; ".join(f"{one.subject}: {one.text}" for one in findings if one.code == code)


# --- a worker and a running job -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline(
    kafka_bootstrap: str, clickhouse: ClickHouseAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """A worker, and a job that goes on for longer than the tests."""
    with own_database(clickhouse) as own:
        pipeline = Pipeline(kafka_bootstrap, own, tmp_path_factory.mktemp("pipeline"), partitions=2)
        listen = f"127.0.0.1:{free_port()}"
        pipeline.settings = replace(pipeline.settings, metrics_listen=listen)
        worker = pipeline.start_worker(WORKERS)
        wait_until(lambda: "event=ready" in worker.output(), "a worker")
        pipeline.start_replay("gloo-slow-nic", 0.015)  # more than six minutes
        wait_until(lambda: pipeline.stored_iterations() > 0, "an iteration")
        yield pipeline
        pipeline.close()


def group_of(pipeline: Pipeline) -> str:
    return pipeline.settings.topic_prefix + WORKERS


def run_doctor(settings: Settings, *arguments: str) -> tuple[int, str, str]:
    done = run_command("doctor", *arguments, settings=settings, NO_COLOR="1")
    return done.returncode, done.stdout, done.stderr


def test_what_is_well_has_no_problem_and_says_so_in_80_columns_and_in_json(pipeline: Pipeline) -> None:
    group = group_of(pipeline)
    status, out, err = run_doctor(pipeline.settings, "--group", group)
    assert (status, err) == (0, ""), out
    assert max(map(len, out.splitlines())) <= 80
    assert "all of 4 ranks are heard" in out
    assert "its newest iteration closed" in out
    assert "the worker on this machine is ready" in out
    assert "everything is read" in out or "not read, the oldest of" in out
    status, out, _ = run_doctor(pipeline.settings, "--group", group, "--json")
    findings = json.loads(out)["findings"]
    assert (status, json.loads(out)["status"]) == (0, 0)
    # True of the tests' services: one busy broker, whose clock nobody knows, and a user who may see little.
    assert {one["code"] for one in findings} - {None} <= {"one_copy", "broker_clock", "not_read", "kafka_slow"}
    assert {one["subject"] for one in findings if one["code"] == "not_read"} <= {"disks, parts"}
    assert pipeline.settings.clickhouse_password not in out


def test_a_reading_that_takes_long_takes_no_clock_for_one_that_is_ahead(pipeline: Pipeline) -> None:
    def slowly(step: str) -> None:
        if "how far the workers" in step:
            time.sleep(CLOCK_S + 2 * EVERY_S)  # the worker says meanwhile how far it is

    seen = read_kafka(pipeline.settings, Question(group_of(pipeline), within_s=60.0), slowly)
    assert seen.stream.progress
    assert "the workers" not in seen.stream.host_clocks_s


def test_messages_that_nobody_can_use_are_told_and_where_all_are_refused_that_is_said(pipeline: Pipeline) -> None:
    bus, group = pipeline.bus, group_of(pipeline)
    bus.send("commops", b"llama/0", b"no Arrow")
    bus.flush()
    wait_until(lambda: len(bus.read("deadletter")) == 1, "a dead letter")
    seen = found(pipeline.settings, "jobs", group=group)
    assert codes(seen) == []
    assert "irregulars.commops" not in text_of(seen, "dead_letters")
    assert f"from {bus.topics.name('commops')}: " in text_of(seen, "dead_letters")
    sent = sum(message.value() is not None for message in bus.read("commops"))
    for number in range(20 * sent):
        bus.send("commops", b"llama/0", f"no Arrow {number}".encode())
    bus.flush()
    wait_until(lambda: len(bus.read("deadletter")) == 1 + 20 * sent, "dead letters")
    seen = found(pipeline.settings, "jobs", group=group)
    assert codes(seen) == ["all_refused"]
    assert "nothing gets through" in text_of(seen, "all_refused")


def test_a_worker_of_another_release_is_told(pipeline: Pipeline) -> None:
    free = 2  # of the partitions 0 and 1 the worker says anew every second how far it is
    record = {"partition": free, "positions": {}, "release": "0.0.9"}
    pipeline.bus.producer.produce(
        pipeline.bus.topics.name("progress"), json.dumps(record).encode(), str(free).encode(), partition=0
    )
    pipeline.bus.flush()
    seen = found(pipeline.settings, "workers", group=group_of(pipeline))
    assert "workers run different releases: 0.0.9, " in text_of(seen, "releases_differ")


def test_when_the_worker_dies_with_messages_waiting_that_is_told_and_said_loudly(pipeline: Pipeline) -> None:
    pipeline.processes[0].kill()
    group = group_of(pipeline)
    wait_until(
        lambda: "no_worker" in codes(found(pipeline.settings, "workers", group=group)), "the end of its session"
    )
    wait_until(lambda: " wait" in text_of(found(pipeline.settings, "workers", group=group), "no_worker"), "messages")
    seen = found(pipeline.settings, *KAFKA, group=group)
    assert [code for code in codes(seen) if code != "all_refused"] == ["no_worker"]
    assert f"no worker reads (consumer group {group}); the last one was heard" in text_of(seen, "no_worker")
    said: list[str] = []
    watch(pipeline.settings, group, said.append).look()
    assert any(line.startswith("NO ALERT CAN COME: group: no worker reads") for line in said)
    assert run_doctor(pipeline.settings, "--group", group, "--only", "workers")[0] == 1


# --- topics ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(bus: Bus, tmp_path: Path) -> Settings:
    """Settings of topics of the test's own, which no worker reads."""
    return Settings(kafka_bootstrap=bus.bootstrap, topic_prefix=bus.topics.prefix, partitions=bus.partitions,
                    metrics_listen="off", data_dir=tmp_path)  # fmt: skip


def altered(settings: Settings, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    entries = [ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
               for key, value in config.items()]  # fmt: skip
    name = settings.topics().name(topic)
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)]
    ).values():
        done.result(60)


def deleted(settings: Settings, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    admin.delete_topics([settings.topics().name(topic)])[settings.topics().name(topic)].result(60)


def widened(settings: Settings, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    (done,) = admin.create_partitions(
        [NewPartitions(settings.topics().name(topic), settings.partitions + 2)]
    ).values()
    done.result(60)


BROKEN: tuple[tuple[Callable[[Settings], None], list[str], str], ...] = (
    (lambda own: deleted(own, "evidence"), ["topic_missing"], "1 topic missing: {prefix}evidence"),
    (lambda own: widened(own, "commops"), ["partitions_differ"], "{prefix}jobs (4)"),
    (lambda own: altered(own, "commops", retention_ms="60000"), ["topic_config"], "{prefix}commops keeps 60 s"),
    (lambda own: altered(own, "jobs", cleanup_policy="delete"), ["topic_config"], "{prefix}jobs has cleanup.policy"),
    (lambda own: altered(own, "alerts", max_message_bytes="5000"), ["topic_config"], "{prefix}alerts takes messages"),
)


def test_one_broken_topic_after_another_is_named(settings: Settings) -> None:
    for break_it, expected, words in BROKEN:
        own = replace(settings, topic_prefix=f"test-{uuid4().hex[:10]}.")
        create_topics(own.kafka_bootstrap, own.topics())
        assert codes(found(own, "topics")) == []
        break_it(own)
        wait_until(lambda own=own, expected=expected: codes(found(own, "topics")) == expected, str(expected))  # type: ignore[misc]
        assert words.format(prefix=own.topic_prefix) in text_of(found(own, "topics"), expected[0])


def test_of_a_broker_without_topics_that_is_told(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    own = Settings(kafka_bootstrap=kafka_bootstrap, topic_prefix=topic_prefix, data_dir=tmp_path)
    assert codes(found(own, *KAFKA)) == ["topic_missing"]


# --- jobs -----------------------------------------------------------------------------------------------------------

JOB, RANKS = "silent", 4


def announce(bus: Bus, ranks: range, time_s: float, clock: str = "shared") -> None:
    world = Communicator("world", "world", tuple(range(RANKS)))
    for rank in ranks:
        own = Announcement(
            JOB, 0, rank, RANKS, RANKS, (world,), ("commops", "iterations"), clock=clock, host=f"node-{rank}"
        )
        send(bus, "jobs", rank, encode_announcement(own), time_s)


def beat(bus: Bus, rank: int, time_s: float, lost: int = 0) -> None:
    own = Heartbeat(JOB, 0, rank, {"commops": SourceProgress(10, None, lost)})
    send(bus, "heartbeats", rank, encode_heartbeat(own), time_s)


def send(bus: Bus, topic: str, rank: int, value: bytes, time_s: float) -> None:
    name = bus.topics.name(topic)
    bus.producer.produce(name, value, rank_key(JOB, rank), partition=0, timestamp=int(time_s * 1000))


def test_silent_and_missing_ranks_lost_rows_and_wrong_clocks_are_each_named(bus: Bus, settings: Settings) -> None:
    now_s = time.time()
    announce(bus, range(3), now_s - 400)
    beat(bus, 1, now_s - 300)
    for number in range(5):
        beat(bus, 0, now_s - 5 + number, lost=7)
        beat(bus, 2, now_s - 25 + number)  # by a clock that is 20 s behind
    bus.flush()
    seen = found(settings, "jobs")
    assert codes(seen) == ["not_announced", "ranks_silent"]
    assert "1 of 4 ranks are not announced" in text_of(seen, "not_announced")
    assert "1 of 3 ranks silent for 5 min: 1 on node-1" in text_of(seen, "ranks_silent")
    assert codes(seen, "warning") == ["clock_off", "no_samples", "rows_lost"]
    assert "7 rows of commops" in text_of(seen, "rows_lost")
    assert "the clock of node-2 is at least 20 s behind ours" in text_of(seen, "clock_off")


# --- the database ---------------------------------------------------------------------------------------------------


def database_findings(own: DatabaseSettings, **others: Any) -> list[Finding]:
    values = {"clickhouse_url": own.url, "clickhouse_user": own.user, "clickhouse_password": own.password,
              "clickhouse_database": own.database} | others  # fmt: skip
    return found(Settings(**values), "clickhouse")


def test_a_database_that_lacks_something_is_told_what(database: DatabaseSettings) -> None:
    assert codes(database_findings(database)) == ["database_missing"]
    with connected(database, is_creating=True) as client:
        assert codes(database_findings(database)) == ["migrations_missing"]
        migrate(client)
        assert codes(database_findings(database), "problem", "warning") == []
        client.command("ALTER TABLE schema_migrations DELETE WHERE version = 1 SETTINGS mutations_sync = 1")
        seen = database_findings(database, keep_samples_days=3)
        assert codes(seen) == ["migrations_missing"]
        assert "1 migration not applied: 0001_tables.sql" in text_of(seen, "migrations_missing")
        assert "gpu_health keeps rows 7 days, and the settings say 3 days" in text_of(seen, "retention_differs")
        migrate(client)
        client.command("DROP TABLE verdicts")
        assert "their migrations were applied: verdicts" in text_of(database_findings(database), "tables_gone")


def test_a_wrong_password_and_a_database_that_is_away_are_told_apart(database: DatabaseSettings) -> None:
    wrong = database_findings(database, clickhouse_password="swordfish")
    assert codes(wrong) == ["clickhouse_refuses"]
    assert "swordfish" not in repr(wrong)
    away = f"http://127.0.0.1:{free_port()}"
    status, out, err = run_doctor(Settings(clickhouse_url=away), "--only", "clickhouse", "--within-s", "2")
    assert (status, err) == (1, "")
    assert "PROBLEM  server: database must answer" in out
