from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.records import UNKNOWN, Batch, Header, encode_batch
from irregulars.streams.faust_driver.block_fetcher import Record
from irregulars.streams.stages.rank_work import LeftSamples, ParkedMessage, ParkingLot, decode


def message(offset: int, key: bytes = b"job/0", at_s: float = 0.0, size_bytes: int = 10) -> ParkedMessage:
    read = Record("x.commops", 0, offset, 0.0, key, bytes(size_bytes - len(key)))
    return ParkedMessage(read, "commops", at_s)


def test_messages_of_a_key_come_back_in_their_order() -> None:
    lot = ParkingLot(1000, 60.0)
    for offset in (3, 4, 9):
        lot.add(b"job/0", message(offset))
    lot.add(b"job/1", message(5, b"job/1"))
    assert [one.message.offset for one in lot.take(b"job/0")] == [3, 4, 9]
    assert lot.take(b"job/0") == []
    assert lot.size_bytes == 10


def test_a_key_is_given_up_when_its_first_message_has_waited_too_long() -> None:
    lot = ParkingLot(1000, 60.0)
    lot.add(b"job/0", message(0, at_s=0.0))
    lot.add(b"job/0", message(1, at_s=59.0))
    lot.add(b"job/1", message(2, b"job/1", at_s=30.0))
    assert lot.take_overdue(59.9) == []
    assert [one.message.offset for one in lot.take_overdue(60.0)] == [0, 1]
    assert lot.take(b"job/1")


def test_the_oldest_keys_are_given_up_when_memory_is_short() -> None:
    lot = ParkingLot(25, 60.0)
    for rank in range(4):
        key = b"job/%d" % rank
        lot.add(key, message(rank, key))
    assert [one.message.offset for one in lot.take_overdue(1.0)] == [0, 1]
    assert lot.size_bytes == 20


def batch_of(rank: int) -> bytes:
    columns = {
        "communicator": np.zeros(1, np.uint16), "operator": np.zeros(1, np.uint8), "sequence": np.zeros(1, np.int64),
        "peer": np.full(1, UNKNOWN), "start_ns": np.zeros(1, np.int64), "elapsed_ns": np.ones(1),
        "size_bytes": np.ones(1), "iteration": np.zeros(1, np.int64),
    }  # fmt: skip
    return encode_batch(Batch(Header("commops", "job", 0, rank, names=("world",)), columns))


def test_the_key_must_name_the_rank_inside() -> None:
    assert decode("commops", b"job/3", batch_of(3))
    with pytest.raises(RecordError, match=r"key must be b'job/3', the rank inside; got b'job/4'"):
        decode("commops", b"job/4", batch_of(3))
    with pytest.raises(RecordError, match="got None"):
        decode("commops", None, batch_of(3))


def test_a_batch_on_another_topic_is_refused() -> None:
    with pytest.raises(RecordError, match="schema must be 'bandwidth'"):
        decode("bandwidth", b"job/3", batch_of(3))


def left(offsets: list[int], topic: str = "bandwidth") -> LeftSamples:
    made = LeftSamples()
    for offset in offsets:
        made.add(topic, offset)
    return made


@given(st.lists(st.integers(0, 600) | st.integers(0, 12)))
def test_messages_whose_samples_are_left_come_back_once_in_order(offsets: list[int]) -> None:
    made = left([*range(300), *offsets])
    assert len(made) >= len({*range(300), *offsets})
    found = list(made.take())
    assert [one for _, own in found for one in own] == sorted({*range(300), *offsets})
    assert {topic for topic, _ in found} == {"bandwidth"}
    assert max(len(own) for _, own in found) <= 256
    assert (len(made), list(made.take())) == (0, [])


def test_messages_that_follow_each_other_take_no_memory_each() -> None:
    """A database that is away for a day leaves some hundred million messages to Kafka."""
    made = left([3, 4, 5, 9])
    tracemalloc.start()
    for offset in range(10, 100_000):
        made.add("bandwidth", offset)
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size_bytes < 10_000
    assert len(made) == 3 + 99_991
