"""Operators per second through one worker process, broker to evidence, beside what reading alone costs.

    python -m tests.benchmarks.bench_worker --batches 4000

fills ``commops`` with batches of many ranks and measures three readers of the same topic in the same run: plain
confluent-kafka, a Faust agent that only counts bytes, and a worker. Prints a Markdown table. Not a test: nothing here
fails because a machine is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

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
from irregulars.messages.evidence import Evidence, Membership, decode_evidence
from irregulars.messages.judgements import Judgements
from irregulars.messages.records import UNKNOWN, Batch, Header, encode_batch
from tests.apache_kafka.broker import KafkaBroker

JOB = "bench"
START_NS = 1_700_000_000_000_000_000
ITERATION_NS = 1_000_000_000
COMMUNICATORS = ("world", "dp", "tp", "pp")


@dataclass(frozen=True)
class Load:
    """What is put on the topics; one batch is one iteration of one rank."""

    bootstrap: str
    prefix: str
    batches: int
    operators: int
    ranks: int
    partitions: int
    compression: str
    seed: int

    @property
    def topics(self) -> TopicSettings:
        return TopicSettings(self.prefix, self.partitions)

    @property
    def total(self) -> int:
        return self.batches * self.operators


# --- filling --------------------------------------------------------------------------------------------------------


def fill(load: Load) -> int:
    """Announce, send all batches, end; return the bytes of the batches."""
    create_topics(load.bootstrap, load.topics)
    producer = Producer(
        {"bootstrap.servers": load.bootstrap, **SENDING, "compression.type": load.compression, "linger.ms": 20}
    )
    rng = np.random.default_rng(load.seed)
    size_bytes = 0
    rows = dict.fromkeys(range(load.ranks), 0)
    for rank in rows:
        send(producer, load, "jobs", rank, encode_announcement(announcement(load, rank)))
    for number in range(load.batches):
        rank, iteration = number % load.ranks, number // load.ranks
        value = encode_batch(batch(load, rng, rank, iteration, rows[rank]))
        rows[rank] += load.operators
        size_bytes += len(value)
        send(producer, load, "commops", rank, value)
    for rank, count in rows.items():
        beat = Heartbeat(JOB, 0, rank, {"commops": SourceProgress(count, None)}, "ended", "finished")
        send(producer, load, "heartbeats", rank, encode_heartbeat(beat))
    producer.flush(120)
    return size_bytes


def announcement(load: Load, rank: int) -> Announcement:
    world = tuple(range(load.ranks))
    communicators = tuple(Communicator(name, name if name != "world" else "world", world) for name in COMMUNICATORS)
    return Announcement(JOB, 0, rank, load.ranks, load.ranks, communicators, clock="shared", host=f"n{rank // 8}")


def batch(load: Load, rng: np.random.Generator, rank: int, iteration: int, before: int) -> Batch:
    count = load.operators
    begin_ns = START_NS + iteration * ITERATION_NS
    starts_ns = begin_ns + np.arange(count) * (ITERATION_NS // count)
    columns = {
        "communicator": rng.integers(0, len(COMMUNICATORS), count).astype(np.uint16),
        "operator": rng.integers(0, 4, count).astype(np.uint8),
        "sequence": np.arange(count) + iteration * count,
        "peer": np.full(count, UNKNOWN),
        "start_ns": starts_ns + rng.integers(0, 1000, count),
        "elapsed_ns": np.floor(rng.lognormal(11, 0.2, count)),
        "size_bytes": np.full(count, 4e6),
        "iteration": np.full(count, iteration),
    }
    header = Header("commops", JOB, 0, rank, before, int(begin_ns + ITERATION_NS - 1), COMMUNICATORS)
    return Batch(header, columns)


def send(producer: Producer, load: Load, topic: str, rank: int, value: bytes) -> None:
    while True:
        try:
            producer.produce(load.topics.name(topic), value, rank_key(JOB, rank))
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


# --- the three readers ----------------------------------------------------------------------------------------------


def read_plainly(load: Load) -> float:
    """Seconds from the first message to the last with confluent-kafka alone."""
    config = {"bootstrap.servers": load.bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(config)
    name = load.topics.name("commops")
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(load.partitions)])
    read, began_s = 0, 0.0
    while read < load.batches:
        messages = consumer.consume(500, timeout=0.1)
        if messages and not began_s:
            began_s = time.monotonic()
        read += sum(message.error() is None for message in messages)
    took_s = time.monotonic() - began_s
    consumer.close()
    return took_s


def count_in_faust(load: Load) -> None:
    """Run in a process of its own: a Faust agent that only counts; prints seconds from the first to the last."""
    import asyncio

    import faust
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    app = faust.App(
        f"{load.prefix}count", broker=f"kafka://{load.bootstrap}", store="memory://", web_enabled=False,
        consumer_auto_offset_reset="earliest", topic_disable_leader=True, datadir=tempfile.mkdtemp(),
        autodiscover=False,
    )  # fmt: skip

    @app.agent(app.topic(load.topics.name("commops"), value_serializer="raw", key_serializer="raw"))
    async def count(stream: Any) -> None:
        read, size_bytes, began_s = 0, 0, 0.0
        async for value in stream:
            began_s = began_s or time.monotonic()
            read += 1
            size_bytes += len(value)
            if read == load.batches:
                print(json.dumps({"took_s": time.monotonic() - began_s, "size_bytes": size_bytes}), flush=True)

    faust.Worker(app, loop=loop, loglevel="error", quiet=True, redirect_stdouts=False).execute_from_commandline()


class Ignoring:
    """A JobMonitor that judges nothing: measured is the way from the broker to the evidence."""

    is_ended = False
    contradiction = None
    overtaken = 0
    given_up = 0
    size = 0

    def add(self, rows: Sequence[Evidence | Membership]) -> None:
        pass

    def follow(self, changes: Sequence[Any]) -> None:
        pass

    def tick(self, now_s: float, until_s: float | None = None) -> None:
        pass

    def advance(self, read_back: Callable[..., Any]) -> Judgements:
        return Judgements(JOB)

    def state(self) -> dict[str, Any]:
        return {}


def work(load: Load, session_s: float = 10.0) -> int:
    """Run in a process of its own: one worker as it is, but for judging."""
    from dataclasses import replace

    from irregulars.streams.worker.monitors import make_monitors
    from irregulars.streams.worker.running import run_worker
    from irregulars.streams.worker_settings import WorkerSettings

    settings = WorkerSettings(
        load.bootstrap, load.topics, group=f"{load.prefix}worker", session_s=session_s, log_level="warn",
        data_directory=tempfile.mkdtemp(), web_port=0,
    )  # fmt: skip
    monitors = replace(make_monitors(settings), make_job=lambda job: Ignoring(), restore_job=lambda state: Ignoring())
    return run_worker(settings, None, monitors)


def operators_in(value: bytes) -> int:
    return sum(int(row.columns["operators"].sum()) for row in decode_evidence(value) if isinstance(row, Evidence))


@contextmanager
def process(role: str, load: Load) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_worker", "--role", role]
    command += ["--load", json.dumps(asdict(load))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


def first_json(child: subprocess.Popen[str], timeout_s: float) -> dict[str, float]:
    assert child.stdout is not None
    watchdog = threading.Timer(timeout_s, child.kill)
    watchdog.start()
    try:
        for line in child.stdout:
            if "{" in line:  # Faust writes terminal codes before it
                return dict(json.loads(line[line.index("{") :]))
    finally:
        watchdog.cancel()
    raise SystemExit(f"the Faust agent must count to the end within {timeout_s:g} s; its process ended before")


# --- report ---------------------------------------------------------------------------------------------------------


def measure(load: Load, timeout_s: float) -> dict[str, float]:
    """Seconds of each reader, one after the other."""
    read_plainly(load)  # fills the page cache, so that all three read from memory
    took_s = {"confluent-kafka, reading": read_plainly(load)}
    with process("count", load) as child:
        took_s["Faust agent, counting bytes"] = first_json(child, timeout_s)["took_s"]
    with process("work", load):
        # Seconds from the first evidence message (the announcements) to the last, by the times that Kafka keeps.
        reader = LogReader(load.bootstrap, {})
        name = load.topics.name("evidence")
        offsets = dict.fromkeys(reader.partitions(name), 0)
        times_ms: list[int] = []
        found, deadline = 0, time.monotonic() + timeout_s
        while found < load.total:
            if time.monotonic() > deadline:
                raise SystemExit(f"evidence must hold {load.total} operators within {timeout_s:g} s; got {found}")
            time.sleep(0.5)
            for partition, offset in offsets.items():
                for message in reader.read_tail(name, partition, offset):
                    offsets[partition] = message.offset() + 1
                    times_ms.append(message.timestamp()[1])
                    found += operators_in(message.value())
        took_s["worker, broker to evidence"] = (max(times_ms) - min(times_ms)) / 1000
    return took_s


def report(load: Load, size_bytes: int, took_s: Mapping[str, float]) -> str:
    counting_s = took_s["Faust agent, counting bytes"]
    lines = [
        f"`{' '.join(['python -m tests.benchmarks.bench_worker', *sys.argv[1:]])}`: {load.batches} batches of "
        f"{load.operators} operators of {load.ranks} ranks, {size_bytes / 1e6:.0f} MB, compression "
        f"{load.compression}, seed {load.seed}; {os.cpu_count()} cores shared with the broker, Python "
        f"{platform.python_version()}",
        "",
        "| reader | s | M operators/s | MB/s | of the Faust agent |",
        "|---|---|---|---|---|",
    ]
    for name, seconds in took_s.items():
        rate = load.total / seconds / 1e6
        lines.append(
            f"| {name} | {seconds:.2f} | {rate:.2f} | {size_bytes / seconds / 1e6:.0f} | {counting_s / seconds:.2f} |"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("KAFKA_BOOTSTRAP"), help="else an own broker")
    parser.add_argument("--batches", type=int, default=4000)
    parser.add_argument("--operators", type=int, default=2000, help="in a batch")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--compression", default="none", choices=["none", "lz4", "zstd"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    found = parse()
    if found.role:
        load = Load(**json.loads(found.load))
        return work(load) if found.role == "work" else count_in_faust(load) or 0
    with nullcontext(found) if found.bootstrap else KafkaBroker() as broker:
        load = Load(
            broker.bootstrap, f"bench-{uuid4().hex[:8]}.", found.batches, found.operators,
            found.ranks, found.partitions, found.compression, found.seed,
        )  # fmt: skip
        size_bytes = fill(load)
        took_s = measure(load, found.timeout_s)
        print(report(load, size_bytes, took_s))
        if found.json:
            told = {"batches": load.batches, "operators": load.total, "size_bytes": size_bytes, "took_s": took_s}
            found.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
