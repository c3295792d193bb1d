"""Every way of logging in, what each role may do and what the doctor says, on Apache Kafka with certificates."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Place

from irregulars.errors import ServiceError, ServiceRefused
from irregulars.infra.console.database import KafkaAddress
from irregulars.infra.doctor.diagnosis import diagnose
from irregulars.infra.doctor.findings import Finding, Question, status_of
from irregulars.infra.runs.child_process import free_port
from irregulars.infra.settings import LenientSettings, Settings
from irregulars.infra.wiring import agent_settings, kafka_security
from irregulars.kafka.access_roles import ROLES, Right, grant, rights_of
from irregulars.kafka.broker import client_config, open_admin
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TOPICS, TopicSettings
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.publishing.publisher import Publisher
from irregulars.producers.publishing.spool import Message as Sent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from tests.conftest import ClickHouseAddress, failing_in_one_line
from tests.infra.console.visits import visit
from tests.integration.doctor_runs import PATIENT_S, WRONG, diagnosed, problems, require_one_cause
from tests.integration.pipelines import COMMAND, RECORDINGS, own_database, run_command, says, starting
from tests.integration.secured_kafka import Authority, SecuredKafka, TokenServer, behind_tls
from tests.integration.test_bad_input import require_refusal
from tests.integration.worker_runs import ROOT, SESSION_S, wait_until
from tests.sinks.notices.alerts import alert_bytes
from tests.sinks.recorded_jobs import rows_of_recording

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
GROUP = "irregulars"
OWN, ADAS = TopicSettings("roles.", 1), TopicSettings("ada.", 1)
DOCTOR = ("kafka", "topics", "rights", "workers", "jobs", "alerts")
TRUE_HERE = {"certificate_ends", "broker_clock", "one_copy", "not_read", "topic_hidden", "kafka_slow"}
"""Codes of what is so on the tests' broker: certificates of two days, one busy broker, and users who see little."""
REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class SharedKafka(SecuredKafka):
    """A broker on which each role's user has that role; `half` lacks a topic and a group, `none` all.

    `ada` may do everything with topics that begin with ``ada.``
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ("ada", *ROLES, "half", "none"))

    def lay_out(self) -> None:
        for topics in (OWN, ADAS):
            create_topics(self.bootstrap, topics)
        for role in ROLES:
            grant(self.bootstrap, {}, f"User:{role}", rights_of(role, OWN, GROUP))
            grant(self.bootstrap, {}, "User:ada", rights_of(role, ADAS, GROUP))
        lacking = {OWN.name("commops"), GROUP}
        half = [one for one in rights_of("worker", OWN, GROUP) if one.name not in lacking]
        grant(self.bootstrap, {}, "User:half", [*half, Right("topic", OWN.name("commops"), "describe")])

    def settings(self, user: str, **others: Any) -> Settings:
        values = {"kafka_bootstrap": self.sasl_bootstrap, "kafka_tls": True, "topic_prefix": OWN.prefix,
                  "kafka_ca_file": self.authority.certificate, "kafka_user": user, "kafka_password": self.password,
                  "metrics_listen": "off"}  # fmt: skip
        return Settings(**{**values, **others})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKafka]:
    """One broker for all tests of this file."""
    with failing_in_one_line(), SharedKafka(tmp_path_factory.mktemp("secured")) as running:
        running.lay_out()
        yield running


@pytest.fixture(scope="module")
def token_url(broker: SecuredKafka) -> Iterator[str]:
    """An OAuth server that gives a token to each user who says the broker's password."""
    server = TokenServer(broker)
    server.start()
    yield server.url
    server.stop()


