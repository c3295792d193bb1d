"""What the worker's tests share: topics of their own, a small job's messages, worker processes, results read back."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from aiokafka.partitioner import murmur2
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import SENDING, TopicSettings, rank_key
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.records import UNKNOWN, Batch, Header, encode_batch
from irregulars.state_codec import encode_state
from irregulars.streams.snapshots.records import POSITION_KEY, STATE_VERSION, MonitorRecord, encode_record
from tests import warm

ROOT = Path(__file__).resolve().parents[2]
START_NS = 1_700_000_000_000_000_000
ITERATION_NS = 1_000_000_000
SESSION_S = 6.0
DEADLINE_S = 240.0  # what has not happened by then hangs; on a busy machine all takes several times as long


@dataclass
class Bus:
    """Topics with a prefix of their own, and what stands on them."""

    bootstrap: str
    partitions: int = 4
    topics: TopicSettings = field(init=False)
    _read_to: dict[tuple[str, int], int] = field(init=False, default_factory=dict)
    _verdict_ids: dict[str, Counter[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.topics = TopicSettings(prefix=f"test-{uuid4().hex[:10]}.", partitions=self.partitions)
        create_topics(self.bootstrap, self.topics)
        # Without idempotence librdkafka's retries, which a new topic causes, put batches into the log out of order.
        config = {**SENDING, "linger.ms": 5, "compression.type": "zstd"}
        self.producer = Producer({"bootstrap.servers": self.bootstrap, **config})
        self.reader = LogReader(self.bootstrap, {})

    def send(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.producer.produce(self.topics.name(topic), value, key)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(60) == 0

    def read(self, topic: str) -> list[Message]:
        name = self.topics.name(topic)
        return [m for partition in self.reader.partitions(name) for m in self.reader.read_tail(name, partition)]

    def spoil(self, topic: str, how: str) -> frozenset[tuple[str, int]]:
        """Replace all states of monitors by bytes that can't be read; return the partitions that have any."""
        newest = {(m.partition(), m.key()): m.value() for m in self.read(topic) if m.key() != POSITION_KEY}
        old = encode_record(MonitorRecord(3, {"commops": 17}, encode_state({}, STATE_VERSION + 1)))
        for (partition, key), value in newest.items():
            spoilt = old if how == "old" else value[:-1]
            self.producer.produce(self.topics.name(topic), spoilt, key, partition=partition)
        return frozenset((topic, partition) for partition, _ in newest)

    def delete_all(self, topic: str) -> None:
        """Delete all messages of a topic, as retention does after a while."""
        name = self.topics.name(topic)
        ends = [TopicPartition(name, one, self.reader.end_offset(name, one)) for one in self.reader.partitions(name)]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # kept: without it nothing would ever be done
        for done in admin.delete_records(ends).values():
            with suppress(KafkaException):  # an empty partition
                done.result(30)

    def close(self) -> None:
        """Let go of the connections; else librdkafka goes on complaining when the broker is gone."""
        self.reader.close()
        del self.producer

    def verdict_ids(self, topic: str = "verdicts") -> Counter[str]:
        """Ids of all verdicts so far, and how often each stands in the topic; nothing is read a second time."""
        name, found = self.topics.name(topic), self._verdict_ids.setdefault(topic, Counter())
        for partition in self.reader.partitions(name):
            for message in self.reader.read_tail(name, partition, self._read_to.get((name, partition), 0)):
                found[json.loads(message.value())["verdict_id"]] += 1
                self._read_to[name, partition] = message.offset() + 1
        return found


