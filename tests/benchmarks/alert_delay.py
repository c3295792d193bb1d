"""How long after the iteration that decides it an alert is on its topic, for a job at its own pace.

    python -m tests.benchmarks.alert_delay --jobs 5

simulates jobs of 1,024 ranks (about 0.27 s and 60,000 operators an iteration), each with a fault, and replays one
after the other at the pace at which they were recorded, into a broker and a database of its own, with one worker at
its default settings. What an agent sends is made before the replay, since agents
run on the hosts of a job and not beside the worker. Each revision of a verdict says until when it knows the job
(``time_ns``). The delay is from that moment, as the replay placed it, to the time that Kafka wrote on the message: it
holds the second within which producers collect a batch. Prints a Markdown table; status 1 if a verdict differs from
`analyze`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.infra.commands.traces import rename_job
from irregulars.infra.runs.analysis import analyze
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, monitor_settings
from irregulars.kafka.topics import RANK_TOPICS
from irregulars.messages.judgements import decode_verdict
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.publishing.publisher import AgentSettings, Publisher
from irregulars.producers.publishing.spool import Message
from irregulars.producers.trace.directory import Trace, published_ns, read_trace, trace_batches
from irregulars.producers.trace.source import TraceSource
from irregulars.sinks.connection import DatabaseSettings
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.pipelines import AS_SHIPPED, COMMAND, Pipeline
from tests.integration.worker_runs import wait_until

SHAPES: Final = {ranks: f"--set dp={dp} --set pp=4 --set tp=8" for ranks, dp in ((64, 2), (256, 8), (1024, 32))}
_FAULTS: Final = (
    "slow_nic:rank={},from=20,to=45,excess=0.5",
    "slow_rank:rank={},from=20,to=45,excess=0.3",
    "slow_host:host=node-{},from=20,to=45,excess=0.3",
    "slow_rank:rank={},from=20,to=60,excess=0.2,shape=fluctuating",
    "slow_nic:rank={},from=25,to=60,excess=0.3",
)
_ITERATIONS: Final = 60
_SETTLED_S: Final = 30.0


@dataclass(frozen=True)
class Told:
    topic: str
    name: str
    event: str
    newest: int  # the newest iteration that it covers
    at_s: float  # seconds since the epoch when it was sent
    seconds: float = 0.0  # how long it took


def simulated(out: Path, ranks: int, iterations: int, seed: int, fault: str) -> Path:
    own = f"simulate {out} {SHAPES[ranks]} --iterations {iterations} --seed {seed} --fault {fault} --json"
    subprocess.run([*COMMAND, *shlex.split(own)], check=True, stdout=subprocess.DEVNULL)
    return out


def named(directory: Path) -> Trace:
    """Read a recording, and name its job as its directory."""
    return rename_job(read_trace(directory), directory.name, None)


def replay(directory: Path, settings: Settings) -> tuple[float, float]:
    """Replay at the job's pace; return when it began and ended, seconds since the epoch."""
    own = agent_settings(settings)
    return send(prepare(named(directory), own), own, RANK_TOPICS)


def times_ns(directory: Path) -> tuple[int, int]:
    """Return the event times at which the first and the last batch are due."""
    due = [published_ns(batch) for batch in trace_batches(named(directory)) if batch.header.watermark_ns]
    return due[0], due[-1]


def ends_ns(directory: Path) -> dict[int, int]:
    """Return when each iteration of a recording ended on its last rank."""
    ends: dict[int, int] = {}
    for batch in read_trace(directory).iterations.values():
        end_ns = batch.columns["start_ns"] + batch.columns["elapsed_ns"].astype(np.int64)
        for number, ns in zip(batch.columns["iteration"].tolist(), end_ns.tolist(), strict=True):
            ends[number] = max(ns, ends.get(number, 0))
    return ends


def has_stored(pipeline: Pipeline, iterations: int) -> bool:
    return pipeline.stored_iterations() >= iterations


def read_told(pipeline: Pipeline) -> Iterator[Told]:
    """Give what opened a verdict, on both topics: those that close one wait for healthy iterations, by design."""
    for topic in ("verdicts", "alerts"):
        for message in pipeline.bus.read(topic):
            verdict = decode_verdict(message.value(), topic)
            if verdict.event not in ("opened", "raised"):
                continue
            at_s = message.timestamp()[1] / 1000
            yield Told(topic, verdict.job, verdict.event or "", verdict.iterations[1] - 1, at_s)


