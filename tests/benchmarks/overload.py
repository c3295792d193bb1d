"""Several jobs at once, published faster than one worker reads: its lag must change no verdict.

    python -m tests.benchmarks.overload --jobs 12 --iterations 1500

simulates jobs of 16 ranks, most of them with a fault, and replays them into a broker of its own as fast as it takes
them, while one worker with default settings (but for the database: none) reads. Then it compares each verdict with
`analyze` of the same recording, and prints by how much the worker lagged. Status 1 if a verdict is missing, differs,
or accuses somebody whom `analyze` does not. It is bounded by `--timeout` seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from irregulars.infra.configuration.settings import Settings
from irregulars.infra.configuration.wiring import agent_settings, monitor_settings, worker_settings
from irregulars.infra.runs.analysis import analyze
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.messages.evidence import Membership, decode_evidence
from irregulars.messages.judgements import decode_verdict
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.simulator.job.faults import parse_fault
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.logs.incidents import Incidents
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from tests.apache_kafka.broker import KafkaBroker

FAULTS = (
    "slow_rank:rank=5,from={from_},to={to},excess=0.2",
    "slow_nic:rank=3,from={from_},to={to},excess=0.3",
    "slow_rank:rank=11,from={from_},to={to},excess=0.3",
    None,
)
"""Of one job after the other; None: a healthy one."""

Found = Mapping[str, object]


@dataclass(frozen=True)
class Outcome:
    """What one run showed.

    Parameters
    ----------
    lagged_s
        From the last row that a producer was told is accepted to the last verdict.
    """

    jobs: int
    rows: int
    published_s: float
    rows_per_s: float
    lagged_s: float
    verdicts: int
    missing: tuple[str, ...]
    false: tuple[str, ...]
    different: tuple[str, ...]
    warnings: int

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.false or self.different)


def simulate(folder: Path, number: int, iterations: int) -> Path:
    """Write the recording of the job `number`; jobs with the same fault differ by their seed."""
    text = FAULTS[number % len(FAULTS)]
    faults = [] if text is None else [parse_fault(text.format(from_=iterations // 3, to=iterations // 3 + 60))]
    directory = folder / f"job-{number}"
    job = SimulatorSettings(job=directory.name, dp=2, pp=2, tp=4, iterations=iterations, seed=number)
    Incidents(job).run(*faults).write(directory)
    return directory


def publish(directory: Path, settings: Settings) -> int:
    """Replay as fast as the broker takes it; return the rows."""
    return Agent(TraceSource(read_trace(directory), 0.0), agent_settings(settings)).run().rows


def wanted(directory: Path, settings: Settings) -> list[Found]:
    """Return the newest revision of each verdict that `analyze` finds."""
    return [verdict.to_json() for verdict in analyze(read_trace(directory), monitor_settings(settings)).verdicts]


def work(settings: Settings, log: str) -> None:
    """Run one worker in a process of its own, its output in a file."""
    import os

    from irregulars.streams.worker.running import run_worker

    with open(log, "wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.exit(run_worker(worker_settings(settings, settings.topic_prefix + "workers")))


def ended_ranks(settings: Settings, reader: LogReader, seen: dict[int, int]) -> int:
    """Count ends of ranks on the topic ``evidence`` that are new."""
    topic, count = settings.topics().name("evidence"), 0
    for partition in range(settings.partitions):
        for message in reader.messages(topic, partition, seen.get(partition, 0)):
            seen[partition] = (message.offset() or 0) + 1
            rows = decode_evidence(message.value())
            count += sum(isinstance(row, Membership) and row.reason is not None for row in rows)
    return count


def told(settings: Settings, reader: LogReader) -> dict[str, Found]:
    """Return the newest revision of each verdict on the topic."""
    topic = settings.topics().name("verdicts")
    found = {}
    for partition in reader.partitions(topic):
        for message in reader.messages(topic, partition):
            verdict = decode_verdict(message.value())
            found[verdict.verdict_id] = verdict.to_json()
    return found


def run(jobs: int, iterations: int, publishers: int, timeout_s: float, folder: Path) -> Outcome:
    """Simulate, publish, wait, compare."""
    context = multiprocessing.get_context("spawn")
    with KafkaBroker() as broker, ProcessPoolExecutor(publishers, context) as pool:
        settings = Settings(
            kafka_bootstrap=broker.bootstrap, topic_prefix=f"overload-{uuid4().hex[:6]}.", data_dir=folder / "data"
        )
        create_topics(broker.bootstrap, settings.topics())
        directories = list(pool.map(simulate, [folder] * jobs, range(jobs), [iterations] * jobs))
        analyses = pool.map(wanted, directories, [settings] * jobs)
        wants = {str(one["verdict_id"]): one for found in analyses for one in found}
        log = folder / "worker.log"
        worker = context.Process(target=work, args=(settings, str(log)))
        worker.start()
        try:
            began_s = time.monotonic()
            rows = sum(pool.map(publish, directories, [settings] * jobs))
            published_s = time.monotonic() - began_s
            lagged_s = wait_for_end(settings, jobs, wants, time.monotonic() + timeout_s)
            has = told(settings, LogReader(broker.bootstrap, {}))
        finally:
            worker.terminate()
            worker.join(30)
    return Outcome(
        jobs, rows, published_s, rows / published_s, lagged_s, len(wants),
        tuple(sorted(wants.keys() - has.keys())), tuple(sorted(has.keys() - wants.keys())),
        tuple(sorted(name for name in wants.keys() & has.keys() if wants[name] != has[name])),
        log.read_text().count("level=WARNING"),
    )  # fmt: skip


def wait_for_end(settings: Settings, jobs: int, wants: Mapping[str, Found], deadline: float) -> float:
    """Wait until all ranks have ended in the evidence, and all verdicts stand there; return how long that took."""
    reader, ended, began_s = LogReader(settings.kafka_bootstrap, {}), 0, time.monotonic()
    seen: dict[int, int] = {}
    while ended < 16 * jobs and time.monotonic() < deadline:
        ended += ended_ranks(settings, reader, seen)
        time.sleep(0.5)
    while told(settings, reader) != wants and time.monotonic() < deadline:
        time.sleep(1.0)
    lagged_s = time.monotonic() - began_s
    time.sleep(10.0)  # whatever is false would come now
    return lagged_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Publish faster than a worker reads, and compare verdicts.")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--publishers", type=int, default=2, help="processes that publish at the same time")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds to wait for the worker at most")
    own = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="overload-"))
    try:
        outcome = run(own.jobs, own.iterations, own.publishers, own.timeout, folder)
        if not outcome.is_right:
            print((folder / "worker.log").read_text()[-4000:], file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(asdict(outcome), indent=1))
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
