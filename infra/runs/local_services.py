"""Everything on one machine: broker, database and a worker, each a process of its own, for demos and first steps."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from irregulars import stopping
from irregulars.errors import InputError, ServiceUnavailable
from irregulars.infra.runs.child_process import HOST, ChildProcess, Service, free_port
from irregulars.infra.runs.demo_broker import DemoBroker
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import kafka_security
from irregulars.kafka.broker import client_config
from irregulars.kafka.security import KafkaSecurity
from irregulars.kafka.topic_admin import create_topics
from irregulars.private_files import make_private_directory, write_private_file

GROUP: Final = "irregulars"
_SESSION_S: Final = 6.0  # with the demo broker a worker joins after half of it
_JOIN_S: Final = 300.0  # one that has ended is noticed at once; on a busy machine one took more than 30 s
_STOP_S: Final = 15.0
_POLL_S: Final = 0.2
_CONNECTION: Final = (
    "kafka_bootstrap", "clickhouse_url", "clickhouse_user", "clickhouse_password", "clickhouse_database",
    "clickhouse_reader_user", "clickhouse_reader_password",
)  # fmt: skip
# The demo broker listens on loopback and asks for nothing; settings for another broker must not reach it
_NO_SECURITY: Final[dict[str, Any]] = {f"kafka_{one.name}": one.default for one in fields(KafkaSecurity)}


class LocalServices(Service):
    """A broker, a database and a worker on free ports of 127.0.0.1, which live as long as the ``with`` block.

    `settings`: How to judge and where to keep files; where Kafka and ClickHouse are is decided here. `is_kept`:
    whether the database stays in ``settings.data_dir`` for the next time; else nothing of it remains. `has_console`:
    whether the web console runs too. `on_step`: called with a few words before each step.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        is_kept: bool = False,
        has_console: bool = False,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = settings  # once started: with the addresses and passwords of the running services
        # The same for other processes: ``irregulars --config FILE alerts``. Mode 0600; gone at the end.
        self.config_file = Path()
        self.worker_log = Path()  # output of the worker
        self.console_link: str | None = None  # logs in; None: no console was asked for
        self._is_kept = is_kept
        self._has_console = has_console
        self._on_step = on_step
        self._stack = ExitStack()
        self._worker: ChildProcess | None = None

    def start(self) -> None:
        """Start all three, and wait until the worker reads.

        Raises `InputError` if the extra ``demo`` is not installed, or the data directory can't be used;
        `ServiceUnavailable` if one of them does not come up.
        """
        with self._stopped_if_it_fails():
            directory = self._make_directory()
            self._on_step("starting the broker")
            broker = self._stack.enter_context(DemoBroker())
            self._on_step("starting the database")
            database = self._stack.enter_context(DemoDatabase(directory / "database" if self._is_kept else None))
            self.settings = replace(
                self.settings, kafka_bootstrap=broker.bootstrap, **_NO_SECURITY,
                clickhouse_url=database.url, clickhouse_ca_file=None, clickhouse_database=database.database,
                clickhouse_user=database.user, clickhouse_password=database.password, clickhouse_password_file=None,
                clickhouse_reader_user=database.reader, clickhouse_reader_password=database.reader_password,
                clickhouse_reader_password_file=None, session_s=_SESSION_S,
                replicas=1,  # one broker holds one copy
                metrics_listen=f"127.0.0.1:{free_port()}", data_dir=directory,
            )  # fmt: skip
            self._start_worker(directory)
            lines = [f'{name} = "{getattr(self.settings, name)}"\n' for name in _CONNECTION]
            self.config_file = self._write_private(directory / "connection.toml", "".join(lines))
            if self._has_console:
                self._start_console(directory)

    def stop(self) -> None:
        """Stop worker, database and broker, in this order. Twice is fine."""
        with self._stack:  # closed though the terminal may be gone, and nothing can be printed
            if self._worker is not None:
                self._worker = None
                self._on_step("stopping")

    def require_running(self) -> None:
        """Raise `ServiceUnavailable` with the worker's last words if it has ended."""
        if self._worker is None:
            return
        status = self._worker.status
        if status is not None:
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            text, words = f"worker must run; it ended {how}", self._worker.last_words()
            is_all = self.worker_log.read_text("utf-8", "replace").strip() == words
            raise ServiceUnavailable(f"{text}: {words}{'' if is_all else f' (log: {self.log_that_stays()})'}")

    def log_that_stays(self) -> Path:
        """Return the worker's log; where its directory goes at the end, a copy that stays (mode 0600)."""
        if self._is_kept:
            return self.worker_log
        descriptor, path = tempfile.mkstemp(prefix="irregulars-worker-", suffix=".log")
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.worker_log.read_bytes())
        return Path(path)

    def _make_directory(self) -> Path:
        if not self._is_kept:
            return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="irregulars-")))
        directory = self.settings.data_dir.absolute()
        try:
            make_private_directory(directory)
        except OSError as error:
            raise InputError(
                f"data_dir must be a directory we can make; got {error.strerror} ({directory})"
            ) from error
        return directory

    def _write_private(self, path: Path, text: str) -> Path:
        """Write a file that nobody else may read, and that goes at the end."""
        write_private_file(path, text.encode())
        self._stack.callback(path.unlink, missing_ok=True)
        return path

    def _start_console(self, directory: Path) -> None:
        """Start the web console; it is up some seconds later, and nobody waits for it."""
        self._on_step("starting the console")
        token = secrets.token_urlsafe(24)
        address = f"{HOST}:{free_port()}"
        self.settings = replace(
            self.settings,
            console_listen=address,
            console_url=f"http://{address}",
            console_token_file=self._write_private(directory / "console.token", token),
            console_feedback=True,
        )
        command = [sys.executable, "-P", "-m", "irregulars", "console"]
        console = ChildProcess(
            "console", command, directory / "console.log", environment=self.settings.to_environment()
        )
        self._stack.callback(console.stop, _STOP_S)
        self.console_link = f"http://{address}/login#{token}"

    def _start_worker(self, directory: Path) -> None:
        self._on_step("creating the topics")
        create_topics(self.settings.kafka_bootstrap, self.settings.topics(), kafka_security(self.settings))
        self._on_step("starting a worker")
        self.worker_log = directory / "worker.log"
        # -P: a folder named like one of our packages in the working directory must not be taken for it.
        arguments = [sys.executable, "-P", "-m", "irregulars", "worker", "--group", GROUP]
        worker = ChildProcess("worker", arguments, self.worker_log, environment=self.settings.to_environment())
        # Before the first check, so that a worker that does not come up is stopped too.
        self._stack.callback(worker.stop, _STOP_S)
        self._worker = worker

        admin = AdminClient(client_config(self.settings.kafka_bootstrap, {}))
        deadline = time.monotonic() + _JOIN_S
        while not _is_stable(admin):
            self.require_running()
            if time.monotonic() > deadline:
                raise ServiceUnavailable(
                    f"worker must read within {_JOIN_S:g} s; it does not (log: {self.log_that_stays()})"
                )
            stopping.pause(_POLL_S)


def _is_stable(admin: AdminClient) -> bool:
    """Whether the group has shared out its partitions."""
    try:
        group = admin.describe_consumer_groups([GROUP], request_timeout=5)[GROUP].result(timeout=5)
    except KafkaException:  # the coordinator is not there yet
        return False
    return bool(group.state == ConsumerGroupState.STABLE)