def last_revisions(pipeline: Pipeline, wants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newest revision of each verdict, once they are as wanted; else what they are after some time."""
    until_s = time.monotonic() + _SETTLED_S
    while True:
        has = {name: one.to_json() for name, one in pipeline.newest().items()}
        if has == wants or time.monotonic() > until_s:
            return has
        time.sleep(0.5)


@contextmanager
def services(folder: Path) -> Iterator[Pipeline]:
    with KafkaBroker() as broker, DemoDatabase(folder / "database") as database:
        own = DatabaseSettings(database.url, database.user, database.password, database.database)
        pipeline = Pipeline(broker.bootstrap, own, folder)
        try:
            yield pipeline
        finally:
            pipeline.close()


@dataclass(frozen=True)
class Outcome:
    delays: Sequence[Told]
    behind_s: Sequence[float]
    verdicts: int
    wrong: int

    def rows(self) -> Iterator[str]:
        for topic, event in product(("verdicts", "alerts"), ("opened", "raised")):
            own = [one.seconds for one in self.delays if (one.topic, one.event) == (topic, event)]
            if own:
                low, high = np.percentile(own, [50, 99])
                yield f"| {topic}, {event} | {len(own)} | {low:.2f} | {high:.2f} | {max(own):.2f} |"


def run(jobs: int, ranks: int, folder: Path) -> Outcome:
    context = multiprocessing.get_context("spawn")
    delays: list[Told] = []
    behind: list[float] = []
    with ProcessPoolExecutor(1, context) as pool, services(folder) as pipeline:
        faults = [_FAULTS[number % len(_FAULTS)].format(ranks // 10 + number) for number in range(jobs)]
        directories = [
            simulated(folder / f"job-{number}", ranks, _ITERATIONS, number, fault)
            for number, fault in enumerate(faults)
        ]
        wants = {
            one.verdict_id: one.to_json()
            for directory in directories
            for one in analyze(named(directory), monitor_settings(Settings())).verdicts
        }
        pipeline.start_worker(**AS_SHIPPED)
        for number, directory in enumerate(directories, start=1):
            first_ns, last_ns = times_ns(directory)
            began_s, ended_s = pool.submit(replay, directory, pipeline.settings).result()
            behind.append(ended_s - began_s - (last_ns - first_ns) / 1e9)
            wait_until(partial(has_stored, pipeline, number * _ITERATIONS), "all iterations")
            time.sleep(2.0)  # what closes a verdict comes after its iterations
            ends = ends_ns(directory)
            delays += [
                replace(told, seconds=told.at_s - began_s - (ends[told.newest] - first_ns) / 1e9)
                for told in read_told(pipeline)
                if told.name == directory.name
            ]
            print(f"{number} of {jobs}: {directory.name}", file=sys.stderr)
        has = last_revisions(pipeline, wants)
    wrong = len(wants.keys() ^ has.keys()) + sum(wants[one] != has[one] for one in wants.keys() & has.keys())
    return Outcome(delays, behind, len(wants), wrong)


_LONGEST_WAIT_S: Final = 0.02


class Prepared(NamedTuple):
    """A message, and when it is sent, seconds since the first."""

    at_s: float
    message: Message


class _Clock:
    """A clock that goes on while its agent waits, and at no other time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Recorder(Publisher):
    """Keeps messages instead of sending them."""

    def __init__(self, settings: AgentSettings, clock: _Clock) -> None:
        self.messages: list[Prepared] = []
        self._clock = clock
        super().__init__(settings)

    def _prepare(self) -> None:
        pass

    def connect(self, topics: Iterable[str]) -> None:
        """There is nobody to connect to."""

    def send(self, message: Message) -> None:
        self.messages.append(Prepared(self._clock.now_s, message))

    def serve(self, wait_s: float = 0.0) -> None:
        self._clock.now_s += wait_s

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


def prepare(trace: Trace, settings: AgentSettings) -> list[Prepared]:
    """Return what an agent sends that replays a trace at its own pace."""
    clock = _Clock()
    recorder = _Recorder(settings, clock)

    def recording(own: AgentSettings) -> Publisher:
        return recorder

    Agent(TraceSource(trace, 1.0, clock_s=clock), settings, clock_s=clock, make_publisher=recording).run()
    return recorder.messages


def send(messages: Sequence[Prepared], settings: AgentSettings, topics: Sequence[str]) -> tuple[float, float]:
    publisher = Publisher(settings)
    publisher.connect(topics)
    began_s = time.time()
    for at_s, message in messages:
        while (wait_s := began_s + at_s - time.time()) > 0:
            publisher.serve(min(wait_s, _LONGEST_WAIT_S))
        publisher.send(message)
    publisher.flush()
    publisher.close()
    return began_s, time.time()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--ranks", type=int, choices=sorted(SHAPES), default=1024)
    parser.add_argument("--json", type=Path)
    own = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="alert-delay-") as folder:
        outcome = run(own.jobs, own.ranks, Path(folder))
    print(
        f"`python -m tests.benchmarks.alert_delay --jobs {own.jobs} --ranks {own.ranks}`: "
        f"{os.cpu_count()} cores, {platform.machine()}\n"
    )
    print("| messages | number | median, s | 99th percentile, s | longest, s |", "|:--|--:|--:|--:|--:|", sep="\n")
    print(*outcome.rows(), sep="\n")
    late = ", ".join(f"{seconds:.1f}" for seconds in outcome.behind_s)
    print(
        f"\nThe replays ended {late} s behind their pace. {outcome.verdicts} verdicts, {outcome.wrong} of them wrong."
    )
    if own.json:
        own.json.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
