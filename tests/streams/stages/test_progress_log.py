"""What workers tell one another: by whoever has a partition, and never what was not sent yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from irregulars.kafka.log_reader import ReadingThread
from irregulars.streams.stages.partition_state import Offsets, PartitionState
from irregulars.streams.stages.rank_stage import RankStage
from irregulars.streams.stages.stream_time import ProgressLog


@dataclass
class Message:
    value_bytes: bytes
    at: int

    def value(self) -> bytes:
        return self.value_bytes

    def offset(self) -> int:
        return self.at


@dataclass
class Topic:
    """The topic as its reader and its producer see it."""

    messages: list[bytes] = field(default_factory=list)

    async def send(self, topic: str, key: bytes, value: bytes, *, partition: int) -> None:
        assert partition == 0
        self.messages.append(value)

    def end_offset(self, topic: str, partition: int) -> int:
        return len(self.messages)

    def read_tail(self, topic: str, partition: int, begin: int) -> list[Message]:
        return [Message(value, at) for at, value in enumerate(self.messages)][begin:]


@pytest.fixture
def topic() -> Topic:
    return Topic()


def log_on(topic: Topic) -> ProgressLog:
    reading = ReadingThread(topic, "progress")  # type: ignore[arg-type]  # all that is used of reader and outbox
    return ProgressLog("progress", reading, topic)  # type: ignore[arg-type]


def read(log: ProgressLog) -> dict[int, Offsets]:
    return asyncio.run(log.read())


def test_only_what_is_told_from_now_on_counts(topic: Topic) -> None:
    """What stands there was told by workers of which nobody knows if they live."""
    asyncio.run(log_on(topic).write(0, {"commops": 5}))
    log = log_on(topic)
    assert read(log) == {}
    asyncio.run(log.write(1, {"commops": 7}))
    assert read(log) == {1: {"commops": 7}}


def test_the_newest_word_on_a_partition_counts_whoever_says_it(topic: Topic) -> None:
    log = log_on(topic)
    read(log)
    for partition, offset in ((0, 5), (1, 2), (0, 4)):
        asyncio.run(log_on(topic).write(partition, {"commops": offset}))
    assert read(log) == {0: {"commops": 4}, 1: {"commops": 2}}


@pytest.mark.parametrize("value", [b"", b"no JSON", b"[]", b'{"partition":0}', b'{"partition":0,"positions":3}'])
def test_what_no_worker_wrote_is_passed_over(topic: Topic, value: bytes) -> None:
    log = log_on(topic)
    read(log)
    topic.messages += [value, json.dumps({"partition": 0, "positions": {"commops": 3}}).encode()]
    assert read(log) == {0: {"commops": 3}}


def test_a_topic_that_was_cut_is_followed_from_its_end(topic: Topic) -> None:
    log = log_on(topic)
    read(log)
    asyncio.run(log.write(0, {"commops": 5}))
    assert read(log) == {0: {"commops": 5}}
    topic.messages.clear()
    assert read(log) == {}


class Steps:
    """Notes in which order things are done, and what a partition had read when it was asked."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.state: PartitionState[Any] = PartitionState(3, 1, 1, {"commops": 4})
        self.states = {3: self.state}
        self.is_held = True

    async def _settle_rows(self, states: Sequence[PartitionState[Any]]) -> None:
        self.done.append("rows sent")
        for state in states:
            state.take("commops", 4)  # read meanwhile: its evidence is not among what was sent

    async def barrier(self) -> None:
        self.done.append("acknowledged")

    def holds(self, state: PartitionState[Any]) -> bool:
        return self.is_held

    async def write(self, partition: int, positions: Offsets) -> None:
        self.done.append((partition, positions))

    @property
    def services(self) -> Any:
        return self

    @property
    def outbox(self) -> Any:
        return self


def test_progress_is_told_once_its_evidence_is_acknowledged_and_no_further() -> None:
    steps = Steps()
    asyncio.run(RankStage.tell_progress(steps, steps))  # type: ignore[arg-type]  # a stage of these steps alone
    assert steps.done == ["rows sent", "acknowledged", (3, {"commops": 4})]


def test_nothing_is_told_of_a_partition_that_went_meanwhile() -> None:
    steps = Steps()
    steps.is_held = False
    asyncio.run(RankStage.tell_progress(steps, steps))  # type: ignore[arg-type]  # a stage of these steps alone
    assert steps.done == ["rows sent", "acknowledged"]
