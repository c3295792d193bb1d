"""For tests of stages, whose messages have any offsets."""

from __future__ import annotations

from irregulars.streams.stages.partition_state import Continuity

FAR = 1 << 60


async def _first_offset(topic: str, partition: int, at: int) -> int:
    return FAR


async def _go_back(topic: str, partition: int, offset: int) -> None:
    raise AssertionError(f"{topic}/{partition} must be read on; it was sent back to {offset}")


def no_messages_between() -> Continuity:
    """Of a log in which nothing stands between the messages of the test."""
    return Continuity(_first_offset, _go_back)
