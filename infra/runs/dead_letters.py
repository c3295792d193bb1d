"""Topics read back: dead letters (and sent again), and messages of a job to be forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from confluent_kafka import Message

from irregulars.errors import InputError, RecordError
from irregulars.kafka.broker import client_config, service_error
from irregulars.kafka.lasting_producer import LastingProducer, Record
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import check_topics, partitions_there
from irregulars.kafka.topics import HEADER_BYTES, MAX_MESSAGE_BYTES, RANK_TOPICS, WORKER_TOPICS, TopicSettings
from irregulars.messages.records import decode_json

REPLAYED: Final = (*RANK_TOPICS, "evidence")  # topics to which letters go back: those that workers read
_DEADLINE_S: Final = 120.0
_ASK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that a worker could not use, as `kafka.dead_letters` sent it.

    `place`: Its offset on the topic of dead letters; with ``partition/`` before it where there are several.
    `headers`: Why, and from where.
    """

    place: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]

    @classmethod
    def of(cls, message: Message) -> Self:
        """Read one from the topic; a header that is missing is left out."""
        given: Any = message.headers() or ()
        headers = {name: (value or b"").decode(errors="replace") for name, value in dict(given).items()}
        partition, offset = message.partition() or 0, message.offset()
        return cls(f"{partition}/{offset}" if partition else str(offset), message.key(), message.value(), headers)

    @property
    def reason(self) -> str:
        """Why it could not be used."""
        return self.headers.get("reason", "not told")

    @property
    def topic(self) -> str:
        """The topic it came from, with the prefix; of rows that the database refused, the table."""
        return self.headers.get("topic", "")

    @property
    def is_cut(self) -> bool:
        """Whether only the head was kept."""
        sizes = (_number(self.headers.get(name)) for name in ("key_bytes", "value_bytes"))
        kept = (len(self.key or b""), len(self.value or b""))
        return any(size is not None and size > have for size, have in zip(sizes, kept, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the fields that a list shows."""
        headers = self.headers
        return {
            "letter": self.place,
            "time": _time(_number(headers.get("time_ns"))),
            "topic": self.topic,
            "partition": _number(headers.get("partition")),
            "offset": _number(headers.get("offset")),
            "key": (self.key or b"").decode(errors="backslashreplace"),
            "value_bytes": _number(headers.get("value_bytes")) or len(self.value or b""),
            "is_cut": self.is_cut,
            "reason": self.reason,
        }


class DeadLetterBox:
    """The letters of one installation.

    `bootstrap`, `topics`, `security`: where they are, and librdkafka's settings of protocol and credentials. Raises
    `ServiceError` if the broker does not answer or refuses us, or the topics are missing.
    """

    def __init__(self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any]) -> None:
        partitions_there(bootstrap, topics, security, ("deadletter",), _ASK_S)
        self._bootstrap: Final = bootstrap
        self._topics: Final = topics
        self._security: Final = security
        self._reader: Final = LogReader(bootstrap, security, _DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def letters(self) -> Iterator[DeadLetter]:
        """Yield all letters that are kept, oldest first."""
        name = self._topics.name("deadletter")
        for partition in self._reader.partitions(name):
            yield from map(DeadLetter.of, self._reader.each_of_tail(name, partition))

    def letter(self, place: str) -> DeadLetter:
        """Return one letter; raises `InputError` if there is none."""
        partition, _, offset = place.rpartition("/")
        name = self._topics.name("deadletter")
        number, at = _number(partition or "0"), _number(offset)
        if number is not None and at is not None and number in self._reader.partitions(name):
            for message in self._reader.each_of_tail(name, number, at):
                # The first message from that offset on: another one means that it was deleted.
                if message.offset() == at:
                    return DeadLetter.of(message)
                break
        raise InputError(f"letter must be one that is kept; got {place!r}. See: irregulars deadletter list")

    def original(self, letter: DeadLetter) -> tuple[bytes | None, bytes | None]:
        """Return key and value as they were: those of the letter, or else read where they stood.

        Raises `InputError` if the letter kept only the head, and the original is gone.
        """
        if not letter.is_cut:
            return letter.key, letter.value
        _, partition, offset = self._origin(letter)
        for message in self._reader.each_of_tail(letter.topic, partition, offset):
            value = message.value() or b""
            # The head is compared too: a topic that was made anew has other messages at its offsets.
            if message.offset() == offset and value.startswith(letter.value or b""):
                return message.key(), message.value()
            break
        where = f"{letter.topic}/{partition} at {offset}"
        raise InputError(f"original of letter {letter.place} must be kept; got none in {where}: it was deleted")

    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Send letters to where they came from, in their order; return how many.

        Raises `InputError` if one of them came from no topic that workers read, or its original is gone. None is sent
        then. Raises `ServiceError` if the broker does not answer or refuses us, or a topic is missing.
        """
        check_topics(self._bootstrap, self._topics, self._security, names=WORKER_TOPICS)
        whole = [(self._origin(letter), self.original(letter)) for letter in letters]
        most_bytes = MAX_MESSAGE_BYTES + HEADER_BYTES
        config = client_config(self._bootstrap, self._security) | {"message.max.bytes": most_bytes}
        producer = LastingProducer(config)
        records = [Record(topic, key, value, partition) for (topic, partition, _), (key, value) in whole]
        failure = producer.deliver(records, _DEADLINE_S)
        if failure is not None:
            raise service_error(failure, self._bootstrap, _DEADLINE_S, self._security)
        return len(whole)

    def _origin(self, letter: DeadLetter) -> tuple[str, int, int]:
        """Return topic, partition and offset: headers can be forged, so that only our own topics will do."""
        partition, offset = (_number(letter.headers.get(name)) for name in ("partition", "offset"))
        known = [self._topics.name(name) for name in REPLAYED]
        if letter.topic not in known or partition is None or offset is None:
            rule = "a message of a topic that workers read"
            raise InputError(f"letter {letter.place} must be {rule}; got one of {letter.topic or 'nowhere'}")
        if partition not in self._reader.partitions(letter.topic):
            raise InputError(f"letter {letter.place} must be of a partition of {letter.topic}; got {partition}")
        return letter.topic, partition, offset


def _number(text: str | None) -> int | None:
    """Return the number in a header, an offset, a size or a time; None where it is malformed."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None


def _time(time_ns: int | None) -> str | None:
    try:
        # A header may hold any number, also one that is no time.
        return None if not time_ns else datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat()
    except (OverflowError, ValueError):
        return None


TOPICS: Final = ("jobs", "notices", "feedback")
_ERASE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Place of a message that stays for ever unless its key is deleted."""

    topic: str
    partition: int
    key: bytes


def kept_of_job(bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], job: str) -> list[Kept]:
    """Return the places of messages that the topics keep of a job.

    Raises `ServiceError` if Kafka does not answer, refuses us, or lacks a topic.
    """
    there = partitions_there(bootstrap, topics, security, TOPICS)
    found: list[Kept] = []
    with closing(LogReader(bootstrap, security, _ERASE_S)) as reader:
        for topic, partitions in there.items():
            for partition in partitions:
                messages = reader.messages(topics.name(topic), partition)
                is_ours: dict[bytes, bool] = {}  # whether the newest message of a key is of the job
                for message in messages:
                    key, value = message.key(), message.value()
                    if key is not None:
                        # First False: a newer message that was deleted, or can't be read, replaces an older one of
                        # the job.
                        is_ours[key] = False
                        with suppress(RecordError):
                            is_ours[key] = value is not None and decode_json(value, topic).get("job") == job
                found += [Kept(topic, partition, key) for key, is_kept in is_ours.items() if is_kept]
    return found


def erase(bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], kept: list[Kept]) -> None:
    """Delete these keys, each in the partition in which it stands: that need not be the one of the key itself.

    Raises `ServiceError` if Kafka does not answer or refuses us.
    """
    producer = LastingProducer(client_config(bootstrap, security))
    tombstones = [Record(topics.name(one.topic), one.key, None, one.partition) for one in kept]
    failure = producer.deliver(tombstones, _ERASE_S)
    if failure is not None:
        raise service_error(failure, bootstrap, _ERASE_S, security)
