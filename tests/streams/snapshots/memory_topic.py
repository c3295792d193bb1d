"""A snapshot topic of one partition in memory: what a broker keeps, compacts and gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.outbox import Outbox
from irregulars.streams.snapshots.snapshot_log import SnapshotLog

NAME = "snapshots"


@dataclass(frozen=True)
class Line:
    """One record of the topic, as a consumer gives it."""

    name: bytes
    content: bytes | None
    at: int = 0

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes | None:
        return self.content

    def offset(self) -> int:
        return self.at


class MemoryTopic:
    """The partition; offsets go on over what compaction removes."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.end = 0
        self.read: list[int] = []  # offsets that readers were given

    def append(self, key: bytes, value: bytes | None) -> int:
        self.lines.append(Line(key, value, self.end))
        self.end += 1
        return self.end

    def compact(self) -> None:
        """Keep the newest of each key, and no tombstones, as a broker may at any time; the last message stays."""
        newest = {line.name: line.at for line in self.lines}
        last = self.end - 1
        self.lines = [
            one for one in self.lines if one.at == last or (newest[one.name] == one.at and one.content is not None)
        ]

    def writer_to(self) -> SnapshotLog:
        """Return the log as a process of its own sees it."""
        return SnapshotLog(NAME, cast(LogReader, _Reader(self)), cast(Outbox, MemoryOutbox(self)))


class MemoryOutbox:
    """Sends at once. `left`: how many messages still arrive before the process is dead."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic
        self.left: int | None = None
        self._acknowledged: int | None = None

    async def send(self, name: str, key: bytes, value: bytes | None, **_: Any) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("killed")
        self._acknowledged = self.topic.append(key, value)

    def end_offset(self, name: str, partition: int) -> int | None:
        return self._acknowledged


class _Reader:
    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic

    def bounds(self, name: str, partition: int) -> tuple[int, int]:
        return 0, self.topic.end

    def messages(self, name: str, partition: int, begin: int, end: int) -> Iterator[Line]:
        for line in list(self.topic.lines):
            if begin <= line.at < end:
                self.topic.read.append(line.at)
                yield line
