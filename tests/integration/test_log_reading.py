"""Topics, reading back, sending with barriers and the snapshot log, on a real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from irregulars.errors import RecordError, ServiceUnavailable, TopicMismatch
from irregulars.streams.kafka.outbox import Outbox
from irregulars.streams.kafka.topic_admin import MAX_SNAPSHOT_BYTES, check_topics, create_topics
from irregulars.streams.kafka.topics import TOPICS, TopicSettings
from irregulars.streams.messages.records import encode_batch
from irregulars.streams.worker.snapshot_log import POSITION_KEY, SnapshotLog, encode_monitor
from tests.integration.worker_runs import Bus, Job

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Span:
    partition: int
    offsets: tuple[int, ...]


@pytest.fixture
def bus(kafka_bootstrap: str) -> Bus:
    return Bus(kafka_bootstrap, partitions=2)


@pytest.fixture
def outbox(bus: Bus) -> Iterator[Outbox]:
    outbox = Outbox(bus.bootstrap, {})
    yield outbox
    outbox.close()


def fill_commops(bus: Bus, count: int) -> None:
    job = Job(bus, "read", ranks=1)
    for iteration in range(count):
        bus.producer.produce(bus.topics.name("commops"), encode_batch(job.batch(0, iteration)), partition=1)
    bus.flush()


def iterations_of(bus: Bus, *spans: Span) -> tuple[list[int], list[tuple[int, int]]]:
    found = bus.reader.read_commops(bus.topics.name("commops"), spans)
    return [int(batch.columns["iteration"][0]) for batch in found.batches], found.missing


# --- topics ---------------------------------------------------------------------------------------------------------


def test_topics_are_made_once_and_fit_together(bus: Bus) -> None:
    report = create_topics(bus.bootstrap, bus.topics)
    assert report.created == ()
    assert set(report.existing) == {bus.topics.name(name) for name in TOPICS}
    counts = check_topics(bus.bootstrap, bus.topics)
    assert {counts[name] for name in TOPICS if TOPICS[name].is_parted_by_rank} == {2}


def test_new_topics_can_be_used_at_once(kafka_bootstrap: str) -> None:
    for _ in range(5):
        topics = TopicSettings(prefix=f"new-{uuid4().hex[:8]}.", partitions=4)
        create_topics(kafka_bootstrap, topics)
        assert check_topics(kafka_bootstrap, topics)["commops"] == 4


def test_other_numbers_of_partitions_are_named(kafka_bootstrap: str) -> None:
    topics = TopicSettings(prefix=f"uneven-{uuid4().hex[:8]}.", partitions=3)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for future in admin.create_topics([NewTopic(topics.name("commops"), 5, 1)]).values():
        future.result(10)
    assert topics.name("commops") in create_topics(kafka_bootstrap, topics).existing
    with pytest.raises(TopicMismatch, match=r"commops=5"):
        check_topics(kafka_bootstrap, topics)


# --- reading back ---------------------------------------------------------------------------------------------------


def test_offsets_are_read_back_once_each_in_order(bus: Bus) -> None:
    fill_commops(bus, 200)
    assert iterations_of(bus, Span(1, (150, 3, 4)), Span(1, (4, 199))) == ([3, 4, 150, 199], [])


def test_reading_here_and_there_waits_for_nothing(bus: Bus) -> None:
    fill_commops(bus, 400)
    started_s = time.monotonic()
    for _ in range(20):
        assert iterations_of(bus, Span(1, (0, 200, 399)))[0] == [0, 200, 399]
    assert time.monotonic() - started_s < 10  # 0.7 s; librdkafka's pause for full queues would make it 20 to 60 s


def test_what_retention_has_deleted_is_missing_and_no_error(bus: Bus) -> None:
    fill_commops(bus, 30)
    admin = AdminClient({"bootstrap.servers": bus.bootstrap})
    place = TopicPartition(bus.topics.name("commops"), 1, 10)
    for future in admin.delete_records([place]).values():
        future.result(10)
    assert iterations_of(bus, Span(1, (8, 9, 10, 11, 99))) == ([10, 11], [(1, 8), (1, 9), (1, 99)])


def test_what_cannot_be_decoded_is_missing(bus: Bus) -> None:
    bus.producer.produce(bus.topics.name("commops"), b"nonsense", partition=1)
    fill_commops(bus, 1)
    assert iterations_of(bus, Span(1, (0, 1))) == ([0], [(1, 0)])


def test_a_tail_begins_where_it_is_asked_to(bus: Bus) -> None:
    fill_commops(bus, 5)
    name = bus.topics.name("commops")
    assert [message.offset() for message in bus.reader.read_tail(name, 1, 3)] == [3, 4]
    assert bus.reader.read_tail(name, 1, 5) == []
    assert bus.reader.read_tail(name, 0) == []


# --- sending --------------------------------------------------------------------------------------------------------


def test_a_barrier_returns_when_all_before_it_stands_on_the_broker(bus: Bus, outbox: Outbox) -> None:
    name = bus.topics.name("verdicts")

    async def send() -> int | None:
        for number in range(2000):
            await outbox.send(name, b"key", b"%d" % number)
        await outbox.barrier()
        return outbox.end_offset(name, 0)

    assert asyncio.run(send()) == 2000
    assert [int(message.value()) for message in bus.read("verdicts")] == list(range(2000))


def test_a_message_that_cannot_be_delivered_fails_this_barrier_and_all_later_ones(bus: Bus, outbox: Outbox) -> None:
    async def send() -> None:
        await outbox.send(bus.topics.name("verdicts"), b"key", bytes(MAX_SNAPSHOT_BYTES + 1))

    async def wait() -> None:
        await outbox.barrier()

    for work in (send, wait, wait):
        with pytest.raises(ServiceUnavailable, match="MSG_SIZE_TOO_LARGE"):
            asyncio.run(work())


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_the_newest_state_of_each_monitor_is_read(bus: Bus, outbox: Outbox) -> None:
    log = SnapshotLog(bus.topics.name("rank_snapshots"), bus.reader, outbox)

    async def write() -> None:
        for number in range(3):
            await log.write_monitor(1, b"job/0", encode_monitor(1, {"commops": number}, {"number": number}))
        await log.write_monitor(1, b"job/1", encode_monitor(1, {}, {}))
        await log.write_position(1, 1, {"commops": 3}, None)
        await log.delete_monitors(1, [b"job/1"])
        await outbox.barrier()

    asyncio.run(write())
    stored = log.read(1)
    assert (stored.epoch, stored.positions, stored.ends) == (1, {"commops": 3}, None)
    assert [(one.key, one.seen, one.state) for one in stored.monitors] == [(b"job/0", {"commops": 2}, {"number": 2})]
    assert log.read(0).epoch == 0


def test_what_an_owner_of_before_writes_late_does_not_count(bus: Bus, outbox: Outbox) -> None:
    log = SnapshotLog(bus.topics.name("rank_snapshots"), bus.reader, outbox)

    async def write() -> None:
        await log.write_position(0, 2, {"commops": 9}, None)
        await log.write_monitor(0, b"job/0", encode_monitor(2, {"commops": 8}, "new"))
        await log.write_monitor(0, b"job/0", encode_monitor(1, {"commops": 4}, "old"))
        await log.write_position(0, 1, {"commops": 5}, None)
        await outbox.barrier()

    asyncio.run(write())
    stored = log.read(0)
    assert stored.positions == {"commops": 9}
    assert [one.state for one in stored.monitors] == ["new"]


def test_a_record_that_cannot_be_read_is_an_error_that_says_where(bus: Bus, outbox: Outbox) -> None:
    log = SnapshotLog(bus.topics.name("rank_snapshots"), bus.reader, outbox)
    bus.producer.produce(bus.topics.name("rank_snapshots"), b"nonsense", POSITION_KEY, partition=0)
    bus.flush()
    with pytest.raises(RecordError, match=r"rank_snapshots/0 offset 0, key b'\\x00position'"):
        log.read(0)
