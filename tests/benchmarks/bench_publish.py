"""Processor time of a producer: from columns of operators to Kafka.

    python -m tests.benchmarks.bench_publish

The operators of a host's ranks are ready as numpy columns, and sent by the agent as it is
(`producers.publishing.agent.Agent`: bundles, Arrow, librdkafka, acknowledgements) to a real Apache Kafka. Counted is
the processor time of this process, all of librdkafka's threads included; other programs on the machine change it less
than wall time. Prints a Markdown table. Not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from uuid import uuid4

import numpy as np

from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.bundles import group_of
from irregulars.messages.records import UNKNOWN, Batch, Header
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.publishing.batches import BATCH_ROWS
from irregulars.producers.publishing.publisher import COMPRESSIONS, AgentSettings
from irregulars.producers.publishing.sources import Record
from tests.apache_kafka.broker import KafkaBroker

JOB = "bench-publish"
HOST = "node-1"
START_NS = 1_700_000_000_000_000_000
NAMES = ("world", "ranks-0-8-by-1", "ranks-0-56-by-8", "ranks-0-512-by-64")


@dataclass(frozen=True)
class Load:
    ranks: int
    batches: int
    rows: int
    is_bundled: bool
    compression: str
    seed: int

    @property
    def operators(self) -> int:
        return self.ranks * self.batches * self.rows


def batches_of(load: Load) -> list[Batch]:
    """Give the operators of all ranks, as a training process hands them over: batch by batch, rank by rank."""
    random = np.random.default_rng(load.seed)
    group = group_of(HOST, 0) if load.is_bundled else None
    made = []
    for number in range(load.batches):
        ordinals = np.arange(number * load.rows, (number + 1) * load.rows, dtype=np.int64)
        for rank in range(load.ranks):
            starts_ns = START_NS + ordinals * 100_000 + random.integers(0, 20_000, load.rows)
            is_p2p = random.random(load.rows) < 0.1
            columns: dict[str, np.ndarray] = {
                "communicator": random.integers(0, len(NAMES), load.rows).astype(np.uint16),
                "operator": np.where(is_p2p, 9, random.integers(0, 3, load.rows)).astype(np.uint8),
                "sequence": ordinals,
                "peer": np.where(is_p2p, rank + load.ranks, UNKNOWN),
                "start_ns": starts_ns,
                "elapsed_ns": np.floor(random.lognormal(11, 0.3, load.rows)),
                "size_bytes": random.choice([1e6, 2e6, 4e6, 25e6], load.rows),
                "iteration": ordinals // 500,
            }
            header = Header("commops", JOB, 0, rank, number * load.rows, int(starts_ns.max()), NAMES, group)
            made.append(Batch(header, columns))
    return made


def announcements(load: Load) -> list[Announcement]:
    everybody = tuple(range(load.ranks))
    groups = tuple(Communicator(name, "dp", everybody) for name in NAMES)
    group = group_of(HOST, 0) if load.is_bundled else None
    return [Announcement(JOB, 0, rank, load.ranks, load.ranks, groups, host=HOST, group=group) for rank in everybody]


class Ready:
    """A source whose records are there already."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = deque(records)

    def poll(self, max_records: int) -> Sequence[Record]:
        taken: list[Record] = []
        while self._records and max_records > 0:
            taken.append(self._records.popleft())
            max_records -= BATCH_ROWS
        return taken

    def position(self) -> str:
        return str(len(self._records))

    @property
    def is_exhausted(self) -> bool:
        return not self._records

    def close(self) -> None:
        pass


def measure(load: Load, bootstrap: str, rounds: int) -> float:
    """Return the processor seconds of this process, all threads, for a round: the median after a first one."""
    records: list[Record] = [*announcements(load), *batches_of(load)]
    spent_s = []
    for _ in range(rounds + 1):
        topics = TopicSettings(f"bench-{uuid4().hex[:8]}.")
        create_topics(bootstrap, topics)
        before = resource.getrusage(resource.RUSAGE_SELF)
        progress = Agent(Ready(records), AgentSettings(bootstrap, topics, compression=load.compression)).run()
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if progress.rows != load.operators:
            raise SystemExit(f"the agent must publish {load.operators} rows; it published {progress.rows}")
    return statistics.median(spent_s[1:])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, help="of one host")
    parser.add_argument("--batches", type=int, default=100, help="of each rank in a round")
    parser.add_argument("--rows", type=int, default=BATCH_ROWS, help="of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compression", nargs="*", default=list(COMPRESSIONS), choices=COMPRESSIONS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    own = parse(arguments)
    print(f"{own.ranks * own.batches * own.rows:,} operators a round, {own.rounds} rounds, seed {own.seed}; "
          f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print("| messages | compression | ns an operator | M operators/s of a core |", "|---|---|--:|--:|", sep="\n")
    reports = []
    with KafkaBroker() as broker:
        for compression, is_bundled in product(own.compression, (True, False)):
            load = Load(own.ranks, own.batches, own.rows, is_bundled, compression, own.seed)
            rate = load.operators / measure(load, broker.bootstrap, own.rounds) / 1e6
            reports.append({**asdict(load), "million_operators_per_core_s": rate})
            messages = f"bundles of {load.ranks} ranks" if is_bundled else "batches"
            print(f"| {messages} | {compression} | {1e3 / rate:.0f} | {rate:.2f} |", flush=True)
    if own.json is not None:
        own.json.write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
