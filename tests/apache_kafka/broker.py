"""Apache Kafka itself, one KRaft node, for the tests and benchmarks that claim durability or exactly-once."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.infra.runs.child_process import HOST, ChildProcess, free_port, require_free
from irregulars.infra.runs.data_directory import DataDirectory
from irregulars.infra.runs.demo_broker import kafka_answers
from irregulars.private_files import make_private_directory, write_private_file
from tests.apache_kafka.jars import POM, find_jars, find_java

_PROPERTIES: Final = POM.with_name("server.properties")
_FORMAT_S: Final = 300
_QUIET: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_SMALL: Final = (
    "-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
)  # fmt: skip
_SHORT_LIVED: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1")


class KafkaBroker:
    """A broker on 127.0.0.1 that keeps address and data over `stop`, `kill` and `start`, and never outlives us.

    Parameters
    ----------
    data_directory
        Where it keeps its data, log (``broker.log``) and configuration; `None`: a temporary one, removed by `close`.
    port
        Where it listens; `None`: a free port, the same at each start of this object.
    start_timeout_s
        Seconds that it may take to answer.

    `bootstrap`: its address, ``127.0.0.1:PORT``.
    """

    def __init__(
        self, data_directory: Path | None = None, *, port: int | None = None, start_timeout_s: float = 180.0
    ) -> None:
        self._data = DataDirectory(data_directory, "irregulars-kafka-")
        self._port = port or free_port()
        self._start_timeout_s = start_timeout_s
        self._child: ChildProcess | None = None
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.bootstrap = f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._child.pid if self._child else None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def start(self) -> None:
        """Start the broker, on the data of its last run if there was one, and wait until it answers.

        Raises
        ------
        InputError
            If Java 17 or Maven is missing, the port is taken, or the directory is in use or can't be written.
        ServiceUnavailable
            If Maven can't fetch Kafka, or the broker does not come up in time.
        """
        if self.is_running:
            return
        self.kill()  # what is left of one that ended by itself
        require_free(self._port, "Apache Kafka")
        java, jars = find_java(), find_jars()
        try:
            # Kafka's own lock comes too late: a second one reads, and spoils, what the first is writing.
            self._data.take()
            self._configure(java, jars)
            self._run(java, jars)
        except OSError as error:
            self.kill()
            raise InputError(
                f"data directory of Apache Kafka must be writable; got {error.strerror} ({error.filename})"
            ) from error
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shut the broker down in order; the data stays. Twice is fine."""
        if self._child is not None:
            self._child.stop(grace_s=20.0)
        self.kill()

    def kill(self) -> None:
        """End the broker as a power cut would (SIGKILL); the data stays. Twice is fine."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._data.release()

    def close(self) -> None:
        """Stop the broker for good, and remove its data if the directory is temporary. Twice is fine."""
        if not self._data.is_temporary:
            return self.stop()
        self.kill()  # nobody will read the data again
        self._data.remove()

    @property
    def _configuration(self) -> Path:
        return self._data.path / "server.properties"

    def _run(self, java: str, jars: Path) -> None:
        here = self._data.path
        scratch = here / "tmp"  # native libraries are unpacked there, and stay when the broker is killed
        shutil.rmtree(scratch, ignore_errors=True)
        make_private_directory(scratch)
        own = (f"-Djava.io.tmpdir={scratch}", "-cp", f"{jars}/*")
        command = [java, *_SMALL, *_QUIET, *self._java_options(), *own, "kafka.Kafka", str(self._configuration)]
        self._child = ChildProcess(
            "Apache Kafka", command, here / "broker.log", directory=here, inherited=self._data.inherited
        )
        self._child.wait_until(lambda: kafka_answers(self._port), self._start_timeout_s)

    def _more_listeners(self) -> Mapping[str, tuple[str, str]]:
        """Listeners beside the plain one, for a subclass: address and protocol by name."""
        return {}

    def _own_properties(self) -> Mapping[str, str]:
        """More lines of ``server.properties``, for a subclass."""
        return {}

    def _java_options(self) -> tuple[str, ...]:
        """More options of Java, for a subclass."""
        return ()

    def _configure(self, java: str, jars: Path) -> None:
        """Write the configuration; format the storage where that has not been done."""
        controller = free_port()
        data = self._data.path / "data"
        more = self._more_listeners()
        clients = ",".join([f"PLAINTEXT://{self.bootstrap}", *(f"{name}://{at}" for name, (at, _) in more.items())])
        protocols = [
            "CONTROLLER:PLAINTEXT",
            "PLAINTEXT:PLAINTEXT",
            *(f"{name}:{own}" for name, (_, own) in more.items()),
        ]
        own = {
            "log.dirs": str(data),
            "listeners": f"{clients},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": ",".join(protocols),
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            **self._own_properties(),
        }
        lines = [_PROPERTIES.read_text(encoding="utf-8"), *(f"{key}={value}" for key, value in own.items())]
        write_private_file(self._configuration, ("\n".join(lines) + "\n").encode())
        if not (data / "meta.properties").exists():
            self._format(java, jars)

    def _format(self, java: str, jars: Path) -> None:
        command = [java, *_SHORT_LIVED, *_QUIET, "-cp", f"{jars}/*", "kafka.tools.StorageTool"]
        # After "=", because one id of 64 begins with "-".
        command += ["format", f"--cluster-id={self._cluster_id}", "--config", str(self._configuration)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FORMAT_S, check=False, umask=0o077
            )
        except subprocess.TimeoutExpired as error:
            raise ServiceUnavailable(f"Kafka must format its storage within {_FORMAT_S} s; it did not") from error
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise ServiceUnavailable(f"Apache Kafka must format its storage; got {words} ({self._data.path})")

    def __enter__(self) -> KafkaBroker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
