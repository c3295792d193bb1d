"""The console's part of Kafka: newest alerts and dead letters, and what people record of verdicts."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from irregulars.errors import RecordError, ServiceError
from irregulars.infra.runs.alert_feed import follow_alerts
from irregulars.infra.runs.dead_letters import DeadLetter
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.judgements import Verdict
from irregulars.sinks.alerts import decode_alert
from irregulars.sinks.notices.state_log import opened


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Brokers, topics, and librdkafka's settings of protocol and credentials, which appear in no text."""

    bootstrap: str
    topics: TopicSettings
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)


_DEADLINE_S: Final = 5.0


def newest_letters(kafka: KafkaAddress, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Return how many letters are kept, about, and the newest of them, the last first; waits for the broker.

    Raises
    ------
    ServiceError
        If Kafka does not answer, refuses us, or lacks the topic.
    """
    partitions = partitions_there(kafka.bootstrap, kafka.topics, kafka.security, ("deadletter",), _DEADLINE_S)
    name, found, count = kafka.topics.name("deadletter"), [], 0
    with closing(LogReader(kafka.bootstrap, kafka.security, _DEADLINE_S)) as reader:
        for partition in partitions["deadletter"]:
            low, high = reader.bounds(name, partition)
            count += high - low
            found += [DeadLetter.of(one) for one in reader.messages(name, partition, max(low, high - most), high)]
    letters = sorted((one.to_json() for one in found), key=lambda one: one["time"] or "", reverse=True)
    return count, letters[:most]


LOG: Final = logging.getLogger("irregulars.console")
MOST: Final = 200  # verdicts whose newest alert is kept, and messages of each partition that are read at the start
_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Alert:
    """The newest alert of one verdict."""

    verdict_id: str
    revision: int
    job: str
    kind: str
    state: str
    severity: str | None
    summary: str
    time_ns: int | None


def alert_of(value: bytes) -> Alert:
    """Read a message of the topic ``alerts``; raises `RecordError`."""
    values = decode_alert(value)
    return Alert(
        values["verdict_id"], values["revision"], values["job"], values["kind"], values["state"],
        values.get("severity"), values["summary"], values.get("time_ns"),
    )  # fmt: skip


class RecentAlerts:
    """Follows the topic until it is closed, and tries again where Kafka is away.

    Parameters
    ----------
    kafka
        Where the topic is.
    on_alert
        Called for each alert that is read, for metrics.
    """

    def __init__(self, kafka: KafkaAddress, on_alert: Callable[[], None] = lambda: None) -> None:
        self._kafka: Final = kafka
        self._on_alert: Final = on_alert
        self._newest: OrderedDict[str, Alert] = OrderedDict()
        self._lock: Final = threading.Lock()
        self._is_over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._follow, name="irregulars-alerts", daemon=True)
        self.trouble: str | None = None
        """Why the topic can't be read now; None: it is read, or was not asked yet."""

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading; a broker that does not answer is not waited for."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def newest(self, most: int = MOST) -> list[Alert]:
        """Return the newest alert of each verdict, the last to come first."""
        with self._lock:
            return list(reversed(self._newest.values()))[:most]

    def take(self, value: bytes) -> None:
        """Keep one message; one that can't be read is no alert."""
        try:
            alert = alert_of(value)
        except RecordError:
            return
        with self._lock:
            known = self._newest.get(alert.verdict_id)
            if known is None or known.revision <= alert.revision:
                self._newest[alert.verdict_id] = alert
                self._newest.move_to_end(alert.verdict_id)
            while len(self._newest) > MOST:
                self._newest.popitem(last=False)
        self._on_alert()

    def _follow(self) -> None:
        while not self._is_over.is_set():
            try:
                for value in self._messages():
                    self.take(value)
            except ServiceError as error:
                self.trouble = str(error)
            except Exception as error:  # a thread that ended would leave the page with old alerts, and no word of it
                LOG.exception("event=alerts_failed")
                self.trouble = f"alerts must be readable; reading them raised {type(error).__name__}"
            self._is_over.wait(_RETRY_S)

    def _messages(self) -> Any:
        kafka = self._kafka
        return follow_alerts(kafka.bootstrap, kafka.topics, kafka.security, newest=MOST, is_over=self._is_readable)

    def _is_readable(self) -> bool:
        """Return whether to stop; that it is asked at all says that the topic is read."""
        self.trouble = None
        return self._is_over.is_set()


def since_s(alert: Alert) -> float | None:
    """Return the age of an alert's verdict, s; None: not known."""
    return None if alert.time_ns is None else max(0.0, time.time() - alert.time_ns / 1e9)


_SAY_S: Final = 10.0


def say_on_topic(kafka: KafkaAddress, verdict: Verdict, word: str, who: str, note: str) -> None:
    """Publish an opinion on a verdict; waits for the broker at most `_SAY_S`.

    Raises
    ------
    InputError
        If a text is too long, or there is nothing to withdraw.
    ServiceError
        If Kafka does not answer, refuses us, or lacks the topic.
    """
    over = threading.Event()
    deadline = threading.Timer(_SAY_S, over.set)
    deadline.daemon = True
    deadline.start()
    try:
        with opened(kafka.bootstrap, kafka.topics, kafka.security, "feedback", is_stopping=over) as log:
            log.record_opinion(verdict, word, who, note)
    finally:
        deadline.cancel()
