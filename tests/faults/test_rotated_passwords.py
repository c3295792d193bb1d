"""Passwords are changed while everything runs, as infra/docs/access.md says: nobody has to be started again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from irregulars.errors import ServiceRefused, SinkBusy
from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import database_settings
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.login_password import new_producer
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.tables import tables_of
from tests.integration.pipelines import RECORDINGS, Process, replaying_agent, says, starting
from tests.integration.secured_kafka import SecuredKafka, kafka_of_ada, settings_of_ada
from tests.integration.worker_runs import wait_until
from tests.sinks import made_up_job
from tests.sinks.notices.alerts import alert_bytes

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.integration

PREFIX = "turn."
NEW = "another-password"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with kafka_of_ada(tmp_path_factory.mktemp("secured"), TopicSettings(PREFIX, 1)) as running:
        yield running


@pytest.fixture
def password_file(broker: SecuredKafka, tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(broker.password + "\n")
    return path


@pytest.fixture
def start(broker: SecuredKafka, password_file: Path, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    settings = settings_of_ada(broker, tmp_path, topic_prefix=PREFIX, kafka_password_file=password_file,
                               alert_least_severity="note", notify_listen="off", notify_hold_s=0.0)  # fmt: skip
    with starting(settings, tmp_path) as start:
        yield start


def commands(folder: Path) -> dict[str, tuple[str, ...]]:
    """Each process that stays, with files of its own in `folder`."""
    notify = folder / "notify.toml"
    notify.write_text(f'[[channel]]\nkind = "command"\nname = "script"\nargv = ["tee", "-a", "{folder / "told"}"]\n')
    return {
        "worker": ("worker", "--no-store"),
        "agent": ("agent", str(replaying_agent(folder, "gloo-clean", 1))),
        "notify": ("notify", str(notify)),
        "act": ("act", "nvsentinel", "--output", str(folder / "events")),
    }


def test_a_new_password_of_kafka_is_taken_from_its_file_by_all_that_run(
    broker: SecuredKafka, password_file: Path, start: Callable[..., Process], tmp_path: Path
) -> None:
    running = {name: start(*command) for name, command in commands(tmp_path).items()}
    wait_until(lambda: says(running["worker"], "event=restored hop=job"), "the partition")
    wait_until(lambda: says(running["notify"], "event=loaded"), "what was told")
    jobs = PREFIX + "jobs"
    with closing(LogReader(broker.bootstrap, {})) as reader:  # who was never let in takes it for a wrong password
        wait_until(lambda: any(reader.read_tail(jobs, one) for one in reader.partitions(jobs)), "the agent's job")
    broker.change_password(NEW)
    broker.kill()
    broker.start()  # everybody must log in anew; at its very start it may still let in one with the old password
    refused = "event=login_refused service=kafka user='ada'"
    for name, one in running.items():
        wait_until(lambda one=one: says(one, refused), f"a line of {name} that the login was refused")  # type: ignore[misc]
        assert str(password_file) in one.output()
    fresh = password_file.with_suffix(".new")
    fresh.write_text(NEW + "\n")
    os.replace(fresh, password_file)
    for name, one in running.items():
        what = f"the new password, by {name}"
        wait_until(lambda one=one: says(one, "event=password_read_again"), what)  # type: ignore[misc]
    done = start("replay", str(RECORDINGS / "gloo-slow-nic"), "--speed", "0")
    assert done.wait() == 0, done.output()
    wait_until(lambda: says(running["worker"], "event=verdict_opened job='gloo-slow-nic'"), "a verdict")
    producer = new_producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(PREFIX + "alerts", alert_bytes("v1"), b"v1")
    assert producer.flush(60) == 0
    told = tmp_path / "told"
    wait_until(lambda: told.exists() and b"v1" in told.read_bytes(), "a notice")
    for name, one in running.items():
        assert one.is_running, name
        assert NEW not in one.output()
        assert "Traceback" not in one.output()
        one.stop()


# --- ClickHouse -----------------------------------------------------------------------------------------------------


def change_passwords(database: DemoDatabase, folder: Path) -> None:
    """Restart the server with other ones: the tests' engine does not look for them by itself."""
    database.kill()
    for name in ("password", "reader-password"):
        (folder / name).write_text(NEW)
    database.start()


def test_a_new_password_of_clickhouse_is_taken_from_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    with DemoDatabase(tmp_path / "data", port=free_port()) as database:
        writer, reader = tmp_path / "writer", tmp_path / "reader"
        writer.write_text(database.password)
        reader.write_text(database.reader_password)
        settings = Settings(
            clickhouse_url=database.url, clickhouse_user=database.user, clickhouse_password_file=writer,
            clickhouse_reader_user=database.reader, clickhouse_reader_password_file=reader,
        )  # fmt: skip
        sink = ClickHouseSink(database_settings(settings))
        sink.open()
        console = ConsoleDatabase(database_settings(settings, is_reading=True))
        assert asyncio.run(console.ask("before", stored)) == 0
        change_passwords(database, tmp_path / "data")
        sink.write(tables_of(made_up_job.judgements()))
        for _ in range(2):
            with pytest.raises(SinkBusy, match=f"must accept user '{database.user}'; it refused the login"):
                sink.flush()
        with pytest.raises(ServiceRefused, match=database.reader):
            asyncio.run(console.ask("refused", stored))
        writer.write_text(NEW + "\n")
        reader.write_text(NEW + "\n")
        sink.flush()
        assert asyncio.run(console.ask("after", stored)) > 0
        sink.close()
        console.close()
    assert [one.getMessage() for one in caplog.records if "password" in one.getMessage()] == [
        f"event=password_read_again service=database user={user!r}" for user in (database.user, database.reader)
    ]


def stored(client: Client) -> int:
    return int(client.command("SELECT count() FROM verdicts"))  # type: ignore[arg-type]
