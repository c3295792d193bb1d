"""Where no message leads to a partition's end, reading counts as having come there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.topics import TopicSettings
from irregulars.streams.stages.partition_state import PartitionState
from irregulars.streams.worker.topic_watch import LogGaps

END = {0: {"commops": 9}}


class Log:
    """A log whose first message behind an offset is at `found`."""

    def __init__(self, found: int) -> None:
        self.found, self.asked, self.is_away = found, 0, False

    def next_offset(self, topic: str, partition: int, begin: int) -> int:
        self.asked += 1
        if self.is_away:
            raise ServiceUnavailable("no broker")
        return max(begin, self.found)

    def close(self) -> None:
        pass


@pytest.fixture
def state() -> Iterator[PartitionState[object]]:
    return PartitionState(0, 1, 1, {"commops": 7})


def look(gaps: LogGaps, state: PartitionState[object], times: int) -> int:
    for _ in range(times):
        asyncio.run(gaps.move_on([state], END))
    return state.read_to()["commops"]


def gaps_of(log: Log) -> LogGaps:
    return LogGaps(ReadingThread(log, "gaps"), TopicSettings())  # type: ignore[arg-type]  # all that is used of one


def test_a_marker_at_the_end_is_passed(state: PartitionState[object]) -> None:
    log = Log(found=9)
    gaps = gaps_of(log)
    assert look(gaps, state, 2) == 7, "a message may be on its way"
    assert log.asked == 0
    assert look(gaps, state, 1) == 9
    assert state.position() == {"commops": 9}
    assert look(gaps, state, 5) == 9
    assert log.asked == 1


def test_a_message_that_was_not_read_yet_is_waited_for(state: PartitionState[object]) -> None:
    gaps = gaps_of(Log(found=7))
    assert look(gaps, state, 20) == 7


def test_reading_that_goes_on_asks_nothing(state: PartitionState[object]) -> None:
    log = Log(found=9)
    gaps = gaps_of(log)
    for offset in range(7, 9):
        look(gaps, state, 2)
        state.take("commops", offset)
    assert log.asked == 0


def test_without_a_broker_the_clock_stands(state: PartitionState[object]) -> None:
    log = Log(found=9)
    gaps, log.is_away = gaps_of(log), True
    assert look(gaps, state, 3) == 7
    log.is_away = False
    assert look(gaps, state, 3) == 9
