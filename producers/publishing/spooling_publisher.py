"""A publisher that survives an absent broker: messages wait in memory, then on disk, in order.

All messages have one order, and move through three places: waiting -> spool (only while Kafka is away) -> in flight.
Messages in flight lie in librdkafka's queue and never time out there: it is idempotent and retries in order, so
that a broker which comes back finds each message once, in its partition's order. Only a restart of the agent sends
the messages again that were in flight: at least once, and the rows are the same.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from irregulars.errors import InputError, RecordError
from irregulars.kafka.oauth_tokens import TokenSource
from irregulars.kafka.topics import rank_key
from irregulars.messages.bundles import Bundle, decode_rows
from irregulars.messages.records import BATCH_SCHEMAS, Batch
from irregulars.producers.publishing.publisher import AgentSettings, Publisher
from irregulars.producers.publishing.spool import Message, Segment, Spool

_LOG: Final = logging.getLogger("irregulars.agent")
# Room for two of the largest messages.
_LEAST_BYTES: Final = 2 << 20
# Seconds from one try to reach an absent broker to the next, and for which one try waits: the source waits too.
_TRY_S: Final = 2.0
_ASK_S: Final = 0.5
_TICK_S: Final = 0.1
# A message that will never be taken, however often it is sent; all other failures end the agent, which keeps it.
_HOPELESS: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD})


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Where messages wait while Kafka is away; InputError if a limit is too small to hold a message."""

    directory: Path  # for one agent alone
    limit_bytes: int = 1 << 30  # on disk; above it the oldest are dropped and counted
    memory_bytes: int = 4 << 20  # in flight; as much again may wait in memory before it goes to disk
    # Seconds for which the end of the agent waits for the broker before it leaves the rest in the spool
    final_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("limit_bytes", "memory_bytes"):
            if getattr(self, name) < _LEAST_BYTES:
                raise InputError(f"{name} must be at least {_LEAST_BYTES}; got {getattr(self, name)!r}")