@dataclass
class Job:
    """A job of `ranks` ranks, each with one batch of `operators` operators an iteration."""

    bus: Bus
    name: str
    ranks: int
    operators: int = 10
    rows: dict[int, int] = field(default_factory=dict)
    iterations: int = 0
    attempt: int = 0

    def announce(self) -> None:
        world = Communicator("world", "world", tuple(range(self.ranks)))
        for rank in range(self.ranks):
            place = (self.name, self.attempt, rank, self.ranks, self.ranks, (world,))
            announcement = Announcement(*place, clock="shared", host=f"node-{rank}", gpu=0)
            self.bus.send("jobs", rank_key(self.name, rank), encode_announcement(announcement))

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            for rank in range(self.ranks):
                value = encode_batch(self.batch(rank, self.iterations))
                self.bus.send("commops", rank_key(self.name, rank), value)
            self.iterations += 1

    def end(self) -> None:
        for rank in range(self.ranks):
            sources = {"commops": SourceProgress(self.rows.get(rank, 0), None)}
            beat = Heartbeat(self.name, self.attempt, rank, sources, "ended", "finished")
            self.bus.send("heartbeats", rank_key(self.name, rank), encode_heartbeat(beat))

    def begin(self, iterations: int) -> None:
        """Announce it, run it for a while, and wait until the broker has all of that."""
        self.announce()
        self.run(iterations)
        self.bus.flush()

    def finish(self, iterations: int = 0) -> None:
        """Run it to its end, and wait until the broker has all of it."""
        self.run(iterations)
        self.end()
        self.bus.flush()

    def run_whole(self, iterations: int) -> None:
        self.begin(iterations)
        self.finish()

    def batch(self, rank: int, iteration: int) -> Batch:
        count = self.operators
        begin_ns = START_NS + iteration * ITERATION_NS
        before = self.rows.get(rank, 0)
        self.rows[rank] = before + count
        columns = {
            "communicator": np.zeros(count, np.uint16),
            "operator": np.zeros(count, np.uint8),
            "sequence": np.arange(count) + iteration * count,
            "peer": np.full(count, UNKNOWN),
            "start_ns": begin_ns + np.arange(count) * (ITERATION_NS // count),
            "elapsed_ns": np.full(count, 1e6),
            "size_bytes": np.full(count, 1e6),
            "iteration": np.full(count, iteration),
        }
        watermark_ns = begin_ns + ITERATION_NS - 1
        return Batch(Header("commops", self.name, self.attempt, rank, before, watermark_ns, ("world",)), columns)

    def wanted_ids(self) -> set[str]:
        of_attempt = f"{self.name}-{self.attempt}"
        return {f"{of_attempt}-{rank}-{i}" for rank in range(self.ranks) for i in range(self.iterations)}


def run_last_jobs(bus: Bus) -> set[str]:
    """Run jobs of one iteration until they are judged; return the ids of their verdicts.

    There is one for each pair of partitions that a message can take, first as a rank's and then as its job's. Each
    partition is read in order: all that was sent before has been judged by then, and told as often as it will be.
    """
    every = range(bus.partitions)
    wanted: set[str] = set()
    for number in every:
        names = (f"last-{count}" for count in itertools.count())
        name = next(name for name in names if partition_of(name.encode(), bus) == number)
        sizes = itertools.count(1)
        ranks = next(n for n in sizes if {partition_of(rank_key(name, r), bus) for r in range(n)} == {*every})
        job = Job(bus, name, ranks, operators=1)
        job.announce()
        job.run(1)
        job.end()
        wanted |= job.wanted_ids()
    bus.flush()
    wait_until(lambda: set(bus.verdict_ids()) >= wanted, "verdicts of the last jobs")
    return wanted


def partition_of(key: bytes, bus: Bus) -> int:
    """Partition of a key, as every producer of ours chooses it."""
    return int((murmur2(key) & 0x7FFFFFFF) % bus.partitions)


def require_each_once(bus: Bus, wanted: set[str], worker: Worker) -> None:
    """Require that all `wanted` verdicts and alerts come, and none twice; this ends the worker."""
    wait_until(lambda: set(bus.verdict_ids()) >= wanted, f"{len(wanted)} verdicts")
    wanted = wanted | run_last_jobs(bus)
    assert worker.stop() == 0  # what it has said stands on the topics
    for topic in ("verdicts", "alerts"):
        found = bus.verdict_ids(topic)
        assert set(found) == wanted, topic
        assert [name for name, count in found.items() if count > 1] == [], f"twice on {topic}"


class Running:
    """A command in a process of its own; its output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, **options: Any) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = warm.Popen(
                [*command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.wait()

    def close(self) -> None:
        """End it if it still runs; show what it said, in case that a test failed."""
        self.kill()
        print(self.log.name, self.output()[-6000:], sep="\n")

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let it stand still meanwhile, as a machine does that swaps or is paused."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = DEADLINE_S, how: int = signal.SIGTERM) -> int:
        if self.is_running:
            self.process.send_signal(how)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        return self.process.wait(timeout_s)

    def output(self) -> str:
        return self.log.read_text()


class Worker(Running):
    """A worker on the bus's topics whose monitors say a verdict for each row of evidence."""

    def __init__(self, bus: Bus, folder: Path, **settings: Any) -> None:
        values = {
            "bootstrap": bus.bootstrap,
            "topics": {"prefix": bus.topics.prefix, "partitions": bus.topics.partitions},
            "group": bus.topics.prefix + "workers",
            "snapshot_s": 0.5,
            "session_s": SESSION_S,
            "stop_s": 60.0,  # on a busy machine all takes several times as long
            "data_directory": str(folder / "faust"),
            **settings,
        }
        command = [sys.executable, "-m", "tests.integration.stand_in_worker", json.dumps(values)]
        super().__init__(command, folder / f"worker-{uuid4().hex[:6]}.log", cwd=ROOT)


class StartWorker:
    """Starts workers on `bus`, remembers them, and ends them.

    `usual` are settings that each gets unless told otherwise.
    """

    def __init__(self, bus: Bus, folder: Path, **usual: Any) -> None:
        self.bus, self.folder, self.usual = bus, folder, usual
        self.workers: list[Worker] = []

    def __call__(self, **settings: Any) -> Worker:
        self.workers.append(Worker(self.bus, self.folder, **{**self.usual, **settings}))
        return self.workers[-1]

    def outputs(self) -> str:
        return "".join(worker.output() for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} must happen within {DEADLINE_S:g} s")
        time.sleep(0.1)


def page_of(url: str) -> tuple[int, str]:
    """Return status and text of a page; status 0: nobody answers there."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
    except OSError:
        return 0, ""


def make_topics(bootstrap: str, *names: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    """Make topics with one copy, and wait until the broker has acknowledged them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, partitions, 1, config=config or {}) for name in names]
    for made in admin.create_topics(wanted).values():
        made.result(60)
