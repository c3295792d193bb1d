"""Read messages again by their offsets: the operators behind an irregular iteration, and tails of result topics.

These functions wait for the broker: call them in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from irregulars.errors import RecordError, ServiceUnavailable
from irregulars.streams.kafka.broker import client_config, service_error
from irregulars.streams.messages.records import Batch, decode_batch

_POLL_S: Final = 0.2
_NEAR: Final = 16
"""Offsets closer than this are read through: a seek throws away what was fetched, and costs a round trip."""

# The log may end, or have been cut below us, since its bounds were asked for: what is gone is "missing".
_ENDS: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
# librdkafka goes on trying by itself; our deadline ends it.
_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})

# A busy broker may forget a topic for a moment that it has just told of: the client then knows no partition of it.
_LEADERLESS: Final = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION}
)


class OffsetsOfRank(Protocol):
    """Where operators of one rank lie: offsets in one partition of ``commops``."""

    @property
    def partition(self) -> int:
        """Partition of ``commops``."""

    @property
    def offsets(self) -> Sequence[int]:
        """Offsets in it, in any order."""


@dataclass(frozen=True, slots=True)
class LogReading:
    """What one call of `LogReader.read_commops` found.

    Parameters
    ----------
    batches
        Decoded batches, by partition and offset ascending.
    missing
        ``(partition, offset)`` that retention has deleted, or that hold no decodable batch.
    """

    batches: list[Batch] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)


class LogReader:
    """Reads by partition and offset, without a consumer group. One thread at a time.

    Parameters
    ----------
    bootstrap, security
        As in `streams.kafka.broker.client_config`.
    deadline_s
        Longest time that one call takes.
    """

    def __init__(self, bootstrap: str, security: Mapping[str, Any], deadline_s: float = 30.0) -> None:
        self._bootstrap: Final = bootstrap
        self._deadline_s: Final = deadline_s
        config = client_config(bootstrap, security) | {
            "group.id": "irregulars-read-back",  # librdkafka asks for one; nothing is ever committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # a seek waits for the fetch before it
            "queued.min.messages": 64,
            # One fetch brings more than that, and librdkafka would then let the partition rest for a second, even
            # when it is assigned anew to be read elsewhere.
            "fetch.queue.backoff.ms": 1,
            "isolation.level": "read_committed",
        }
        self._consumer: Final = Consumer(config)

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def read_commops(self, topic: str, spans: Iterable[OffsetsOfRank]) -> LogReading:
        """Return the batches at the offsets of `spans`, one pass a partition; an offset named twice is read once.

        Raises
        ------
        ServiceUnavailable
            If they can't all be read within the deadline.
        """
        wanted: dict[int, set[int]] = {}
        for span in spans:
            wanted.setdefault(span.partition, set()).update(span.offsets)
        found = LogReading()
        deadline = time.monotonic() + self._deadline_s
        for partition, offsets in sorted(wanted.items()):
            self._read_partition(topic, partition, sorted(offsets), found, deadline)
        return found

    def read_tail(self, topic: str, partition: int, from_offset: int = 0) -> list[Message]:
        """Return the messages from `from_offset` up to what is the end now (of a compacted topic: what is left).

        Raises
        ------
        ServiceUnavailable
            If the end is not reached within the deadline.
        """
        return list(self.each_of_tail(topic, partition, from_offset))

    def each_of_tail(self, topic: str, partition: int, from_offset: int = 0) -> Iterator[Message]:
        """Yield what `read_tail` returns, one by one; nothing else can be read until it ends."""
        deadline = time.monotonic() + self._deadline_s
        low, high = self._bounds(topic, partition, deadline)
        begin = max(low, from_offset)
        if begin < high:
            yield from self._messages(topic, partition, begin, high, deadline)

    def messages(
        self, topic: str, partition: int, begin: int = 0, end: int | None = None
    ) -> Generator[Message, None, None]:
        """Yield the messages from `begin` to before `end` (None: what is the end now), as far as they still exist.

        However many these are: the deadline is for each of them.

        Raises
        ------
        ServiceUnavailable
            If none comes within the deadline.
        """
        deadline = time.monotonic() + self._deadline_s
        low, high = self._bounds(topic, partition, deadline)
        begin, end = max(low, begin), high if end is None else min(end, high)
        if begin < end:
            yield from self._messages(topic, partition, begin, end, deadline, is_each=True)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that exists, and the one that the next message will get."""
        return self._bounds(topic, partition, time.monotonic() + self._deadline_s)

    def next_offset(self, topic: str, partition: int, begin: int) -> int:
        """Return the offset of the first message at or behind `begin`; if there is none, where the next may come."""
        low, high = self._bounds(topic, partition, time.monotonic() + self._deadline_s)
        found = self.messages(topic, partition, begin, high)
        first = next(found, None)
        found.close()
        return max(begin, low, high) if first is None else _offset(first)

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        """Return the offset of the first message that is not older than a time, ms since the epoch; or the end."""
        try:
            (found,) = self._consumer.offsets_for_times(
                [TopicPartition(topic, partition, max(time_ms, 0))], timeout=self._deadline_s
            )
        except KafkaException as error:
            raise service_error(error.args[0], self._bootstrap, self._deadline_s) from error
        return found.offset if found.offset >= 0 else self.end_offset(topic, partition)

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset that the next message of the partition will get."""
        return self.bounds(topic, partition)[1]

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of `topic`, ascending."""
        try:
            return sorted(self._consumer.list_topics(topic, timeout=self._deadline_s).topics[topic].partitions)
        except KafkaException as error:
            raise service_error(error.args[0], self._bootstrap, self._deadline_s) from error

    def _read_partition(
        self, topic: str, partition: int, offsets: list[int], found: LogReading, deadline: float
    ) -> None:
        low, _ = self._bounds(topic, partition, deadline)
        # Not cut at the end: a broker may say too little of it (Tansu does), and these offsets were read before.
        there = [offset for offset in offsets if offset >= low]
        read = set()
        for run in _runs(there):
            for message in self._messages(topic, partition, run[0], run[-1] + 1, deadline):
                if message.offset() in run and _append_batch(message, found.batches):
                    read.add(message.offset())
        found.missing.extend((partition, offset) for offset in offsets if offset not in read)

    def _bounds(self, topic: str, partition: int, deadline: float) -> tuple[int, int]:
        while True:
            left_s = max(deadline - time.monotonic(), 0.1)
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=left_s)
                return low, high
            except KafkaException as error:
                # A partition that is new, or whose broker stopped, has no leader for a moment.
                if error.args[0].code() not in _LEADERLESS or time.monotonic() > deadline:
                    raise service_error(error.args[0], self._bootstrap, self._deadline_s) from error
            time.sleep(_POLL_S)

    def _messages(
        self, topic: str, partition: int, begin: int, end: int, deadline: float, *, is_each: bool = False
    ) -> Iterator[Message]:
        """Messages with offsets from `begin` to before `end`, as far as they exist; the deadline may be for each."""
        self._consumer.assign([TopicPartition(topic, partition, begin)])
        try:
            while time.monotonic() < deadline:
                message = self._consumer.poll(_POLL_S)
                if message is None:
                    continue
                if self._is_past(message, end):
                    return
                if not message.error():
                    yield message
                    if _offset(message) >= end - 1:
                        return
                    deadline = time.monotonic() + self._deadline_s if is_each else deadline
        finally:
            self._consumer.unassign()
        raise ServiceUnavailable(
            f"Kafka at {self._bootstrap} must send {topic}/{partition} from {begin} to {end} within "
            f"{self._deadline_s:g} s; got less. Check the broker's load, or raise the deadline"
        )

    def _is_past(self, message: Message, end: int) -> bool:
        error = message.error()
        if error is None:
            return _offset(message) >= end
        if error.code() in _ENDS:
            return True
        if error.code() in _PASSING:
            return False
        raise service_error(error, self._bootstrap)


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise ValueError(f"message that was read from {message.topic()} must have an offset; got none")
    return offset


def _runs(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """Ascending offsets, cut where the distance is worth a seek.

    >>> [list(run) for run in _runs([1, 2, 9, 100, 101])]
    [[1, 2, 9], [100, 101]]
    """
    begin = 0
    for index in range(1, len(offsets) + 1):
        if index == len(offsets) or offsets[index] - offsets[index - 1] > _NEAR:
            yield offsets[begin:index]
            begin = index


def _append_batch(message: Message, batches: list[Batch]) -> bool:
    try:
        batches.append(decode_batch(message.value(), "commops"))
    except RecordError:  # it went to the dead-letter topic when it was first read
        return False
    return True
