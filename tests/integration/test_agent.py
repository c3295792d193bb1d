"""The publishing agent on a real Apache Kafka."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import KafkaError, Message

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import MAX_MESSAGE_BYTES, TopicSettings, group_key, rank_key
from irregulars.messages.announcements import Announcement, Heartbeat, decode_announcement, decode_heartbeat
from irregulars.messages.bundles import decode_batches
from irregulars.messages.records import SCHEMAS, Batch, Header
from irregulars.producers.publishing.agent import Agent, AgentSettings, Progress
from irregulars.producers.publishing.publisher import Publisher
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource
from tests.apache_kafka.broker import KafkaBroker
from tests.producers.given_source import one_by_one
from tests.producers.trace_directories import RECORDINGS

pytestmark = pytest.mark.integration

RECORDING = RECORDINGS / "gloo-slow-nic"
TOPICS = ("jobs", *SCHEMAS, "heartbeats")
PARTITIONS = 4
READ_S = 60.0
Place = tuple[str, int, int]
"""Topic, partition, offset."""

ACKNOWLEDGED: set[Place] = set()
"""Where the broker says that it has put each message of the agents of the test that runs."""


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(RECORDING)


@pytest.fixture
def topics(kafka_bootstrap: str, topic_prefix: str) -> TopicSettings:
    settings = TopicSettings(topic_prefix, PARTITIONS)
    create_topics(kafka_bootstrap, settings)
    return settings


@pytest.fixture
def settings(kafka_bootstrap: str, topics: TopicSettings) -> AgentSettings:
    return AgentSettings(kafka_bootstrap, topics, broker_wait_s=20.0)


@pytest.fixture(autouse=True)
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    ACKNOWLEDGED.clear()
    count = Publisher._on_delivery

    def noted(self: Publisher, topic: str, rows: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            ACKNOWLEDGED.add(place_of(message))
        count(self, topic, rows, error, message)

    monkeypatch.setattr(Publisher, "_on_delivery", noted)


def place_of(message: Message) -> Place:
    return str(message.topic()), message.partition() or 0, message.offset() or 0


@dataclass
class Published:
    announcements: list[Announcement]
    batches: dict[tuple[str, int], list[Batch]]
    heartbeats: dict[int, list[Heartbeat]]
    messages: list[Message]

    def rows(self, schema: str, rank: int) -> Mapping[str, np.ndarray]:
        batches = self.batches[schema, rank]
        return {name: np.concatenate([batch.columns[name] for batch in batches]) for name in batches[0].columns}


def read_topics(settings: AgentSettings, delivered: int = 0) -> Published:
    """Read all topics; where it is known how many messages the broker acknowledged, wait until as many can be read.

    A busy broker may give less than it has acknowledged, for a while.
    """
    deadline_s = time.monotonic() + READ_S
    while True:
        messages = read_messages(settings, *TOPICS, is_counted=delivered > 0)
        if len(messages) >= delivered:
            break
        if time.monotonic() > deadline_s:
            missing = sorted(ACKNOWLEDGED - {place_of(message) for message in messages})
            pytest.fail(f"{delivered} acknowledged messages must be readable; got {len(messages)} without {missing}")
    read = Published([], defaultdict(list), defaultdict(list), messages)
    for message in messages:
        topic = str(message.topic()).removeprefix(settings.topics.prefix)
        if topic == "jobs":
            read.announcements.append(decode_announcement(message.value()))
        elif topic == "heartbeats":
            beat = decode_heartbeat(message.value())
            read.heartbeats[beat.rank].append(beat)
        else:
            for batch in decode_batches(message.value(), topic):
                read.batches[topic, batch.header.rank].append(batch)
    return read


def read_messages(settings: AgentSettings, *topics: str, is_counted: bool = False) -> list[Message]:
    """Read topics whole; where nobody counts their messages, their ends must have settled before."""
    names = [settings.topics.name(topic) for topic in topics]
    reader = LogReader(settings.bootstrap, settings.kafka, READ_S)
    try:
        if not is_counted:
            wait_for_settled_ends(reader, names)
        places = [(name, partition) for name in names for partition in range(PARTITIONS)]
        return [message for place in places for message in read_partition(reader, *place)]
    finally:
        reader.close()


def read_partition(reader: LogReader, name: str, partition: int) -> list[Message]:
    """All of it. On a busy machine one began at the second message once: this says whether that was the reader."""
    messages = reader.read_tail(name, partition)
    offsets = [message.offset() for message in messages]
    if offsets != list(range(len(offsets))):
        again = [message.offset() for message in reader.read_tail(name, partition)]
        pytest.fail(f"{name}/{partition} must hold offsets from 0; got {offsets}, and at a second look {again}")
    return messages


def wait_for_settled_ends(reader: LogReader, names: Sequence[str]) -> None:
    """Until four looks in a row agree: a busy broker may say less than it has acknowledged, for most of a second."""
    before: list[int] = []
    agreed = 0
    while agreed < 3:
        ends = [reader.end_offset(name, partition) for name in names for partition in range(PARTITIONS)]
        agreed = agreed + 1 if ends == before else 0
        before = ends
        time.sleep(0.2)


def assert_all_is_there(published: Published, trace: Trace) -> None:
    """Each announcement and row of the trace, once, in its rank's order, with true counts."""
    announced = [replace(one, group=None) for one in published.announcements]
    assert sorted(announced, key=lambda a: a.rank) == list(trace.announcements)
    for schema in SCHEMAS:
        for rank, batch in trace.batches(schema).items():
            rows = published.rows(schema, rank)
            for name, column in batch.columns.items():
                np.testing.assert_array_equal(rows[name], column)
            before = [part.header.rows_before for part in published.batches[schema, rank]]
            lengths = [len(part) for part in published.batches[schema, rank]]
            assert before == [sum(lengths[:place]) for place in range(len(lengths))]


