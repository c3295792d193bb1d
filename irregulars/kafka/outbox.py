"""Send to Kafka from the event loop, and know when all that was sent before a moment is on the broker.

librdkafka batches, compresses and waits for acknowledgements in its own threads,
so that the event loop, which Faust shares, never pays for lz4; and it has the partitioner of our other producers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from irregulars.errors import SendingGivenUp
from irregulars.kafka.broker import client_config, service_error
from irregulars.kafka.lasting_producer import BY_KEY, Headers, LastingProducer
from irregulars.kafka.topics import HEADER_BYTES, MAX_MESSAGE_BYTES

_POLL_S: Final = 0.1
_FULL_WAIT_S: Final = 0.02
_NO_TOPIC: Final = "__consumer_offsets"  # each broker knows it, and asking for one topic costs little


class _Line:
    """One producer, made when it is first used, with the thread that hands out its acknowledgements.

    To make one takes up to 10 s, and fails, while there is no token to log in with.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: Final = config
        self._lock: Final = threading.Lock()
        self._is_closed = threading.Event()
        self._producer: LastingProducer | None = None
        self._poller: threading.Thread | None = None

    @property
    def producer(self) -> LastingProducer:
        """The producer; raises `KafkaException` if none can be made."""
        with self._lock:
            if self._producer is None:
                self._producer = LastingProducer(self._config)
                self._poller = threading.Thread(
                    target=self._poll, args=(self._producer,), name="irregulars-outbox", daemon=True
                )
                self._poller.start()
            return self._producer

    def close(self, timeout_s: float) -> None:
        """Send all messages within `timeout_s`, and stop to hand out acknowledgements."""
        if self._producer is not None and self._poller is not None:
            self._producer.flush(timeout_s)
            self._is_closed.set()
            self._poller.join(timeout_s)

    def cut(self) -> None:
        """Throw away messages on their way, and stop; the thread closes the producer, which may take a while."""
        if self._producer is not None:
            self._producer.purge()
        self._is_closed.set()

    def _poll(self, producer: LastingProducer) -> None:
        while not self._is_closed.is_set():
            producer.poll(_POLL_S)


class Outbox:
    """An idempotent producer with barriers.

    Each message belongs to the span of time between two barriers. `barrier` ends the present one, and returns when
    every message of it, and of those before, is acknowledged. One message that can't be delivered makes all barriers
    fail from then on: the worker must stop, and start again from its last snapshot. `give_up` drops the messages on
    their way; callers that wait for one get `SendingGivenUp`, and begin again from the last snapshot too.
    """

    def __init__(self, bootstrap: str, security: Mapping[str, Any], timeout_s: float = 30.0) -> None:
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        self._timeout_s: Final = timeout_s
        self._config: Final = client_config(bootstrap, security) | {
            "compression.type": "lz4",
            "linger.ms": 5,
            "message.timeout.ms": int(timeout_s * 1000),
            "message.max.bytes": MAX_MESSAGE_BYTES + HEADER_BYTES,
            # 256 MiB in place of librdkafka's 1 GiB: `send` waits beyond it.
            "queue.buffering.max.kbytes": 1 << 18,
        }
        self._lock: Final = threading.Lock()
        self._line = _Line(self._config)
        _ = self._line.producer  # settings that librdkafka does not take show at once
        self._span = 0
        self._open: dict[int, int] = {}  # span -> messages on the way
        self._waiting: list[Callable[[], object]] = []
        self._failure: tuple[KafkaError, str] | None = None  # with the topic
        self._ends: dict[tuple[str, int], int] = {}
        self._sent: dict[str, tuple[int, int]] = {}

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Hand over one message; waits only while the producer's buffer is full.

        `partition`: `None`: chosen by the key.

        Raises `ServiceUnavailable` or `ServiceRefused` if this or an earlier message can't be delivered;
        `SendingGivenUp` if `give_up` was called meanwhile.
        """
        with self._lock:
            line, span = self._line, self._span
            # Counted before it is handed over: its acknowledgement may come before `produce` returns.
            self._open[span] = self._open.get(span, 0) + 1
            messages, size_bytes = self._sent.get(topic, (0, 0))
            self._sent[topic] = messages + 1, size_bytes + len(value or b"")
        place = BY_KEY if partition is None else partition
        while True:
            self._require(line)
            try:
                delivered = partial(self._settle, line, span, topic)
                line.producer.produce(topic, value, key, place, headers, delivered)
                return
            except BufferError:
                await asyncio.sleep(_FULL_WAIT_S)
            except KafkaException as error:  # too large, or no such topic
                self._settle(line, span, topic, error.args[0], None)

    async def barrier(self) -> None:
        """Wait until all that was sent before this call is acknowledged.

        Raises `ServiceUnavailable` or `ServiceRefused` if a message can't be delivered; `SendingGivenUp` if `give_up`
        was called meanwhile.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            line = self._line
            self._span += 1
            end = self._span
        while True:
            progress = asyncio.Event()
            with self._lock:
                if self._line is not line or self._failure or not any(span < end for span in self._open):
                    break
                # Under the lock of `_settle`: no acknowledgement gets in between the check and the entry.
                self._waiting.append(partial(loop.call_soon_threadsafe, progress.set))
            await progress.wait()
        self._require(line)

    def give_up(self) -> None:
        """Forget messages on their way, and let barriers that wait for them fail; later messages go out.

        A message that is on the wire may arrive all the same.
        """
        with self._lock:
            old, self._line = self._line, _Line(self._config)
            self._open, self._failure, self._ends = {}, None, {}
            wake, self._waiting = self._waiting, []
        old.cut()
        for call in wake:
            call()

    def is_answered(self, within_s: float) -> bool:
        """Ask the broker for something small, and return whether it answers; call it in a thread."""
        try:
            self._line.producer.list_topics(_NO_TOPIC, within_s)
        except KafkaException:
            return False
        return True

    def sent(self) -> dict[str, tuple[int, int]]:
        """Return how many messages were handed over, and their bytes, by topic."""
        with self._lock:
            return dict(self._sent)

    def end_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset after the last message that the broker acknowledged to us; `None` if there is none."""
        with self._lock:
            return self._ends.get((topic, partition))

    def close(self, timeout_s: float = 5.0) -> None:
        """Send all messages within `timeout_s`, and stop."""
        self._line.close(timeout_s)

    def _settle(self, line: _Line, span: int, topic: str, error: KafkaError | None, message: Message | None) -> None:
        with self._lock:
            # Of a producer that was given up, whose spans are dropped.
            if line is not self._line:
                return
            self._open[span] -= 1
            if not self._open[span]:
                del self._open[span]
            if error is not None and self._failure is None:
                self._failure = error, topic
            if message is not None and error is None:
                # A message that was sent again, and that the broker already had, counts as delivered; librdkafka
                # does not know its offset. Then the end stays lower, and a reader from there reads a little more.
                partition, offset = message.partition(), message.offset()
                if partition is not None and offset is not None:
                    self._ends[topic, partition] = offset + 1
            wake: list[Callable[[], object]] = []
            if span not in self._open or error is not None:
                wake, self._waiting = self._waiting, []
        for call in wake:
            call()

    def _require(self, line: _Line) -> None:
        if line is not self._line:
            raise SendingGivenUp("messages must be sent before others take over; they were given up")
        if self._failure is not None:
            error, topic = self._failure
            raise service_error(error, self._bootstrap, self._timeout_s, self._security, topic)
