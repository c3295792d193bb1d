"""The demo's and tests' database: the ClickHouse engine of chdb-core as a real server in a child process.

One machine, a user who writes and one who reads, bound to 127.0.0.1; no Keeper, no users by SQL, no asynchronous
inserts. Production takes a ClickHouse of its own, by URL.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import urllib3

from irregulars.errors import InputError, how_to_install
from irregulars.infra.runs.child_process import (
    HOST,
    ChildProcess,
    Service,
    free_port,
    require_free,
    start_on_free_ports,
)
from irregulars.infra.runs.confinement import landlock_version
from irregulars.infra.runs.data_directory import DataDirectory
from irregulars.private_files import make_private_directory

USER: Final = "irregulars"
READER: Final = "irregulars_reader"
_LOG: Final = logging.getLogger("irregulars.database")
_PROGRAM: Final = Path(__file__).with_name("database_process.py")
_START_S: Final = 180.0
_STOP_S: Final = 10.0
_PING_S: Final = 1.0
_POLL_S: Final = 0.02

# Rights of our user in its own database, and the kinds of tables it may make: none reaches files or the network.
_RIGHTS: Final = (
    "SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP DATABASE, DROP TABLE, DROP VIEW, "
    "UNDROP TABLE, TRUNCATE, OPTIMIZE, SHOW"
)
_ENGINES: Final = ("MergeTree", "ReplacingMergeTree", "AggregatingMergeTree", "SummingMergeTree", "Memory", "Null")

_CONFIG: Final = """<clickhouse>
  <listen_host>{host}</listen_host>
  <http_port>{http_port}</http_port>
  <tcp_port>{native_port}</tcp_port>
  <users_config>users.xml</users_config>
  <logger><level>none</level></logger>
  <mark_cache_size>67108864</mark_cache_size>
  <uncompressed_cache_size>0</uncompressed_cache_size>
</clickhouse>
"""

# The engine starts itself as the user `default`, who must not have a password and may read files. Nobody else gets
# in as `default`: the engine holds the one session that he may have from before the ports open until they close, and
# uses up his quota of statements (2e9 s is until the year 2033).
_USERS: Final = """<clickhouse>
  <profiles>
    <default>
      <constraints><output_format_schema><readonly/></output_format_schema></constraints>
    </default>
    <engine>
      <max_sessions_for_user>1</max_sessions_for_user>
      <constraints><max_sessions_for_user><readonly/></max_sessions_for_user></constraints>
    </engine>
    <reader>
      <profile>default</profile>
      {reader_settings}
      <constraints>{reader_constraints}</constraints>
    </reader>
  </profiles>
  <quotas>
    <default/>
    <engine><interval><duration>2000000000</duration><queries>4</queries></interval></engine>
  </quotas>
  <users>
    <default>
      <no_password/><networks><ip>127.0.0.1</ip></networks><profile>engine</profile><quota>engine</quota>
      <grants>
        <query>GRANT CREATE DATABASE ON {database}.*</query>
        <query>GRANT SYSTEM LISTEN, CREATE TEMPORARY TABLE ON *.*</query>
        <query>GRANT READ ON FILE</query>
      </grants>
    </default>
    <{user}>
      <password_sha256_hex>{password_sha256}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
      <grants>{grants}</grants>
    </{user}>
    <{reader}>
      <password_sha256_hex>{reader_sha256}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks><profile>reader</profile><quota>default</quota>
      <grants>{reader_grants}</grants>
    </{reader}>
  </users>
