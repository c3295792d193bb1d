"""A job of thousands of ranks through a broker, a database and one worker that is killed in the middle.

    python -m tests.benchmarks.large_job --ranks 8192

simulates the job, replays it as fast as Kafka takes it, kills the worker (SIGKILL) once half of its iterations are
judged, starts another one, and compares the verdicts in the database with those of `analyze`. Prints a Markdown
table. Status 1 if a verdict differs. `tests/faults/test_large_job.py` does the same with fewer ranks.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from irregulars.infra.runs.analysis import analyze
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import monitor_settings
from irregulars.kafka.topics import SNAPSHOT_TOPICS
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.connection import DatabaseSettings
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.pipelines import COMMAND, Pipeline, Process
from tests.integration.test_end_to_end import stored_verdicts

_SHAPES: Final = {
    256: "--set dp=16 --set pp=4 --set tp=4",
    1024: "--set dp=32 --set pp=8 --set tp=4",
    4096: "--set dp=64 --set pp=16 --set tp=4",
    8192: "--set dp=128 --set pp=8 --set tp=8",
}
_AS_SHIPPED: Final = {"snapshot_s": Settings().snapshot_s, "session_s": Settings().session_s}
_PAUSE_S: Final = 0.2
_LEAST_BYTES: Final = 300  # of a job's state for each of its ranks, once some iterations are judged


@dataclass
class Outcome:
    """What was found."""

    wanted: Mapping[str, Any]
    stored: Mapping[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)
    at_kill: int = 0
    messages: int = 0
    largest_bytes: int = 0
    written_bytes: int = 0
    restored_bytes: int = 0

    @property
    def is_equal(self) -> bool:
        return bool(self.wanted) and self.stored == self.wanted


def simulate(ranks: int, iterations: int, out: Path) -> None:
    """Write the trace of a job in which one rank turns slow half-way."""
    slow = f"--fault slow_rank:rank=5,from={iterations // 2},to={iterations * 7 // 8},excess=0.3"
    own = f"{_SHAPES[ranks]} --set micro_batches=4 --iterations {iterations} {slow} --json"
    subprocess.run([*COMMAND, "simulate", str(out), *shlex.split(own)], check=True, stdout=subprocess.DEVNULL)


def run(
    pipeline: Pipeline, directory: Path, iterations: int, deadline_s: float, speed: float = 0.0, **settings: Any
) -> Outcome:
    """Replay the job in `directory` into `pipeline`, kill the worker half-way, and compare; `settings` of workers."""
    took, last_s = {}, time.monotonic()

    def lap(name: str) -> None:
        nonlocal last_s
        took[name], last_s = time.monotonic() - last_s, time.monotonic()

    def wait(is_true: Callable[[], bool], worker: Process, what: str) -> None:
        deadline = time.monotonic() + deadline_s
        while not is_true():
            if time.monotonic() > deadline or not worker.is_running:
                raise AssertionError(f"{what} must happen within {deadline_s:g} s; got: {worker.output()[-2000:]}")
            time.sleep(_PAUSE_S)

    trace = read_trace(directory)
    analysis = analyze(trace, monitor_settings(Settings()))
    lap("analyze")
    worker = pipeline.start_worker(**settings)
    replay = pipeline.start("replay", str(directory), "--speed", str(speed), "--keep-times", "--json")
    wait(lambda: pipeline.stored_iterations() >= iterations // 2, worker, "half of the iterations")
    lap("until half of it was judged")
    with replay.suspended():  # a judge that has much to do lets nobody take its state
        wait(
            lambda: _stored_bytes(pipeline) >= len(trace.announcements) * _LEAST_BYTES,
            worker,
            "a snapshot of the job",
        )
        lap("and until its snapshot stood")
        worker.kill()
    at_kill = pipeline.stored_iterations()
    second = pipeline.start_worker(**settings)
    partitions = 2 * pipeline.settings.partitions
    wait(lambda: second.output().count("event=restored") >= partitions, second, "a restart")
    lap("killed; the next worker has restored")
    wait(lambda: pipeline.stored_iterations() == iterations, second, "all iterations")
    wanted = {verdict.verdict_id: verdict.to_json() for verdict in analysis.verdicts}
    wait(lambda: _are_as_far(stored_verdicts(pipeline), wanted), second, "the last revision of all verdicts")
    lap("until all was judged")
    assert replay.wait(deadline_s) == 0, replay.output()
    assert second.stop(60.0) == 0, second.output()[-2000:]
    lap("stopped")
    outcome = Outcome(wanted, stored_verdicts(pipeline), took, at_kill)
    outcome.restored_bytes = sum(map(int, re.findall(r"event=restored .*read_bytes=(\d+)", second.output())))
    _measure_snapshots(pipeline, outcome)
    return outcome


def _are_as_far(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether each verdict had all its revisions: they come to the database by another way than iterations."""
    return all(one in stored and stored[one]["revision"] >= verdict["revision"] for one, verdict in wanted.items())


def _stored_bytes(pipeline: Pipeline) -> int:
    """Return the bytes of all snapshots of jobs so far."""
    return sum(len(message.value() or b"") for message in pipeline.bus.read("job_snapshots"))


def _measure_snapshots(pipeline: Pipeline, outcome: Outcome) -> None:
    for topic in SNAPSHOT_TOPICS:
        sizes = [len(message.value() or b"") for message in pipeline.bus.read(topic)]
        outcome.messages += len(sizes)
        outcome.written_bytes += sum(sizes)
        outcome.largest_bytes = max([outcome.largest_bytes, *sizes])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=sorted(_SHAPES), default=8192)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--deadline-s", type=float, default=1200.0)
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="irregulars-large-") as folder, KafkaBroker() as broker:
        directory = Path(folder) / "job"
        simulate(own.ranks, own.iterations, directory)
        with DemoDatabase() as database:
            name = DatabaseSettings(database.url, database.user, database.password, database.database)
            pipeline = Pipeline(broker.bootstrap, name, Path(folder))
            try:
                outcome = run(pipeline, directory, own.iterations, own.deadline_s, **_AS_SHIPPED)
            finally:
                pipeline.close()
    print(report(own.ranks, own.iterations, outcome))
    return 0 if outcome.is_equal else 1


def report(ranks: int, iterations: int, outcome: Outcome) -> str:
    """Return the outcome as a Markdown table."""
    mib = 1 << 20
    rows = [
        ("ranks × iterations", f"{ranks} × {iterations}"),
        *((f"{name}, s", f"{seconds:.1f}") for name, seconds in outcome.seconds.items()),
        ("iterations judged when it was killed", f"{outcome.at_kill}"),
        ("snapshots: messages", f"{outcome.messages}"),
        ("snapshots: written, MiB", f"{outcome.written_bytes / mib:.1f}"),
        ("snapshots: largest message, KiB", f"{outcome.largest_bytes / 1024:.0f}"),
        ("snapshots: read at the restart, MiB", f"{outcome.restored_bytes / mib:.1f}"),
        ("verdicts of analyze", f"{len(outcome.wanted)}"),
        ("verdicts in the database equal those", "yes" if outcome.is_equal else "NO"),
    ]
    return "\n".join(["| what | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


if __name__ == "__main__":
    sys.exit(main())
