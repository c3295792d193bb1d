"""`irregulars doctor` where a broker and a database let few in: each cause named, no secret shown, no time lost."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.doctor.diagnosis import diagnose
from irregulars.infra.doctor.findings import Finding, Question, status_of
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.settings import LenientSettings, Settings
from irregulars.kafka.access_roles import ROLES, Right, grant, rights_of
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from tests.conftest import failing_in_one_line
from tests.integration.secured_kafka import Authority, SecuredKafka, behind_tls
from tests.integration.test_database_access import PASSWORD, GuardedDatabase, run

pytestmark = pytest.mark.integration

GROUP = "irregulars"
TOPICS = TopicSettings("roles.", 1)
WRONG = "swordfish"
WITHIN_S = 6.0
LONGEST_S = 60.0
KAFKA = ("kafka", "topics", "rights", "workers", "jobs", "alerts")
TRUE_HERE = {"certificate_ends", "broker_clock", "one_copy", "not_read", "topic_hidden"}
"""Codes of what is so on the tests' broker: certificates of two days, one broker, and users who see little."""

Case = tuple[str, Callable[[], dict[str, Any]], str, str]


def diagnosed(settings: Settings, role: str | None = None, *only: str) -> list[Finding]:
    begin_s = time.monotonic()
    found = diagnose(LenientSettings(settings), Question(GROUP, role, only, WITHIN_S))
    assert time.monotonic() - begin_s < LONGEST_S
    return found


def problems(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level == "problem"]


def require_one_cause(name: str, found: list[Finding], code: str, words: str, *secrets: str) -> None:
    """Require that one line says it, that what to do stands beneath, and that no secret is in the report."""
    assert [one.code for one in problems(found)] == [code], (name, problems(found))
    (one,) = problems(found)
    assert words in one.text, (name, one.text)
    assert one.to_do, name
    assert "\n" not in one.text, name
    assert not [secret for secret in (WRONG, *secrets) if secret in repr(found)], name
    assert status_of(found) == 1, name


# --- Kafka ----------------------------------------------------------------------------------------------------------


