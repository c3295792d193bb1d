"""The OAuth server is away when something of ours starts, or later: who can wait does, others say so in a line."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.infra.settings import Settings
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import TopicSettings
from tests.integration.pipelines import Process, replaying_agent, run_command, says, starting
from tests.integration.secured_kafka import SecuredKafka, TokenServer, kafka_of_ada, settings_of_ada
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

AWAY_S = 12.0
"""Longer than librdkafka waits for a token of a new client, 10 s."""
LIFE_S = 15
"""Of a token that is not renewed in time."""
PREFIX = "away."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with kafka_of_ada(tmp_path_factory.mktemp("secured"), TopicSettings(PREFIX, 1)) as running:
        yield running


@pytest.fixture
def tokens(broker: SecuredKafka) -> Iterator[TokenServer]:
    """An endpoint that is away until the test starts it."""
    server = TokenServer(broker)
    yield server
    server.stop()


@pytest.fixture
def settings(broker: SecuredKafka, tokens: TokenServer, tmp_path: Path) -> Settings:
    return settings_of_ada(broker, tmp_path, topic_prefix=PREFIX, kafka_password=broker.password,
                           kafka_mechanism="OAUTHBEARER", kafka_token_url=tokens.url)  # fmt: skip


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with starting(settings, tmp_path) as start:
        yield start


def test_a_worker_waits_for_it(start: Callable[..., Process], tokens: TokenServer) -> None:
    worker = start("worker", "--no-store")
    wait_until(lambda: says(worker, "event=token_endpoint_away"), "a line that the endpoint is away")
    time.sleep(AWAY_S)
    assert worker.is_running, worker.output()
    tokens.start()
    wait_until(lambda: says(worker, "event=restored hop=job"), "the partition")
    assert worker.stop() == 0
    said = worker.output()
    assert said.count("event=token_endpoint_away") == said.count("event=token_endpoint_back") == 1
    assert tokens.url in said
    assert "Traceback" not in said


def test_an_agent_keeps_what_comes_until_it_is_there(
    start: Callable[..., Process], broker: SecuredKafka, tokens: TokenServer, tmp_path: Path
) -> None:
    agent = start("agent", str(replaying_agent(tmp_path, "gloo-clean", 0)))
    wait_until(lambda: says(agent, "event=kafka_away"), "a line that Kafka is away")
    time.sleep(AWAY_S)
    before = end_of_commops(broker)
    assert agent.is_running, agent.output()
    tokens.start()
    wait_until(lambda: end_of_commops(broker) > before, "delivery")
    assert agent.stop() == 0
    said = agent.output()
    assert said.count("event=kafka_away") == 1
    assert tokens.url in said
    assert "event=spool_kept" not in said, "everything must be delivered"
    assert "Traceback" not in said


def end_of_commops(broker: SecuredKafka) -> int:
    reader = LogReader(broker.bootstrap, {}, 30.0)
    try:
        return reader.bounds(PREFIX + "commops", 0)[1]
    finally:
        reader.close()


def test_a_worker_and_an_agent_outlast_it_while_they_work(
    start: Callable[..., Process], broker: SecuredKafka, tokens: TokenServer, tmp_path: Path
) -> None:
    tokens.expires_in_s = LIFE_S
    tokens.start()
    worker, agent = start("worker", "--no-store"), start("agent", str(replaying_agent(tmp_path, "gloo-clean", 0)))
    wait_until(lambda: says(worker, "event=restored hop=job"), "the partition")
    tokens.stop()
    time.sleep(LIFE_S + 3.0)  # all tokens have expired, and new ones were asked for in vain
    broker.kill()
    broker.start()  # everybody must log in anew
    time.sleep(AWAY_S)
    restored = worker.output().count("event=restored hop=job")
    tokens.start()
    is_back = "event=restored hop=job"
    wait_until(lambda: says(worker, is_back) and worker.output().count(is_back) > restored, "the partition again")
    wait_until(lambda: says(agent, "event=broker_trouble"), "a line of the agent")
    for one in (agent, worker):
        assert one.stop() == 0, one.output()
        assert "Traceback" not in one.output()
    assert "event=spool_kept" not in agent.output(), "everything must be delivered"


@contextmanager
def answering(first_bytes: bytes | None) -> Iterator[str]:
    """Let something else than an OAuth server be at the address: it says `first_bytes`, or with None nothing."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            if first_bytes is None:
                is_over.wait()
            else:
                self.request.sendall(first_bytes)

    is_over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/token"
        is_over.set()
        server.shutdown()
        serving.join()


ANSWERS = {
    "nothing": None,
    "another protocol": b"\x15\x03\x01\x00\x02\x02\x46",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "an empty answer": b"",
    "half an answer": b'HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"access',
    "503": b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
    "too long a line": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    "JSON without a token": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("answer", [*ANSWERS, "nobody"])
def test_a_command_says_in_one_line_what_it_got_from_where(settings: Settings, answer: str) -> None:
    with answering(ANSWERS.get(answer, b"")) as elsewhere:
        url = str(settings.kafka_token_url) if answer == "nobody" else elsewhere
        done = run_command("topics", "check", settings=replace(settings, kafka_token_url=url))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("irregulars: token endpoint must answer with a token; got ")
    assert url in done.stderr
