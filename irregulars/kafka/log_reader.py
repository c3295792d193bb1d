"""Read messages again by their offsets: the operators behind an irregular iteration, and tails of result topics.

These functions wait for the broker: call them in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from irregulars.errors import ServiceError, ServiceUnavailable
from irregulars.kafka.broker import client_config, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.scattered_reading import (
    CUT,
    PASSING,
    POLL_S,
    LogReading,
    RecentMessages,
    ScatteredReading,
    bounds_of,
    offset_of,
    offsets_at,
)
from irregulars.messages.records import Batch

P = ParamSpec("P")
R = TypeVar("R")


class OffsetsOfRank(Protocol):
    """Where operators of one rank lie: offsets in one partition of ``commops``."""

    @property
    def rank(self) -> int:
        """Whose operators they are."""

    @property
    def partition(self) -> int:
        """Partition of ``commops``."""

    @property
    def offsets(self) -> Sequence[int]:
        """Offsets in it, in any order."""


class LogReader:
    """Reads by partition and offset, without a consumer group. One thread at a time.

    `recent`: messages of ``commops`` that `read_commops` need not ask the broker for; None: it asks for all.
    """

    def __init__(
        self,
        bootstrap: str,
        security: Mapping[str, Any],
        deadline_s: float = 30.0,
        recent: RecentMessages | None = None,
    ) -> None:
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        self._deadline_s: Final = deadline_s
        self._recent: Final = RecentMessages(0) if recent is None else recent
        self._ended: Final[dict[tuple[str, int], float]] = {}
        self._config: Final = client_config(bootstrap, security) | {
            "group.id": "irregulars-read-back",  # librdkafka asks for one; nothing is ever committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # An offset that is gone must show (`CUT`): a silent jump would pass messages over.
            "auto.offset.reset": "error",
            # Without it a partition that ends, or is empty, looks like a broker that is slow.
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # a seek waits for the fetch before it
            "queued.min.messages": 64,
            # One fetch brings more than that, and librdkafka would then let the partition rest for a second, even
            # when it is assigned anew to be read elsewhere.
            "fetch.queue.backoff.ms": 1,
            "isolation.level": "read_committed",
        }
        self._consumer = new_consumer(self._config)

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def read_commops(self, topic: str, spans: Iterable[OffsetsOfRank]) -> LogReading:
        """Return the batches at the offsets of `spans`, from all partitions at once; one named twice is read once.

        Raises `ServiceUnavailable` if they can't all be read within the deadline.
        """
        wanted: dict[int, set[int]] = {}
        ranks: dict[int, set[int]] = {}
        for span in spans:
            wanted.setdefault(span.partition, set()).update(span.offsets)
            ranks.setdefault(span.partition, set()).add(span.rank)
        reading = ScatteredReading(
            self._consumer, self._bootstrap, self._deadline_s, self._recent, self._ended, self._security
        )
        return reading.read(topic, wanted, ranks)

    def read_tail(self, topic: str, partition: int, from_offset: int = 0) -> list[Message]:
        """Return the messages from `from_offset` up to the present end (of a compacted topic: those that are left).

        Raises `ServiceUnavailable` if the end is not reached within the deadline.
        """
        return list(self.each_of_tail(topic, partition, from_offset))

    def each_of_tail(self, topic: str, partition: int, from_offset: int = 0) -> Iterator[Message]:
        """Yield the messages of `read_tail` one by one; nothing else can be read until it ends."""
        deadline = time.monotonic() + self._deadline_s
        low, high = self._bounds(topic, partition, deadline)
        begin = max(low, from_offset)
        if begin < high:
            yield from self._messages(topic, partition, begin, high, deadline, is_tail=True)

    def messages(
        self, topic: str, partition: int, begin: int = 0, end: int | None = None
    ) -> Generator[Message, None, None]:
        """Yield the messages from `begin` to before `end` (None: the present end), as far as they still exist.

        However many these are: the deadline is for each of them.

        Raises `ServiceUnavailable` if none comes within the deadline.
        """
        deadline = time.monotonic() + self._deadline_s
        low, high = self._bounds(topic, partition, deadline)
        is_tail = end is None
        begin, end = max(low, begin), high if end is None else min(end, high)
        if begin < end:
            yield from self._messages(topic, partition, begin, end, deadline, is_each=True, is_tail=is_tail)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that exists, and the one that the next message will get."""
        return self._bounds(topic, partition, time.monotonic() + self._deadline_s)

    def next_offset(self, topic: str, partition: int, begin: int) -> int:
        """Return the offset of the first message at or behind `begin`; if there is none, where the next may come."""
        low, high = self._bounds(topic, partition, time.monotonic() + self._deadline_s)
        found = self.messages(topic, partition, begin, high)
        first = next(found, None)  # it ends without one only where it has read to `high`
        # Ends the generator now, not when it is collected: it holds the consumer's assignment.
        found.close()
        return max(begin, low, high) if first is None else offset_of(first)

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        """Return the offset of the first message that is not older than a time, ms since the epoch; or the end."""
        try:
            since = TopicPartition(topic, partition, max(time_ms, 0))
            (found,) = offsets_at(self._consumer, [since], time.monotonic() + self._deadline_s)
        except KafkaException as error:
            raise service_error(error.args[0], self._bootstrap, self._deadline_s, self._security) from error
        # Where all messages are older librdkafka gives its code for the end, which is below 0.
        return found.offset if found.offset >= 0 else self.end_offset(topic, partition)

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset that the next message of the partition will get."""
        return self.bounds(topic, partition)[1]

    def holds(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether a message at `offset` or behind it can be fetched, wherever the log is said to end.

        Some brokers say too little: after a change of leader for a moment, and Tansu after a batch of several
        messages until the next one comes.
        """
        deadline = time.monotonic() + self._deadline_s
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        try:
            while time.monotonic() < deadline:
                message = self._consumer.poll(POLL_S)
                error = None if message is None else message.error()
                if message is not None and error is None:
                    return True
                if error is not None and error.code() in {*CUT, KafkaError._PARTITION_EOF}:
                    return False
                if error is not None and error.code() not in PASSING:
                    raise service_error(error, self._bootstrap, security=self._security)
        finally:
            self._consumer.unassign()
        raise ServiceUnavailable(
            f"Kafka at {self._bootstrap} must say within {self._deadline_s:g} s what stands in {topic}/{partition} "
            f"from {offset} on; it did not"
        )

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of `topic`, ascending."""
        try:
            return sorted(self._consumer.list_topics(topic, timeout=self._deadline_s).topics[topic].partitions)
        except KafkaException as error:
            self._begin_anew()
            raise service_error(error.args[0], self._bootstrap, self._deadline_s, self._security) from error

    def _bounds(self, topic: str, partition: int, deadline: float) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        try:
            return bounds_of(self._consumer, place, self._bootstrap, deadline, self._security)
        except ServiceUnavailable:
            self._begin_anew()
            raise

    def _begin_anew(self) -> None:
        """Take another client: after brokers had parted one found none of them for minutes, and others did."""
        try:
            new = new_consumer(self._config)
        except (KafkaException, ServiceError):  # no token is to be had: the client that has one goes on trying
            return
        old, self._consumer = self._consumer, new
        threading.Thread(target=old.close, name="irregulars-old", daemon=True).start()  # it may wait for brokers

    def _messages(
        self, topic: str, partition: int, begin: int, end: int, deadline: float, *, is_each: bool = False,
        is_tail: bool = False,
    ) -> Iterator[Message]:  # fmt: skip
        """Messages with offsets from `begin` to before `end`, as far as they exist; the deadline may be for each.

        `is_tail`: up to the end of the log, which the broker may have told too early (`holds`).
        """
        place, told = TopicPartition(topic, partition, begin), end
        self._consumer.assign([place])
        try:
            while time.monotonic() < deadline:
                message = self._consumer.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    if is_tail:
                        end, is_tail = max(end, fetched_end(self._consumer, place)), False
                    if offset_of(message) < end:
                        yield message
                        place.offset = offset_of(message) + 1
                    # Compaction may have taken the last one before `end`: then the first one behind it ends this.
                    if offset_of(message) >= end - 1:
                        return
                    deadline = time.monotonic() + self._deadline_s if is_each else deadline
                elif error.code() == KafkaError._PARTITION_EOF:
                    # After a change of leader a broker may say for a moment that the log ends earlier: a reader that
                    # believes it loses the rest. Fetches count messages of open transactions, which nobody gets yet.
                    if offset_of(message) >= told:
                        return
                elif error.code() in CUT:
                    if not self._assign_again(place, end, deadline):
                        return
                elif error.code() not in PASSING:
                    raise service_error(error, self._bootstrap, security=self._security)
        finally:
            self._consumer.unassign()
        raise ServiceUnavailable(
            f"Kafka at {self._bootstrap} must send {topic}/{partition} from {begin} to {end} within "
            f"{self._deadline_s:g} s; got less. Check the broker's load, or raise the deadline"
        )

    def _assign_again(self, place: TopicPartition, end: int, deadline: float) -> bool:
        """Go on where the log begins now, if that is before `end`; the broker has no message at `place`."""
        low, _ = self._bounds(place.topic, place.partition, deadline)
        if low <= place.offset:  # it was there before, and comes back with the leader
            time.sleep(POLL_S)
        place.offset = max(low, place.offset)
        self._consumer.assign([place])
        return place.offset < end


def fetched_end(consumer: Consumer, place: TopicPartition) -> int:
    """Return where a partition ends by the newest fetch from it, which is right where Tansu tells too little."""
    return int(consumer.get_watermark_offsets(place, cached=True)[1])


class ReadingThread:
    """One reader with the thread that it belongs to: several may ask it, and are answered one after the other."""

    def __init__(self, reader: LogReader, name: str) -> None:
        self.reader: Final = reader
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix=f"irregulars-{name}")

    async def run(self, work: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
        """Do `work`, which uses the reader, behind all that was asked before."""
        return await asyncio.wrap_future(self._thread.submit(work, *arguments, **options))

    def close(self) -> None:
        """Let go of thread and connection, without waiting for a broker that does not answer."""
        self._thread.submit(self.reader.close)
        self._thread.shutdown(wait=False)


LOG: Final = logging.getLogger("irregulars.worker")
_AGAIN_S: Final = 0.5


class PatientReader:
    """Reads spans of ``commops`` in the thread of the judges."""

    def __init__(self, reader: LogReader, topic: str, patience_s: float) -> None:
        self._reader: Final = reader
        self._topic: Final = topic
        self._patience_s: Final = patience_s
        self._is_given_up = False

    def read(self, spans: Sequence[OffsetsOfRank]) -> Sequence[Batch]:
        """Return the batches of some spans, as far as they still exist."""
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                found = self._reader.read_commops(self._topic, spans)
                break
            except ServiceUnavailable:  # the broker is away
                if self._is_given_up or time.monotonic() > until_s:
                    raise
                time.sleep(_AGAIN_S)
        if found.missing:
            LOG.warning("event=read_back_incomplete missing=%d read=%d", len(found.missing), len(found.batches))
        return found.batches

    def give_up(self) -> None:
        """Wait no more, whichever thread does."""
        self._is_given_up = True

    def close(self) -> None:
        """Let go of the connection, in the thread that reads."""
        self._reader.close()
