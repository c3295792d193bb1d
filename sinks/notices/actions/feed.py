"""The topic `actions` as one consumer reads it, and the verdicts as node-problem-detector asks for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from irregulars.errors import RecordError, ServiceUnavailable, TopicMismatch
from irregulars.in_thread import run_in_thread
from irregulars.kafka.alert_feed import follow_alerts
from irregulars.kafka.broker import BrokerWatch, client_config, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.scattered_reading import PASSING
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.printing import one_line
from irregulars.sinks.advice import name_device, plan_of
from irregulars.words import name_kind, percent

_SESSION_MS: Final = 10_000
_MOST_BATCH: Final = 500
_LEAVES_S: Final = 5.0  # then the group counts us out after its session

# Errors of a consumer after which librdkafka goes on by itself, with those of a group, whose coordinator may move. Of
# errors that a consumer gives out `KafkaError.retriable` is always false.
_PASSING: Final = PASSING | {
    KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT, KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR,
    KafkaError._MAX_POLL_EXCEEDED,
}  # fmt: skip

# With those of a commit by a member that the group has counted out, as after `max.poll.interval.ms` (5 minutes) of
# waiting for an endpoint, or while the group settles. The next poll joins again, and reads on behind the last commit.
_COMMIT_PASSING: Final = _PASSING | {
    KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Polled:
    """New messages of the topic, in order."""

    messages: tuple[Message, ...]
    is_current: bool  # all partitions are ours and were read to their end: only then are all actions known
    is_new_owner: bool = False  # the topic was given to us since the last poll, and is read anew: forget all before


class ActionFeed:
    """Reads the topic: as a member of a consumer group, of which one has the topic at a time, or as a bystander.

    The topic has one partition: of several consumers that are started one acts, and another takes over from it. A
    `group` for each orchestrator: two of them must not act for one another. All messages that are kept are read each
    time, and `is_done` knows up to where `commit` was called in the group. `is_member`: of the group, which one that
    only looks must not be, or it takes the topic from one that acts. `timeout_s`: how long the broker may take to
    answer at the start; `tell` takes a line when it is away later on, and when it is back. Raises
    `ServiceUnavailable`, `ServiceRefused` if the broker does not answer, or refuses us;
    `TopicMismatch` if there is no topic ``actions``, or it has several partitions.
    """

    def __init__(
        self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], group: str, *,
        is_member: bool = True, timeout_s: float = 10.0, tell: Callable[[str], object] = str,
    ) -> None:  # fmt: skip
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        name = topics.name("actions")
        self._partitions: Final = set(
            partitions_there(bootstrap, topics, security, ("actions",), timeout_s, math.inf)["actions"]
        )
        if len(self._partitions) != 1:
            raise TopicMismatch(f"topic {name} must have one partition; got {len(self._partitions)} (Kafka at "
                                f"{bootstrap}): of two consumers none would know all. Delete it; irregulars topics "
                                "create")  # fmt: skip
        self._places: Final = [TopicPartition(name, number) for number in self._partitions]
        self._timeout_s: Final = timeout_s
        self._unread: set[int] | None = None  # None: the topic is not ours
        self._done_until: int | None = None  # offset behind the last message that was done with when we got the topic
        self._is_new_owner = False
        self._tell: Final = tell
        self._watch: Final = BrokerWatch(bootstrap)
        self._consumer: Final = new_consumer(client_config(bootstrap, security) | {
            "group.id": group, "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "earliest", "session.timeout.ms": _SESSION_MS,
            "error_cb": self._watch.note_error,
        })  # fmt: skip
        if is_member:
            self._consumer.subscribe([name], on_assign=self._assigned, on_revoke=self._revoked)
        else:
            self._assigned(self._consumer, self._places)

    def poll(self, timeout_s: float) -> Polled:
        """Return the messages that came within `timeout_s`; raises as the class does."""
        messages = []
        for one in self._consumer.consume(_MOST_BATCH, timeout_s):
            error = one.error()
            if error is None:
                messages.append(one)
            elif error.code() == KafkaError._PARTITION_EOF and self._unread is not None:
                self._unread.discard(one.partition() or 0)
            # These pass: librdkafka tries again, and `BrokerWatch` notices a broker that stays away.
            elif error.code() not in {KafkaError._PARTITION_EOF, *_PASSING}:
                raise service_error(error, self._bootstrap, security=self._security)
        if self._watch.check(self._consumer):
            self._tell(self._watch.trouble or f"Kafka at {self._bootstrap} answers again")
        is_new, self._is_new_owner = self._is_new_owner, False
        return Polled(tuple(messages), self._unread is not None and not self._unread, is_new)

    def is_done(self, message: Message) -> bool:
        """Whether `commit` was called for a message, or a later one, before we got the topic; raises as `poll`."""
        if self._done_until is None:
            try:
                (found,) = self._consumer.committed(self._places, timeout=self._timeout_s)
            except KafkaException as error:
                raise service_error(error.args[0], self._bootstrap, security=self._security) from error
            if found.error is not None:
                raise service_error(found.error, self._bootstrap, security=self._security)
            self._done_until = found.offset  # negative where nothing was committed
        return (message.offset() or 0) < self._done_until

    def commit(self, message: Message) -> None:
        """Note that all up to a message is done with; raises as the class does.

        An error that passes is left to the commit of a later message. Until then the group's next owner of the topic,
        we or another one, is given the same messages again.
        """
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _COMMIT_PASSING:
                raise service_error(error.args[0], self._bootstrap, security=self._security) from error

    def close(self) -> None:
        """Leave the group: another consumer takes over at once."""
        run_in_thread(self._consumer.close, _LEAVES_S)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            one.offset = OFFSET_BEGINNING
        consumer.assign(partitions)
        self._is_new_owner = True
        self._done_until = None
        ours = {one.partition for one in partitions}
        # A member without the partition stands by: it must not act on a part of the truth.
        self._unread = ours if ours == self._partitions else None

    def _revoked(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._unread = None
        consumer.unassign()


def recent_verdicts(
    bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], since_ns: int, within_s: float
) -> Iterator[Verdict]:
    """Yield the verdicts of the alerts since a time, ns since the epoch, to the end of the topic.

    Unreadable messages are passed over. Raises `ServiceUnavailable` if the broker does not answer, or not all was
    read `within_s`; `ServiceRefused` if it refuses us; `TopicMismatch` if there is no topic ``alerts``.
    """
    deadline_s = time.monotonic() + within_s

    def require_time() -> bool:  # asked while something is unread
        if time.monotonic() > deadline_s:
            raise ServiceUnavailable("Kafka must give all alerts in time; got some of them")
        return False

    for value in follow_alerts(
        bootstrap, topics, security, since_ns=since_ns, is_ending=True, answer_s=within_s, is_over=require_time
    ):
        with suppress(RecordError):
            yield decode_verdict(value, "alerts")


OK: Final = 0
PROBLEM: Final = 1
UNKNOWN: Final = 2
MOST_CHARACTERS: Final = 80  # that node-problem-detector takes of a plug-in's output (``max_output_length``)


def check_host(revisions: Iterable[Verdict], host: str) -> tuple[int, str]:
    """Return the status of a host, and a line that says why.

    It is a problem if an open verdict is sure enough to have the host cordoned (`sinks.advice.plan_of`). `revisions`
    come in any order: of each verdict the newest counts.
    """
    newest: dict[str, Verdict] = {}
    for one in revisions:
        if one.verdict_id not in newest or one.revision >= newest[one.verdict_id].revision:
            newest[one.verdict_id] = one
    standing = [one for one in newest.values() if one.state != "closed" and "cordon" in plan_of(one).actions]
    accusing = [one for one in standing if one.suspects[0].host == host]
    if not accusing:
        return OK, short_line(f"no open verdict accuses {host}")
    worst = max(accusing, key=lambda one: (one.suspects[0].probability, one.verdict_id))
    more = f" (and {len(accusing) - 1} more)" if len(accusing) > 1 else ""
    suspect = worst.suspects[0]
    line = f"{name_kind(worst.kind)} {percent(suspect.probability)}: {name_device(suspect)}, job {worst.job}"
    return PROBLEM, short_line(line, more)


def short_line(text: str, end: str = "") -> str:
    r"""Return a text as one line of ASCII that a node's condition holds; of a long one its start, and the end.

    >>> len(short_line("é" * 100, " (and 2 more)")), short_line("a\nb")
    (80, 'a b')
    """
    line = one_line(text).encode("ascii", "replace").decode()
    room = MOST_CHARACTERS - len(end)
    return (line if len(line) <= room else f"{line[: room - 3]}...") + end
