"""Operators per second of processor time through the first hop alone, from a message's bytes to evidence's bytes.

    python -m tests.benchmarks.bench_first_hop

One process, no Kafka: messages are decoded, go to the monitors of their ranks, and what these close is reduced and
encoded, 64 messages at a time as in a worker. Two loads: few large batches (2,000 operators of one rank, an iteration
in each, as `bench_worker` publishes), and many small parts (a simulated job of 1,024 ranks as agents of hosts with
eight GPUs publish it: a message a second of each host and topic). Prints a Markdown table; seconds are of CPU time,
the middle of some runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from irregulars.kafka.topics import MAX_MESSAGE_BYTES, group_key, rank_key
from irregulars.messages.announcements import Announcement
from irregulars.messages.bundles import group_of
from irregulars.messages.evidence import Evidence, Membership, decode_evidence
from irregulars.messages.evidence_parts import encode_within_limit
from irregulars.messages.records import encode_batch
from irregulars.producers.publishing.batches import Bundler, encode_together
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import published_ns, read_trace, trace_batches
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.group_monitor import GroupMonitor
from irregulars.streams.stages.rank_work import decode, monitor_key
from irregulars.streams.worker.running import share_the_interpreter
from tests.benchmarks import bench_worker

_ROUND: Final = 64
_RUNS: Final = 3


@dataclass(frozen=True)
class Message:
    """A message of the first hop's topics, and how many operators it holds."""

    topic: str
    key: bytes
    value: bytes
    operators: int = 0


@dataclass(frozen=True)
class Log:
    """What is put through the first hop."""

    job: str
    announcements: Sequence[Announcement]
    messages: Sequence[Message]

    @property
    def operators(self) -> int:
        """Of all messages."""
        return sum(message.operators for message in self.messages)


def large_batches(messages: int, ranks: int, seed: int) -> Log:
    """Make batches of 2,000 operators of one rank, an iteration in each."""
    load = bench_worker.Load("", "", messages, 2000, ranks, 8, "none", seed)
    rng, before = np.random.default_rng(seed), dict.fromkeys(range(ranks), 0)
    found = []
    for number in range(messages):
        rank, iteration = number % ranks, number // ranks
        value = encode_batch(bench_worker.batch(load, rng, rank, iteration, before[rank]))
        before[rank] += load.operators
        found.append(Message("commops", rank_key(bench_worker.JOB, rank), value, load.operators))
    return Log(bench_worker.JOB, [bench_worker.announcement(load, rank) for rank in range(ranks)], found)


def of_hosts(iterations: int, seed: int) -> Log:
    """Make the messages of the agents of 128 hosts, whose 1,024 ranks train."""
    settings = SimulatorSettings(job="hosts", dp=32, pp=4, tp=8, iterations=iterations, seed=seed)
    with tempfile.TemporaryDirectory(prefix="first-hop-") as folder:
        simulate_trace(Path(folder), settings)
        trace = read_trace(Path(folder))
    announcements = [replace(one, group=group_of(one.host, one.rank)) for one in trace.announcements]
    groups = {one.rank: one.group for one in announcements}
    bundler, found = Bundler(0.25), list[Message]()
    for one in announcements:
        bundler.announce(one)
    for batch in trace_batches(trace):
        now_s = published_ns(batch) / 1e9
        batch = replace(batch, header=replace(batch.header, group=groups[batch.header.rank]))
        for together in (*bundler.take_due(now_s), *bundler.add(batch, now_s)):
            found += messages_of(together)
    for together in bundler.take_all():
        found += messages_of(together)
    return Log(trace.job, announcements, found)


def messages_of(batches: Sequence) -> Iterator[Message]:  # type: ignore[type-arg]
    """Encode what an agent sends together."""
    header = batches[0].header
    for part, value in encode_together(batches, MAX_MESSAGE_BYTES):
        rows = sum(map(len, part)) if header.schema == "commops" else 0
        yield Message(header.schema, group_key(header.job, header.group or ""), value, rows)


class FirstHop:
    """The way of messages through the monitors, as a worker goes it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._monitors: dict[bytes, GroupMonitor] = {}
        self.values: list[bytes] = []
        for one in log.announcements:
            key = monitor_key(one)
            self._monitors.setdefault(key, GroupMonitor(log.job, JudgeSettings())).announce(one)

    def run(self) -> float:
        """Put all messages through; return the seconds of CPU time."""
        self._drain(set(self._monitors))
        self.values = []
        touched: set[bytes] = set()
        began_s = time.process_time()
        for number, message in enumerate(self._log.messages):
            record = decode(message.topic, message.key, message.value)
            self._monitors[message.key].add(record, number)  # type: ignore[arg-type]
            touched.add(message.key)
            if number % _ROUND == _ROUND - 1:
                self._drain(touched)
                touched = set()
        self._drain(touched)
        return time.process_time() - began_s

    def _drain(self, keys: set[bytes]) -> None:
        closed = [one for key in sorted(keys) for one in self._monitors[key].take_closed()]
        rows: Sequence[Evidence | Membership] = reduce_closings(self._log.job, closed)
        self.values += encode_within_limit(rows, self._log.job, MAX_MESSAGE_BYTES)


def measure(log: Log, runs: int) -> float:
    """Return the million operators a second of CPU time, the middle of some runs."""
    rates = []
    for _ in range(runs):
        hop = FirstHop(log)
        took_s = hop.run()
        reduced = [row for value in hop.values for row in decode_evidence(value) if isinstance(row, Evidence)]
        found = sum(int(row.columns["operators"].sum()) for row in reduced)
        if not log.operators * 0.8 <= found <= log.operators:
            raise SystemExit(f"evidence must hold most of {log.operators} operators; got {found}")
        rates.append(log.operators / took_s / 1e6)
    return median(rates)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1024, help="of the large batches")
    parser.add_argument("--ranks", type=int, default=64, help="of the large batches")
    parser.add_argument("--iterations", type=int, default=60, help="of the job of 1,024 ranks; 0: leave it out")
    parser.add_argument("--runs", type=int, default=_RUNS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    own = parser.parse_args(arguments)
    share_the_interpreter()
    logs = {"large": large_batches(own.messages, own.ranks, own.seed)}
    if own.iterations:
        logs["hosts"] = of_hosts(own.iterations, own.seed)
    rates = {name: measure(log, own.runs) for name, log in logs.items()}
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"`python -m tests.benchmarks.bench_first_hop`: seed {own.seed}; {machine}\n")
    print("| load | operators | messages | M operators/s |", "|:--|--:|--:|--:|", sep="\n")
    for name, log in logs.items():
        print(f"| {name} | {log.operators:,} | {len(log.messages):,} | {rates[name]:.2f} |")
    if own.json is not None:
        own.json.write_text(json.dumps(rates) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
