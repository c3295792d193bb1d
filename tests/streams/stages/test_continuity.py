"""Which messages a worker takes, and what it does when one is not the next of its partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.streams.stages import partition_state
from irregulars.streams.stages.partition_state import Continuity, PartitionState

TOPIC = "evidence"


class Log:
    """A partition with messages at some offsets, and a worker that reads on where it is sent."""

    def __init__(self, offsets: Iterable[int]) -> None:
        self.offsets = sorted(offsets)
        self.asked: list[int] = []
        self.sent_back: list[int] = []
        self.is_away = False

    async def first_offset(self, topic: str, partition: int, at: int) -> int:
        self.asked.append(at)
        if self.is_away:
            raise ServiceUnavailable("away")
        return next((offset for offset in self.offsets if offset >= at), 1000)

    async def go_back(self, topic: str, partition: int, offset: int) -> None:
        self.sent_back.append(offset)


class Reader:
    """Takes messages as a stage does."""

    def __init__(self, log: Log, begin: int) -> None:
        self.continuity = Continuity(log.first_offset, log.go_back)
        self.state: PartitionState[object] = PartitionState(4, 1, 1, {TOPIC: begin})
        self.taken: list[int] = []

    def gets(self, *offsets: int) -> list[int]:
        async def take() -> None:
            for offset in offsets:
                if await self.continuity.is_next(self.state, TOPIC, offset):
                    self.state.take(TOPIC, offset)
                    self.taken.append(offset)

        asyncio.run(take())
        return self.taken


def test_messages_in_order_are_taken_once_and_the_log_is_not_asked() -> None:
    log = Log(range(10))
    assert Reader(log, 3).gets(3, 4, 3, 2, 4, 5) == [3, 4, 5]
    assert not log.asked


def test_after_a_message_that_others_stand_before_reading_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(range(400))
    reader = Reader(log, 353)
    with caplog.at_level(logging.WARNING):
        assert reader.gets(390, 391) == []
    assert log.sent_back == [353], "once: the second one was on its way"
    assert "event=passed_over topic=evidence partition=4 from=353 to=390" in caplog.text
    assert reader.state.position() == {TOPIC: 353}, "no position behind what was passed over"
    assert reader.gets(353, 354) == [353, 354]


def test_reading_goes_back_again_where_that_did_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(range(400))
    reader = Reader(log, 353)
    reader.gets(390)
    monkeypatch.setattr(partition_state, "_AGAIN_S", 0.0)
    reader.gets(391)
    assert log.sent_back == [353, 353]


def test_where_the_log_has_no_messages_reading_goes_on() -> None:
    log = Log([0, 1, 5, 6])
    assert Reader(log, 0).gets(0, 1, 5, 6) == [0, 1, 5, 6]
    assert (log.asked, log.sent_back) == ([2], [])


def test_while_the_log_can_t_be_asked_nothing_is_taken() -> None:
    log = Log(range(400))
    log.is_away = True
    reader = Reader(log, 353)
    assert reader.gets(390) == []
    assert log.sent_back == [353], "so that it comes again"
