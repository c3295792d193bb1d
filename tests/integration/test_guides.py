"""The guide for platform teams, typed as it stands: on Apache Kafka and ClickHouse, both secured."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from irregulars.errors import ServiceRefused
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings, connect, connected
from irregulars.sinks.migrate import for_replicas, shipped_migrations
from tests.apache_kafka.jars import find_jars, find_java
from tests.conftest import failing_in_one_line
from tests.integration.database_users import hashes_of, statements_of, with_access
from tests.integration.guide_reader import Reader, blocks_of, with_own
from tests.integration.secured_kafka import DEADLINE_S, Authority, SecuredKafka, behind_tls

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.integration

PAGE = "install.md"
GUIDE = "On your own Kafka and ClickHouse"
ADMIN = "kafka-admin"
PRINCIPALS = tuple(f"User:irregulars-{role}" for role in ("worker", "agent", "reader"))


class CompanyKafka(SecuredKafka):
    """With an administrator who logs in as everybody else does, and by a client file of Kafka's own tools."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (ADMIN,))

    def _own_properties(self) -> dict[str, str]:
        return {**super()._own_properties(), "super.users": f"User:ANONYMOUS;User:{ADMIN}"}

    def write_admin_files(self, folder: Path) -> tuple[Path, Path]:
        """Write the administrator's password, and the client file; return both."""
        password, client = folder / "kafka-admin.password", folder / "admin.properties"
        password.write_text(f"{self.password}\n")
        jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{ADMIN}"'
        client.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.authority.certificate}\n"
            f'sasl.jaas.config={jaas} password="{self.password}";\n'
        )
        return password, client


class CompanyDatabase(DemoDatabase):
    """ClickHouse's engine, whose users are those of the SQL that its administrator was given so far."""

    def __init__(self, directory: Path, port: int, statements: list[str]) -> None:
        super().__init__(directory, port=port)
        self._statements = statements

    def _users(self) -> str:
        return with_access(super()._users(), self._statements, hashes_of(self._statements))


class Administrator:
    """Runs what the guide's ``clickhouse-client`` is given: the engine takes no ``CREATE USER``.

    The server parses each statement; then those about users are put in force through its configuration, with a
    restart, and all others are run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._statements, self._port = folder, list[str](), free_port()
        self.inbox = folder / "given.sql"
        self.database = self._start()

    def take(self) -> None:
        """Do what was given since the last call."""
        if not self.inbox.exists():
            return
        given = statements_of(self.inbox.read_text())
        self.inbox.unlink()
        with self.client() as client:
            for one in given:
                assert client.query("SELECT formatQuery({sql:String})", parameters={"sql": one}).result_rows
            for one in given:
                if one.startswith(("CREATE DATABASE", "DROP DATABASE")):
                    client.command(one)
        dropped = {name for one in given if one.startswith("DROP USER") for name in one[10:].split(", ")}
        self._statements += given
        self._statements[:] = [one for one in self._statements if not dropped & set(one.replace(",", "").split())]
        self.database.stop()
        self.database = self._start()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a client of the engine's own user."""
        own = self.database
        with connected(DatabaseSettings(own.url, own.user, own.password)) as client:
            yield client

    def _start(self) -> CompanyDatabase:
        database = CompanyDatabase(self._folder / "data", self._port, self._statements)
        database.start()
        return database


class Company:
    """Both services, and where they are."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.kafka = stack.enter_context(CompanyKafka(folder / "broker"))
        self.administrator = Administrator(folder / "database")
        stack.callback(lambda: self.administrator.database.stop())
        authority = Authority(folder / "ca")
        password, client = self.kafka.write_admin_files(folder)
        self.own = {
            "KAFKA": self.kafka.sasl_bootstrap,
            "KAFKA_CA": str(self.kafka.authority.certificate),
            "KAFKA_ADMIN": ADMIN,
            "KAFKA_ADMIN_PASSWORD_FILE": str(password),
            "KAFKA_ADMIN_PROPERTIES": str(client),
            "PARTITIONS": "2",
            "REPLICAS": "1",
            "CLICKHOUSE": stack.enter_context(behind_tls(self.administrator.database.url, authority)),
            "CLICKHOUSE_CA": str(authority.certificate),
            "CLICKHOUSE_CLIENT": "clickhouse-client --secure",
            "METRICS": f"127.0.0.1:{free_port()}",
        }


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    folder = tmp_path_factory.mktemp("company")
    (folder / "database").mkdir()
    with failing_in_one_line(), ExitStack() as stack:
        yield Company(folder, stack)


@pytest.fixture(scope="module")
def reader(company: Company, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the guide up to its last step but the undoing."""
    reader = Reader(tmp_path_factory.mktemp("guide"), {})
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    java = f'{find_java()} {options} -cp "{find_jars()}/*"'
    reader.add_program("kafka-configs.sh", f'exec {java} kafka.admin.ConfigCommand "$@"')
    reader.add_program("clickhouse-client", f'test "$1" = --secure && exec cat > "{company.administrator.inbox}"')
    try:
        for kind, text in blocks_of(PAGE, GUIDE):
            if kind == "bash yours":
                reader.type(with_own(text, company.own))
            elif kind == "bash":
                reader.type(text, then=company.administrator.take)
            elif kind == "text":
                reader.has_seen(text)
        yield reader
    finally:
        end_worker(reader.folder / "irregulars-setup")


