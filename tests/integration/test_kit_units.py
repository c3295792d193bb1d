"""The kit's units under a real systemd, as tight as they ship: a worker judges, and comes back when it is killed."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from irregulars.streams.kafka.topic_admin import create_topics
from tests.infra.kit.units import FOLDER
from tests.integration.pipelines import Pipeline
from tests.integration.systemd_machine import SystemdMachine, reading_paths, require_systemd
from tests.integration.worker_runs import free_port, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SystemdMachine]:
    require_systemd()
    machine = SystemdMachine(tmp_path / "machine")
    yield machine
    machine.close()
    print(machine.said())


def four_digits() -> int:
    """A free port of four digits, as the unit of the worker wants it."""
    return next(port for port in (9000 + number for number in range(600, 999)) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def lay_out(machine: SystemdMachine, pipeline: Pipeline) -> None:
    """Write what an administrator writes: settings, the password, and whom to tell."""
    settings = pipeline.settings
    own = {
        "kafka_bootstrap": settings.kafka_bootstrap, "clickhouse_url": settings.clickhouse_url,
        "clickhouse_database": settings.clickhouse_database, "topic_prefix": settings.topic_prefix,
    }  # fmt: skip
    folder = machine.files / "etc" / "irregulars"
    (folder / "credentials").mkdir(parents=True, mode=0o700)
    (folder / "irregulars.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in own.items()))
    notify = (FOLDER / "notify.toml").read_text().replace("127.0.0.1:9092", settings.kafka_bootstrap)
    (folder / "notify.toml").write_text(f'topic_prefix = "{settings.topic_prefix}"\n{notify}')
    password = folder / "credentials" / "worker.clickhouse"
    password.touch(mode=0o600)
    password.write_text(settings.clickhouse_password)


def ready(port: int, page: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_worker_and_notify_run_as_their_units_say(machine: SystemdMachine, pipeline: Pipeline) -> None:
    create_topics(pipeline.settings.kafka_bootstrap, pipeline.settings.topics())
    lay_out(machine, pipeline)
    machine.add_program()
    port, other = four_digits(), free_port()
    user = f"Environment=IRREGULARS_CLICKHOUSE_USER={pipeline.settings.clickhouse_user}\n"
    usual = f"{reading_paths()}StandardOutput=append:/kit/logs/%p.log\nStandardError=inherit\nRestartSec=1\n"
    machine.add_unit(FOLDER / "irregulars-worker@.service", usual + user)
    machine.add_unit(
        FOLDER / "irregulars-notify.service", f"{usual}Environment=IRREGULARS_NOTIFY_LISTEN=127.0.0.1:{other}\n"
    )
    worker, notify = f"irregulars-worker@{port}.service", "irregulars-notify.service"
    machine.start(worker, notify)
    wait_until(lambda: ready(port, "/readyz") and ready(other, "/healthz"), "both pages")

    pid = int(machine.shown(worker, "MainPID"))
    pipeline.replay("gloo-slow-nic")
    wait_until(lambda: bool(pipeline.bus.verdict_ids()), "a verdict of the unit")
    assert machine.shown(worker, "MemoryMax") == str(2 << 30)

    machine.systemctl("kill", "--signal=KILL", worker)
    wait_until(
        lambda: machine.shown(worker, "MainPID") not in ("0", str(pid)) and ready(port, "/readyz"), "a restart"
    )
    machine.systemctl("stop", worker, notify)
    for unit in (worker, notify):
        assert (machine.shown(unit, "ActiveState"), machine.shown(unit, "ExecMainStatus")) == ("inactive", "0")


def test_what_the_unit_runs_is_nobody_who_may_do_nothing(machine: SystemdMachine) -> None:
    """The same lines around another program: one that says who it is, and tries what it must not."""
    unit = machine.folder / "irregulars-notify.service"
    script = (
        "id -u; touch /etc/x /opt/x; cat /etc/irregulars/credentials/secret; grep CapEff /proc/self/status; echo end"
    )
    credentials = machine.files / "etc" / "irregulars" / "credentials"
    credentials.mkdir(parents=True, mode=0o700)
    (credentials / "secret").touch(mode=0o600)
    lines = (FOLDER / unit.name).read_text()
    unit.write_text(lines.replace("Type=exec", "Type=oneshot").replace("Restart=always", "Restart=no"))
    output = "StandardOutput=append:/kit/logs/it.log\nStandardError=inherit\n"
    machine.add_unit(unit, f"ExecStart=\nExecStart=/bin/sh -c '{script}'\n{output}")
    machine.start(unit.name)
    log = machine.logs / "it.log"
    wait_until(lambda: log.exists() and "end" in log.read_text(), "its end")
    said = log.read_text()
    assert int(said.splitlines()[0]) > 60_000  # a user that systemd made up
    assert said.count("Read-only file system") == 2
    assert "Permission denied" in said
    assert "CapEff:\t0000000000000000" in said
