"""A worker's place in its consumer group, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from faust.types import TP

from irregulars.errors import ServiceUnavailable
from irregulars.streams.faust_driver.group_member import GroupMember
from irregulars.streams.faust_driver.partition_offsets import BEGIN, END, PartitionOffsets
from irregulars.streams.worker_settings import WorkerSettings
from tests.integration.worker_runs import make_topics
from tests.waiting import until

pytestmark = pytest.mark.integration
WITHIN_S = 60.0
PARTITIONS = 4


class Worker:
    """A member of the group, and what it was told."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.member = GroupMember(WorkerSettings(bootstrap, group=group), self)
        self.may_give_back = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def revoked(self, own: set[TP], *, is_lost: bool) -> None:
        self.is_asked.set()
        await self.may_give_back.wait()

    async def assigned(self, own: set[TP]) -> None:
        assert self.member.own == own

    def failed(self, error: BaseException) -> None:
        raise AssertionError(error)


@asynccontextmanager
async def joined(bootstrap: str, group: str, topics: list[str]) -> AsyncIterator[Worker]:
    worker = Worker(bootstrap, group)
    worker.member.start()
    worker.member.subscribe(topics)
    try:
        yield worker
    finally:
        await asyncio.to_thread(worker.member.close, WITHIN_S)


@pytest.fixture
def topics(kafka_bootstrap: str, topic_prefix: str) -> list[str]:
    names = [f"{topic_prefix}{name}" for name in ("commops", "jobs")]
    make_topics(kafka_bootstrap, *names, partitions=PARTITIONS)
    return names


def test_partitions_of_one_number_go_together_once_given_back(kafka_bootstrap: str, topics: list[str]) -> None:
    async def run() -> None:
        group, every = topics[0], {TP(name, number) for name in topics for number in range(PARTITIONS)}
        async with joined(kafka_bootstrap, group, topics) as first:
            await until(lambda: first.member.own == every)
            async with joined(kafka_bootstrap, group, topics) as second:
                await asyncio.wait_for(first.is_asked.wait(), WITHIN_S)
                assert (first.member.own, second.member.own) == (every, set())
                first.may_give_back.set()
                second.may_give_back.set()
                await until(lambda: len(first.member.own) == len(second.member.own) == len(every) // 2)
                for one in (first, second):
                    numbers = {place.partition for place in one.member.own}
                    assert one.member.own == {TP(name, number) for name in topics for number in numbers}
            await until(lambda: first.member.own == every)

    asyncio.run(run())


def test_ends_are_asked_for_and_what_was_committed_is_in_the_group(kafka_bootstrap: str, topics: list[str]) -> None:
    producer, (topic, _) = Producer({"bootstrap.servers": kafka_bootstrap}), topics
    for partition in (0, 0, 2):
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(WITHIN_S) == 0
    places = [TP(topic, number) for number in range(PARTITIONS)]

    async def run() -> None:
        async with joined(kafka_bootstrap, topic, [topic]) as worker:
            worker.may_give_back.set()
            await until(lambda: len(worker.member.own) == PARTITIONS)
            offsets = PartitionOffsets(WorkerSettings(kafka_bootstrap))
            ends = await asked(offsets, places)
            assert list(map(ends.__getitem__, places)) == [2, 0, 1, 0]
            assert set((await offsets.ask(places, BEGIN)).values()) == {0}
            offsets.close()
            worker.member.commit({TP(topic, 0): 1, TP("of-another", 0): 5})

    asyncio.run(run())
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": topic})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=WITHIN_S)
    consumer.close()
    assert found.offset == 1


async def asked(offsets: PartitionOffsets, places: list[TP]) -> dict[TP, int]:
    """Return where they end, once the broker knows their leader: it may take a moment for that."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with suppress(ServiceUnavailable):
                return await offsets.ask(places, END)


def test_a_partition_that_a_broker_did_not_know_is_asked_for_anew(kafka_bootstrap: str, topics: list[str]) -> None:
    place, known = TP(topics[0], PARTITIONS), TP(topics[0], 0)

    async def run() -> None:
        offsets = PartitionOffsets(WorkerSettings(kafka_bootstrap))
        assert await asked(offsets, [known]) == {known: 0}
        with pytest.raises(ServiceUnavailable):
            await offsets.ask([place], END)
        admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
        admin.create_partitions([NewPartitions(topics[0], PARTITIONS + 1)])[topics[0]].result(WITHIN_S)
        assert await asked(offsets, [place]) == {place: 0}
        offsets.close()

    asyncio.run(run())
