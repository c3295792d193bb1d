"""A worker's stages that hold partitions, and its observer, on no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import TopicSettings
from irregulars.streams.health.counters import PREFIX, Counters
from irregulars.streams.health.observer import Hop, Observer
from irregulars.streams.stages.partition_state import PartitionState


@dataclass
class Stage:
    hop: str
    states: dict[int, PartitionState[None]] = field(default_factory=dict)

    def state_bytes(self) -> int:
        return 300 * len(self.states)


class Worker:
    def __init__(self, outbox: Outbox) -> None:
        self.rank, self.job, topics = Stage("rank"), Stage("job"), TopicSettings()
        hops = (Hop(self.rank, lambda partition, read_to: 90.0), Hop(self.job, lambda partition, read_to: None))
        self.observer = Observer(
            Counters(), outbox, DeadLetters(outbox, topics), topics, "g", hops, lambda: True, lambda: 100.0
        )

    def look(self) -> None:
        asyncio.run(self.observer.observe())

    def families(self) -> Iterable[Metric]:
        return self.observer.counters.registry.collect()

    def values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        samples = [sample for family in self.families() for sample in family.samples]
        return {(one.name.removeprefix(PREFIX), tuple(one.labels.values())): one.value for one in samples}


def observed_metrics() -> list[Metric]:
    """All metrics of a worker that holds a partition: each has a sample, which names its labels."""
    outbox = Outbox("127.0.0.1:1", {})
    worker = Worker(outbox)
    worker.rank.states[0] = PartitionState(0, 1, 1, {"commops": 10})
    worker.observer.saw_ends({0: {"commops": 20}})
    worker.look()
    outbox.close(0.0)
    return list(worker.families())
