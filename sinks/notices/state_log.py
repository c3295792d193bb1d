"""The state of notices, on Kafka: records of notices, mutes, opinions, and the alerts themselves. No file is kept."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, Message

from irregulars.errors import InputError, RecordError, ServiceUnavailable
from irregulars.kafka.broker import client_config, is_refusal, service_error
from irregulars.kafka.dead_letters import REASON_CHARACTERS
from irregulars.kafka.lasting_producer import BY_KEY, Headers, LastingProducer
from irregulars.kafka.lasting_producer import Record as Sent
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.scattered_reading import PASSING
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import HEADER_BYTES, MAX_KEY_BYTES, MAX_MESSAGE_BYTES, TopicSettings
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.messages.opinions import Opinion, decode_opinion, encode_opinion
from irregulars.messages.threshold_changes import ThresholdChange, decode_change, encode_change
from irregulars.sinks.alerts import decode_alert
from irregulars.sinks.notices.incidents import REPEAT_NS
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.mutes import WORDS, Mute, decode_mute, encode_mute, opinion_on
from irregulars.sinks.notices.policy import DeliveryRecord, Rules, decode_delivery, encode_delivery

LOG: Final = logging.getLogger("irregulars.notify")
_READ_S: Final = 10.0  # for each message
_STOP_S: Final = 5.0  # how long a broker that is away delays the process's end; one that is there needs less
# A message that fails so is sent again. Of the errors of a producer `KafkaError.retriable` is always false.
_AWAY: Final = PASSING | {
    KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}  # fmt: skip
_LARGEST: Final = MAX_MESSAGE_BYTES - MAX_KEY_BYTES
_Record = TypeVar("_Record")
_KeyValue = tuple[bytes | None, bytes | None]
Refuse = Callable[[Message, str], None]  # called with an alert that can't be decoded, and the reason


@dataclass(slots=True)
class _Followed(Generic[_Record]):
    """A compacted topic that is read again and again: its newest records, and how far each partition was read."""

    topic: str
    decode: Callable[[bytes | None], _Record]
    newest: dict[bytes, _Record] = field(default_factory=dict)
    read_to: dict[int, int] = field(default_factory=dict)


class StateLog:
    """Reads and writes the topics of one installation. One thread at a time.

    `bootstrap`, `topics`, `security`: where they are, and librdkafka's settings of protocol and credentials;
    `is_stopping`: whether waiting for a broker that is away is to end, after `_STOP_S`.
    """

    def __init__(
        self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], is_stopping: threading.Event
    ) -> None:
        self._bootstrap: Final = bootstrap
        self._topics: Final = topics
        self._security: Final = security
        self._is_stopping: Final = is_stopping
        self._reader: Final = LogReader(bootstrap, security, _READ_S)
        self._producer: Final = LastingProducer(
            # As of every producer of ours: a dead letter may be as large as its topic takes, which is more than
            # librdkafka's default.
            client_config(bootstrap, security) | {"message.max.bytes": MAX_MESSAGE_BYTES + HEADER_BYTES}
        )
        self._deliveries: Final = _Followed("notices", decode_delivery)
        self._mutes: Final = _Followed("mutes", decode_mute)
        self._opinions: Final = _Followed("feedback", decode_opinion)
        self._changes: Final = _Followed("thresholds", decode_change)
        self._stops_at_s: float | None = None

    def close(self) -> None:
        """Let go of the connections."""
        self._reader.close()

    def deliveries(self) -> list[DeliveryRecord]:
        """Return the newest record of each incident and channel; reads the new ones. Raises `ServiceUnavailable`."""
        return self._follow(self._deliveries)

    def mutes(self) -> list[Mute]:
        """Return all mutes; reads the new ones. Raises `ServiceUnavailable`."""
        return self._follow(self._mutes)

    def opinions(self) -> list[Opinion]:
        """Return each person's newest opinion on each verdict; reads the new ones. Raises `ServiceUnavailable`."""
        return self._follow(self._opinions)

    def changes(self) -> list[ThresholdChange]:
        """Return all changes of thresholds, in their order; reads the new ones. Raises `ServiceUnavailable`."""
        return self._follow(self._changes)

    def alerts(self, partition: int, since_ns: int, *before: int | None) -> tuple[Iterator[Message], int]:
        """Return the alerts of a partition up to its present end, and that end; raises `ServiceUnavailable`.

        They begin at the first that is not older than a time, or at the smallest of the offsets `before`.
        """
        name = self._topics.name("alerts")
        recent = self._reader.offset_at(name, partition, since_ns // 10**6)
        end = self._reader.end_offset(name, partition)
        begin = min(one for one in (recent, *before) if one is not None)
        return self._reader.messages(name, partition, begin, end), end

    def record(self, *told: DeliveryRecord) -> None:
        """Publish records of notices; on return the broker has them."""
        if told:
            self._write("notices", *((one.key, encode_delivery(one)) for one in told))

    def erase(self, told: DeliveryRecord) -> None:
        """Delete a record."""
        self._write("notices", (told.key, None))

    def set_mute(self, mute: Mute) -> None:
        """Add a mute, or change one."""
        self._write("mutes", (mute.mute_id.encode(), encode_mute(mute)))

    def verdict(self, verdict_id: str) -> Verdict | None:
        """Return the newest revision of a verdict; None: the topic ``verdicts`` holds none. Raises as `mutes`."""
        found, name = None, self._topics.name("verdicts")
        for partition in self._reader.partitions(name):
            for message in self._reader.messages(name, partition):
                if message.key() == verdict_id.encode():
                    with suppress(RecordError):  # not one of ours
                        found = decode_verdict(message.value())
        return found

    def record_opinion(self, verdict: Verdict, word: str, who: str, note: str = "") -> None:
        """Publish a person's opinion on a verdict: one of `opinions.WORDS`.

        Raises `InputError` if the word is none of these, a text is too long, or there is no opinion to withdraw.
        """
        if word not in WORDS:
            raise InputError(f"feedback must be one of {', '.join(WORDS)}; got {word!r}")
        is_right = None if word == "withdraw" else word == "right"
        opinion = opinion_on(verdict, is_right=is_right, who=who, note=" ".join(note.split()), time_ns=time.time_ns())
        if is_right is None and opinion.key not in {one.key for one in self.opinions()}:
            raise InputError(f"opinion must be there to be withdrawn; got none of {who} on {verdict.verdict_id}")
        self._write("feedback", (opinion.key, encode_opinion(opinion)))

    def change(self, change: ThresholdChange) -> None:
        """Change thresholds. Workers read one partition, for the order; the topic may have been made with more."""
        self._write("thresholds", (change.change_id.encode(), encode_change(change)), partition=0)

    def erase_mute(self, mute_id: str) -> None:
        """Delete a mute."""
        self._write("mutes", (mute_id.encode(), None))

    def bury(self, key: bytes | None, value: bytes | None, place: tuple[int, int], reason: str, channel: str) -> None:
        """Publish an alert to the dead letters, with the reason, its place and the channel that refused it."""
        texts = {
            "reason": reason[:REASON_CHARACTERS], "topic": self._topics.name("alerts"), "partition": str(place[0]),
            "offset": str(place[1]), "channel": channel, "key_bytes": str(len(key or b"")),
            "value_bytes": str(len(value or b"")),
        }  # fmt: skip
        headers = [(name, text.encode(errors="backslashreplace")) for name, text in texts.items()]
        head = None if value is None else value[:_LARGEST]
        self._write("deadletter", (None if key is None else key[:MAX_KEY_BYTES], head), headers=headers)

    def _follow(self, followed: _Followed[_Record]) -> list[_Record]:
        name = self._topics.name(followed.topic)
        partitions = tuple(followed.read_to) or self._reader.partitions(name)
        ends = {partition: self._reader.end_offset(name, partition) for partition in partitions}
        # The topic was made anew, or its log cut: none of its former records is in force any more.
        if any(end < followed.read_to.get(partition, 0) for partition, end in ends.items()):
            LOG.warning("event=read_anew topic=%s", name)
            followed.newest.clear()
            followed.read_to.clear()
        for partition, end in ends.items():
            begin = followed.read_to.get(partition, 0)
            for message in self._reader.messages(name, partition, begin, end) if end > begin else ():
                key, value = message.key() or b"", message.value()
                try:
                    if value is None:
                        followed.newest.pop(key, None)
                    else:
                        followed.newest[key] = followed.decode(value)
                # The record before it of this key, if there is one, stays in force.
                except RecordError as error:
                    place = (message.topic(), message.offset(), str(error))
                    LOG.warning("event=unreadable topic=%s offset=%s reason=%r", *place)
            followed.read_to[partition] = end
        return list(followed.newest.values())

    def _write(self, topic: str, *records: _KeyValue, headers: Headers = (), partition: int = BY_KEY) -> None:
        """Publish, and wait for the acknowledgement, however long the broker is away: nothing goes on without it."""
        name = self._topics.name(topic)
        sent = [Sent(name, key, value, partition, headers) for key, value in records]
        while (outcome := self._producer.deliver(sent, is_given_up=self._has_waited)) is not None:
            if self._has_waited() and outcome.code() == KafkaError._TIMED_OUT:
                raise ServiceUnavailable(
                    f"Kafka at {self._bootstrap} must acknowledge a record within {_STOP_S:g} s of a stop; "
                    "it did not. The next process begins at the same alerts"
                )
            if is_refusal(outcome, self._security) or outcome.code() not in _AWAY:
                raise service_error(outcome, self._bootstrap)
            LOG.warning("event=broker_away topic=%s error=%s", name, outcome.name())

    def _has_waited(self) -> bool:
        """Whether a stop was asked for, and the broker has been waited for since then."""
        if not self._is_stopping.is_set():
            return False
        now_s = time.monotonic()
        if self._stops_at_s is None:
            self._stops_at_s = now_s + _STOP_S
        return now_s > self._stops_at_s


@contextmanager
def opened(
    bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], *needed: str,
    is_stopping: threading.Event | None = None,
) -> Iterator[StateLog]:  # fmt: skip
    """Open the state for one command, and close it at the end.

    `needed`: Topics that must be there, without the prefix. `is_stopping`: Ends the wait for a broker that went away
    meanwhile; None: it is waited for. Raises `ServiceError` if Kafka does not answer, refuses us, or lacks a topic.
    """
    partitions_there(bootstrap, topics, security, needed)
    log = StateLog(bootstrap, topics, security, is_stopping or threading.Event())
    try:
        yield log
    finally:
        log.close()


