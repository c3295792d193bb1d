"""Send to Kafka from the event loop, and know when all that was sent before a moment stands on the broker.

confluent-kafka and not aiokafka: librdkafka batches, compresses and waits for acknowledgements in its own threads,
so that the event loop, which Faust shares, never pays for lz4; and it has the partitioner of our other producers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from irregulars.streams.kafka.broker import client_config, service_error
from irregulars.streams.kafka.topic_admin import MAX_SNAPSHOT_BYTES
from irregulars.streams.kafka.topics import PARTITIONER

_POLL_S: Final = 0.1
_FULL_WAIT_S: Final = 0.02
Headers = Sequence[tuple[str, bytes]]


class Outbox:
    """An idempotent producer with barriers.

    Each message belongs to the span of time between two barriers. `barrier` ends the present one, and returns when
    every message of it, and of those before, is acknowledged. One message that can't be delivered makes all barriers
    fail from then on: the worker must stop, and start again from its last snapshot.

    Parameters
    ----------
    bootstrap, security
        As in `streams.kafka.broker.client_config`.
    timeout_s
        How long the broker has to take a message.
    """

    def __init__(self, bootstrap: str, security: Mapping[str, Any], timeout_s: float = 30.0) -> None:
        self._bootstrap: Final = bootstrap
        self._timeout_s: Final = timeout_s
        self._producer: Final = Producer(_producer_config(bootstrap, security, timeout_s))
        self._lock: Final = threading.Lock()
        self._span = 0
        self._open: dict[int, int] = {}  # span -> messages on the way
        self._waiting: list[Callable[[], object]] = []
        self._failure: KafkaError | None = None
        self._ends: dict[tuple[str, int], int] = {}
        self._is_closed = threading.Event()
        self._poller: Final = threading.Thread(target=self._poll, name="irregulars-outbox", daemon=True)
        self._poller.start()

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

        Parameters
        ----------
        partition
            `None`: chosen by the key.

        Raises
        ------
        ServiceUnavailable, ServiceRefused
            If this or an earlier message can't be delivered.
        """
        with self._lock:
            span = self._span
            self._open[span] = self._open.get(span, 0) + 1
        place = {} if partition is None else {"partition": partition}
        while True:
            self._raise_failure()
            try:
                self._producer.produce(
                    topic, value, key, headers=list(headers), on_delivery=partial(self._delivered, span), **place
                )
                return
            except BufferError:
                await asyncio.sleep(_FULL_WAIT_S)
            except KafkaException as error:  # too large, or no such topic
                self._settle(span, error.args[0], None)

    async def barrier(self) -> None:
        """Wait until all that was sent before this call is acknowledged.

        Raises
        ------
        ServiceUnavailable, ServiceRefused
            If a message can't be delivered.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            self._span += 1
            end = self._span
        while True:
            progress = asyncio.Event()
            with self._lock:
                if self._failure or not any(span < end for span in self._open):
                    break
                self._waiting.append(partial(loop.call_soon_threadsafe, progress.set))
            await progress.wait()
        self._raise_failure()

    def end_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset after the last message that the broker acknowledged to us; `None` if there is none."""
        with self._lock:
            return self._ends.get((topic, partition))

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left within `timeout_s`, and stop."""
        self._producer.flush(timeout_s)
        self._is_closed.set()
        self._poller.join(timeout_s)

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(_POLL_S)

    def _delivered(self, span: int, error: KafkaError | None, message: Message) -> None:
        self._settle(span, error, message)

    def _settle(self, span: int, error: KafkaError | None, message: Message | None) -> None:
        with self._lock:
            self._open[span] -= 1
            if not self._open[span]:
                del self._open[span]
            self._failure = self._failure or error
            if message is not None and error is None:
                self._ends[message.topic(), message.partition()] = message.offset() + 1
            wake: list[Callable[[], object]] = []
            if span not in self._open or error is not None:
                wake, self._waiting = self._waiting, []
        for call in wake:
            call()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise service_error(self._failure, self._bootstrap, self._timeout_s)


def _producer_config(bootstrap: str, security: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    return client_config(bootstrap, security) | {
        "partitioner": PARTITIONER,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 5,
        "message.timeout.ms": int(timeout_s * 1000),
        "message.max.bytes": MAX_SNAPSHOT_BYTES,
        "queue.buffering.max.kbytes": 1 << 18,
    }
