"""Memory of a worker that holds a job and has nothing to do.

    python -m tests.benchmarks.bench_idle

A worker as people start it (``irregulars worker --no-store``, default settings) on a real Apache Kafka. A simulated
job is published as the agents of its hosts do, then says nothing more: it is neither ended nor silent for long enough
to be forgotten. The memory is read when the worker is fresh and has its partitions, and once it is quiet again: over
half a minute its process takes at most 5 % of a core more than when it was fresh. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from irregulars.sinks.connection import DatabaseSettings
from tests.apache_kafka.broker import KafkaBroker
from tests.benchmarks.alert_delay import SHAPES, simulated
from tests.benchmarks.bench_agent import cpu_s, memory_mib
from tests.integration.pipelines import AS_SHIPPED, Pipeline

FRESH_S: Final = 15.0
QUIET_S: Final = 30.0
QUIET_RATIO: Final = 0.05
LONGEST_WAIT_S: Final = 300.0


def publish(directory: Path, settings: Settings, speed: float) -> None:
    """Publish a recording and leave its ranks as they are, as an agent does that stops."""
    Agent(TraceSource(read_trace(directory), speed), agent_settings(settings), ends_ranks=False).run()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not is_so():
        if time.monotonic() > until_s:
            raise SystemExit(f"{what} within {LONGEST_WAIT_S:g} s; it is not so")
        time.sleep(1.0)


def busy_s(pid: int) -> float:
    """Processor seconds that a process takes in `QUIET_S`."""
    before_s = cpu_s(pid)
    time.sleep(QUIET_S)
    return cpu_s(pid) - before_s


def run(own: argparse.Namespace, folder: Path) -> dict[str, Any]:
    slow = f"slow_rank:rank={own.ranks // 10},from={own.iterations // 3},to={2 * own.iterations // 3},excess=0.3"
    directory = simulated(folder / "job", own.ranks, own.iterations, own.seed, slow)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling leaves garbage, which users have once
    with KafkaBroker() as broker:
        nowhere = DatabaseSettings("http://127.0.0.1:1")
        pipeline = Pipeline(broker.bootstrap, nowhere, folder, Settings().partitions)
        try:
            worker = pipeline.start("worker", "--no-store", **AS_SHIPPED, metrics_listen="127.0.0.1:0")
            time.sleep(FRESH_S)
            fresh_s, fresh_mib = busy_s(worker.pid), memory_mib(worker.pid, "VmRSS")
            spawn = multiprocessing.get_context("spawn")
            child = spawn.Process(target=publish, args=(directory, pipeline.settings, own.speed))
            child.start()
            child.join()
            wait_until(lambda: bool(pipeline.revisions()), "a verdict must be published")
            wait_until(lambda: busy_s(worker.pid) - fresh_s <= QUIET_RATIO * QUIET_S, "the worker must be quiet")
            return {
                "ranks": own.ranks, "iterations": own.iterations, "seed": own.seed, "speed": own.speed,
                "fresh_mib": fresh_mib, "idle_mib": memory_mib(worker.pid, "VmRSS"),
            }  # fmt: skip
        finally:
            pipeline.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=sorted(SHAPES), default=1024)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument(
        "--speed", type=float, default=1.0, help="1: the job's own pace; 0: as fast as Kafka takes it"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    own = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as folder:
        found = run(own, Path(folder))
    if own.json is not None:
        own.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"A job of {own.ranks} ranks, {own.iterations} iterations; Python {platform.python_version()}.\n")
    print("| worker | resident, MiB |", "|---|--:|", sep="\n")
    print(f"| fresh | {found['fresh_mib']:.0f} |", f"| idle | {found['idle_mib']:.0f} |", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
