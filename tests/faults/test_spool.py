"""Messages that wait on disk while a real Apache Kafka is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.errors import TopicMismatch
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.announcements import Announcement, Heartbeat, SourceProgress
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.agent import Agent, AgentSettings, Progress
from irregulars.producers.publishing.sources import Record
from irregulars.producers.publishing.spooling_publisher import SpoolingPublisher, SpoolSettings
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.test_agent import PARTITIONS, Published, read_topics
from tests.producers.given_source import GivenSource

pytestmark = pytest.mark.integration

JOB = "spooled"
RANKS = 3
ROWS = 1_500
MIB = 1 << 20


def announcement(rank: int, attempt: int = 0) -> Announcement:
    return Announcement(JOB, attempt, rank, RANKS, RANKS, (), ("bandwidth",))


def batch(rank: int, ordinal: int) -> Batch:
    """The `ordinal`-th batch of a rank: its times say where each row belongs; random rates don't compress."""
    first = ordinal * ROWS
    random = np.random.default_rng([rank, ordinal])
    columns = {
        "time_ns": np.arange(first, first + ROWS), "path": np.zeros(ROWS, np.uint8),
        "device": np.zeros(ROWS, np.uint16), "tx_bytes_per_s": random.random(ROWS),
        "rx_bytes_per_s": random.random(ROWS),
    }  # fmt: skip
    return Batch(Header("bandwidth", JOB, 0, rank, first, first + ROWS - 1, ("eth0",)), columns)


class Numbered:
    """Announces its ranks, gives `count` batches of each, calls `at[n]` before the n-th round, and is then silent."""

    def __init__(self, count: int, at: dict[int, Callable[[], object]] | None = None) -> None:
        self.count, self.at, self.round = count, at or {}, -1

    def poll(self, max_records: int) -> Sequence[Record]:
        self.round += 1
        if self.round in self.at:
            self.at[self.round]()
        if self.round == 0:
            return [announcement(rank) for rank in range(RANKS)]
        return [batch(rank, self.round - 1) for rank in range(RANKS)]

    def position(self) -> str:
        return str(self.round)

    @property
    def is_exhausted(self) -> bool:
        return self.round >= self.count

    def close(self) -> None:
        pass


@pytest.fixture
def settings(kafka_broker: KafkaBroker, topic_prefix: str) -> AgentSettings:
    topics = TopicSettings(topic_prefix, PARTITIONS)
    create_topics(kafka_broker.bootstrap, topics)
    return AgentSettings(kafka_broker.bootstrap, topics, broker_wait_s=30.0)


def spooling(directory: Path, final_s: float = 30.0, limit_bytes: int = 64 * MIB) -> SpoolSettings:
    return SpoolSettings(directory, limit_bytes, 2 * MIB, final_s)


def run(source: Numbered, settings: AgentSettings, spool: SpoolSettings) -> tuple[Progress, SpoolingPublisher]:
    made: list[SpoolingPublisher] = []

    def make(settings: AgentSettings) -> SpoolingPublisher:
        made.append(SpoolingPublisher(settings, spool))
        return made[0]

    done = Agent(source, settings, make_publisher=make, ends_ranks=False).run()
    return done, made[0]


def times_ns(published: Published, rank: int) -> np.ndarray:
    return published.rows("bandwidth", rank)["time_ns"]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_broker_that_is_killed_gets_each_message_once_and_in_order(
    kafka_broker: KafkaBroker, settings: AgentSettings, tmp_path: Path
) -> None:
    seen: list[int] = []
    steps: dict[int, Callable[[], object]] = {
        5: kafka_broker.kill,
        95: lambda: seen.append(len(files(tmp_path))),
        96: kafka_broker.start,
    }
    done, publisher = run(Numbered(120, steps), settings, spooling(tmp_path))
    assert seen[0] > 2, "the outage was to fill several segments"
    assert files(tmp_path) == []
    assert publisher.dropped_rows == 0
    published = read_topics(settings)
    assert [len(published.batches["bandwidth", rank]) for rank in range(RANKS)] == [120] * RANKS
    for rank in range(RANKS):
        np.testing.assert_array_equal(times_ns(published, rank), np.arange(120 * ROWS))
    assert done.delivered_messages == len(published.messages)


def test_what_an_agent_leaves_behind_the_next_one_delivers_first(
    kafka_broker: KafkaBroker, settings: AgentSettings, tmp_path: Path
) -> None:
    kafka_broker.kill()
    run(Numbered(60), settings, spooling(tmp_path, final_s=0.1))
    assert files(tmp_path), "without a broker everything stays"
    kafka_broker.start()
    again = Numbered(100)
    again.round = 60  # goes on where the first one ended
    run(again, settings, spooling(tmp_path))
    published = read_topics(settings)
    assert sorted(a.rank for a in published.announcements) == list(range(RANKS))
    for rank in range(RANKS):
        np.testing.assert_array_equal(times_ns(published, rank), np.arange(100 * ROWS))
    assert files(tmp_path) == []


