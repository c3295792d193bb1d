"""An idempotent producer that outlasts its fatal errors.

librdkafka's idempotent producer has a fatal error where the broker has lost messages that it acknowledged (an unclean
leader election, a power cut): sequence numbers do not fit any more. It then refuses all further work, fails the
messages in its queue (``_PURGE_QUEUE``), and is to be destroyed ("Fatal producer errors" in librdkafka's
INTRODUCTION.md). To send unacknowledged messages again is left to us, since they may come twice then: rows that come
twice count once, and all else that we publish is told apart by its key.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from irregulars.kafka.login_password import new_producer
from irregulars.kafka.topics import SENDING

LOG: Final = logging.getLogger("irregulars.kafka")
BY_KEY: Final = -1  # a partition: the partitioner chooses it by the key (librdkafka's RD_KAFKA_PARTITION_UA)
_NOT_IN_TIME: Final = KafkaError(KafkaError._TIMED_OUT)
# Longest single wait, seconds: `deliver` asks between two of them whether it is given up.
_TICK_S: Final = 0.1
_OF_FATAL: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
        KafkaError._INCONSISTENT,
        KafkaError._FENCED,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
"""Codes with which messages fail beside a fatal error: for the producer's sake, and not for their own."""

Headers = Sequence[tuple[str, bytes]]
OnDelivery = Callable[[KafkaError | None, Message], object]


