"""What outlasts a restart, on Kafka: what was told, mutes, and the alerts themselves. No file is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, Message

from irregulars.errors import RecordError, ServiceUnavailable
from irregulars.kafka.broker import client_config, is_refusal, service_error
from irregulars.kafka.dead_letters import REASON_CHARACTERS
from irregulars.kafka.lasting_producer import BY_KEY, Headers, LastingProducer
from irregulars.kafka.lasting_producer import Record as Sent
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, TopicSettings
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.messages.opinions import Opinion, decode_opinion, encode_opinion
from irregulars.messages.threshold_changes import ThresholdChange, decode_change, encode_change
from irregulars.sinks.notices.mutes import Mute, decode_mute, encode_mute
from irregulars.sinks.notices.told import Told, decode_told, encode_told

LOG: Final = logging.getLogger("irregulars.notify")
_READ_S: Final = 10.0  # for each message; and how long a broker that is away keeps the process from stopping
_LARGEST: Final = MAX_MESSAGE_BYTES - MAX_KEY_BYTES
_Record = TypeVar("_Record")
_KeyValue = tuple[bytes | None, bytes | None]


@dataclass(slots=True)
class _Followed(Generic[_Record]):
    """A compacted topic that is read again and again: its newest records, and how far each partition was read."""

    topic: str
    decode: Callable[[bytes | None], _Record]
    newest: dict[bytes, _Record] = field(default_factory=dict)
    read_to: dict[int, int] = field(default_factory=dict)


class StateLog:
    """Reads and writes the topics of one installation. One thread at a time.

    Parameters
    ----------
    bootstrap, topics, security
        Where they are, and librdkafka's settings of protocol and credentials.
    is_stopping
        Whether waiting for a broker that is away is to end.
    """

    def __init__(
        self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], is_stopping: threading.Event
    ) -> None:
        self._bootstrap: Final = bootstrap
        self._topics: Final = topics
        self._security: Final = security
        self._is_stopping: Final = is_stopping
        self._reader: Final = LogReader(bootstrap, security, _READ_S)
        self._producer: Final = LastingProducer(client_config(bootstrap, security))
        self._mutes: Final = _Followed("mutes", decode_mute)
        self._opinions: Final = _Followed("feedback", decode_opinion)
        self._changes: Final = _Followed("thresholds", decode_change)

    def close(self) -> None:
        """Let go of the connections."""
        self._reader.close()

    def told(self) -> list[Told]:
        """Return the newest record of each incident and channel; raises `ServiceUnavailable`."""
        newest: dict[bytes, Told] = {}
        for message in self._all("notices"):
            _take(newest, message, decode_told)
        return list(newest.values())

    def mutes(self) -> list[Mute]:
        """Return all mutes that stand on the topic now; reads what is new. Raises `ServiceUnavailable`."""
        return self._follow(self._mutes)

    def opinions(self) -> list[Opinion]:
        """Return everybody's newest word on each verdict; reads what is new. Raises `ServiceUnavailable`."""
        return self._follow(self._opinions)

    def changes(self) -> list[ThresholdChange]:
        """Return all changes of thresholds, in their order; reads what is new. Raises `ServiceUnavailable`."""
        return self._follow(self._changes)

    def alerts(self, partition: int, begin: int, end: int) -> Iterator[Message]:
        """Yield messages of ``alerts`` from `begin` to before `end`; raises `ServiceUnavailable`."""
        return self._reader.messages(self._topics.name("alerts"), partition, begin, end)

    def alert_partitions(self) -> list[int]:
        """Return the partitions of ``alerts``."""
        return self._reader.partitions(self._topics.name("alerts"))

    def alert_bounds(self, partition: int, since_ns: int) -> tuple[int, int]:
        """Return the offset of the first alert that is not older than a time, and where the next will stand."""
        name = self._topics.name("alerts")
        return self._reader.offset_at(name, partition, since_ns // 10**6), self._reader.end_offset(name, partition)

    def record(self, *told: Told) -> None:
        """Keep what channels were told; on return it stands on the broker."""
        if told:
            self._write_all("notices", [(one.key, encode_told(one)) for one in told])

    def erase(self, told: Told) -> None:
        """Let a record go."""
        self._write("notices", told.key, None)

    def set_mute(self, mute: Mute) -> None:
        """Add a mute, or change one."""
        self._write("mutes", mute.mute_id.encode(), encode_mute(mute))

    def verdict(self, verdict_id: str) -> Verdict | None:
        """Return the newest revision of a verdict; None: the topic ``verdicts`` holds none. Raises as `mutes`."""
        key, found = verdict_id.encode(), None
        for message in self._all("verdicts"):
            if message.key() == key:
                with suppress(RecordError):  # not ours
                    found = decode_verdict(message.value())
        return found

    def say(self, opinion: Opinion) -> None:
        """Keep what somebody says of a verdict."""
        self._write("feedback", opinion.key, encode_opinion(opinion))

    def change(self, change: ThresholdChange) -> None:
        """Change thresholds. Workers read one partition, for the order; who made the topic may have made more."""
        self._write("thresholds", change.change_id.encode(), encode_change(change), partition=0)

    def erase_mute(self, mute_id: str) -> None:
        """Let a mute go, and all memory of it."""
        self._write("mutes", mute_id.encode(), None)

    def bury(self, key: bytes | None, value: bytes | None, place: tuple[int, int], reason: str, channel: str) -> None:
        """Send an alert to the dead letters, with the reason, where it stood and which channel would not have it."""
        texts = {
            "reason": reason[:REASON_CHARACTERS],
            "topic": self._topics.name("alerts"),
            "partition": str(place[0]),
            "offset": str(place[1]),
            "channel": channel,
            "key_bytes": str(len(key or b"")),
            "value_bytes": str(len(value or b"")),
        }
        headers = [(name, text.encode(errors="backslashreplace")) for name, text in texts.items()]
        head = None if value is None else value[:_LARGEST]
        self._write("deadletter", None if key is None else key[:MAX_KEY_BYTES], head, headers)

    def _follow(self, followed: _Followed[_Record]) -> list[_Record]:
        name = self._topics.name(followed.topic)
        for partition in tuple(followed.read_to) or self._reader.partitions(name):
            begin = followed.read_to.get(partition, 0)
            end = self._reader.end_offset(name, partition)
            for message in self._reader.messages(name, partition, begin, end) if end > begin else ():
                _take(followed.newest, message, followed.decode)
            followed.read_to[partition] = end
        return list(followed.newest.values())

    def _all(self, topic: str) -> Iterator[Message]:
        name = self._topics.name(topic)
        for partition in self._reader.partitions(name):
            yield from self._reader.messages(name, partition)

    def _write(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = (), partition: int = BY_KEY
    ) -> None:
        """Send, and wait for the acknowledgement, however long the broker is away: nothing goes on without it."""
        self._write_all(topic, [(key, value)], headers, partition)

    def _write_all(
        self, topic: str, records: Sequence[_KeyValue], headers: Headers = (), partition: int = BY_KEY
    ) -> None:
        name = self._topics.name(topic)
        sent = [Sent(name, key, value, partition, headers) for key, value in records]
        while (outcome := self._producer.deliver(sent, is_given_up=self._is_stopping.is_set)) is not None:
            if self._is_stopping.is_set() and outcome.code() == KafkaError._TIMED_OUT:
                raise ServiceUnavailable(
                    f"Kafka at {self._bootstrap} must acknowledge what was told; got a stop first"
                )
            if is_refusal(outcome, self._security) or (not outcome.retriable() and outcome.code() not in _AWAY):
                raise service_error(outcome, self._bootstrap)
            LOG.warning("event=broker_away topic=%s error=%s", name, outcome.name())


_AWAY: Final = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})


def _take(newest: dict[bytes, _Record], message: Message, decode: Callable[[bytes | None], _Record]) -> None:
    key, value = message.key() or b"", message.value()
    if value is None:
        newest.pop(key, None)
        return
    try:
        newest[key] = decode(value)
    except RecordError as error:
        LOG.warning("event=unreadable topic=%s offset=%s reason=%r", message.topic(), message.offset(), str(error))