def assert_ended(published: Published, reason: str) -> None:
    """The last heartbeat of each rank says why it is the last, and counts what is there."""
    for rank, beats in published.heartbeats.items():
        assert [beat.state for beat in beats] == ["running"] * (len(beats) - 1) + ["ended"]
        assert beats[-1].reason == reason
        for schema, progress in beats[-1].sources.items():
            batches = published.batches[schema, rank]
            assert progress.rows == sum(map(len, batches))
            assert progress.watermark_ns == (batches[-1].header.watermark_ns if batches else None)


def test_a_trace_stands_whole_on_the_topics(trace: Trace, settings: AgentSettings) -> None:
    reports: list[Progress] = []
    done = Agent(TraceSource(trace, 0), settings, reports.append).run()
    published = read_topics(settings, done.delivered_messages)
    assert_all_is_there(published, trace)
    assert_ended(published, "finished")
    assert len(published.heartbeats) == 4
    assert done.delivered_messages == len(published.messages)
    assert (done.reason, done.announcements, done.rows) == ("finished", 4, 4825)
    assert done.position == "records=4829"
    assert reports[-1] == done


@pytest.mark.parametrize("host", ["node-1", None])
def test_all_of_a_group_meets_in_javas_partition(trace: Trace, settings: AgentSettings, host: str | None) -> None:
    """An announcement too, whose key is the rank's own: the topic is compacted by it."""
    own = replace(trace, announcements=tuple(replace(one, host=host) for one in trace.announcements))
    done = Agent(TraceSource(own, 0), settings).run()
    group = group_key(trace.job, "node-1/0")
    for message in read_topics(settings, done.delivered_messages).messages:
        key = message.key()
        if str(message.topic()).endswith("jobs") or host is None:
            assert key in {rank_key(trace.job, rank) for rank in range(4)}
        else:
            assert key == group
        where = key if host is None else group
        assert message.partition() == (murmur2(where) & 0x7FFFFFFF) % PARTITIONS


def test_the_ranks_of_a_host_cost_one_message(trace: Trace, settings: AgentSettings) -> None:
    alone = Agent(TraceSource(trace, 0, max_rows=100), replace(settings, bundle_s=0.0)).run()
    one_host = tuple(replace(one, host="node-1") for one in trace.announcements)
    together = Agent(TraceSource(replace(trace, announcements=one_host), 0, max_rows=100), settings).run()
    assert together.rows == alone.rows
    assert together.batches <= alone.batches / 3  # of four ranks


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_short_queue_holds_the_source_back_only(trace: Trace, settings: AgentSettings, compression: str) -> None:
    short = replace(settings, queue_messages=3, linger_ms=1.0, compression=compression, poll_records=500)
    done = Agent(TraceSource(trace, 0, max_rows=20), short).run()
    assert_all_is_there(read_topics(settings, done.delivered_messages), trace)


