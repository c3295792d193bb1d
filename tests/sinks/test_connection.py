from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from clickhouse_connect.driver.httputil import all_managers

from irregulars.errors import InputError, ServiceRefused, ServiceUnavailable
from irregulars.infra.runs.child_process import free_port
from irregulars.sinks.connection import DatabaseSettings, connect, reason_of, translated
from tests.sinks.notices.receiver import CLOSING, Receiver, Reply

SETTINGS = DatabaseSettings("http://db:8123", "ada", "s3cret-word")


@pytest.mark.parametrize(("url", "address"), [
    ("http://db", "http://db:8123"),
    ("https://db", "https://db:8443"),
    ("https://db:443/clickhouse/", "https://db:443/clickhouse"),
    ("http://[::1]:8123", "http://[::1]:8123"),
])  # fmt: skip
def test_the_address_has_host_port_and_path(url: str, address: str) -> None:
    assert DatabaseSettings(url).address == address


@pytest.mark.parametrize("url", ["db:8123", "native://db:9000", "http://", "http://db:port", "http://db:99999", ""])
def test_another_url_is_an_error_that_shows_it(url: str) -> None:
    with pytest.raises(InputError, match="must be http://host:port"):
        DatabaseSettings(url)
    with pytest.raises(InputError, match="database must be a name"):
        DatabaseSettings(database="")


def test_the_password_is_in_no_text_and_is_refused_in_a_url() -> None:
    with pytest.raises(InputError) as refusal:
        DatabaseSettings("http://ada:s3cret-word@db:8123")
    assert "s3cret-word" not in f"{refusal.value} {SETTINGS!r} {SETTINGS.address}"


def test_no_database_is_an_error_within_the_wait_that_names_the_address() -> None:
    port = free_port()
    with pytest.raises(ServiceUnavailable, match=f"127.0.0.1:{port}") as failure:
        connect(DatabaseSettings(f"http://127.0.0.1:{port}", wait_s=0.6))
    assert len(str(failure.value).splitlines()) == 1


def test_a_database_that_is_not_ready_is_asked_again() -> None:
    refused = pytest.raises(ServiceUnavailable, match="got HTTP status 503 for /ping")
    with Receiver(lambda _: Reply(503, headers=CLOSING)) as server, refused:
        connect(DatabaseSettings(server.url, wait_s=1.0))
    assert len(server.requests) > 1
    assert {one.path for one in server.requests} == {"/ping"}


class RefusingDatabase(BaseHTTPRequestHandler):
    """Is there, keeps connections open as ClickHouse does, and accepts nobody."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[set[object]] = set()

    def setup(self) -> None:
        super().setup()
        self.connections.add(self)

    def finish(self) -> None:
        super().finish()
        self.connections.discard(self)

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(403, b"Code: 516. DB::Exception: no such user")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status != 200:
            self.send_header("X-ClickHouse-Exception-Code", "516")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusingDatabase) as server, ThreadPoolExecutor(1) as pool:
        server.block_on_close = False  # a connection that stays open must fail the test, not stop it
        pool.submit(server.serve_forever, 0.05)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_tries_to_connect_that_are_refused_leave_no_connection_open(refusing_url: str) -> None:
    pools = len(all_managers)
    for _ in range(10):
        with pytest.raises(ServiceRefused, match="code 516"):
            connect(DatabaseSettings(refusing_url))
    gc.collect()  # pytest's record of an error refers to its frames, and these to the objects that they used
    deadline_s = time.monotonic() + 60
    while RefusingDatabase.connections and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not RefusingDatabase.connections
    assert len(all_managers) == pools


@pytest.mark.parametrize(("error", "kind"), [
    (DatabaseError("x", code=516), ServiceRefused),
    (DatabaseError("x", code=497), ServiceRefused),
    (DatabaseError("x", code=81), ServiceRefused),
    (DatabaseError("x", code=202), ServiceUnavailable),
    (OperationalError("connection reset"), ServiceUnavailable),
])  # fmt: skip
def test_the_library_s_errors_become_ours(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="http://db:8123"), translated(SETTINGS):
        raise error


@pytest.mark.parametrize(("grant", "kind"), [
    ("DROP TABLE ON irregulars.verdicts", InputError),
    ("INSERT(job) ON irregulars.verdicts", InputError),
    ("ALTER DELETE ON irregulars.verdicts", InputError),
    ("SELECT(job) ON irregulars.verdicts", ServiceRefused),
    ("SHOW TABLES ON other.*", ServiceRefused),
    ("READ ON FILE", ServiceRefused),
])  # fmt: skip
def test_a_right_to_change_something_is_none_that_a_reader_lacks(grant: str, kind: type[Exception]) -> None:
    rule = f"To execute this query, it's necessary to have the grant {grant}"
    text = f"DB::Exception: reader: Not enough privileges. {rule}"
    reading = replace(SETTINGS, is_reading=True)
    with pytest.raises(kind, match="--write" if kind is InputError else "Check user"), translated(reading):
        raise DatabaseError(text, code=497)
    with pytest.raises(ServiceRefused, match="Check user"), translated(SETTINGS):
        raise DatabaseError(text, code=497)


def test_a_reason_is_one_line_without_the_http_around_it() -> None:
    text = (
        "Received ClickHouse exception, code: 516, server response: Code: 516. DB::Exception: no such user\n\nadvice"
    )
    assert reason_of(DatabaseError(text, code=516)) == "no such user (ClickHouse code 516)"
    assert reason_of(OperationalError("")) == "OperationalError"


@pytest.mark.parametrize("code", [47, 60, 62, 456])
def test_a_query_that_is_not_understood_is_the_caller_s_error(code: int) -> None:
    with pytest.raises(InputError, match="query must be SQL"), translated(SETTINGS):
        raise DatabaseError("x", code=code)