WAYS = ("mutual TLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "token file", "token endpoint")


class LogIn:
    """Settings of a user for each way of logging in."""

    def __init__(self, broker: SecuredKafka, token_url: str) -> None:
        self._broker, self._token_url = broker, token_url
        self._issue = cache(broker.authority.issue)

    def __call__(self, user: str, way: str, **others: Any) -> Settings:
        """Make the settings; `others` replace some."""
        broker = self._broker
        values: dict[str, Any] = {"kafka_bootstrap": broker.sasl_bootstrap, "kafka_tls": True,
                                  "kafka_ca_file": broker.authority.certificate}  # fmt: skip
        if way == "mutual TLS":
            certificate, key = self._issue(user)
            values |= {"kafka_bootstrap": broker.tls_bootstrap, "kafka_cert_file": certificate, "kafka_key_file": key}
        elif way == "token file":
            values |= {"kafka_mechanism": "OAUTHBEARER", "kafka_token_file": broker.token_file(user)}
        else:
            values |= {"kafka_user": user, "kafka_password": broker.password, "kafka_mechanism": way}
        if way == "token endpoint":
            values |= {"kafka_mechanism": "OAUTHBEARER", "kafka_token_url": self._token_url}
        return Settings(**{"topic_prefix": "ada.", **values, **others})


@pytest.fixture(scope="module")
def log_in(broker: SecuredKafka, token_url: str) -> LogIn:
    return LogIn(broker, token_url)


# --- every way of logging in, for every client of ours --------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_one_configuration_lets_every_client_in(log_in: LogIn, way: str) -> None:
    settings = log_in("ada", way)
    security, key = kafka_security(settings), way.encode()
    publisher = Publisher(agent_settings(settings))  # of the agent, of replay, of torch_comms
    publisher.connect(["jobs"])
    publisher.send(Sent("jobs", key, b"hello"))
    publisher.flush()
    publisher.close()
    reader = LogReader(settings.kafka_bootstrap, security, DEADLINE_S)  # of the worker
    assert reader.read_tail("ada.jobs", 0)[-1].key() == key
    reader.close()


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "token endpoint"])
def test_a_wrong_secret_is_refused_in_one_line_that_does_not_show_it(log_in: LogIn, way: str) -> None:
    settings = log_in("ada", way, kafka_password="swordfish")
    with pytest.raises(ServiceRefused) as caught:
        open_admin(settings.kafka_bootstrap, kafka_security(settings), DEADLINE_S)
    assert "\n" not in str(caught.value)
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [("topics", "create"), ("worker", "--no-store"), ("alerts",), ("replay", str(RECORDINGS / "gloo-clean"))],
    ids=lambda call: call[0],
)
def test_a_wrong_secret_ends_a_command_with_one_line(log_in: LogIn, tmp_path: Path, call: tuple[str, ...]) -> None:
    settings = log_in("ada", "PLAIN", kafka_password="s3cret", data_dir=tmp_path)
    require_refusal(run_command(*call, settings=settings), "must accept our credentials", settings.kafka_bootstrap)


def test_an_agent_that_waits_for_brokers_waits_for_none_that_refuses_it(log_in: LogIn) -> None:
    settings = replace(agent_settings(log_in("ada", "PLAIN", kafka_password="swordfish")), broker_wait_s=3600.0)
    with pytest.raises(ServiceRefused, match=r"must accept our credentials; got .*Authentication failed"):
        Agent(TraceSource(read_trace(RECORDINGS / "gloo-clean"), 0), settings).run()


def test_a_token_that_somebody_else_signed_is_refused(log_in: LogIn, tmp_path: Path) -> None:
    head, claims, _ = log_in("ada", "token file").kafka_token_file.read_text().split(".")  # type: ignore[union-attr]
    forged = tmp_path / "token"
    forged.write_text(".".join((head, claims, "c2lnbmF0dXJl")))
    settings = log_in("ada", "token file", kafka_token_file=forged)
    with pytest.raises(ServiceRefused) as caught:
        open_admin(settings.kafka_bootstrap, kafka_security(settings), DEADLINE_S)
    assert claims not in str(caught.value)


def test_nobody_comes_in_without_a_certificate_or_to_a_broker_of_another_authority(log_in: LogIn) -> None:
    anonymous = log_in("ada", "mutual TLS", kafka_cert_file=None, kafka_key_file=None)
    with pytest.raises(ServiceError):
        open_admin(anonymous.kafka_bootstrap, kafka_security(anonymous), 3.0)
    trusting = log_in("ada", "mutual TLS", kafka_ca_file=None)  # the system's authorities: none of them is ours
    with pytest.raises(ServiceRefused, match="certificate verify failed"):
        open_admin(trusting.kafka_bootstrap, kafka_security(trusting), DEADLINE_S)


# --- what each role may do ------------------------------------------------------------------------------------------


