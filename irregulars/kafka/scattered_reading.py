"""Read batches that lie scattered over a log, from all partitions at once: each seek costs a round trip."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from irregulars.errors import RecordError, ServiceUnavailable
from irregulars.kafka.broker import service_error
from irregulars.messages.bundles import decode_batches
from irregulars.messages.records import Batch

T = TypeVar("T")


class _Slot(NamedTuple):
    """Place of a value in the ring; one that goes beyond its end goes on at its beginning."""

    begin: int
    length: int


class RecentMessages:
    """Values of one topic's messages by partition and offset, as many as fit; the oldest go first.

    They lie in a ring, which takes memory as it fills: as objects of their own, of some ten KiB each, they would
    leave holes all over the heap when they go. Threads may share one: a worker's reading adds, and its judge asks.

    `most_bytes`: of all values together. 0 keeps nothing.

    Examples
    --------
    >>> recent = RecentMessages(most_bytes=10)
    >>> for offset in (7, 8, 9):
    ...     recent.add(0, offset, b"4444")
    >>> recent.get(0, 7), recent.get(0, 9), len(recent)
    (None, b'4444', 2)
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes: Final = most_bytes
        # One byte where nothing is kept: there is no empty map.
        self._ring: Final = mmap(-1, max(most_bytes, 1), flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._slots: Final[dict[tuple[int, int], _Slot]] = {}
        self._order: Final[deque[tuple[tuple[int, int], _Slot]]] = deque()
        self._bytes = 0
        self._next = 0
        self._lock: Final = Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, partition: int, offset: int, value: bytes) -> None:
        """Keep a message; one that is kept already counts as new again."""
        with self._lock:
            while self._order and self._bytes + len(value) > self._most_bytes:
                key, oldest = self._order.popleft()
                self._bytes -= oldest.length
                if self._slots.get(key) == oldest:  # else it was added again since
                    del self._slots[key]
            if len(value) > self._most_bytes:
                return
            slot = _Slot(self._next, len(value))
            until_end = min(slot.length, self._most_bytes - slot.begin)
            self._ring[slot.begin : slot.begin + until_end] = value[:until_end]
            self._ring[: slot.length - until_end] = value[until_end:]
            self._slots[partition, offset] = slot
            self._order.append(((partition, offset), slot))
            self._bytes += slot.length
            self._next = (slot.begin + slot.length) % self._most_bytes if self._most_bytes else 0

    def get(self, partition: int, offset: int) -> bytes | None:
        """Return a message's value, or None if it is not kept."""
        with self._lock:
            slot = self._slots.get((partition, offset))
            if slot is None:
                return None
            first = self._ring[slot.begin : min(slot.begin + slot.length, self._most_bytes)]
            return first + self._ring[: slot.length - len(first)]


POLL_S: Final = 0.2
_NEAR: Final = 16
"""Offsets closer than this are read through: a seek throws away fetched messages, and costs a round trip."""

_QUIET_S: Final = 8.0
"""Seconds without a message after which the ends of partitions are asked for: offsets behind them will not come."""

_ENDS_HOLD_S: Final = 60.0
"""For so long nothing more is waited for behind ends that held: evidence of a topic made anew asks for much there."""

# For the list of a topic's partitions, seconds. It only spares a wait, so that no answer is no error.
_ASK_S: Final = 2.0

_FAR: Final = 1 << 14
"""Offsets that lie further behind the end of a partition never were: a new leader lacks what came within a second or
so, and the largest of jobs sends as many to a partition in several."""

CUT: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
"""The broker has no such offset: retention deleted it, or a new leader is not yet as far as the last one was."""

# librdkafka goes on trying by itself; the caller's deadline ends it.
PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})