def test_an_oversize_batch_is_parted(trace: Trace, settings: AgentSettings) -> None:
    count = 100_000
    columns = {
        "time_ns": np.arange(count), "path": np.zeros(count, np.uint8), "device": np.zeros(count, np.uint16),
        "tx_bytes_per_s": np.random.default_rng(1).random(count), "rx_bytes_per_s": np.full(count, np.nan),
    }  # fmt: skip
    batch = Batch(Header("bandwidth", trace.job, 0, 2, 0, count - 1, ("eth0",)), columns)
    done = Agent(one_by_one([trace.announcements[2], batch], is_endless=False), settings).run()
    published = read_topics(settings, done.delivered_messages)
    assert max(len(message.value() or b"") for message in published.messages) < MAX_MESSAGE_BYTES
    assert len(published.batches["bandwidth", 2]) > 1
    np.testing.assert_array_equal(published.rows("bandwidth", 2)["tx_bytes_per_s"], columns["tx_bytes_per_s"])
    assert published.heartbeats[2][-1].sources["bandwidth"].rows == count


def test_heartbeats_come_while_a_rank_is_idle(trace: Trace, settings: AgentSettings) -> None:
    times_s = iter(np.arange(0.0, 60.0, 0.5))  # of the agent's clock; all ranks are announced within 4.5 s

    def clock_s() -> float:
        now_s = float(next(times_s))
        if now_s >= 17.0:
            agent.stop()
        return now_s

    idle = one_by_one(trace.announcements)
    agent = Agent(idle, replace(settings, heartbeat_s=1.0), clock_s=clock_s, idle_s=0.0)
    done = agent.run()
    published = read_topics(settings, done.delivered_messages)
    assert done.reason == "stopped"
    # Soon, ten seconds later although they have nothing new to say, and at the end.
    assert {len(beats) for beats in published.heartbeats.values()} == {3}
    assert_ended(published, "stopped")
    assert set(published.heartbeats[0][0].sources) == set(SCHEMAS)


REPLAY = """
import sys
from irregulars import stopping
from irregulars.producers.publishing.agent import Agent, AgentSettings
from irregulars.producers.publishing.publisher import Publisher
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from irregulars.kafka.topics import TopicSettings

directory, bootstrap, prefix = sys.argv[1:]
agent = Agent(TraceSource(read_trace(directory), 0.2), AgentSettings(bootstrap, TopicSettings(prefix)), print)
with stopping.on_stop(agent.stop):
    agent.run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_flushes_what_was_polled(settings: AgentSettings, number: int) -> None:
    command = [sys.executable, "-u", "-c", REPLAY, str(RECORDING), settings.bootstrap, settings.topics.prefix]
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the report of the first second
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "reason='stopped'" in output
    published = read_topics(settings)
    assert_ended(published, "stopped")
    assert 0 < sum(map(len, published.batches["commops", 0])) < 487


@pytest.fixture
def own_settings(kafka_broker: KafkaBroker, topic_prefix: str) -> AgentSettings:
    """A broker that the tests may kill."""
    topics = TopicSettings(topic_prefix, PARTITIONS)
    create_topics(kafka_broker.bootstrap, topics)
    return AgentSettings(kafka_broker.bootstrap, topics, broker_wait_s=60.0)


def test_a_broker_that_comes_back_gets_everything_once(
    trace: Trace, kafka_broker: KafkaBroker, own_settings: AgentSettings
) -> None:
    restarts: list[threading.Timer] = []

    def restart_once(progress: Progress) -> None:
        if not restarts and progress.rows > 1_000:
            kafka_broker.kill()
            restarts.append(threading.Timer(0.5, kafka_broker.start))
            restarts[0].start()

    Agent(TraceSource(trace, 1.0), own_settings, restart_once).run()
    restarts[0].join()
    published = read_topics(own_settings)
    assert_all_is_there(published, trace)
    assert_ended(published, "finished")


def test_a_broker_that_stays_away_ends_the_agent_within_bounds(
    trace: Trace, kafka_broker: KafkaBroker, own_settings: AgentSettings
) -> None:
    def kill(progress: Progress) -> None:
        kafka_broker.kill()  # a second time does nothing

    with pytest.raises(ServiceUnavailable, match=f"Kafka at {kafka_broker.bootstrap} must answer within 3 s"):
        Agent(TraceSource(trace, 1.0), replace(own_settings, broker_wait_s=3.0), kill).run()