def allowed(role: str, operation: str, topics: TopicSettings) -> set[str]:
    return {one.name for one in rights_of(role, topics, GROUP) if (one.kind, one.operation) == ("topic", operation)}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_what_its_file_says_and_is_refused_everything_else(log_in: LogIn, role: str) -> None:
    settings = log_in(role, "SCRAM-SHA-512")
    config = client_config(settings.kafka_bootstrap, kafka_security(settings))
    names = [OWN.name(topic) for topic in TOPICS]
    assert written(config, names) == allowed(role, "write", OWN)
    assert fetched(config, names) == allowed(role, "read", OWN)


def written(config: dict[str, Any], names: list[str]) -> set[str]:
    """Send a message to each topic; return those that took it, and require that the others refused us."""
    found: dict[str, KafkaError | None] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        found[str(message.topic())] = error

    producer = Producer({**config, "message.timeout.ms": int(DEADLINE_S * 1000)})
    for name in names:
        producer.produce(name, b"x", b"k", on_delivery=note)
    assert producer.flush(DEADLINE_S) == 0
    refused = {name: error for name, error in found.items() if error is not None}
    assert {error.code() for error in refused.values()} <= {REFUSED}, refused
    return found.keys() - refused.keys()


def fetched(config: dict[str, Any], names: list[str]) -> set[str]:
    """Fetch from each topic; return those that gave a message or said that there is none."""
    own = {"group.id": "irregulars-alerts", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(config | own)
    found: dict[str, int] = {}
    try:
        visible = consumer.list_topics(timeout=DEADLINE_S).topics.keys() & set(names)
        assert all(consumer.list_topics(name, timeout=DEADLINE_S).topics[name].error.code() == REFUSED  # type: ignore[union-attr]
                   for name in set(names) - visible)  # fmt: skip
        consumer.assign([Place(name, 0, OFFSET_BEGINNING) for name in visible])
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found) < len(visible) and time.monotonic() < deadline_s:
            note_fetch(consumer, found)
    finally:
        consumer.close()
    assert found.keys() == visible
    assert set(found.values()) <= {KafkaError.NO_ERROR, KafkaError._PARTITION_EOF, REFUSED}
    return {name for name, code in found.items() if code != REFUSED}


def note_fetch(consumer: Consumer, found: dict[str, int]) -> None:
    for message in consumer.consume(20, 0.1):
        error = message.error()
        if message.topic() is not None:  # else it is about the group, which a producer has no right to either
            found.setdefault(str(message.topic()), KafkaError.NO_ERROR if error is None else error.code())


@pytest.mark.parametrize("role", [role for role in ROLES if role != "admin"])
def test_no_role_but_the_admin_makes_topics_and_none_gives_rights(log_in: LogIn, role: str) -> None:
    settings = log_in(role, "SCRAM-SHA-512")
    security = kafka_security(settings)
    with pytest.raises(ServiceRefused):
        create_topics(settings.kafka_bootstrap, TopicSettings("others.", 1), security)
    with pytest.raises(ServiceRefused):
        grant(settings.kafka_bootstrap, security, f"User:{role}", rights_of("admin", OWN, GROUP))


# --- what the doctor says of it -------------------------------------------------------------------------------------


def test_of_each_role_just_its_own_work_is_judged_and_found_well(broker: SharedKafka) -> None:
    for role in ROLES:
        found = diagnosed(broker.settings(role), role, *DOCTOR[:3])
        assert problems(found) == []
        assert {one.code for one in found} - {None} <= TRUE_HERE, role
        needed = sum(
            one.kind == "topic" for one in {(r.kind, r.name): r for r in rights_of(role, OWN, GROUP)}.values()
        )
        assert f"{needed} of {needed} that are needed are there" in [one.text for one in found], role
    assert {one.group for one in diagnosed(broker.settings("agent"), "agent")} == {"machine", *DOCTOR[:3]}


def test_of_an_installation_topics_that_may_not_be_seen_are_a_note_and_not_a_problem(broker: SharedKafka) -> None:
    for role in ("reader", "agent", "notify", "console"):
        found = diagnosed(broker.settings(role), None, *DOCTOR)
        assert (problems(found), status_of(found)) == ([], 0), role
        (hidden,) = [one.text for one in found if one.code == "topic_hidden"]
        assert " topics may not be seen with these credentials: roles." in hidden
        assert "topics_first" not in [one.code for one in found]


