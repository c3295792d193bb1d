"""Half an hour at half the rate that one worker sustains: its memory must stay flat, and no verdict may differ.

    python -m tests.benchmarks.soak --minutes 30

First jobs are replayed as fast as Kafka takes them, which says what rate one worker with default settings sustains.
Then jobs come and go, each under a name of its own, at half that rate, and the worker's memory is noted. In the end
each verdict is compared with `analyze` of the same recording. Prints a Markdown table. Status 1 if a verdict is
missing, differs, or accuses somebody whom `analyze` does not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np

from irregulars.infra.commands.traces.replay import rename_job
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.configuration.wiring import agent_settings, monitor_settings
from irregulars.infra.runs.analysis import analyze
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from tests.apache_kafka.broker import KafkaBroker
from tests.benchmarks.overload import Found, simulate, told, wait_for_end, work

_AT_ONCE: Final = 4
_ITERATIONS: Final = 400
_FIRST_JOBS: Final = 8
_NOTED_EVERY_S: Final = 5.0
_JUDGED_WITHIN_S: Final = 600.0


@dataclass
class Memory:
    """What one process holds, noted from a thread."""

    pid: int
    at_s: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note it as long as the block lasts."""
        is_over, began_s = threading.Event(), time.monotonic()

        def follow() -> None:
            while not is_over.wait(_NOTED_EVERY_S):
                self.at_s.append(time.monotonic() - began_s)
                pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
                self.mib.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(10)

    def mean_mib(self, from_share: float, to_share: float) -> float:
        """Return its mean in a part of the time."""
        count = len(self.mib)
        return float(np.mean(self.mib[int(from_share * count) : int(to_share * count)]))

    def growth_mib_per_h(self) -> float:
        """Return the slope of a line through the second half."""
        half = len(self.mib) // 2
        return float(np.polyfit(self.at_s[half:], self.mib[half:], 1)[0] * 3600)


@dataclass(frozen=True)
class Replayed:
    """One job that was replayed: a recording under a name of its own."""

    directory: Path
    name: str
    rows: int


@dataclass(frozen=True)
class Truth:
    """What `analyze` says of a recording under some name."""

    verdicts: list[Found]
    seconds: float


def replay(directory: Path, name: str, settings: Settings, speed: float) -> Replayed:
    """Replay a recording under a name."""
    trace = rename_job(read_trace(directory), name, None)
    return Replayed(directory, name, Agent(TraceSource(trace, speed), agent_settings(settings)).run().rows)


def replay_until(
    directories: Sequence[Path], caller: int, settings: Settings, speed: float, ends_s: float
) -> list[Replayed]:
    """Replay one recording after the other, each under a new name, until a moment of the monotonic clock."""
    done: list[Replayed] = []
    while time.monotonic() < ends_s:
        number = len(done)
        done.append(
            replay(directories[(caller + number) % len(directories)], f"soak-{caller}-{number}", settings, speed)
        )
    return done


def truth(directory: Path, name: str, settings: Settings) -> Truth:
    """Ask `analyze`."""
    found = analyze(rename_job(read_trace(directory), name, None), monitor_settings(settings))
    return Truth([one.to_json() for one in found.verdicts], sum(one.elapsed_ns for one in found.iterations) / 1e9)


@dataclass
class Run:
    """One worker, its broker, and processes that publish.

    Attributes
    ----------
    rate
        Rows a second that the worker sustains.
    replayed
        All jobs, those of the first minute among them.
    """

    settings: Settings
    directories: Sequence[Path]
    pool: ProcessPoolExecutor
    replayed: list[Replayed] = field(default_factory=list)
    rate: float = 0.0

    def find_rate(self) -> None:
        """Publish everything once, as fast as it goes, and wait for the last verdict."""
        began_s = time.monotonic()
        names = [f"first-{number}" for number in range(len(self.directories))]
        count = len(names)
        self.replayed += self.pool.map(replay, self.directories, names, [self.settings] * count, [0.0] * count)
        wait_for_end(self.settings, count, self.wants(), time.monotonic() + _JUDGED_WITHIN_S)
        self.rate = sum(one.rows for one in self.replayed) / (time.monotonic() - began_s)

    def soak(self, seconds: float) -> None:
        """Publish at half the rate."""
        first = self.replayed[0]
        own_rate = first.rows / truth(first.directory, first.name, self.settings).seconds
        speed, ends_s = self.rate / 2 / _AT_ONCE / own_rate, time.monotonic() + seconds
        callers = [
            self.pool.submit(replay_until, self.directories, caller, self.settings, speed, ends_s)
            for caller in range(_AT_ONCE)
        ]
        for one in callers:
            self.replayed += one.result()

    def wants(self) -> dict[str, Found]:
        """Return the verdicts that `analyze` finds in all jobs that were replayed."""
        jobs = [(one.directory, one.name, self.settings) for one in self.replayed]
        found = self.pool.map(truth, *zip(*jobs, strict=True))
        return {str(one["verdict_id"]): one for own in found for one in own.verdicts}

    def has(self) -> dict[str, Found]:
        """Return the verdicts on the bus."""
        return told(self.settings, LogReader(self.settings.kafka_bootstrap, {}))


