"""Is a host accused now? The newest alerts from Kafka, and the answer in the words of node-problem-detector."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from irregulars.errors import RecordError, ServiceUnavailable, TopicMismatch
from irregulars.kafka.broker import client_config, open_admin, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.sinks.advice import name_device, plan_of
from irregulars.words import name_kind

_MOST_BATCH: Final = 1000
_POLL_S: Final = 0.2
_GROUP: Final = "irregulars-alerts"  # nothing is committed; the role `reader` may describe it


def recent_verdicts(
    bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], since_ns: int, within_s: float
) -> Iterator[Verdict]:
    """Yield the verdicts of the alerts since a time, to the end of the topic.

    Unreadable messages are passed over. `since_ns`: Time of the oldest message that is read, ns since the epoch;
    `within_s`: How long all of it may take, s. Raises `ServiceUnavailable`, `ServiceRefused` if the broker refuses
    us, or not all was read in time; `TopicMismatch` if there is no topic ``alerts``.
    """
    deadline_s = time.monotonic() + within_s
    _, metadata = open_admin(bootstrap, security, within_s)
    name = topics.name("alerts")
    if name not in metadata.topics:
        raise TopicMismatch(f"topic must exist; got none named {name}")
    consumer = new_consumer(client_config(bootstrap, security) | {
        "group.id": _GROUP, "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    try:
        starts = [TopicPartition(name, number, since_ns // 1_000_000) for number in metadata.topics[name].partitions]
        consumer.assign(consumer.offsets_for_times(starts, timeout=_left_s(deadline_s)))
        yield from _read(consumer, set(metadata.topics[name].partitions), bootstrap, deadline_s)
    except KafkaException as error:
        raise service_error(error.args[0], bootstrap, within_s, security) from error
    finally:
        consumer.close()


def _read(consumer: Consumer, unread: set[int], bootstrap: str, deadline_s: float) -> Iterator[Verdict]:
    while unread:
        for message in consumer.consume(_MOST_BATCH, min(_POLL_S, _left_s(deadline_s))):
            error = message.error()
            if error is None:
                with suppress(RecordError):
                    yield decode_verdict(message.value(), "alerts")
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition() or 0)
            elif error.fatal() or not error.retriable():
                raise service_error(error, bootstrap)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise ServiceUnavailable("Kafka must give all alerts in time; got some of them")
    return left_s


OK: Final = 0
PROBLEM: Final = 1
UNKNOWN: Final = 2
MOST_CHARACTERS: Final = 80  # what node-problem-detector takes of a plug-in's output (``max_output_length``)


def check_host(revisions: Iterable[Verdict], host: str) -> tuple[int, str]:
    """Return the status of a host, and a line that says why.

    It is a problem if an open verdict is sure enough to have the host cordoned (`sinks.advice.plan_of`).

    Parameters
    ----------
    revisions
        In any order: of each verdict the newest counts.
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
    percent = min(round(100 * suspect.probability), 99)
    line = f"{name_kind(worst.kind)} {percent}%: {name_device(suspect)}, job {worst.job}"
    return PROBLEM, short_line(line, more)


def short_line(text: str, end: str = "") -> str:
    r"""Return a text as one line of ASCII that a node's condition holds; of a long one its start, and the end.

    >>> len(short_line("é" * 100, " (and 2 more)")), short_line("a\nb")
    (80, 'a b')
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text).encode("ascii", "replace").decode()
    room = MOST_CHARACTERS - len(end)
    return (line if len(line) <= room else f"{line[: room - 3]}...") + end