def end_worker(setup: Path) -> None:
    if (setup / "worker.pid").exists():
        print((setup / "worker.log").read_text()[-3000:])
        with suppress(ProcessLookupError):
            os.kill(int((setup / "worker.pid").read_text()), 9)


def test_existing_services_come_to_a_verdict_and_an_alert_as_the_guide_says(company: Company, reader: Reader) -> None:
    print(f"all blocks together took {sum(reader.took_s):.0f} s")
    with company.administrator.client() as client:
        [[kind, device]] = client.query(
            "SELECT kind, device FROM irregulars.verdicts FINAL INNER JOIN irregulars.newest_suspects AS s "
            "USING (verdict_id) WHERE s.position = 0"
        ).result_rows
    assert (kind, device) == ("slow_nic", "nic")


def test_no_password_is_told_to_anybody(company: Company, reader: Reader) -> None:
    setup = reader.folder / "irregulars-setup"
    files = sorted(setup.glob("*.password"))
    secrets = [company.kafka.password, *(one.read_text().strip() for one in files)]
    texts = [reader.printed, (setup / "worker.log").read_text(), (setup / "users.sql").read_text()]
    assert len(files) == 6
    assert [text for text in texts if any(secret in text for secret in secrets)] == []
    assert {one.stat().st_mode & 0o077 for one in setup.iterdir()} == {0}
    hashed = hashlib.sha256((setup / "clickhouse-reader.password").read_text().strip().encode()).hexdigest()
    assert hashed in texts[2]


def test_clickhouse_parses_every_statement_with_the_replicated_engine(company: Company) -> None:
    statements = [for_replicas(one) for migration in shipped_migrations() for one in migration.statements()]
    (block,) = (text for text in page_text().split("\n\n") if text.lstrip().startswith("CREATE DATABASE"))
    with company.administrator.client() as client:
        for one in (*statements, block):
            assert client.query("SELECT formatQuery({sql:String})", parameters={"sql": one}).result_rows


def page_text() -> str:
    return (Path(__file__).parents[2] / "infra" / "docs" / PAGE).read_text()


def test_undone_nothing_of_it_is_left(company: Company, reader: Reader) -> None:
    (block,) = (text for kind, text in blocks_of(PAGE, GUIDE) if kind == "bash undo")
    admin = AdminClient({"bootstrap.servers": company.kafka.bootstrap})
    password = (reader.folder / "irregulars-setup" / "clickhouse-reader.password").read_text().strip()
    stranger = DatabaseSettings(company.administrator.database.url, "irregulars_reader", password)
    connect(stranger).close_connections()
    assert rights(admin)
    reader.type(block, then=company.administrator.take)
    assert rights(admin) == []
    assert [name for name in admin.list_topics(timeout=DEADLINE_S).topics if name.startswith("irregulars")] == []
    known = admin.describe_user_scram_credentials(None, request_timeout=DEADLINE_S).result(DEADLINE_S)
    assert set(known) == {ADMIN}
    assert not (reader.folder / "irregulars-setup").exists()
    with company.administrator.client() as client:
        assert client.command("EXISTS DATABASE irregulars") in (0, 1)  # the engine makes an empty one at its start
        assert client.query("SELECT name FROM system.tables WHERE database = 'irregulars'").result_rows == []
    with pytest.raises(ServiceRefused, match="Authentication failed"):
        connect(stranger)


def rights(admin: AdminClient) -> list[Any]:
    """What the guide's users may do."""
    asked = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    found = admin.describe_acls(asked, request_timeout=DEADLINE_S).result(DEADLINE_S)
    return [one for one in found if one.principal in PRINCIPALS]