def test_a_topic_that_is_missing_for_certain_is_told_from_one_that_may_not_be_seen(broker: SharedKafka) -> None:
    others = TopicSettings("absent.", 1)
    grant(broker.bootstrap, {}, "User:reader", rights_of("reader", others, GROUP))
    absent = diagnosed(broker.settings("reader", topic_prefix="absent."), "reader", "topics")
    assert [one.code for one in problems(absent)] == ["topic_missing"]
    hidden = diagnosed(broker.settings("none", topic_prefix="absent."), "reader", "topics")
    assert (problems(hidden), [one.code for one in hidden]) == ([], ["topic_hidden"])


def test_rights_that_lack_are_named_with_the_command_that_gives_them(broker: SharedKafka) -> None:
    found = diagnosed(broker.settings("half"), "worker", *DOCTOR[:3])
    require_one_cause("half", found, "right_missing", "read group irregulars, read topic roles.commops")
    assert "irregulars topics grant worker User:half" in str(problems(found)[0].to_do)
    require_one_cause("none", diagnosed(broker.settings("none"), None, *DOCTOR), "no_role", "the work of any role")


def why(settings: Settings, code: str) -> list[Finding]:
    """Wait for long where something answers."""
    return diagnosed(settings, "worker", "kafka", within_s=3.0 if code == "kafka_away" else PATIENT_S)


def test_why_a_broker_lets_us_not_in_is_told_in_one_line(broker: SharedKafka, tmp_path: Path) -> None:
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
            seen = pool.map(lambda one: why(broker.settings("worker", **one[0]), one[1]), cases)
            for (given, code, words), found in zip(cases, seen, strict=True):
                require_one_cause(str(given), found, code, words, *secrets)


def test_where_a_broker_lets_us_not_in_that_is_told_whatever_is_asked_for(broker: SharedKafka) -> None:
    found = diagnosed(broker.settings("worker", kafka_ca_file=None), None, "workers", "jobs")
    require_one_cause("only workers", found, "certificate_untrusted", "kafka_ca_file is not set")
    unusable = diagnose(LenientSettings(None, ("topic_prefix must be a text",)), Question(only=("kafka",)))
    assert ([one.code for one in problems(unusable)], status_of(unusable)) == (["setting_refused"], 1)


# --- the whole, with the rights that it needs and none beside -------------------------------------------------------


def test_the_pipeline_works_with_least_rights_only(broker: SecuredKafka, log_in: LogIn, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(broker.password + "\n")
    common: dict[str, Any] = {"topic_prefix": "least.", "partitions": 2, "session_s": SESSION_S, "snapshot_s": 0.5,
                              "data_dir": tmp_path / "data",
                              "alert_least_severity": "note"}  # fmt: skip
    in_a_file = {"kafka_password": None, "kafka_password_file": secret}
    people = {
        "admin": log_in("admin", "PLAIN", **common),
        "worker": log_in("worker", "mutual TLS", **common),
        "producer": log_in("producer", "SCRAM-SHA-512", **common, **in_a_file),
        "reader": log_in("reader", "token file", **common),
    }
    super_user = Settings(kafka_bootstrap=broker.bootstrap, topic_prefix="least.")
    said = "".join(run(super_user, "topics", "grant", role, f"User:{role}") for role in people)
    said += run(people["admin"], "topics", "create")
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen([*COMMAND, "worker", "--no-store"], cwd=ROOT, env=environment_of(people["worker"]),
                                  stdout=output, stderr=output)  # fmt: skip
    try:
        wait_until(lambda: log.read_text().count("event=restored hop=job") == 2, "all partitions")
        said += run(people["producer"], "replay", str(RECORDINGS / "gloo-slow-nic"), "--speed", "0")
        wait_until(lambda: "NIC eth0" in run(people["reader"], "alerts", "--from-start", "--end"), "an alert")
        token = people["reader"].kafka_token_file.read_text().strip()  # type: ignore[union-attr]
        require_hidden([broker.password, token, "PRIVATE KEY"], said + log.read_text(), *command_lines())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_S) == 0
    finally:
        worker.kill()
        worker.wait()


