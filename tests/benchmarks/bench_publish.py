"""Processor time of a producer: from columns of operators to Kafka, beside confluent-kafka sending ready bytes.

    python -m tests.benchmarks.bench_publish

The operators of a host's ranks are ready as numpy columns. Three ways take turns in one process: encoding alone
(columns to the bytes of messages), plain confluent-kafka that sends these bytes with the settings of our producers,
and the agent as it is (`producers.publishing.agent.Agent`: bundles, Arrow, librdkafka, acknowledgements). The broker
is a real Apache Kafka. Counted is the processor time of this process, all of librdkafka's threads included; other
programs on the machine change it less than wall time. Prints a Markdown table. Not a test.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from confluent_kafka import Producer

from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import MAX_MESSAGE_BYTES, TopicSettings, group_key, rank_key
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.bundles import decode_rows, group_of
from irregulars.messages.records import UNKNOWN, Batch, Header
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.publishing.batches import BATCH_ROWS, Bundler, encode_in_parts, encode_together
from irregulars.producers.publishing.publisher import COMPRESSIONS, AgentSettings, Publisher
from irregulars.producers.publishing.sources import Record
from tests.apache_kafka.broker import KafkaBroker

JOB = "bench-publish"
HOST = "node-1"
START_NS = 1_700_000_000_000_000_000
NAMES = ("world", "ranks-0-8-by-1", "ranks-0-56-by-8", "ranks-0-512-by-64")
LONGEST_WAIT_S = 120.0


@dataclass(frozen=True)
class Load:
    """What one round publishes."""

    ranks: int
    batches: int
    rows: int
    is_bundled: bool
    compression: str
    seed: int

    @property
    def operators(self) -> int:
        return self.ranks * self.batches * self.rows


@dataclass(frozen=True)
class Round:
    """Processor seconds of the three ways."""

    encoding_s: float
    plain_s: float
    agent_s: float


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


def encode(load: Load, batches: Sequence[Batch]) -> Iterator[bytes]:
    """Encode as the agent does."""
    if not load.is_bundled:
        for batch in batches:
            yield from (value for _, value in encode_in_parts(batch, MAX_MESSAGE_BYTES))
        return
    bundler = Bundler(1.0)
    for announcement in announcements(load):
        bundler.announce(announcement)
    for batch in batches:
        for together in bundler.add(batch, 0.0):
            yield from (value for _, value in encode_together(together, MAX_MESSAGE_BYTES))


def send_plainly(settings: AgentSettings, values: Sequence[bytes], keys: Sequence[bytes]) -> None:
    """Send ready bytes with the settings of our producers."""
    producer: Any = Producer(Publisher(settings)._config())
    name = settings.topics.name("commops")
    for value, key in zip(values, keys, strict=True):
        while True:
            try:
                producer.produce(name, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(LONGEST_WAIT_S)
    if left:
        raise SystemExit(f"Kafka must take all messages within {LONGEST_WAIT_S:g} s; {left} are left")


def send_by_agent(settings: AgentSettings, records: Sequence[Record], operators: int) -> None:
    progress = Agent(Ready(records), settings).run()
    if progress.rows != operators:
        raise SystemExit(f"the agent must publish {operators} rows; it published {progress.rows}")


def spent_s(work: Callable[[], object]) -> float:
    """Processor seconds of this process, all threads, user and kernel."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(load: Load, bootstrap: str, rounds: int) -> list[Round]:
    batches = batches_of(load)
    values = list(encode(load, batches))
    if sum(len(decode_rows(value, "commops")) for value in values) != load.operators:
        raise SystemExit("what was encoded must decode to as many rows; it does not")
    group = group_of(HOST, 0) or ""
    keys = [group_key(JOB, group) if load.is_bundled else rank_key(JOB, n % load.ranks) for n in range(len(values))]
    records: list[Record] = [*announcements(load), *batches]
    measured = []
    for _ in range(rounds + 1):
        topics = TopicSettings(f"bench-{uuid4().hex[:8]}.")
        create_topics(bootstrap, topics)
        settings = AgentSettings(bootstrap, topics, compression=load.compression)
        measured.append(
            Round(
                spent_s(lambda: deque(encode(load, batches), maxlen=0)),
                spent_s(lambda: send_plainly(settings, values, keys)),  # noqa: B023
                spent_s(lambda: send_by_agent(settings, records, load.operators)),  # noqa: B023
            )
        )
    return measured[1:]  # the first one warms up


def report(load: Load, found: Sequence[Round]) -> dict[str, Any]:
    """Medians over the rounds; ratios are those of each round, since a busy machine slows all of one round alike."""
    middle = {way: statistics.median(getattr(one, way) for one in found) for way in asdict(found[0])}
    rates = {way.removesuffix("_s"): load.operators / seconds / 1e6 for way, seconds in middle.items()}
    return {
        **asdict(load),
        "operators": load.operators,
        "million_operators_per_core_s": rates,
        "ns_per_operator": {way: 1e3 / rate for way, rate in rates.items()},
        "agent_to_plain_ratio": statistics.median(one.agent_s / one.plain_s for one in found),
    }


def table(reports: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| messages | compression | encoding, ns an operator | plain confluent-kafka, ns | agent, ns "
        "| agent, M operators/s of a core | agent / plain |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for one in reports:
        ns = one["ns_per_operator"]
        lines.append(
            f"| {'bundles of ' + str(one['ranks']) + ' ranks' if one['is_bundled'] else 'batches'} "
            f"| {one['compression']} | {ns['encoding']:.0f} | {ns['plain']:.0f} | {ns['agent']:.0f} "
            f"| {one['million_operators_per_core_s']['agent']:.2f} | {one['agent_to_plain_ratio']:.2f} |"
        )
    return "\n".join(lines)


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
    reports = []
    with KafkaBroker() as broker:
        for compression in own.compression:
            for is_bundled in (True, False):
                load = Load(own.ranks, own.batches, own.rows, is_bundled, compression, own.seed)
                reports.append(report(load, measure(load, broker.bootstrap, own.rounds)))
    if own.json is not None:
        own.json.write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")
    print(f"{own.ranks * own.batches * own.rows:,} operators a round, {own.rounds} rounds, seed {own.seed}; "
          f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print(table(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main())