# A busy broker may leave a topic out of its metadata for a moment: the client then knows no partition of it. After a
# change of leader it may ask by an epoch that is over.
_LEADERLESS: Final = frozenset({
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogReading:
    """Result of `LogReader.read_commops`."""

    batches: list[Batch] = field(default_factory=list)  # decoded batches, by partition and offset ascending
    # ``(partition, offset)`` that retention has deleted, or that hold no decodable batch
    missing: list[tuple[int, int]] = field(default_factory=list)


class Cursor:
    """The offsets of one partition that are still to come, run by run.

    `offsets`: ascending; at least one.
    """

    def __init__(self, offsets: Sequence[int]) -> None:
        self._runs: Final = deque(_runs(offsets))

    @property
    def begin(self) -> int:
        """Where to go on reading."""
        return self._runs[0][0]

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come."""
        return not self._runs

    def wants(self, offset: int) -> bool:
        """Whether the run that is being read has this offset."""
        return offset in self._runs[0]

    def pass_to(self, offset: int) -> bool:
        """Note that everything below has been passed; return whether another run begins, or none is left."""
        before = len(self._runs)
        while self._runs and self._runs[0][-1] < offset:
            self._runs.popleft()
        return len(self._runs) < before

    def keep_within(self, low: int, high: int) -> bool:
        """Give up offsets below `low`, or at `high` and beyond; return whether there were any."""
        before = [one for run in self._runs for one in run]
        left = [one for one in before if low <= one < high]
        self._runs.clear()
        self._runs.extend(_runs(left) if left else ())
        return len(left) < len(before)


class ScatteredReading:
    """One reading with a consumer that is assigned to nothing, and is again afterwards.

    `consumer`: must report the ends of partitions, and not go elsewhere by itself (``auto.offset.reset=error``).
    `recent`: messages that need not be read; those that are read are added. `ended`: when the ends of a topic's
    partitions were found to be true, by `time.monotonic`; new ones are added.
    """

    def __init__(
        self,
        consumer: Consumer,
        bootstrap: str,
        deadline_s: float,
        recent: RecentMessages,
        ended: dict[tuple[str, int], float],
        security: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._consumer: Final = consumer
        self._recent: Final = recent
        self._ended: Final = ended
        self._security: Final = security
        self._bootstrap: Final = bootstrap
        self._deadline_s: Final = deadline_s
        self._deadline: Final = time.monotonic() + deadline_s
        self._cursors: dict[int, Cursor] = {}
        self._found: dict[int, dict[int, list[Batch]]] = {}
        self._ranks: Mapping[int, Collection[int]] = {}

    def read(
        self, topic: str, wanted: Mapping[int, Collection[int]], ranks: Mapping[int, Collection[int]]
    ) -> LogReading:
        """Return the batches of some ranks at some offsets, both by partition; raises `ServiceUnavailable`."""
        self._ranks = ranks
        self._found = {partition: {} for partition in sorted(wanted)}
        for partition, offsets in wanted.items():
            unread = []
            for offset in offsets:
                value = self._recent.get(partition, offset)
                if value is None:
                    unread.append(offset)
                else:
                    self._keep(partition, offset, value)
            if unread:
                self._cursors[partition] = Cursor(sorted(unread))
        if self._cursors:
            self._give_up_unknown(topic)
            since = time.monotonic() - _ENDS_HOLD_S
            self._give_up_ends(topic, [one for one in self._cursors if self._ended.get((topic, one), since) > since])
        if self._cursors:
            self._assign(topic)
            try:
                self._read_all(topic)
            finally:
                self._consumer.resume(self._consumer.assignment())  # a pause would outlast the assignment
                self._consumer.unassign()
        batches = [batch for found in self._found.values() for offset in sorted(found) for batch in found[offset]]
        missing = [
            (partition, offset)
            for partition, found in self._found.items()
            for offset in sorted(wanted[partition])
            if offset not in found
        ]
        return LogReading(batches, missing)

    def _keep(self, partition: int, offset: int, value: bytes | None) -> None:
        with suppress(RecordError):  # it went to the dead-letter topic when it was first read
            batches, wanted = decode_batches(value, "commops"), self._ranks[partition]
            self._found[partition][offset] = [batch for batch in batches if batch.header.rank in wanted]

    def _assign(self, topic: str) -> None:
        """Read on in all partitions that are left, each at the beginning of its run."""
        self._consumer.resume(self._consumer.assignment())
        self._consumer.assign(
            [TopicPartition(topic, partition, cursor.begin) for partition, cursor in self._cursors.items()]
        )

    def _read_all(self, topic: str) -> None:
        quiet_since = time.monotonic()
        while self._cursors:
            now = time.monotonic()
            if now > self._deadline:
                left = ", ".join(
                    f"{topic}/{number} from {one.begin}" for number, one in sorted(self._cursors.items())
                )
                raise ServiceUnavailable(
                    f"Kafka at {self._bootstrap} must send {left} within {self._deadline_s:g} s; got less. "
                    "Check the broker's load, or raise the deadline"
                )
            if now - quiet_since > _QUIET_S:
                for ended in self._give_up_ends(topic, list(self._cursors)):
                    self._ended[topic, ended] = now
                quiet_since = now
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            code = None if error is None else error.code()
            if error is not None and code not in {*CUT, *PASSING, KafkaError._PARTITION_EOF}:
                raise service_error(error, self._bootstrap, security=self._security)
            cursor = None if partition is None else self._cursors.get(partition)
            if partition is None or cursor is None:
                continue  # of a partition that is done, or of none
            place = TopicPartition(topic, partition)
            # Else an error that passes, or the end of a log, which a new leader may put too early: wait.
            if code is None:
                quiet_since = now
                self._take(message, place, cursor)
            elif code in CUT:
                self._cut(place, cursor)

    def _take(self, message: Message, place: TopicPartition, cursor: Cursor) -> None:
        offset = offset_of(message)
        if cursor.wants(offset):
            value = message.value()
            self._keep(place.partition, offset, value)
            # A message without a value as well: it holds no batch, and is not asked for again.
            self._recent.add(place.partition, offset, value or b"")
        if cursor.pass_to(offset + 1):
            if cursor.is_done:
                del self._cursors[place.partition]
                self._consumer.pause([place])  # else it would go on to the end of the log
            else:
                self._consumer.seek(TopicPartition(place.topic, place.partition, cursor.begin))

    def _cut(self, place: TopicPartition, cursor: Cursor) -> None:
        low, high = bounds_of(self._consumer, place, self._bootstrap, self._deadline, self._security)
        if not cursor.keep_within(low, high + _FAR):  # it was there before, and comes back with the leader
            time.sleep(POLL_S)
        if cursor.is_done:
            del self._cursors[place.partition]
        self._assign(place.topic)  # librdkafka seeks in no partition that it has given up

    def _give_up_unknown(self, topic: str) -> None:
        """Give up partitions that the topic does not have: to wait for them would hold up all other readings."""
        try:
            known = self._consumer.list_topics(topic, timeout=_ASK_S).topics[topic].partitions
        except (KafkaException, KeyError):
            return  # the broker is away for a moment
        if known:  # else it has forgotten the topic for a moment
            self._cursors = {partition: one for partition, one in self._cursors.items() if partition in known}

    def _give_up_ends(self, topic: str, partitions: Iterable[int]) -> list[int]:
        """Give up offsets behind the ends of partitions: a leader that was behind is not any more by now.

        Returns the partitions of which something was given up.
        """
        found = []
        for partition in partitions:
            place = TopicPartition(topic, partition)
            _, high = bounds_of(self._consumer, place, self._bootstrap, self._deadline, self._security)
            if self._cursors[partition].keep_within(0, high):
                found.append(partition)
            if self._cursors[partition].is_done:
                del self._cursors[partition]
        return found


def bounds_of(
    consumer: Consumer,
    place: TopicPartition,
    bootstrap: str,
    deadline: float,
    security: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[int, int]:
    """Return the first offset of a partition that exists, and the one that the next message will get.

    Raises `ServiceUnavailable` if the broker does not answer before `deadline`, by `time.monotonic`.
    """
    began = time.monotonic()
    try:
        low, high = _from_leader(lambda left_s: consumer.get_watermark_offsets(place, timeout=left_s), deadline)
        return low, high
    except KafkaException as error:
        raise service_error(error.args[0], bootstrap, time.monotonic() - began, security) from error


def offsets_at(consumer: Consumer, times: Sequence[TopicPartition], deadline: float) -> list[TopicPartition]:
    """Return where the messages since a time begin: partitions whose offsets were times, ms since the epoch.

    Where all messages are older the offset is librdkafka's code for the end. Raises `KafkaException` if the broker
    does not answer before `deadline`, by `time.monotonic`, for each of them.
    """

    def ask(left_s: float) -> list[TopicPartition]:
        found: list[TopicPartition] = consumer.offsets_for_times(list(times), timeout=left_s)
        for one in found:
            # librdkafka would begin such a partition at its end, as if it held nothing.
            if one.error is not None:
                raise KafkaException(one.error)
        return found

    return _from_leader(ask, deadline)


def _from_leader(ask: Callable[[float], T], deadline: float) -> T:
    """Ask, again while a partition that is new, or whose broker stopped, has no leader; `ask`: with seconds left."""
    while True:
        try:
            # One real try at least: a caller may come when its deadline is all but over.
            return ask(max(deadline - time.monotonic(), 0.1))
        except KafkaException as error:
            if error.args[0].code() not in _LEADERLESS or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def offset_of(message: Message) -> int:
    """Return the offset of a message that was read."""
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