</clickhouse>
"""


class DemoDatabase(Service):
    """A ClickHouse server on 127.0.0.1 that lives as long as the ``with`` block, and never longer than this process.

    `data_directory`: where data and password are kept, mode 0700; `None`: a temporary directory, removed at the end.
    `port`: for HTTP; `None`: a free one. `database` is made at the start; the user has all rights in it, and may also
    make and drop databases whose names begin with one of `scratch`, as tests do.
    """

    def __init__(
        self,
        data_directory: Path | None = None,
        *,
        port: int | None = None,
        database: str = "irregulars",
        scratch: Sequence[str] = (),
    ) -> None:
        # Names go into XML and SQL as they are.
        for name in (database, *scratch):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise InputError(f"database must be a name of letters, digits and _, no digit first; got {name!r}")
        self._data = DataDirectory(data_directory, "irregulars-database-")
        self._given_port = port
        self._scratch = tuple(scratch)
        self._child: ChildProcess | None = None
        self.url = ""  # ``http://127.0.0.1:PORT``
        self.native_port = 0  # of the native protocol, for Grafana and ``clickhouse-client``: always a free one
        # Passwords are random, and the same again in the same directory. The reader may read, and nothing else.
        self.user, self.password = USER, ""
        self.reader, self.reader_password = READER, ""
        self.database = database

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._child.pid if self._child else None

    @property
    def is_running(self) -> bool:
        """Whether the server runs."""
        return self._child is not None and self._child.is_running

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises `InputError` if the extra ``demo`` is not installed, the given port is taken, or the directory is in
        use or can't be written; `ServiceUnavailable` if it does not come up in time.
        """
        if self._child is not None:
            return
        if importlib.util.find_spec("chdb") is None:
            raise InputError(f"demo database must be installed; got no chdb. {how_to_install('demo')}")
        if self._given_port is not None:
            require_free(self._given_port, "the demo database")
        try:
            with self._stopped_if_it_fails():
                path = str(self._data.choose())
                # The path of the FIFO stands in quotes in an SQL statement of the server's process.
                if "'" in path or "\\" in path:
                    raise InputError(f"data directory must have no ' and no \\ in its path; got {path!r}")
                self._data.take()
                make_private_directory(self._data.path / "data")
                self._fifo.unlink(missing_ok=True)
                os.mkfifo(self._fifo, 0o600)
                self.password = _password(self._data.path / "password")
                self.reader_password = _password(self._data.path / "reader-password")
                start_on_free_ports(
                    lambda within_s: self._start_on(self._given_port or free_port(), free_port(), within_s),
                    _START_S,
                )
                if not landlock_version():
                    _LOG.warning(
                        "event=database_not_confined reason='no Landlock in this kernel (Linux 5.19 and newer)' "
                        "effect='its users, the reader too, may read and overwrite the files of this user'"
                    )
        except OSError as error:
            raise InputError(
                f"data directory of the demo database must be writable; got {error.strerror} ({error.filename})"
            ) from error

    def stop(self) -> None:
        """Stop the server, and remove its data if the directory is temporary. Twice is fine.

        In order, which takes up to 5 s while a client keeps a connection open; where the data goes anyway, at once.
        """
        if self._child is not None:
            if not self._data.is_temporary:
                child = self._child
                deadline = time.monotonic() + _STOP_S
                # The server reads the FIFO only after it has opened its ports: until then nobody takes the line.
                while child.is_running and not _write_line(self._fifo) and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                child.has_ended(max(0.0, deadline - time.monotonic()))
            self._child.kill()
            self._child = None
        self._data.remove()

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL); data in a directory that was given stays. Twice is fine."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    @property
    def _fifo(self) -> Path:
        return self._data.path / "stop"

    def _start_on(self, http_port: int, native_port: int, within_s: float) -> None:
        ports = {"host": HOST, "http_port": http_port, "native_port": native_port}
        _write_secret(self._data.path / "config.xml", _CONFIG.format(**ports))
        _write_secret(self._data.path / "users.xml", self._users())
        # -P: the folder of the program must not become a place to import from.
        how = "confined" if landlock_version() else "open"
        program = [sys.executable, "-P", str(_PROGRAM), self.database, str(self._fifo), how]
        here = self._data.path
        self._child = ChildProcess(
            "demo database",
            program,
            here / "server.log",
            directory=here,
            environment={"TMPDIR": str(here / "data")},  # the engine ends without a reason where it can't write there
            inherited=self._data.inherited,
        )
        self._child.wait_until(lambda: _answers_ping(http_port), within_s)
        self.url, self.native_port = f"http://{HOST}:{http_port}", native_port

    def _users(self) -> str:
        names = [self.database, *(f"{prefix}*" for prefix in self._scratch)]
        grants = [f"GRANT {_RIGHTS} ON {name}.*" for name in names]
        grants += [f"GRANT TABLE ENGINE ON {engine}" for engine in _ENGINES]
        # The reader has the same bounds here as in production, from the same text.
        access = files("irregulars.sinks").joinpath("sql", "access.sql").read_text("utf-8")
        profile = access.split("PROFILE IF NOT EXISTS irregulars_reader SETTINGS")[1].split(";")[0]
        bounds = re.findall(r"(\w+) = (\d+)(?: MAX (\d+))?", profile)
        return _USERS.format(
            user=self.user,
            database=self.database,
            password_sha256=hashlib.sha256(self.password.encode()).hexdigest(),
            grants="".join(f"<query>{escape(grant)}</query>" for grant in grants),
            reader=self.reader,
            reader_settings="".join(f"<{name}>{value}</{name}>" for name, value, _ in bounds),
            reader_constraints="".join(f"<{name}><max>{most}</max></{name}>" for name, _, most in bounds if most),
            reader_sha256=hashlib.sha256(self.reader_password.encode()).hexdigest(),
            reader_grants="".join(f"<query>GRANT SELECT, SHOW ON {name}.*</query>" for name in names),
        )


def _password(path: Path) -> str:
    """Return the password of an earlier start, else a new one, kept for the next."""
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    password = secrets.token_urlsafe(24)
    _write_secret(path, password + "\n")
    return password


def _write_secret(path: Path, text: str) -> None:
    """Write a file with mode 0600 from the start."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _answers_ping(port: int) -> bool:
    try:
        answer = urllib3.request("GET", f"http://{HOST}:{port}/ping", timeout=_PING_S, retries=False)
    except (OSError, urllib3.exceptions.HTTPError):
        return False
    return answer.data.strip() == b"Ok."


def _write_line(fifo: Path) -> bool:
    """Write a line to the reader of the FIFO; return whether there is one."""
    try:
        # Without O_NONBLOCK this would wait for a reader; with it ENXIO means that there is none.
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return False
        raise
    try:
        os.write(descriptor, b"stop\n")
    finally:
        os.close(descriptor)
    return True