def test_above_its_bound_the_oldest_are_dropped_and_counted(
    kafka_broker: KafkaBroker, settings: AgentSettings, tmp_path: Path
) -> None:
    kafka_broker.kill()
    sizes: list[int] = []
    steps: dict[int, Callable[[], object]] = {
        100: lambda: sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir())),
        101: kafka_broker.start,
    }
    _, publisher = run(Numbered(120, steps), settings, spooling(tmp_path, limit_bytes=6 * MIB))
    assert sizes[0] <= 6 * MIB
    assert publisher.dropped_rows > 0
    published = read_topics(settings)
    found = {rank: times_ns(published, rank) for rank in range(RANKS)}
    assert publisher.dropped_rows == RANKS * 120 * ROWS - sum(map(len, found.values()))
    for rank in range(RANKS):
        assert np.all(np.diff(found[rank]) > 0)
        assert found[rank][-1] == 120 * ROWS - 1
        lost = published.heartbeats[rank][-1].sources["bandwidth"].lost_rows
        assert lost == 120 * ROWS - len(found[rank])
    assert sorted(a.rank for a in published.announcements) == list(range(RANKS))


AGENT = """
import sys
from pathlib import Path
from irregulars.producers.publishing.agent import Agent, AgentSettings
from irregulars.producers.publishing.spooling_publisher import SpoolingPublisher
from irregulars.kafka.topics import TopicSettings
from tests.faults import test_spool as t

bootstrap, prefix, directory = sys.argv[1:]
class Told(t.Numbered):
    def poll(self, max_records):
        if self.round == 80:
            print("filled", flush=True)
            sys.stdin.readline()
        return super().poll(max_records)
settings = AgentSettings(bootstrap, TopicSettings(prefix, t.PARTITIONS))
t.run(Told(10_000), settings, t.spooling(Path(directory)))
"""


def test_a_killed_agent_leaves_segments(kafka_broker: KafkaBroker, settings: AgentSettings, tmp_path: Path) -> None:
    kafka_broker.kill()
    command = [sys.executable, "-c", AGENT, settings.bootstrap, settings.topics.prefix, str(tmp_path)]
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        os.kill(process.pid, signal.SIGKILL)
    (tmp_path / "00000000000000000001.part").write_bytes(b"half a segment")
    kafka_broker.start()
    again = Numbered(81)
    again.round = 80
    _, publisher = run(again, settings, spooling(tmp_path))
    published = read_topics(settings)
    found = times_ns(published, 0)
    assert len(found) > 20 * ROWS
    assert np.all(np.diff(found) > 0)
    assert found[0] == 0, "what waited longest is there"
    assert found[-1] == 81 * ROWS - 1
    assert publisher.dropped_messages == 0
    assert files(tmp_path) == []


def test_missing_topics_end_the_agent_and_nothing_is_lost(
    kafka_broker: KafkaBroker, settings: AgentSettings, topic_prefix: str, tmp_path: Path
) -> None:
    elsewhere = replace(settings, topics=TopicSettings(f"{topic_prefix}not-", PARTITIONS))
    kafka_broker.kill()
    run(Numbered(2), elsewhere, spooling(tmp_path, final_s=0.1))
    kafka_broker.start()
    with pytest.raises(TopicMismatch, match="topics must exist; missing"):
        run(Numbered(3), elsewhere, spooling(tmp_path))
    create_topics(settings.bootstrap, elsewhere.topics)
    again = Numbered(3)
    again.round = 2
    run(again, elsewhere, spooling(tmp_path))
    published = read_topics(elsewhere)
    for rank in range(RANKS):
        np.testing.assert_array_equal(np.unique(times_ns(published, rank)), np.arange(3 * ROWS))


def test_a_stop_waits_for_no_absent_broker(
    kafka_broker: KafkaBroker, settings: AgentSettings, tmp_path: Path
) -> None:
    kafka_broker.kill()
    source = Numbered(10**9)
    agent = Agent(
        source, settings, make_publisher=lambda s: SpoolingPublisher(s, spooling(tmp_path, 0.2, 8 * MIB)),
        ends_ranks=False,
    )  # fmt: skip
    timer = threading.Timer(2.0, agent.stop)
    timer.start()
    done = agent.run()
    timer.join()
    assert done.reason == "stopped"
    assert files(tmp_path)


class Slow(GivenSource):
    def poll(self, max_records: int) -> Sequence[Record]:
        time.sleep(0.15)
        return super().poll(max_records)


def test_a_source_tells_what_it_lost_and_who_has_ended(settings: AgentSettings, tmp_path: Path) -> None:
    quick = replace(settings, heartbeat_s=0.1)
    # A rank that loses rows and ends, a rank that goes on, and rows of one that was never announced here.
    source = Slow(
        [announcement(0), announcement(1), batch(0, 0), batch(1, 0), batch(2, 0)],
        [Heartbeat(JOB, 0, 0, {"bandwidth": SourceProgress(0, None, 7)})],
        [Heartbeat(JOB, 0, 0, {"bandwidth": SourceProgress(0, None, 9)}, "ended", "process gone")],
        [batch(0, 1)],
    )
    Agent(
        source, quick, make_publisher=lambda s: SpoolingPublisher(s, spooling(tmp_path)), ends_ranks=False
    ).run()  # fmt: skip
    published = read_topics(settings)
    assert set(published.heartbeats) == {0, 1}, "nobody here speaks for a rank that was announced elsewhere"
    last = published.heartbeats[0][-1]
    assert (last.state, last.reason, last.sources["bandwidth"].lost_rows) == ("ended", "process gone", 9)
    assert {beat.state for beat in published.heartbeats[1]} == {"running"}
    assert [len(published.batches["bandwidth", rank]) for rank in range(RANKS)] == [2, 1, 1]
