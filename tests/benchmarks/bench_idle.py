"""Memory of a worker that holds a job and has nothing to do.

    python -m tests.benchmarks.bench_idle

A worker as people start it (``irregulars worker``, default settings; ``--no-store`` unless ``--store`` is given,
which starts a database too), on a real Apache Kafka. A simulated job is published as the agents of its hosts do, then
says nothing more: it is neither ended nor silent for long enough to be forgotten. The memory is read from
``/proc/PID/smaps_rollup`` when the worker is fresh and has its partitions, and once it is quiet again: over half a
minute its process takes at most 5 % of a core more than when it was fresh. Prints a Markdown table. Not a test.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from tests.apache_kafka.broker import KafkaBroker

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = [sys.executable, "-m", "irregulars"]
SHAPES: Final = {ranks: f"--set dp={dp} --set pp=4 --set tp=8" for ranks, dp in ((64, 2), (256, 8), (1024, 32))}
FRESH_S: Final = 15.0
QUIET_S: Final = 30.0
QUIET_RATIO: Final = 0.05
LONGEST_WAIT_S: Final = 300.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PARTS: Final = ("Rss", "Pss", "Pss_Anon", "Private_Dirty")


def simulate(folder: Path, ranks: int, iterations: int, seed: int) -> Path:
    """Write a recording of a job in which a rank is slow for a while."""
    out = folder / "job"
    fault = f"slow_rank:rank={ranks // 10},from={iterations // 3},to={2 * iterations // 3},excess=0.3"
    own = f"simulate {out} {SHAPES[ranks]} --iterations {iterations} --seed {seed} --fault {fault} --json"
    subprocess.run([*COMMAND, *shlex.split(own)], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return out


def publish(directory: Path, settings: Settings, speed: float) -> None:
    """Publish a recording and leave its ranks as they are, as an agent does that stops."""
    Agent(TraceSource(read_trace(directory), speed), agent_settings(settings), ends_ranks=False).run()


@contextmanager
def working(settings: Settings, log: Path, is_storing: bool) -> Iterator[int]:
    """Let one worker run; gives its process id."""
    command = [*COMMAND, "worker", "--store" if is_storing else "--no-store"]
    environment = {**os.environ, **settings.to_environment(), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling leaves garbage, which users have once
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output) as worker,
    ):
        try:
            yield worker.pid
        finally:
            worker.terminate()
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()


def memory_mib(pid: int) -> dict[str, float]:
    """Return what the kernel says of a process, MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(value.split()[0]) / 1024 for name, _, value in (line.partition(":") for line in lines)}
    return {name: found[name] for name in PARTS}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


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


def messages(settings: Settings, topic: str) -> int:
    reader = LogReader(settings.kafka_bootstrap, {})
    name = settings.topics().name(topic)
    count = sum(reader.end_offset(name, partition) for partition in reader.partitions(name))
    reader.close()
    return count


def run(own: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Do it all."""
    directory = simulate(folder, own.ranks, own.iterations, own.seed)
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        settings = Settings(
            kafka_bootstrap=broker.bootstrap, topic_prefix=f"idle-{uuid4().hex[:6]}.", data_dir=folder / "data",
            metrics_listen="127.0.0.1:0",
        )  # fmt: skip
        if own.store:
            database = stack.enter_context(DemoDatabase(folder / "database"))
            settings = replace(
                settings, clickhouse_url=database.url, clickhouse_user=database.user,
                clickhouse_password=database.password, clickhouse_database=database.database,
            )  # fmt: skip
        create_topics(broker.bootstrap, settings.topics())
        pid = stack.enter_context(working(settings, folder / "worker.log", own.store))
        time.sleep(FRESH_S)
        fresh_s, fresh = busy_s(pid), memory_mib(pid)
        before_s, began_s = cpu_s(pid), time.monotonic()
        child = multiprocessing.get_context("spawn").Process(target=publish, args=(directory, settings, own.speed))
        child.start()
        child.join()
        took_s = time.monotonic() - began_s
        wait_until(lambda: messages(settings, "verdicts") > 0, "a verdict must be published")
        wait_until(lambda: busy_s(pid) - fresh_s <= QUIET_RATIO * QUIET_S, "the worker must be quiet")
        return {
            "ranks": own.ranks, "iterations": own.iterations, "seed": own.seed, "speed": own.speed,
            "is_storing": own.store, "published_in_s": took_s, "worker_cpu_s": cpu_s(pid) - before_s,
            "fresh_cpu_ratio": fresh_s / QUIET_S,
            "evidence_messages": messages(settings, "evidence"), "fresh_mib": fresh, "idle_mib": memory_mib(pid),
        }  # fmt: skip


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=sorted(SHAPES), default=1024)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument(
        "--speed", type=float, default=1.0, help="1: the job's own pace; 0: as fast as Kafka takes it"
    )
    parser.add_argument("--store", action="store_true", help="with a database")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    own = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as folder:
        found = run(own, Path(folder))
    if own.json is not None:
        own.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(
        f"A job of {own.ranks} ranks, {own.iterations} iterations, seed {own.seed}, speed {own.speed:g}, "
        f"{'stored' if own.store else 'not stored'}; Python {platform.python_version()}, {os.cpu_count()} cores. "
        f"The worker took {found['worker_cpu_s']:.1f} s of processor time.\n"
    )
    print("| worker, MiB |", " | ".join(PARTS), "|\n|---|", "--:|" * len(PARTS), sep="")
    for name in ("fresh", "idle"):
        print(f"| {name} |", " | ".join(f"{found[f'{name}_mib'][part]:.0f}" for part in PARTS), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
