"""The system under test as people start it: workers and replays are processes, all settings the defaults."""

from __future__ import annotations

import base64
import json
import random
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from irregulars.infra.runs.child_process import HOST, free_port
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from tests.apache_kafka.broker import KafkaBroker
from tests.chaos.surroundings import Clock, Disk, Gate, Gates
from tests.integration.pipelines import RECORDINGS, Process


class ProgressWatch:
    """Follows the topic ``progress`` from a thread; a ``with`` block begins and ends it.

    `bootstrap`: brokers, reached on a way that no fault of the network meets.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        own = {"bootstrap.servers": bootstrap, "group.id": "chaos-watch", "auto.offset.reset": "earliest"}
        at_once = {"reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 200, "fetch.wait.max.ms": 100}
        self._consumer = Consumer({**own, **at_once, "enable.auto.commit": False})
        self._topic = topic
        self._told_s: dict[int, list[float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress-watch", daemon=True)

    def recovered_s(self, since_s: float, partitions: Collection[int]) -> float | None:
        """Return how long after a moment all partitions had been told of once; None: not yet."""
        first = [next((at for at in self._told_s.get(one, ()) if at > since_s), None) for one in partitions]
        return None if None in first else max(at - since_s for at in first if at is not None)

    def wait(self, since_s: float, partitions: Collection[int], within_s: float) -> float | None:
        deadline = time.monotonic() + within_s
        while self.recovered_s(since_s, partitions) is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.recovered_s(since_s, partitions)

    def longest_gap_s(self) -> float:
        """Return the longest time in which a partition was not told of."""
        gaps = (later - one for told in self._told_s.values() for one, later in pairwise(told))
        return max(gaps, default=0.0)

    def _follow(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._is_over.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and not message.error():
                partition = json.loads(message.value() or b"{}").get("partition")
                # By our own clock: those of the workers step.
                self._told_s.setdefault(partition, []).append(time.time())

    def __enter__(self) -> ProgressWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(10)
        self._consumer.close()


GROUP: Final = "chaos.workers"
RECORDED: Final = (
    "gloo-slow-rank", "gloo-slow-nic", "gloo-slow-link", "gloo-clean", "bench/ddp8-clean", "bench/pp4dp2-compute",
    "bench/tp2pp2dp2-nic-send", "bench/zero8-clean", "bench/ddp8-pauses", "bench/tp2pp2dp2-link-one-way",
)  # fmt: skip
"""Jobs that run while faults happen: real recordings, healthy ones among them."""


@dataclass
class Job:
    """One replay of a recording under a name of its own."""

    name: str
    recording: str
    process: Process

    def published(self) -> dict[str, object] | None:
        """Return what the replay says it published, in the end; None while it runs, or if it failed."""
        text = self.process.output()
        start = text.find("\n{") + 1 if not text.startswith("{") else 0
        try:
            found: dict[str, object] = json.loads(text[start:])
        except ValueError:
            return None
        return found


@dataclass
class System:
    """Brokers, a database, workers and jobs; `random` makes all choices.

    `disks` are by the name of what they hold, where the machine lets us mount any; `clocks` by worker, where it has
    a compiler.
    """

    cluster: KafkaCluster
    database: DemoDatabase
    database_gate: Gate
    gates: Gates
    settings: Settings
    folder: Path
    random: random.Random
    workers: list[Process] = field(default_factory=list)
    ended_workers: list[Process] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    disks: dict[str, Disk] = field(default_factory=dict)
    clocks: dict[Process, Clock] = field(default_factory=dict)
    clock_library: Path | None = None
    _started: int = 0

    def start_worker(self) -> Process:
        self._started += 1
        clock = Clock(self.folder / f"clock-{self._started}")
        faked = clock.environment(self.clock_library) if self.clock_library else {}
        own = self.settings.to_environment() | faked
        worker = Process(("worker", "--group", GROUP), own, self.folder)
        self.workers.append(worker)
        self.clocks[worker] = clock
        return worker

    def take_worker(self) -> Process:
        worker = self.random.choice(self.workers)
        self.workers.remove(worker)
        self.ended_workers.append(worker)
        return worker

    def start_job(self, speed: float = 1.0) -> Job:
        """Let one more job run, at the pace of its recording unless said otherwise."""
        recording = RECORDED[len(self.jobs) % len(RECORDED)]
        name = f"job-{len(self.jobs)}"
        arguments = ("replay", str(RECORDINGS / recording), "--job", name, "--speed", str(speed), "--json")
        self.jobs.append(Job(name, recording, Process(arguments, self.settings.to_environment(), self.folder)))
        return self.jobs[-1]

    def running_jobs(self) -> Sequence[Job]:
        return [job for job in self.jobs if job.process.is_running]

    def supervise(self) -> list[str]:
        """Start workers anew that ended by themselves, as a supervisor does; return what they said last."""
        fallen = [worker for worker in self.workers if not worker.is_running]
        for worker in fallen:
            self.workers.remove(worker)
            self.ended_workers.append(worker)
            self.start_worker()
        return [worker.output().strip().splitlines()[-1] for worker in fallen]

    def wait_for_jobs(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.running_jobs() and time.monotonic() < deadline:
            self.supervise()
            time.sleep(0.5)

    def close(self) -> None:
        for process in [*self.workers, *(job.process for job in self.jobs)]:
            if process.is_running:
                process.kill()


_CLUSTER_ID: Final = base64.urlsafe_b64encode(uuid.UUID(int=7).bytes).decode().rstrip("=")


class Node(KafkaBroker):
    """One broker of a cluster, and controller as well."""

    def __init__(self, number: int, directory: Path) -> None:
        super().__init__(directory / f"kafka-{number}", start_timeout_s=90.0)
        self.number: Final = number
        self.controller_port: Final = free_port()
        self.internal_port: Final = free_port()
        self.port: Final = self._port
        self._cluster_id = _CLUSTER_ID
        self.extra: dict[str, str] = {}

    def _own_properties(self) -> dict[str, str]:
        return self.extra


class KafkaCluster:
    """Brokers that start together.

    `bootstrap`: for the system under test: through the gates.
    `direct`: for those who watch it: no fault of the network reaches them.
    `gates`: where clients reach each broker.
    `inner_gates`: where other brokers reach each, for copies of partitions and as a controller.
    """

    def __init__(self, count: int, directory: Path, gates: Gates) -> None:
        self.nodes: Final = [Node(number, directory) for number in range(1, count + 1)]
        self.gates: Final[list[Gate]] = [gates.open(node.port) for node in self.nodes]
        self.inner_gates: Final = [
            (gates.open(node.internal_port), gates.open(node.controller_port)) for node in self.nodes
        ]
        voters = [
            f"{node.number}@{HOST}:{own.port}" for node, (_, own) in zip(self.nodes, self.inner_gates, strict=True)
        ]
        copies = str(min(count, 3))
        for node, gate, (inner, _) in zip(self.nodes, self.gates, self.inner_gates, strict=True):
            watched = f"{HOST}:{free_port()}"
            node.extra = {
                "node.id": str(node.number),
                "listeners": f"PLAINTEXT://{node.bootstrap},INTERNAL://{HOST}:{node.internal_port},WATCH://{watched},"
                f"CONTROLLER://{HOST}:{node.controller_port}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{gate.port},INTERNAL://{HOST}:{inner.port},"
                f"WATCH://{watched}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
                "WATCH:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "controller.quorum.voters": ",".join(voters),
                "offsets.topic.replication.factor": copies,
                "default.replication.factor": copies,
                "min.insync.replicas": "2" if count > 2 else "1",
                "unclean.leader.election.enable": "false",
            }
        self.bootstrap: Final = ",".join(f"{HOST}:{gate.port}" for gate in self.gates)
        watched_at = [node.extra["listeners"].split("WATCH://")[1].split(",")[0] for node in self.nodes]
        self.direct: Final = ",".join(watched_at)

    def __enter__(self) -> KafkaCluster:
        with ThreadPoolExecutor(len(self.nodes)) as together:  # one alone has no quorum, and never answers
            for started in [together.submit(node.start) for node in self.nodes]:
                started.result()
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes:
            node.close()