class Record(NamedTuple):
    """One message to publish."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int = BY_KEY
    headers: Headers = ()


class _Unsent(NamedTuple):
    """A message that a fatal error took back, in the order of `number`."""

    number: int
    message: Message
    partition: int
    headers: Headers
    on_delivery: OnDelivery


class LastingProducer:
    """Publishes as `confluent_kafka.Producer` does; after a fatal error with a new one, which sends all again.

    No copy of a message is kept: librdkafka holds messages that are not acknowledged, within
    ``queue.buffering.max.kbytes``, and gives it back when it fails. Where nothing of a producer was acknowledged, a
    fatal error does not come from a loss (the broker may refuse us): then all that waits fails with it, and a new
    producer takes the next message. Usable from several threads.

    `config`: of librdkafka; `kafka.topics.SENDING` is added. Its ``error_cb`` is called for fatal errors too.

    Raises `KafkaException` if none can be made: of these settings, or without a token to log in with.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: Final = {**config, **SENDING}
        self._numbers: Final = itertools.count()
        self._lock: Final = threading.RLock()
        self._again: deque[_Unsent] = deque()
        self._is_proven = False  # something was acknowledged since the producer was made
        self._is_purged = False
        self._made: Producer | None = new_producer(self._config)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = BY_KEY,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue one message.

        Raises `BufferError` if the queue is full, or messages of an earlier producer are not yet in it: `poll`, and
        try again; `KafkaException` if the message can never be sent.
        """
        # Most of what we send are large batches, a few tens a second: two objects each are not seen beside them.
        deliver = partial(self._note, next(self._numbers), partition, headers, on_delivery or (lambda *_: None))
        while True:
            made = self._ready()
            try:
                made.produce(topic, value, key, partition, headers=list(headers) or None, on_delivery=deliver)
                return
            except KafkaException as error:
                if error.args[0].code() != KafkaError._FATAL:
                    raise
                # Then once more: to the new producer, or, while that takes the old one's messages, `BufferError`.
                self._renew(made, error.args[0])

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in acknowledgements for `timeout_s`."""
        made = self._made  # read once: another thread may exchange it
        try:
            if made is None:
                # None can be made for now. Callers poll in a loop, which must not spin.
                time.sleep(timeout_s)
            else:
                made.poll(timeout_s)
        except KafkaException as error:
            if made is None or not error.args[0].fatal():
                raise
            self._renew(made, error.args[0])
        if self._again:
            with self._lock:
                self._send_again()

    def flush(self, timeout_s: float) -> int:
        """Wait until all is acknowledged, `timeout_s` at most; return how many messages are not."""
        # Not by librdkafka's flush: confluent-kafka raises a fatal error at its end, and what fails in the meantime
        # is lost to an exception that is pending (SystemError). Its poll stops at the error.
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            self.poll(min(left_s, _TICK_S) if self._left else 0.0)
            if not self._left or left_s == 0.0:
                return self._left

    def deliver(
        self, records: Iterable[Record], timeout_s: float = float("inf"), is_given_up: Callable[[], bool] = bool
    ) -> KafkaError | None:
        """Publish records in their order, and wait for all; return the first failure.

        That is ``_TIMED_OUT`` if they are not all acknowledged after `timeout_s`, or once `is_given_up` is true.
        """
        failures: list[KafkaError] = []
        deadline_s = time.monotonic() + timeout_s

        def is_over() -> bool:
            return is_given_up() or time.monotonic() > deadline_s

        def note(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        for topic, key, value, partition, headers in records:
            while True:
                try:
                    self.produce(topic, value, key, partition, headers, note)
                    break
                except BufferError:
                    self.poll(_TICK_S)
                    if is_over():
                        return _NOT_IN_TIME
                except KafkaException as error:
                    return failures[0] if failures else error.args[0]
        while self.flush(_TICK_S):
            if is_over():
                return _NOT_IN_TIME
        return failures[0] if failures else None

    def purge(self) -> None:
        """Fail all that is not acknowledged, for good; `poll` or `flush` calls each ``on_delivery``."""
        self._is_purged = True
        if self._made is not None:
            self._made.purge(blocking=False)

    def list_topics(self, topic: str | None = None, timeout_s: float = -1.0) -> Any:
        """Return the cluster's metadata; raises `KafkaException`."""
        made = self._ready()
        return made.list_topics(timeout=timeout_s) if topic is None else made.list_topics(topic, timeout_s)

    @property
    def _left(self) -> int:
        return len(self._again) + (0 if self._made is None else len(self._made))

    def _ready(self) -> Producer:
        """Return the producer that takes new messages; raises `BufferError` while an earlier one's come first."""
        # Without the lock at first: nearly every message finds a producer, and none before it.
        if self._again or self._made is None:
            with self._lock:
                self._send_again()
                if self._again:
                    raise BufferError("messages that are sent again come first")
                if self._made is None:
                    self._made = self._make()
        return self._made

    def _note(
        self,
        number: int,
        partition: int,
        headers: Headers,
        on_delivery: OnDelivery,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        if error is None:
            self._is_proven = True
        elif not self._is_purged and error.code() in _OF_FATAL:
            # No failure of its own: the next producer sends it, and its sender learns nothing of this.
            self._again.append(_Unsent(number, message, partition, headers, on_delivery))
            return
        on_delivery(error, message)

    def _renew(self, old: Producer, error: KafkaError) -> None:
        """Take back the messages of a producer with a fatal error, and give them to a new one."""
        with self._lock:
            if self._made is not old:
                return  # another thread did it
            # Messages in flight may be acknowledged yet, but nothing says when. Without blocking: librdkafka purges
            # as well, and two that wait for one another would never end.
            old.purge(blocking=False)
            while len(old):
                try:
                    old.poll(_TICK_S)
                except KafkaException as reason:
                    error = reason.args[0]
            self._made = None
            # Delivery reports come partition by partition; messages go out again as they were handed over.
            unsent, self._again = sorted(self._again, key=lambda one: one.number), deque()
            # Nothing was acknowledged ever: the broker refuses us, and would refuse a new producer as well.
            if not self._is_proven:
                on_error = self._config.get("error_cb")
                if on_error is not None:
                    on_error(error)
                for one in unsent:
                    one.on_delivery(error, one.message)
                return
            LOG.warning("event=producer_made_anew messages=%d bytes=%d reason=%r effect='they are sent again'",
                        len(unsent), sum(len(one.message.value() or b"") for one in unsent),
                        f"{error.name()}: {error.str()}")  # fmt: skip
            self._again.extend(unsent)
            self._send_again()

    def _send_again(self) -> None:
        """Give an earlier producer's messages to the present one, as far as its queue takes them."""
        try:
            if self._again and self._made is None and not self._is_purged:
                self._made = self._make()
        except KafkaException:  # no token to log in with, for example: the next call tries it again
            return
        while self._again:
            number, message, partition, headers, on_delivery = self._again[0]
            try:
                if self._made is None or self._is_purged:
                    # As librdkafka fails a message that was purged: the handler below gives it to the sender.
                    raise KafkaException(KafkaError(KafkaError._PURGE_QUEUE))
                self._made.produce(
                    str(message.topic()), message.value(), message.key(), partition, headers=list(headers) or None,
                    on_delivery=partial(self._note, number, partition, headers, on_delivery),
                )  # fmt: skip
            except BufferError:
                # The queue is full: the next `poll` goes on here.
                return
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    return  # the next `poll` has the reason
                on_delivery(error.args[0], message)
            self._again.popleft()  # only now: a thread that finds nothing here sends past us

    def _make(self) -> Producer:
        self._is_proven = False
        return new_producer(self._config)