class SpoolingPublisher(Publisher):
    """As `Publisher`, and never waits for Kafka; raises only when a broker answers and refuses us.

    Raises InputError if the spool's directory is unusable, or librdkafka does not take ``settings.kafka``.
    """

    def __init__(self, settings: AgentSettings, spool: SpoolSettings) -> None:
        # librdkafka's queue holds all that may be in flight: it is never full before our own bound.
        queue = replace(settings, queue_bytes=2 * spool.memory_bytes, queue_messages=100_000)
        super().__init__(queue)
        self._spool_settings = spool
        self._spool = Spool(spool.directory, spool.limit_bytes, self._count_dropped)
        self._number = self._spool.next_number
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._loaded: deque[tuple[int, Message]] = deque()  # of the segment that is being sent
        self._loaded_from: Segment | None = None
        self._left_of: Counter[Segment] = Counter()  # messages of a segment that are not acknowledged
        self._in_flight: OrderedDict[int, tuple[Message, Segment | None]] = OrderedDict()
        self._in_flight_bytes = 0
        self._dropped_rows: Counter[tuple[str, bytes, int]] = Counter()
        self._newest_attempts: dict[bytes, int] = {}  # of the ranks announced, by key
        self.dropped_messages = 0
        self._topics: tuple[str, ...] = ()
        self._next_try_s = 0.0
        self._is_closed = False
        if len(self._spool):
            _LOG.info("event=spool_found segments=%d bytes=%d", len(self._spool), self._spool.size_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether messages wait on disk, or for the broker's first answer."""
        return not self._is_connected or bool(len(self._spool) or self._loaded)

    @property
    def spool_bytes(self) -> int:
        """Bytes on disk that wait."""
        return self._spool.size_bytes

    @property
    def dropped_rows(self) -> int:
        """Rows that were dropped, of all ranks."""
        return sum(self._dropped_rows.values())

    def lost_rows(self, schema: str, key: bytes, attempt: int) -> int:
        """Return the number of rows of one rank that were dropped because the spool was full."""
        return self._dropped_rows[schema, key, attempt]

    def connect(self, topics: Iterable[str]) -> None:
        """Ask the broker for `topics`; where none answers, messages wait, and it is asked again now and then."""
        self._topics = tuple(topics)
        self._try_to_connect()

    def send(self, message: Message) -> None:
        """Put a message behind all others; never waits."""
        if message.topic == "jobs":
            self._newest_attempts[message.key] = message.attempt
        self._waiting.append(message)
        self._waiting_bytes += message.size_bytes
        self._move()

    def serve(self, wait_s: float = 0.0) -> None:
        """Process acknowledgements for `wait_s`, send waiting messages; raises `ServiceError` if we are refused."""
        if not self._is_connected:
            self._try_to_connect()
        # librdkafka's own waiting ends with each acknowledgement, and there are some tens a second.
        time.sleep(wait_s)
        super().serve()
        self._move()

    def flush(self) -> None:
        """Wait until the broker has everything, for ``final_s`` at most; `close` keeps the rest."""
        deadline_s = time.monotonic() + self._spool_settings.final_s
        while self._in_flight or self._loaded or self._waiting or len(self._spool):
            if time.monotonic() >= deadline_s:
                break
            self.serve(_TICK_S)

    def close(self) -> None:
        """Put undelivered messages into the spool, in their order, and close the connections."""
        if self._is_closed:
            return
        self._is_closed = True
        # Purges librdkafka's queue. `_on_result` leaves purged messages in flight, and they are kept here.
        super().close()
        given_out = [(number, message) for number, (message, _) in self._in_flight.items()] + list(self._loaded)
        if given_out:
            is_kept = self._spool.put_back(given_out[0][0], [m for _, m in given_out], list(self._left_of))
            if not is_kept:
                self._count_dropped([message for message, segment in self._in_flight.values() if segment is None])
        kept = len(given_out)
        while self._waiting:  # announcements of segments dropped for these messages wait again
            messages, self._waiting = list(self._waiting), deque()
            if not self._spool.append(self._number, messages):
                break
            kept += len(messages)
            self._number += len(messages)
        if kept:
            _LOG.warning("event=spool_kept messages=%d bytes=%d", kept, self.spool_bytes)

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "message.timeout.ms": 0}

    def _prepare(self) -> None:
        """Make no producer yet if it needs a token: without one that takes 10 s, and fails."""
        if self._tokens is None:
            super()._prepare()

    @property
    def _tokens(self) -> TokenSource | None:
        found = self._settings.kafka.get("oauth_cb")
        return found if isinstance(found, TokenSource) else None

    def _try_to_connect(self) -> None:
        if time.monotonic() < self._next_try_s:
            return
        if self._made is None and self._tokens is not None and not self._tokens.look():
            if self._tokens.trouble is not None:
                self._try_later(str(self._tokens.trouble))
            return
        try:
            existing: Mapping[str, Any] = self._producer.list_topics(timeout_s=_ASK_S).topics
        except KafkaException as error:
            return self._try_later(error.args[0].str())
        self._require_topics(existing, self._topics)
        self._is_connected = True

    def _try_later(self, reason: str) -> None:
        if self._next_try_s == 0.0:
            _LOG.warning("event=kafka_away bootstrap=%s reason=%r", self._settings.bootstrap, reason)
        self._next_try_s = time.monotonic() + _TRY_S

    def _move(self) -> None:
        """Send the oldest messages while there is room; spool the rest to disk when memory is full."""
        most_bytes = self._spool_settings.memory_bytes
        with suppress(BufferError):  # messages of a producer with a fatal error go first, and wait for a new one
            while self._is_connected and self._in_flight_bytes < most_bytes:
                if not (self._send_loaded() or self._load() or self._send_waiting()):
                    return
        # Also while messages are in flight: as many bytes as those may wait in memory, no more.
        if self._waiting_bytes >= most_bytes:
            if not len(self._spool):
                reason = "more comes than Kafka takes"
                _LOG.warning("event=spooling directory=%s reason=%r", self._spool.directory, reason)
            messages, self._waiting, self._waiting_bytes = list(self._waiting), deque(), 0
            self._spool.append(self._number, messages)
            self._number += len(messages)

    def _send_loaded(self) -> bool:
        if not self._loaded:
            return False
        number, message = self._loaded[0]
        self._give_out(number, message, self._loaded_from)
        # Only now: where `_give_out` raises BufferError, the message keeps its place.
        self._loaded.popleft()
        return True

    def _load(self) -> bool:
        taken = self._spool.take()
        if taken is None:
            return False
        segment, messages = taken
        self._loaded_from = segment
        self._loaded.extend((segment.number + at, message) for at, message in enumerate(messages))
        self._left_of[segment] = len(messages)
        if not len(self._spool):
            _LOG.info("event=spool_read dropped_messages=%d", self.dropped_messages)
        return True

    def _send_waiting(self) -> bool:
        if not self._waiting:
            return False
        message = self._waiting[0]
        self._give_out(self._number, message, None)
        self._waiting.popleft()
        self._waiting_bytes -= message.size_bytes
        self._number += 1
        return True

    def _give_out(self, number: int, message: Message, segment: Segment | None) -> None:
        failure: KafkaError | None = None
        try:
            self._produce(message, partial(self._on_result, number))
        except KafkaException as error:
            failure = error.args[0]
        # A message that was refused at once goes the same way as one that a broker refuses later.
        self._in_flight[number] = message, segment
        self._in_flight_bytes += message.size_bytes
        if failure is not None:
            self._on_result(number, failure, None)

    def _on_result(self, number: int, error: KafkaError | None, kafka_message: KafkaMessage | None) -> None:
        if error is not None and error.code() not in _HOPELESS:
            if not self._is_closed:  # where it is, `close` has purged the message
                self._failure = self._failure or error
            return
        message, segment = self._in_flight.pop(number)
        self._in_flight_bytes -= message.size_bytes
        if error is None:
            self.delivered.messages += 1
            self._logged_codes.clear()
        else:
            self.delivered.failed_messages += 1
            self._count_rows(message)
            _LOG.error("event=message_refused topic=%s key=%r error=%r", message.topic, message.key, error.str())
        if segment is not None:
            self._left_of[segment] -= 1
            if self._left_of[segment] == 0:
                del self._left_of[segment]
                self._spool.remove(segment)

    def _count_dropped(self, messages: Sequence[Message]) -> None:
        """Count dropped rows. Announcements are queued again: they are small, and nothing works without them."""
        for message in messages:
            if message.topic == "jobs":
                # An announcement of an earlier attempt is of no use any more.
                if self._newest_attempts.get(message.key, message.attempt) == message.attempt:
                    self._waiting.append(message)
                    self._waiting_bytes += message.size_bytes
            else:
                self.dropped_messages += 1
                self._count_rows(message)

    def _count_rows(self, message: Message) -> None:
        """Count the rows of a message that will not be delivered, by rank."""
        found: Batch | Bundle | None = None
        if message.topic in BATCH_SCHEMAS:
            with suppress(RecordError):  # an earlier agent's, from a disk
                found = decode_rows(message.value, message.topic)
        rows_by_key: Iterable[tuple[bytes, int]] = [(message.key, message.rows)]
        if isinstance(found, Bundle):
            own = found.header
            keys = [rank_key(own.job, rank) for rank in own.ranks]
            rows_by_key = zip(keys, own.rows, strict=True)
        for key, rows in rows_by_key:
            self._dropped_rows[message.topic, key, message.attempt] += rows
