"""A worker process of our own, a hostile job's messages, and an innocent job beside it as the witness."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from irregulars.kafka.topics import rank_key
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.messages.opinions import Opinion, encode_opinion
from irregulars.messages.records import Batch, encode_batch
from irregulars.messages.threshold_changes import ThresholdChange, encode_change
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.source import moved, span_ns
from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.infra.docs.sent_messages import sent_messages, simulated
from tests.integration.pipelines import MOST_BYTES, Pipeline, largest_bytes, own_database
from tests.integration.worker_runs import page_of
from tests.sinks.made_up_job import gpu_health

RANKS = 4
JUDGED_WITHIN_S = 10.0  # of an innocent job, whatever its neighbours send
_NAME = b"job-000000"
"""Of the simulated job; other names are as long, so that they can take its place in a message's bytes."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as a producer sends it."""

    topic: str
    key: bytes
    value: bytes

    def of(self, job: bytes) -> Sent:
        """Return the same message of another job, whose name has as many letters."""
        assert len(job) == len(_NAME), job
        return Sent(self.topic, self.key.replace(_NAME, job), self.value.replace(_NAME, job))


@cache
def simulated_trace() -> Trace:
    """Four ranks of which one is slow for a while, moved so that the job ended a minute ago."""
    settings = SimulatorSettings(
        job=_NAME.decode(), dp=2, pp=2, tp=1, gpus_per_host=2, micro_batches=2, iterations=40,
        faults=(parse_fault("slow_rank:rank=1,from=20,to=28,factor=1.6"),),
    )  # fmt: skip
    trace = simulated(settings)
    span = span_ns(trace)
    assert span is not None
    return moved(trace, time.time_ns() - 60 * 10**9 - span[1])


@cache
def sound_messages() -> tuple[Sent, ...]:
    """All that the simulated job sends, its announcements first and its last heartbeats last."""
    topics = sent_messages(simulated_trace())
    sent = [Sent(topic, one.key, one.value) for topic in _SENT_BY_RANKS for one in topics[topic]]
    return tuple(sent)


_SENT_BY_RANKS = ("jobs", "bandwidth", "commops", "iterations", "heartbeats")


@cache
def other_messages() -> tuple[Sent, ...]:
    """Messages that the job's worker and people send of it, and states of its GPUs."""
    trace = simulated_trace()
    job, now_ns = trace.job, time.time_ns()
    batch = gpu_health()
    health = replace(batch, header=replace(batch.header, job=job, attempt=trace.attempt))
    opinion = Opinion(f"{job}:0:25:0", job, "slow_rank", (25, 40), True, "ann", now_ns, rank=1, probability=0.9)
    change = ThresholdChange("t-1", {"delta": 1.3}, "ann", "short iterations", now_ns, job=job)
    progress = b'{"partition":1,"positions":{"commops":5,"heartbeats":1},"topics":{},"release":"0.1.0"}'
    return (
        *(Sent("evidence", one.key, one.value) for one in sent_messages(trace)["evidence"]),
        *(_of_rank(health, rank) for rank in range(RANKS)),
        Sent("feedback", opinion.key, encode_opinion(opinion)),
        Sent("thresholds", b"t-1", encode_change(change)),
        Sent("progress", b"1", progress),
    )


def _of_rank(health: Batch, rank: int) -> Sent:
    header = replace(health.header, rank=rank)
    return Sent("gpu_health", rank_key(header.job, rank), encode_batch(replace(health, header=header)))


class WatchedWorker:
    """A worker on topics and a database of its own."""

    def __init__(self, bootstrap: str, database: DatabaseSettings, folder: Path) -> None:
        self.pipeline = Pipeline(bootstrap, database, folder)
        self._witnesses = 0
        self._read_to: dict[int, int] = {}
        self._verdicts: list[Verdict] = []
        self._start()
        self.slowest_s = 0.0
        self.sound = self._judged(240.0)
        """What the worker said of the witness before anybody sent anything else."""

    def _start(self) -> None:
        self.worker = self.pipeline.start_worker(metrics_listen="127.0.0.1:0")

    def restart(self) -> None:
        """Stop the worker in order, and start another one in its place."""
        assert self.worker.stop(90) == 0, self.worker.output()[-3000:]
        self._start()

    def send(self, message: Sent) -> None:
        self.pipeline.bus.send(message.topic, message.key, message.value)

    def require_witness(self, within_s: float = JUDGED_WITHIN_S) -> None:
        """Require that an innocent job that comes now is judged in time, and as if it were alone."""
        found = self._judged(within_s)
        assert found == self.sound, f"the witness must be judged as alone; got {found} instead of {self.sound}"

    def require_ready(self, within_s: float = 60.0) -> None:
        """Require that the worker lives and is ready."""
        deadline_s, told = time.monotonic() + within_s, ""
        while time.monotonic() < deadline_s:
            assert self.worker.is_running, self.worker.output()[-3000:]
            status, told = self._asked("/readyz")
            if status == 200:
                assert self.largest_bytes < MOST_BYTES, f"the worker took {self.largest_bytes >> 20} MiB"
                return
            time.sleep(0.2)
        raise AssertionError(f"worker must be ready within {within_s:g} s; got {told}")

    @property
    def largest_bytes(self) -> int:
        """The worker's largest size so far."""
        return largest_bytes(self.worker)

    def _asked(self, page: str) -> tuple[int, str]:
        address = re.search(r"http://127[.]0[.]0[.]1:\d+", self.worker.output())
        return page_of(address[0] + page) if address is not None else (0, "no page")

    def _judged(self, within_s: float) -> dict[str, Any]:
        """Let an innocent job run, and return the end of the one verdict on it."""
        self._witnesses += 1
        name = b"wit-%06d" % self._witnesses
        for message in sound_messages():
            self.send(message.of(name))
        self.pipeline.bus.flush()
        began_s = time.monotonic()
        while time.monotonic() < began_s + within_s:
            closed = [one for one in self._read() if one.job == name.decode() and one.state == "closed"]
            if closed:
                if self._witnesses > 1:
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
                return {key: value for key, value in closed[-1].to_json().items() if key not in _OF_ONE_RUN}
            assert self.worker.is_running, self.worker.output()[-3000:]
            time.sleep(0.05)
        raise AssertionError(f"an innocent job must be judged within {within_s:g} s; it was not")

    def _read(self) -> list[Verdict]:
        bus = self.pipeline.bus
        name = bus.topics.name("verdicts")
        for partition in bus.reader.partitions(name):
            for message in bus.reader.read_tail(name, partition, self._read_to.get(partition, 0)):
                self._verdicts.append(decode_verdict(message.value()))
                self._read_to[partition] = (message.offset() or 0) + 1
        return self._verdicts


_OF_ONE_RUN = ("job", "verdict_id", "revision")


@contextmanager
def watched_worker(bootstrap: str, server: ClickHouseAddress, folder: Path) -> Iterator[WatchedWorker]:
    """Run a worker, and end it; what it said is printed, in case that something failed."""
    with own_database(server) as database:
        watched = WatchedWorker(bootstrap, database, folder)
        try:
            yield watched
        finally:
            watched.pipeline.close()