def test_people_are_told_with_the_rights_of_notify_and_mutes_are_set_with_those_of_an_operator(
    broker: SecuredKafka, log_in: LogIn, tmp_path: Path
) -> None:
    topics = TopicSettings("told.", 1)
    create_topics(broker.bootstrap, topics)
    for role in ("notify", "operator"):
        grant(broker.bootstrap, {}, f"User:{role}", rights_of(role, topics, GROUP))
    notify, operator = (
        log_in(role, "SCRAM-SHA-512", topic_prefix="told.", notify_listen="off", session_s=SESSION_S)
        for role in ("notify", "operator")
    )
    said, file = tmp_path / "said", tmp_path / "notify.toml"
    file.write_text(f'[[channel]]\nkind = "command"\nname = "script"\nargv = ["tee", "-a", "{said}"]\n')
    assert "host=node-4" in run(operator, "mutes", "add", "--host", "node-4", "--for", "1h", "--reason", "known")
    assert "delta = 1.3" in run(operator, "thresholds", "set", "delta=1.3", "--reason", "noise")
    assert run(operator, "deadletter", "list") == "no dead letters\n"
    with starting(notify, tmp_path) as start:
        told = start("notify", str(file))
        wait_until(lambda: says(told, "event=loaded"), "the state")
        worker = Producer(client_config(broker.bootstrap, {}))
        for name, host in (("v1", "node-4"), ("v2", "node-3")):
            worker.produce("told.alerts", alert_bytes(name, host=host), name.encode())
        assert worker.flush(DEADLINE_S) == 0
        wait_until(lambda: said.exists() and said.read_bytes().endswith(b"\n"), "a notice")
        assert "v1" not in said.read_text()
        require_hidden([broker.password], told.output())
        assert told.stop(DEADLINE_S, signal.SIGINT) == 0


def test_the_console_reads_with_its_own_role_and_takes_feedback_with_that_of_an_operator_beside(
    broker: SecuredKafka, log_in: LogIn, clickhouse: ClickHouseAddress
) -> None:
    topics = TopicSettings("console.", 1)
    create_topics(broker.bootstrap, topics)
    grant(broker.bootstrap, {}, "User:console", rights_of("console", topics, GROUP))
    worker = Producer(client_config(broker.bootstrap, {}))
    worker.produce("console.alerts", alert_bytes("v1"), b"v1")
    worker.produce("console.deadletter", b"x", b"k", headers={"reason": "no such column"})
    assert worker.flush(DEADLINE_S) == 0
    settings = log_in("console", "SCRAM-SHA-512", topic_prefix="console.")
    kafka = KafkaAddress(settings.kafka_bootstrap, topics, kafka_security(settings))
    with (
        own_database(clickhouse, rows_of_recording("gloo-slow-nic")) as database,
        visit(database, kafka, takes_feedback=True) as somebody,
    ):
        somebody.log_in()
        wait_until(lambda: "/incidents/v1" in somebody.get("/").text, "an alert")
        assert "no such column" in somebody.get("/pipeline").text
        said = {"csrf": somebody.csrf("/"), "verdict_id": "gloo-slow-nic:0:60:0", "word": "wrong", "who": "ann"}
        refused = somebody.client.post("/feedback", data=said)
        assert refused.status_code == 403, refused.text
        assert "irregulars topics grant operator User:NAME" in refused.text
        grant(broker.bootstrap, {}, "User:console", rights_of("operator", topics, GROUP))
        wait_until(lambda: somebody.client.post("/feedback", data=said).status_code == 303, "the rights")
        shown = somebody.get("/").text + somebody.get("/pipeline").text + refused.text
    require_hidden([broker.password], shown)
    reader = LogReader(broker.bootstrap, {}, DEADLINE_S)
    assert b'"ann"' in (reader.read_tail("console.feedback", 0)[-1].value() or b"")
    reader.close()


def environment_of(settings: Settings) -> dict[str, str]:
    return {**os.environ, **settings.to_environment(), "PYTHONPATH": str(ROOT)}


def run(settings: Settings, *arguments: str) -> str:
    done = run_command(*arguments, settings=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def command_lines() -> list[str]:
    """What everybody on this machine sees of our processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            continue
    assert any("irregulars\0worker" in line for line in found)
    return found


def require_hidden(secrets: list[str], *texts: str) -> None:
    assert [text for text in texts if any(secret in text for secret in secrets)] == []


def test_a_user_without_rights_is_told_what_to_ask_for(log_in: LogIn) -> None:
    refused: Callable[[], object] = lambda: Publisher(  # noqa: E731
        replace(agent_settings(log_in("reader", "PLAIN", topic_prefix="ada.")), broker_wait_s=DEADLINE_S)
    ).connect(["jobs"])
    with pytest.raises(ServiceError, match="irregulars topics grant"):
        refused()