def load(
    log: StateLog, rules: Mapping[str, Rules], committed: Mapping[int, int], now_ns: int, refuse: Refuse
) -> tuple[Ledger, dict[int, int]]:
    """Read all records and mutes, and the alerts on which a notice may still rest, up to the present end.

    These are the alerts of the last week, those behind the committed offset, and those of incidents whose end was not
    delivered, however old. `committed`: offset of each partition up to which all was settled; below 0: none was
    committed. Return the ledger, and the offset of the next alert of each partition. Raises `ServiceUnavailable` if
    the broker does not send them.
    """
    ledger = Ledger(rules)
    for told in log.deliveries():
        ledger.apply_delivery(told)
    ledger.set_mutes(log.mutes(), log.opinions())
    positions = {}
    for partition, settled in committed.items():
        before = (ledger.oldest_open(partition), settled if settled >= 0 else None)
        messages, positions[partition] = log.alerts(partition, now_ns - REPEAT_NS, *before)
        for message in messages:
            reason = apply_message(ledger, message)
            if reason is not None and (message.offset() or 0) >= settled:  # else it was refused before
                refuse(message, reason)
    return ledger, positions


def apply_message(ledger: Ledger, message: Message) -> str | None:
    """Apply one message of ``alerts`` to the ledger; return why it can't be decoded, or None."""
    try:
        alert = decode_alert(message.value())
    except RecordError as error:
        return str(error)
    now_ns = time.time_ns()
    _, time_ms = message.timestamp()
    # A message may have no time of Kafka's; that of a worker whose clock is ahead would hold pages back for as long.
    came_ns = min(time_ms * 10**6, now_ns) if time_ms > 0 else now_ns
    ledger.apply_alert(alert, came_ns, message.partition() or 0, message.offset() or 0)
    return None
