"""Fetching assigned partitions beside the event loop, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from confluent_kafka import Producer

from irregulars.streams.faust_driver import block_fetcher
from irregulars.streams.faust_driver.block_fetcher import MOST_MESSAGES, BlockFetcher, Place, Record
from tests.integration.worker_runs import make_topics

pytestmark = pytest.mark.integration
WITHIN_S = 60.0


class Taken:
    def __init__(self, bootstrap: str) -> None:
        self.ready = threading.Event()
        self.fetcher = BlockFetcher(bootstrap, {}, self.ready.set)
        self.records: dict[Place, list[Record]] = {}

    def take(self, places: set[Place] | None = None) -> None:
        for place, own in self.fetcher.take(places).items():
            self.records.setdefault(place, []).extend(own)

    def take_until(self, is_enough: Callable[[], bool], places: set[Place] | None = None) -> None:
        until_s = monotonic() + WITHIN_S
        while not is_enough():
            assert monotonic() < until_s, {place: len(own) for place, own in self.records.items()}
            self.ready.wait(0.05)
            self.ready.clear()
            self.take(places)

    def offsets(self, place: Place) -> list[int]:
        return [record.offset for record in self.records.get(place, [])]


@contextmanager
def fetching(bootstrap: str) -> Iterator[Taken]:
    taken = Taken(bootstrap)
    taken.fetcher.start()
    try:
        yield taken
    finally:
        taken.fetcher.close(10.0)


@pytest.fixture
def topic(kafka_bootstrap: str, topic_prefix: str) -> str:
    name = f"{topic_prefix}commops"
    make_topics(kafka_bootstrap, name, partitions=2)
    return name


def fill(bootstrap: str, topic: str, partition: int, values: list[bytes], transaction: str | None = None) -> None:
    own = {"transactional.id": transaction} if transaction else {}
    producer = Producer({"bootstrap.servers": bootstrap, **own})
    if transaction:
        producer.init_transactions(WITHIN_S)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"key", partition)
    producer.flush(WITHIN_S)
    if transaction:
        producer.commit_transaction(WITHIN_S)


def test_partitions_are_read_from_where_they_are_assigned(kafka_bootstrap: str, topic: str) -> None:
    for partition in (0, 1):
        fill(kafka_bootstrap, topic, partition, [b"%d" % number for number in range(10)])
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 3, (topic, 1): 0}, 7)
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 7 and len(taken.offsets((topic, 1))) >= 10)
        assert taken.offsets((topic, 0)) == list(range(3, 10))
        assert taken.offsets((topic, 1)) == list(range(10))
        first = taken.records[topic, 0][0]
        assert (first.key, first.value, first.generation_id) == (b"key", b"3", 7)
        assert first.timestamp > 1e9
        fill(kafka_bootstrap, topic, 0, [b"later"])
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 8)
        assert taken.fetcher.position((topic, 0)) == 11


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_any_producer_has_compressed_is_read(kafka_bootstrap: str, topic: str, codec: str) -> None:
    values = [b"the same in each message %d " % number * 40 for number in range(20)]
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "compression.type": codec, "linger.ms": 100})
    for value in values:
        producer.produce(topic, value, b"key", 0)
    producer.flush(WITHIN_S)
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 0}, 1)
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= len(values))
        assert [one.value for one in taken.records[topic, 0]] == values


def test_what_was_fetched_for_another_assignment_is_not_given(kafka_bootstrap: str, topic: str) -> None:
    fill(kafka_bootstrap, topic, 0, [b"%d" % number for number in range(10)])
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 0}, 1)
        assert taken.ready.wait(WITHIN_S)
        taken.fetcher.assign({(topic, 0): 8}, 2)
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 2)
        assert [(one.offset, one.generation_id) for one in taken.records[topic, 0]] == [(8, 2), (9, 2)]
        taken.fetcher.assign({}, 3)
        fill(kafka_bootstrap, topic, 0, [b"not ours"])
        taken.ready.clear()
        assert not taken.ready.wait(1.0)
        assert taken.fetcher.position((topic, 0)) == -1


def test_a_sought_partition_is_read_again_and_others_go_on(kafka_bootstrap: str, topic: str) -> None:
    for partition in (0, 1):
        fill(kafka_bootstrap, topic, partition, [b"%d" % number for number in range(10)])
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 0, (topic, 1): 0}, 1)
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 10, {(topic, 0)})  # the other one's wait
        taken.fetcher.seek({(topic, 0): 6, ("another", 0): 0})
        fill(kafka_bootstrap, topic, 1, [b"later"])
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 14 and len(taken.offsets((topic, 1))) >= 11)
        assert taken.offsets((topic, 0)) == [*range(10), *range(6, 10)]
        assert taken.offsets((topic, 1)) == list(range(11))


def test_positions_pass_what_holds_no_messages(kafka_bootstrap: str, topic: str) -> None:
    fill(kafka_bootstrap, topic, 0, [b"one", b"two"], transaction=f"{topic}-writer")  # a marker stands at offset 2
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 0}, 1)
        taken.take_until(lambda: taken.fetcher.position((topic, 0)) == 3)
        assert taken.offsets((topic, 0)) == [0, 1]


def test_an_offset_that_retention_deleted_is_passed_over(kafka_bootstrap: str, topic: str) -> None:
    fill(kafka_bootstrap, topic, 0, [b"%d" % number for number in range(4)])
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 900}, 1)
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 4)
        assert taken.offsets((topic, 0)) == [0, 1, 2, 3]


def test_what_nobody_takes_is_bounded(kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_fetcher, "MOST_READY_BYTES", 40_000)
    monkeypatch.setattr(block_fetcher, "_AT_ONCE", 2)
    fill(kafka_bootstrap, topic, 0, [bytes(10_000) for _ in range(50)])
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 0}, 1)
        assert taken.ready.wait(WITHIN_S)
        threading.Event().wait(1.0)
        assert taken.fetcher.position((topic, 0)) == 0, "nothing was taken"
        taken.take_until(lambda: bool(taken.records))
        assert 0 < taken.fetcher.position((topic, 0)) <= 10, "fetching must wait until something is taken"
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 50)
        assert taken.offsets((topic, 0)) == list(range(50))


def test_of_a_partition_only_some_are_taken_at_once(kafka_bootstrap: str, topic: str) -> None:
    """Whoever takes them may have room for no more."""
    fill(kafka_bootstrap, topic, 0, [b"x"] * 500)
    with fetching(kafka_bootstrap) as taken:
        taken.fetcher.assign({(topic, 0): 0}, 1)
        until_s = monotonic() + WITHIN_S
        while taken.fetcher._wanted.get((topic, 0)) != 500:
            assert monotonic() < until_s
            threading.Event().wait(0.05)
        taken.take()
        assert taken.offsets((topic, 0)) == list(range(2 * MOST_MESSAGES))
        assert taken.fetcher.position((topic, 0)) == 2 * MOST_MESSAGES
        taken.take_until(lambda: len(taken.offsets((topic, 0))) >= 500)
        assert taken.offsets((topic, 0)) == list(range(500))
