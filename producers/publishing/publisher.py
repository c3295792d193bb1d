"""The Kafka side of the agent: a bounded, idempotent producer that waits instead of dropping."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from irregulars.errors import InputError, ServiceError, TopicMismatch
from irregulars.kafka.broker import is_nobody_there, is_refusal, service_error
from irregulars.kafka.lasting_producer import BY_KEY, LastingProducer
from irregulars.kafka.login_password import is_login_refusal, password_of
from irregulars.kafka.topics import HEADER_BYTES, MAX_MESSAGE_BYTES, SENDING, TopicSettings, partition_of
from irregulars.producers.publishing.spool import Message

_LOG: Final = logging.getLogger("irregulars.agent")
_TICK_S: Final = 0.1
COMPRESSIONS: Final = ("zstd", "lz4")
# No broker took the message in time: those behind it would fail in the same way, so the agent ends.
_GONE: Final = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
_NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent publishes; InputError if a value breaks its rule."""

    bootstrap: str  # Kafka brokers to ask first: ``host:port``, several with commas between
    topics: TopicSettings = field(default_factory=TopicSettings)  # prefix, partitions and retention of the topics
    # More settings of librdkafka, for example ``security.protocol`` and ``sasl.password``; never logged
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    linger_ms: float = 50.0  # milliseconds for which a message may wait for others of the same request
    compression: str = "zstd"  # ``zstd`` (smaller) or ``lz4`` (cheaper)
    # queue_messages, queue_bytes: Bounds of the messages that wait for the broker; above them the source is not
    # polled
    queue_messages: int = 20_000
    queue_bytes: int = 64 << 20
    heartbeat_s: float = 1.0  # seconds between heartbeats of a rank, and between reports of progress
    broker_wait_s: float = 60.0  # seconds for which a broker that does not answer is waited for
    refused_s: float = math.inf  # the same at the start, where each connection is refused
    poll_records: int = 15_000  # announcements and rows of one poll of the source
    bundle_s: float = 0.25  # seconds for which a batch of a rank may wait for those of the other ranks of its host

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise InputError(f"compression must be {' or '.join(COMPRESSIONS)}; got {self.compression!r}")
        for name, least in (("queue_messages", 1), ("queue_bytes", 2 << 20), ("poll_records", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}; got {getattr(self, name)!r}")
        for name in ("heartbeat_s", "broker_wait_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be above 0 and finite; got {getattr(self, name)!r}")
        if not 0 <= self.bundle_s < float("inf"):
            raise InputError(f"bundle_s must be at least 0 and finite; got {self.bundle_s!r}")
        if not 0 <= self.linger_ms < self.broker_wait_s * 1000:
            raise InputError(f"linger_ms must be at least 0 and below broker_wait_s; got {self.linger_ms!r}")


@dataclass(slots=True)
class Delivered:
    """Counts of messages that the broker acknowledged, and of those that failed for good."""

    messages: int = 0
    failed_messages: int = 0
    first_failure: KafkaError | None = None
    rows: Counter[str] = field(default_factory=Counter)  # acknowledged, by topic without prefix


class Publisher:
    """Sends messages, waits where the queue is full, and raises failures as a `ServiceError`.

    Raises InputError if librdkafka does not take ``settings.kafka``.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self.delivered = Delivered()
        self._failure: KafkaError | None = None
        self._last_trouble: KafkaError | None = None
        self._troubles: list[KafkaError] = []  # until the broker has answered for the first time
        self._is_connected = False  # before, trouble is not logged but raised: once is enough
        self._logged_codes: set[int] = set()  # each kind of trouble is logged once, until the broker answers again
        self._made: LastingProducer | None = None
        self._partitions: dict[str, int] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Make the producer at the start, which shows that the settings are usable."""
        _ = self._producer

    @property
    def _producer(self) -> LastingProducer:
        if self._made is None:
            try:
                self._made = LastingProducer(self._config())
            except (KafkaException, TypeError) as error:
                text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
                rule = "settings of librdkafka must be ones that it takes"
                raise InputError(f"{rule}; got an error: {text}") from None
        return self._made

    def connect(self, topics: Iterable[str]) -> None:
        """Wait for the broker, and check that `topics` exist and have equal numbers of partitions.

        Raises ServiceUnavailable, ServiceRefused if no broker answers within ``broker_wait_s``, or one refuses us;
        TopicMismatch if a topic is missing, or numbers of partitions differ.
        """
        begin_s = time.monotonic()
        existing = None
        while existing is None:
            left_s = begin_s + self._settings.broker_wait_s - time.monotonic()
            try:
                # In short turns: between them `serve` raises where a broker refuses us; only absence is waited for.
                existing = self._producer.list_topics(timeout_s=min(1.0, max(left_s, 0.01))).topics
            except KafkaException as error:
                self.serve()
                past_s = time.monotonic() - begin_s
                refused_s, security = self._settings.refused_s, self._settings.kafka
                if past_s > refused_s and is_nobody_there(self._troubles):
                    raise service_error(self._troubles[0], self._settings.bootstrap, refused_s, security) from None
                if past_s > self._settings.broker_wait_s:
                    raise self._service_error(self._last_trouble or error.args[0]) from None
                self.serve(_TICK_S)
        self._is_connected = True
        self._troubles.clear()
        self._require_topics(existing, topics)

    def _require_topics(self, existing: Mapping[str, Any], topics: Iterable[str]) -> None:
        names = [self._settings.topics.name(topic) for topic in topics]
        missing = [name for name in names if name not in existing or existing[name].error is not None]
        if missing:
            raise self._no_topics(", ".join(missing))
        counts = self._partitions = {name: len(existing[name].partitions) for name in names}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name}={count}" for name, count in counts.items())
            rule = "equal, so that all that one rank sends meets in one worker"
            raise TopicMismatch(f"partitions of a rank's topics must be {rule}; got {found} ({self._where()})")

    def send(self, message: Message) -> None:
        """Queue one message; waits while the queue is full.

        Raises ServiceError if an earlier message could not be delivered, or this one never can be.
        """
        while True:
            try:
                self._produce(message, partial(self._on_delivery, message.topic, message.rows))
                return
            # librdkafka's queue is full; acknowledgements make room in it.
            except BufferError:
                self.serve(_TICK_S)
            except KafkaException as error:
                raise self._service_error(error.args[0]) from None

    def _produce(self, message: Message, on_delivery: Callable[[KafkaError | None, KafkaMessage], None]) -> None:
        name, where = self._settings.topics.name(message.topic), message.partition_key
        partition = partition_of(where, self._partitions[name]) if where else BY_KEY
        produce = partial(self._producer.produce, name, value=message.value, key=message.key)
        produce(partition=partition, on_delivery=on_delivery)

    @property
    def is_behind(self) -> bool:
        """Whether messages wait for a broker that is away.

        Heartbeats pause then: they would be out of date on arrival.
        """
        return False

    def lost_rows(self, schema: str, key: bytes, attempt: int) -> int:
        """Return the number of rows of one rank that were dropped because the queue was full."""
        return 0

    def serve(self, wait_s: float = 0.0) -> None:
        """Process acknowledgements for `wait_s`; raises `ServiceError` once delivery has failed for good."""
        if self._made is not None:
            self._made.poll(wait_s)
        if self._failure is not None:
            raise self._service_error(self._failure)

    def flush(self) -> None:
        """Wait until the broker has acknowledged everything.

        Raises ServiceError if it does not within ``broker_wait_s``, or if any message was refused since the start.
        """
        # A message fails by itself after broker_wait_s; the deadline is there in case that its report does not come.
        deadline_s = time.monotonic() + self._settings.broker_wait_s + 10
        while self._producer.flush(_TICK_S) > 0:
            self.serve()
            if time.monotonic() > deadline_s:
                raise self._service_error(KafkaError(KafkaError._MSG_TIMED_OUT))
        self.serve()
        failed = self.delivered.failed_messages
        if failed and self.delivered.first_failure is not None:
            first = _text(self.delivered.first_failure)
            raise ServiceError(
                f"all messages must be delivered; got {failed} refused, first: {first} ({self._where()})"
            )

    def close(self) -> None:
        """Drop waiting messages and close the connections. A second time does nothing."""
        if self._made is not None:
            self._made.purge()
            self._made.flush(0)
            # A client has threads, buffers and sockets until it is destroyed. It refers to this publisher by
            # `error_cb`: as long as each holds the other, or a caller keeps the publisher's counts, it would stay.
            self._made = None

    def _config(self) -> dict[str, Any]:
        settings = self._settings
        ours: dict[str, Any] = {
            "bootstrap.servers": settings.bootstrap, **SENDING, "compression.type": settings.compression,
            "linger.ms": settings.linger_ms, "queue.buffering.max.messages": settings.queue_messages,
            "queue.buffering.max.kbytes": settings.queue_bytes >> 10,
            "message.max.bytes": MAX_MESSAGE_BYTES + HEADER_BYTES,
            "message.timeout.ms": round(settings.broker_wait_s * 1000), "error_cb": self._on_trouble,
        }  # fmt: skip
        # The servers may be among them: ours, which come last below, replace them.
        reserved = sorted((ours.keys() & settings.kafka.keys()) - {"bootstrap.servers"})
        if reserved:
            raise InputError(
                f"settings of librdkafka must not hold {reserved[0]!r}, the agent sets it; got it (kafka)"
            )
        # librdkafka's own log would print several lines a second while a broker is away; `_on_trouble` logs it once.
        return {"log_level": 0, **settings.kafka, **ours}

    def _on_delivery(self, topic: str, rows: int, error: KafkaError | None, message: KafkaMessage) -> None:
        if error is None:
            self.delivered.messages += 1
            self.delivered.rows[topic] += rows
            self._logged_codes.clear()
            return
        self.delivered.failed_messages += 1
        if self.delivered.first_failure is None:
            self.delivered.first_failure = error
            _LOG.error("event=delivery_failed topic=%s key=%r error=%r", message.topic(), message.key(), _text(error))
        # Other refusals are of one message, too large for example: `flush` raises them at the end.
        if error.fatal() or self._refuses(error) or error.code() in _GONE | _NO_TOPIC:
            self._failure = self._failure or error

    def _on_trouble(self, error: KafkaError) -> None:
        self._troubles += [] if self._is_connected else [error]
        if error.fatal() or self._refuses(error):
            self._failure = self._failure or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._last_trouble is not None:
            return  # sums up the errors of the single brokers, without their reasons
        elif self._is_connected and not is_login_refusal(error) and error.code() not in self._logged_codes:
            self._logged_codes.add(error.code())
            _LOG.warning("event=broker_trouble bootstrap=%s error=%r", self._settings.bootstrap, _text(error))
        self._last_trouble = error

    def _refuses(self, error: KafkaError) -> bool:
        if self._is_connected and is_login_refusal(error):
            password = password_of(self._settings.kafka)
            if password is not None and password.path is not None:
                return False  # it was right before, and will be again when the file holds the new password
        return is_refusal(error, self._settings.kafka)

    def _service_error(self, error: KafkaError) -> ServiceError:
        code = error.code()
        if code in _NO_TOPIC:
            return self._no_topics(_text(error))
        is_refused = is_refusal(error, self._settings.kafka)
        if (error.fatal() and not is_refused) or code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG):
            return ServiceError(f"{self._where()} must take our messages; got {_text(error)}")
        return service_error(error, self._settings.bootstrap, self._settings.broker_wait_s, self._settings.kafka)

    def _no_topics(self, found: str) -> TopicMismatch:
        advice = "Run: irregulars topics create; or, where they are there, irregulars topics grant"
        return TopicMismatch(f"topics must exist; missing: {found} ({self._where()}). {advice}")

    def _where(self) -> str:
        return f"Kafka at {self._settings.bootstrap}"


def _text(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