@dataclass(frozen=True)
class Outcome:
    """What half an hour showed."""

    rate: float
    replayed: Sequence[Replayed]
    took_s: float
    memory: Memory
    verdicts: int
    wrong: int
    said: str

    def rows(self) -> Iterator[tuple[str, str]]:
        """Give the rows of the table."""
        rows = sum(one.rows for one in self.replayed)
        yield "sustained, rows/s (as fast as Kafka takes them, until the last verdict)", f"{self.rate:,.0f}"
        yield "published at half of that: jobs, rows", f"{len(self.replayed)}, {rows:,}"
        yield "rows/s", f"{rows / self.took_s:,.0f}"
        yield "verdicts; wrong ones", f"{self.verdicts}; {self.wrong}"
        tenths = ", ".join(f"{self.memory.mean_mib(share, share + 0.1):.0f}" for share in (0.1, 0.4, 0.9))
        yield "worker's memory in the second, fifth and last tenth, MiB", tenths
        yield "growth in the second half, MiB/h", f"{self.memory.growth_mib_per_h():+.1f}"
        yield "warnings and errors in its log", str(self.said.count("level=WARNING") + self.said.count("level=ERROR"))


@contextmanager
def working(settings: Settings, log: Path) -> Iterator[int]:
    """Let one worker run; gives its process id."""
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(settings, str(log)))
    worker.start()
    try:
        yield worker.pid or 0
    finally:
        worker.terminate()
        worker.join(30)


def run(minutes: float, folder: Path) -> Outcome:
    """Do it all."""
    log, numbers = folder / "worker.log", range(_FIRST_JOBS)
    context = multiprocessing.get_context("spawn")
    with KafkaBroker() as broker, ProcessPoolExecutor(_AT_ONCE, context) as pool:
        settings = Settings(
            kafka_bootstrap=broker.bootstrap, topic_prefix=f"soak-{uuid4().hex[:6]}.", data_dir=folder / "data"
        )
        create_topics(broker.bootstrap, settings.topics())
        directories = list(pool.map(simulate, [folder] * len(numbers), numbers, [_ITERATIONS] * len(numbers)))
        with working(settings, log) as pid:
            own = Run(settings, directories, pool)
            own.find_rate()
            print(f"sustained: {own.rate:,.0f} rows/s; {minutes:g} minutes at half of that begin", file=sys.stderr)
            memory, before, began_s = Memory(pid), len(own.replayed), time.monotonic()
            with memory.noted():
                own.soak(60 * minutes)
                took_s = time.monotonic() - began_s
            wants = own.wants()
            wait_for_end(settings, len(own.replayed), wants, time.monotonic() + _JUDGED_WITHIN_S)
            has = own.has()
    wrong = len(wants.keys() ^ has.keys()) + sum(wants[one] != has[one] for one in wants.keys() & has.keys())
    return Outcome(
        own.rate, own.replayed[before:], took_s, memory, len(wants), wrong, log.read_text()
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Let jobs come and go at half the rate that a worker sustains.")
    parser.add_argument("--minutes", type=float, default=30.0)
    own = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        outcome = run(own.minutes, folder)
    finally:
        shutil.rmtree(folder)
    print(
        f"`python -m tests.benchmarks.soak --minutes {own.minutes:g}`: {os.cpu_count()} cores, {platform.machine()}\n"
    )
    print("| | |", "|:--|--:|", *(f"| {name} | {value} |" for name, value in outcome.rows()), sep="\n")
    if outcome.wrong:
        print(outcome.said[-4000:], file=sys.stderr)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