class Broker(SecuredKafka):
    """A broker on which each role's user has that role; `half` lacks a topic and a group, `none` all."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (*ROLES, "half", "none"))

    def lay_out(self) -> None:
        create_topics(self.bootstrap, TOPICS)
        for role in ROLES:
            grant(self.bootstrap, {}, f"User:{role}", rights_of(role, TOPICS, GROUP))
        lacking = {TOPICS.name("commops"), GROUP}
        half = [one for one in rights_of("worker", TOPICS, GROUP) if one.name not in lacking]
        grant(self.bootstrap, {}, "User:half", [*half, Right("topic", TOPICS.name("commops"), "describe")])

    def settings(self, user: str, **others: Any) -> Settings:
        values = {"kafka_bootstrap": self.sasl_bootstrap, "kafka_tls": True, "topic_prefix": TOPICS.prefix,
                  "kafka_ca_file": self.authority.certificate, "kafka_user": user, "kafka_password": self.password,
                  "metrics_listen": "off"}  # fmt: skip
        return Settings(**{**values, **others})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with failing_in_one_line(), Broker(tmp_path_factory.mktemp("secured")) as running:
        running.lay_out()
        yield running


def test_of_each_role_just_its_own_work_is_judged_and_found_well(broker: Broker) -> None:
    for role in ROLES:
        found = diagnosed(broker.settings(role), role, *KAFKA[:3])
        assert problems(found) == []
        assert {one.code for one in found} - {None} <= TRUE_HERE, role
        needed = sum(
            one.kind == "topic" for one in {(r.kind, r.name): r for r in rights_of(role, TOPICS, GROUP)}.values()
        )
        assert f"{needed} of {needed} that are needed are there" in [one.text for one in found], role
    assert {one.group for one in diagnosed(broker.settings("agent"), "agent")} == {"machine", *KAFKA[:3]}


def test_of_a_whole_installation_topics_that_may_not_be_seen_are_a_note_and_not_a_problem(broker: Broker) -> None:
    for role in ("reader", "agent", "notify", "console"):
        found = diagnosed(broker.settings(role), None, *KAFKA)
        assert (problems(found), status_of(found)) == ([], 0), role
        (hidden,) = [one.text for one in found if one.code == "topic_hidden"]
        assert " topics may not be seen with these credentials: roles." in hidden
        assert "topics_first" not in [one.code for one in found]


def test_a_topic_that_is_missing_for_certain_is_told_from_one_that_may_not_be_seen(broker: Broker) -> None:
    others = TopicSettings("absent.", 1)
    grant(broker.bootstrap, {}, "User:reader", rights_of("reader", others, GROUP))
    absent = diagnosed(broker.settings("reader", topic_prefix="absent."), "reader", "topics")
    assert [one.code for one in problems(absent)] == ["topic_missing"]
    hidden = diagnosed(broker.settings("none", topic_prefix="absent."), "reader", "topics")
    assert (problems(hidden), [one.code for one in hidden]) == ([], ["topic_hidden"])


def test_rights_that_lack_are_named_with_the_command_that_gives_them(broker: Broker) -> None:
    found = diagnosed(broker.settings("half"), "worker", *KAFKA[:3])
    require_one_cause("half", found, "right_missing", "read group irregulars, read topic roles.commops")
    assert "irregulars topics grant worker User:half" in str(problems(found)[0].to_do)
    require_one_cause("none", diagnosed(broker.settings("none"), None, *KAFKA), "no_role", "the work of any role")


def test_why_a_broker_lets_us_not_in_is_told_in_one_line(broker: Broker, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "a stranger")
    certificate, key = stranger.issue("worker")
    no_login = {"kafka_user": None, "kafka_password": None}
    mutual = {"kafka_bootstrap": broker.tls_bootstrap, **no_login}
    plainly = {"kafka_tls": False, "kafka_ca_file": None}
    token = {**no_login, "kafka_mechanism": "OAUTHBEARER", "kafka_token_file": tmp_path / "token"}
    (tmp_path / "token").write_text(broker.signer.token("worker", -10))
    with (
        behind_tls(f"http://{broker.bootstrap}", broker.authority, days=-1) as expired,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        cases: tuple[tuple[dict[str, Any], str, str], ...] = (
            ({"kafka_password": WRONG}, "log_in_refused", "refuses user 'worker' by SCRAM-SHA-512"),
            ({"kafka_password": WRONG, "kafka_mechanism": "PLAIN"}, "log_in_refused", "Invalid username or password"),
            ({"kafka_user": "nobody"}, "log_in_refused", "refuses user 'nobody'"),
            ({"kafka_ca_file": stranger.certificate}, "certificate_untrusted", "names another authority"),
            ({"kafka_ca_file": None}, "certificate_untrusted", "kafka_ca_file is not set"),
            ({"kafka_ca_file": tmp_path / "none.pem"}, "log_in_unusable", "kafka_ca_file must be a readable file"),
            ({"kafka_bootstrap": expired.removeprefix("https://")}, "certificate_expired", "has expired"),
            (plainly, "tls_expected", "speaks TLS, and kafka_tls is false"),
            ({"kafka_bootstrap": broker.bootstrap}, "tls_not_spoken", "speaks no TLS, and kafka_tls is true"),
            (no_login, "log_in_asked", "asks for a log-in"),
            ({"kafka_bootstrap": broker.bootstrap, **plainly}, "log_in_not_asked", "takes no log-in"),
            (mutual, "own_certificate_asked", "mutual TLS"),
            ({**mutual, "kafka_cert_file": certificate, "kafka_key_file": key}, "own_certificate_refused", "refuses"),
            (token, "log_in_unusable", "it expired"),
            ({"kafka_bootstrap": f"127.0.0.1:{free_port()}"}, "kafka_unreachable", "Connection refused"),
            ({"kafka_bootstrap": "kafka.invalid:9092"}, "kafka_unreachable", "kafka.invalid:9092 can't be reached"),
            ({"kafka_bootstrap": f"127.0.0.1:{silent.getsockname()[1]}"}, "kafka_away", "does not answer"),
        )
        secrets = (broker.password, (tmp_path / "token").read_text())
        with ThreadPoolExecutor(len(cases)) as pool:  # most of it is waiting
            seen = pool.map(lambda one: diagnosed(broker.settings("worker", **one[0]), "worker", "kafka"), cases)
            for (given, code, words), found in zip(cases, seen, strict=True):
                require_one_cause(str(given), found, code, words, *secrets)


def test_where_a_broker_lets_us_not_in_that_is_told_whatever_is_asked_for(broker: Broker) -> None:
    found = diagnosed(broker.settings("worker", kafka_ca_file=None), None, "workers", "jobs")
    require_one_cause("only workers", found, "certificate_untrusted", "kafka_ca_file is not set")
    unusable = diagnose(LenientSettings(None, ("topic_prefix must be a text",)), Question(only=("kafka",)))
    assert ([one.code for one in problems(unusable)], status_of(unusable)) == (["setting_refused"], 1)


def test_a_wrong_certificate_ends_the_command_with_status_1_and_the_cause(broker: Broker) -> None:
    settings = broker.settings("worker", kafka_ca_file=None)
    done = run(settings, "doctor", "--role", "worker", "--only", "kafka")
    assert (done.returncode, done.stderr) == (1, "")
    assert "can't be trusted" in done.stdout
    assert "-> Set kafka_ca_file" in done.stdout
    assert broker.password not in done.stdout


# --- ClickHouse -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedDatabase]:
    with GuardedDatabase(tmp_path_factory.mktemp("guarded")) as running:
        yield running


def test_why_a_database_can_not_be_used_is_told_in_one_line(database: GuardedDatabase, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "a stranger")
    https = database.url.replace("http:", "https:")
    own = {"clickhouse_ca_file": database.authority.certificate}
    with (
        behind_tls(database.url, database.authority) as safe,
        behind_tls(database.url, database.authority, days=-1) as expired,
    ):
        cases: tuple[tuple[dict[str, Any], str, str], ...] = (
            ({}, "migrations_missing", "1 migration not applied: 0001_tables.sql"),
            ({"clickhouse_password": WRONG}, "clickhouse_refuses", "password is incorrect"),
            ({"clickhouse_user": "nobody"}, "clickhouse_refuses", "there is no user with such name"),
            ({"clickhouse_database": "other"}, "database_hidden", "may not see database 'other', or it does not"),
            ({"clickhouse_url": https}, "clickhouse_no_tls", "speaks no TLS"),
            ({"clickhouse_url": safe.replace("https:", "http:")}, "clickhouse_tls", "speaks TLS"),
            ({"clickhouse_url": safe}, "clickhouse_untrusted", "clickhouse_ca_file is not set"),
            ({"clickhouse_url": safe, "clickhouse_ca_file": stranger.certificate}, "clickhouse_untrusted", "another"),
            ({"clickhouse_url": expired, **own}, "clickhouse_untrusted", "has expired"),
            ({"clickhouse_url": safe, "clickhouse_ca_file": tmp_path / "no"}, "clickhouse_unusable", "ca_file must"),
        )
        with ThreadPoolExecutor(len(cases)) as pool:
            seen = pool.map(lambda one: diagnosed(database.settings("writer", **one[0]), None, "clickhouse"), cases)
            for (given, code, words), found in zip(cases, seen, strict=True):
                require_one_cause(str(given), found, code, words, PASSWORD)


def test_a_user_who_may_not_insert_is_well_for_a_console_and_not_for_a_worker(database: GuardedDatabase) -> None:
    made = run(database.settings("admin"), "sql", "--create-tables")
    assert made.returncode == 0, made.stderr
    assert problems(diagnosed(database.settings("writer"), "worker", "clickhouse")) == []
    assert problems(diagnosed(database.settings("reader"), "console", "clickhouse")) == []
    as_worker = diagnosed(database.settings("reader"), "worker", "clickhouse")
    require_one_cause("reader", as_worker, "grant_missing", "lacks INSERT", PASSWORD)
    wrong = diagnosed(database.settings("writer", clickhouse_reader_password=WRONG), "worker", "clickhouse")
    require_one_cause("reader's password", wrong, "reader_refused", "irregulars_reader", PASSWORD)
