"""Topics, reading back, sending with barriers and the snapshot log, on a real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType

from irregulars.errors import ServiceUnavailable, TopicMismatch
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.scattered_reading import RecentMessages
from irregulars.kafka.topic_admin import check_topics, create_topics
from irregulars.kafka.topics import CLEANING, SNAPSHOT_TOPICS, TOPICS, WORKER_TOPICS, TopicSettings
from irregulars.messages.bundles import bundle_of, encode_bundle
from irregulars.messages.records import encode_batch
from irregulars.streams.snapshots.records import PositionRecord, decode_monitor, draft_of
from irregulars.streams.snapshots.snapshot_log import SnapshotLog
from tests.integration.worker_runs import Bus, Job, make_topics, wait_until

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Span:
    partition: int
    offsets: tuple[int, ...]
    rank: int = 0


@pytest.fixture
def partitions() -> int:
    return 2


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


def test_topics_of_snapshots_that_exist_are_cleaned_as_new_ones(kafka_bootstrap: str) -> None:
    """An installation of a version that let the broker keep its defaults."""
    topics = TopicSettings(prefix=f"test-{uuid4().hex[:8]}.", partitions=2)
    names = [topics.name(name) for name in SNAPSHOT_TOPICS]
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    old = {"cleanup.policy": "compact", "max.message.bytes": str(32 << 20)}
    make_topics(kafka_bootstrap, *names, partitions=2, config=old)
    report = create_topics(kafka_bootstrap, topics)
    assert (set(report.altered), report.stale) == (set(names), {})
    wanted = {**CLEANING, **old}
    for name in names:
        wait_until(lambda name=name: configuration(admin, name).items() >= wanted.items(), "another configuration")
    assert create_topics(kafka_bootstrap, topics).altered == ()


def configuration(admin: AdminClient, name: str) -> dict[str, str]:
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
    return {key: entry.value for key, entry in found.result(60).items()}


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
    create_topics(kafka_bootstrap, topics)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for future in admin.create_partitions([NewPartitions(topics.name("commops"), 5)]).values():
        future.result(60)
    name = topics.name("commops")
    wait_until(lambda: len(admin.list_topics(timeout=60).topics[name].partitions) == 5, "two partitions more")
    with pytest.raises(TopicMismatch, match=r"commops=5"):
        check_topics(kafka_bootstrap, topics)


def test_no_topic_is_made_that_would_not_fit_to_those_that_are_there(kafka_bootstrap: str) -> None:
    """A topic that a later release brings is made by somebody who has forgotten the number of partitions."""
    topics = TopicSettings(prefix=f"later-{uuid4().hex[:8]}.", partitions=8)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    there = {topics.name(name) for name in ("commops", "jobs", "evidence")}
    make_topics(kafka_bootstrap, *there, partitions=3)
    known = admin.list_topics
    wait_until(lambda: there <= set(known(timeout=60).topics), "the topics")
    with pytest.raises(TopicMismatch, match=r"must be as many as .*commops have, 3; got 8 .* No topic was made"):
        create_topics(kafka_bootstrap, topics)
    assert {name for name in known(timeout=60).topics if name.startswith(topics.prefix)} == there
    assert topics.name("job_snapshots") in create_topics(kafka_bootstrap, replace(topics, partitions=3)).created


def test_a_worker_needs_no_topic_that_it_does_not_use(kafka_bootstrap: str) -> None:
    topics = TopicSettings(prefix=f"few-{uuid4().hex[:8]}.", partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    wanted = {topics.name(name) for name in WORKER_TOPICS}
    make_topics(kafka_bootstrap, *wanted)
    known = admin.list_topics  # made by hand: the broker acknowledges them before its metadata has them
    wait_until(lambda: wanted <= set(known(timeout=60).topics), "the topics")
    assert set(check_topics(kafka_bootstrap, topics, names=WORKER_TOPICS)) == set(WORKER_TOPICS)
    with pytest.raises(TopicMismatch, match=r"got none named .*few-\w+\.actions"):
        check_topics(kafka_bootstrap, topics)


# --- reading back ---------------------------------------------------------------------------------------------------


def test_offsets_are_read_back_once_each_in_order(bus: Bus) -> None:
    fill_commops(bus, 200)
    assert iterations_of(bus, Span(1, (150, 3, 4)), Span(1, (4, 199))) == ([3, 4, 150, 199], [])


def test_of_a_bundle_the_ranks_are_read_that_were_asked_for(bus: Bus) -> None:
    job = Job(bus, "read", ranks=3)
    batches = [job.batch(rank, 0) for rank in range(3)]
    grouped = [replace(one, header=replace(one.header, group="node/0")) for one in batches]
    bus.producer.produce(bus.topics.name("commops"), encode_bundle(bundle_of(grouped)), partition=1)
    bus.flush()
    spans = [Span(1, (0,), rank=2), Span(1, (0,), rank=0)]
    for _ in range(2):  # the second time it is kept
        found = bus.reader.read_commops(bus.topics.name("commops"), spans)
        assert [batch.header.rank for batch in found.batches] == [0, 2]


def test_what_is_kept_need_not_be_read_and_what_was_read_is_kept(bus: Bus) -> None:
    fill_commops(bus, 5)
    topic, recent = bus.topics.name("commops"), RecentMessages(1 << 20)
    recent.add(1, 2, encode_batch(Job(bus, "kept", ranks=1).batch(0, 77)))
    reader = LogReader(bus.bootstrap, {}, recent=recent)
    for _ in range(2):
        found = reader.read_commops(topic, [Span(1, (1, 2, 3))])
        assert [int(batch.columns["iteration"][0]) for batch in found.batches] == [1, 77, 3]
        assert found.missing == []
        assert [offset for offset in range(5) if recent.get(1, offset) is not None] == [1, 2, 3]
    reader.close()


def test_reading_here_and_there_waits_for_nothing(bus: Bus) -> None:
    fill_commops(bus, 400)
    deadline_s = time.monotonic() + 40  # 2 s are enough; librdkafka's pause for full queues would make it 60 to 180 s
    for _ in range(60):
        assert iterations_of(bus, Span(1, (0, 200, 399)))[0] == [0, 200, 399]
        assert time.monotonic() < deadline_s


def test_behind_an_end_that_held_nothing_is_waited_for_again(bus: Bus) -> None:
    """Evidence of a topic that was made anew names thousands of offsets that the new one does not have yet."""
    fill_commops(bus, 3)
    began_s = time.monotonic()
    for offset in range(50, 70):
        assert iterations_of(bus, Span(1, (2, offset))) == ([2], [(1, offset)])
    assert time.monotonic() - began_s < 40  # 8 s for each: 160
    fill_commops(bus, 60)  # it grows, and what came is read
    assert len(iterations_of(bus, Span(1, (2, 50, 62)))[0]) == 3


def test_what_retention_has_deleted_is_missing_and_no_error(bus: Bus) -> None:
    fill_commops(bus, 30)
    admin = AdminClient({"bootstrap.servers": bus.bootstrap})
    place = TopicPartition(bus.topics.name("commops"), 1, 10)
    for future in admin.delete_records([place]).values():
        future.result(60)
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


def test_a_tail_ends_before_an_open_transaction(bus: Bus) -> None:
    fill_commops(bus, 3)
    name = bus.topics.name("commops")
    writer = Producer({"bootstrap.servers": bus.bootstrap, "transactional.id": name})
    writer.init_transactions(30.0)
    writer.begin_transaction()
    writer.produce(name, b"not committed", partition=1)
    writer.flush()
    assert len(bus.reader.read_tail(name, 1)) == 3
    writer.abort_transaction(30.0)


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
        await outbox.send(bus.topics.name("verdicts"), b"key", bytes(2 << 20))

    async def wait() -> None:
        await outbox.barrier()

    for work in (send, wait, wait):
        with pytest.raises(ServiceUnavailable, match="MSG_SIZE_TOO_LARGE"):
            asyncio.run(work())


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_the_newest_state_of_each_monitor_is_read(bus: Bus, outbox: Outbox) -> None:
    log = SnapshotLog(bus.topics.name("rank_snapshots"), bus.reader, outbox)
    writer = log.writer(1, log.read(1))
    large = {"number": 2, "bytes": bytes(3 << 20)}

    async def write() -> None:
        for number in range(3):
            await writer.write_monitor(b"job/0", draft_of({"commops": number}, {**large, "number": number}))
        await writer.write_monitor(b"job/1", draft_of({}, {}))
        await writer.delete_monitors([b"job/1"])
        await writer.write_position(PositionRecord(positions={"commops": 3}))
        await outbox.barrier()

    asyncio.run(write())
    assert writer.settle() is None
    stored = log.read(1)
    assert (stored.epoch, stored.position.positions, stored.position.ends) == (1, {"commops": 3}, None)
    found = {key: (one.seen, decode_monitor(one.state, dict[str, Any])) for key, one in stored.monitors.items()}
    assert found == {b"job/0": ({"commops": 2}, large)}
    assert log.read(0).epoch == 0
