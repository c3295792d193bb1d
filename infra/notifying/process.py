"""``irregulars notify``: reads the topic ``alerts``, and tells people over channels.

An offset is committed when no channel is still to be told of its alert, and what was told stands on ``notices``. A
process that dies before may tell the same notice again, with the same key.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from irregulars.errors import ServiceUnavailable, TopicMismatch
from irregulars.infra.notifying.couriers import Courier, Outcome
from irregulars.infra.notifying.loading import Loaded, load, offset_of, take
from irregulars.infra.notifying.metrics import ChannelTally, Tally
from irregulars.infra.notifying.state_log import StateLog
from irregulars.kafka.broker import client_config, is_refusal, open_admin, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.topics import TopicSettings
from irregulars.pages import PageServer, parse_listen
from irregulars.sinks.notices.notice import Channel
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.retries import Retries

LOG: Final = logging.getLogger("irregulars.notify")
TOPICS: Final = ("alerts", "notices", "mutes", "feedback", "deadletter")
_IDLE_S: Final = 0.2
_BUSY_S: Final = 0.02
_MOST: Final = 500
_MUTES_S: Final = 2.0
_FORGET_S: Final = 600.0
_COMMIT_S: Final = 1.0
_LAG_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """What the process needs beside its channels.

    Parameters
    ----------
    bootstrap, topics, security
        Where the topics are, and librdkafka's settings of protocol and credentials.
    give_up_s
        Seconds from the first failure after which a notice goes to the dead letters.
    listen
        ``host:port`` of the pages, or ``off``.
    session_s
        Seconds without a sign of life after which another process of the group takes over.
    stop_s
        Seconds for which the end waits for tries that are under way.
    """

    bootstrap: str
    topics: TopicSettings
    security: Mapping[str, Any] = field(default_factory=dict)
    give_up_s: float = 3600.0
    listen: str = "off"
    session_s: float = 6.0
    stop_s: float = 5.0

    @property
    def group(self) -> str:
        """Consumer group: one of its processes has the alerts, the others stand by."""
        return f"{self.topics.prefix}notify"


class Notifier:
    """See the module. `run` may be called once.

    Parameters
    ----------
    settings
        Of the process.
    channels, rules
        Whom to tell, and what each wants to hear, by name.
    """

    def __init__(self, settings: NotifySettings, channels: Sequence[Channel], rules: Mapping[str, Rules]) -> None:
        self._settings: Final = settings
        self._rules: Final = rules
        self._stop: Final = threading.Event()
        self._outcomes: Final[queue.SimpleQueue[Outcome]] = queue.SimpleQueue()
        self._channels: Final = channels
        self._couriers: dict[str, Courier] = {}
        self._retries: Final = {one.name: Retries(settings.give_up_s) for one in channels}
        self.tally: Final = Tally({one.name: ChannelTally() for one in channels})
        self._wanted: tuple[int, ...] | None = None
        self._loaded: Loaded | None = None
        self._committed: dict[int, int] = {}
        self._looked_at_mutes_s = self._looked_at_lag_s = self._forgot_s = self._committed_s = 0.0

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    def run(self) -> None:
        """Tell people until `stop`.

        Raises
        ------
        InputError
            If the pages' address can't be listened on.
        ServiceError
            If Kafka refuses us or lacks topics, or does not answer at the start.
        """
        settings = self._settings
        require_topics(settings)
        listen = parse_listen(settings.listen)
        pages = None if listen is None else PageServer(*listen, self.tally.pages())
        log = StateLog(settings.bootstrap, settings.topics, settings.security, self._stop)
        self._couriers = {one.name: Courier(one, self._outcomes) for one in self._channels}
        url = "off" if pages is None else pages.url
        LOG.info("event=notify_started channels=%s metrics=%s", ",".join(self._couriers), url)
        try:
            self._consume(log)
        finally:
            for courier in self._couriers.values():
                courier.close()
            log.close()
            if pages is not None:
                pages.close()
        LOG.info("event=notify_stopped")

    def _consume(self, log: StateLog) -> None:
        consumer = new_consumer(_consumer_config(self._settings))
        consumer.subscribe(
            [self._settings.topics.name("alerts")],
            on_assign=self._assigned,
            on_revoke=lambda one, _: self._revoked(one, log),
            on_lost=lambda _one, _places: self._lost(),
        )
        try:
            while not self._stop.is_set():
                self._turn(consumer, log)
            self._finish(consumer, log)
        finally:
            consumer.close()

    def _turn(self, consumer: Consumer, log: StateLog) -> None:
        self.tally.turn()
        self._load(consumer, log)
        is_busy = any(one.is_busy for one in self._couriers.values())
        for message in consumer.consume(_MOST, _BUSY_S if is_busy else _IDLE_S):
            self._take(message, log)
        self._settle(log)
        if self._loaded is not None:
            self._look_at_mutes(log)
            self._send(log)
            self._forget(log)
            self._commit(consumer, is_asynchronous=True)
            self._look_at_lag(consumer, self._loaded)

    # --- which partitions are ours ----------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.assign([])  # where to read from is known when the state is loaded
        self._wanted = tuple(place.partition for place in places)

    def _revoked(self, consumer: Consumer, log: StateLog) -> None:
        if self._loaded is not None:
            self._finish(consumer, log)
        self._lost()

    def _lost(self) -> None:
        self._loaded, self._wanted = None, None
        self.tally.is_active, self.tally.lag_messages = False, 0

    def _load(self, consumer: Consumer, log: StateLog) -> None:
        if self._loaded is not None or not self._wanted:
            return
        topic = self._settings.topics.name("alerts")
        try:
            committed = consumer.committed([TopicPartition(topic, one) for one in self._wanted], timeout=10.0)
            settled = {one.partition: one.offset for one in committed}
            loaded = load(log, self._rules, settled, time.time_ns(), lambda one, why: self._refuse(one, why, log))
        except (KafkaException, ServiceUnavailable) as error:
            LOG.warning("event=not_loaded reason=%r", str(error))
            return
        consumer.assign([TopicPartition(topic, one, offset) for one, offset in loaded.positions.items()])
        self._loaded, self._committed, self.tally.is_active = loaded, dict(settled), True
        LOG.info("event=loaded partitions=%s", ",".join(map(str, self._wanted)))

    # --- alerts and mutes in ----------------------------------------------------------------------------------------

    def _take(self, message: Message, log: StateLog) -> None:
        error = message.error()
        if error is not None:
            self._note_error(error)
        elif self._loaded is not None:
            reason = take(self._loaded.ledger, message)
            self._loaded.positions[message.partition() or 0] = offset_of(message) + 1
            self.tally.alerts += 1
            if reason is not None:
                self._refuse(message, reason, log)

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal() or is_refusal(error, self._settings.security):
            raise service_error(error, self._settings.bootstrap, security=self._settings.security)
        LOG.warning("event=broker_away error=%s", error.name())

    def _refuse(self, message: Message, reason: str, log: StateLog) -> None:
        self.tally.unusable_alerts += 1
        place = (message.partition() or 0, offset_of(message))
        LOG.warning("event=dead_letter partition=%d offset=%d reason=%r", *place, reason)
        log.bury(message.key(), message.value(), place, reason, "all")

    def _look_at_mutes(self, log: StateLog) -> None:
        if self._loaded is None or time.monotonic() < self._looked_at_mutes_s + _MUTES_S:
            return
        self._looked_at_mutes_s = time.monotonic()
        with suppress(ServiceUnavailable):  # then those that are known hold
            self._loaded.ledger.set_mutes(log.mutes(), log.opinions())
        self.tally.mutes = self._loaded.ledger.mutes_now(time.time_ns())

    def _look_at_lag(self, consumer: Consumer, loaded: Loaded) -> None:
        if time.monotonic() >= self._looked_at_lag_s + _LAG_S:
            self._looked_at_lag_s = time.monotonic()
            self.tally.lag_messages = lag_of(consumer, self._settings.topics.name("alerts"), loaded.positions)

    # --- notices out ------------------------------------------------------------------------------------------------

    def _send(self, log: StateLog) -> None:
        assert self._loaded is not None
        now_ns = time.time_ns()
        for name, courier in self._couriers.items():
            if not courier.is_busy and now_ns >= self._retries[name].rests_until_ns:
                due = self._loaded.ledger.next_due(name, now_ns)
                if due is not None:
                    intended = self._loaded.ledger.intend(name, due, now_ns)
                    if intended is not None:
                        log.record(intended)
                    courier.send(due)
                log.record(*self._loaded.ledger.take_unrecorded())
            self.tally.channels[name].waiting = self._loaded.ledger.waiting(name)

    def _settle(self, log: StateLog, wait_s: float = 0.0) -> None:
        """Take what became of the tries; wait for the first at most so long."""
        while True:
            try:
                outcome = self._outcomes.get(timeout=wait_s) if wait_s else self._outcomes.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            self._couriers[outcome.channel].is_busy = False
            if self._loaded is not None:  # else another process has taken over, and tells it itself
                self._judge(outcome, self._loaded, log)

    def _judge(self, outcome: Outcome, loaded: Loaded, log: StateLog) -> None:
        name, due, now_ns = outcome.channel, outcome.due, time.time_ns()
        tally, retries, key = self.tally.channels[name], self._retries[name], due.notice.idempotency_key
        if outcome.failure is None:
            log.record(*loaded.ledger.delivered(name, due, outcome.reference, now_ns))
            retries.done(key)
            tally.delivered["repeated" if due.is_repeat else due.notice.event] += 1
            tally.last_success_s = time.time()
            self._say(logging.INFO if not due.is_repeat else logging.DEBUG, "told", outcome)
            return
        tally.failed += 1
        again_ns = None if outcome.is_final else retries.failed(key, now_ns, outcome.retry_after_s)
        if again_ns is not None:
            tally.retried += 1
            retracted = loaded.ledger.postpone(name, due, again_ns, may_have_arrived=outcome.may_have_arrived)
            if retracted is not None:
                log.erase(retracted)
            self._say(logging.WARNING, "busy", outcome, f" again_in_s={(again_ns - now_ns) / 1e9:.0f}")
            return
        self._give_up(outcome, loaded, log, now_ns)

    def _give_up(self, outcome: Outcome, loaded: Loaded, log: StateLog, now_ns: int) -> None:
        name, due = outcome.channel, outcome.due
        self._say(logging.ERROR, "given_up", outcome)
        self.tally.channels[name].given_up += 1
        if outcome.is_final:
            self._retries[name].done(due.notice.idempotency_key)
        place = (due.incident.partition, due.incident.offset)
        value = json.dumps(dict(due.notice.alert), separators=(",", ":")).encode()
        log.bury(due.incident.verdict_id.encode(), value, place, outcome.failure or "", name)
        log.record(*loaded.ledger.given_up(name, due, now_ns, may_have_arrived=outcome.may_have_arrived))

    def _say(self, level: int, event: str, outcome: Outcome, more: str = "") -> None:
        name, notice = outcome.channel, outcome.due.notice
        reason = "" if outcome.failure is None else f" reason={outcome.failure!r}"
        LOG.log(level, "event=%s channel=%s notice=%s incident=%r revision=%d severity=%s%s%s", event, name,
                notice.event, notice.incident, notice.revision, notice.severity, more, reason)  # fmt: skip

    # --- what is settled --------------------------------------------------------------------------------------------

    def _forget(self, log: StateLog) -> None:
        if self._loaded is not None and time.monotonic() > self._forgot_s + _FORGET_S:
            self._forgot_s = time.monotonic()
            for told in self._loaded.ledger.forget_old(time.time_ns()):
                log.erase(told)

    def _commit(self, consumer: Consumer, *, is_asynchronous: bool) -> None:
        if self._loaded is None or (is_asynchronous and time.monotonic() < self._committed_s + _COMMIT_S):
            return
        self._committed_s = time.monotonic()
        settled = {}
        for partition, position in self._loaded.positions.items():
            open_offset = self._loaded.ledger.unsettled(partition)
            settled[partition] = position if open_offset is None else min(position, open_offset)
        if settled == self._committed:
            return
        topic = self._settings.topics.name("alerts")
        places = [TopicPartition(topic, one, offset) for one, offset in settled.items()]
        try:
            if is_asynchronous:
                consumer.commit(offsets=places, asynchronous=True)
            else:
                consumer.commit(offsets=places, asynchronous=False)
            self._committed = settled
        except KafkaException as error:  # all that follows is told again, and found told already
            LOG.warning("event=not_committed reason=%r", str(error))

    def _finish(self, consumer: Consumer, log: StateLog) -> None:
        """Wait for tries that are under way, and commit what is settled."""
        deadline_s = time.monotonic() + self._settings.stop_s
        while any(one.is_busy for one in self._couriers.values()) and time.monotonic() < deadline_s:
            self._settle(log, wait_s=_IDLE_S)
        self._commit(consumer, is_asynchronous=False)


def lag_of(consumer: Consumer, topic: str, positions: Mapping[int, int]) -> int:
    """Return how many messages stand behind the positions in partitions of a topic, by what the broker said last.

    It asks nobody: librdkafka notes where a partition ends with every answer to a fetch.
    """
    ends = {one: consumer.get_watermark_offsets(TopicPartition(topic, one), cached=True) for one in positions}
    return sum(max(0, ends[one][1] - position) for one, position in positions.items() if ends[one])


def require_topics(settings: NotifySettings) -> None:
    """Raise `ServiceError` unless Kafka answers and has the topics that we need."""
    _, metadata = open_admin(settings.bootstrap, settings.security)
    missing = [name for name in map(settings.topics.name, TOPICS) if name not in metadata.topics]
    if missing:
        raise TopicMismatch(
            f"topics must exist; got none named {', '.join(missing)} (Kafka at {settings.bootstrap}). "
            "Run: irregulars topics create; or, where they are there, irregulars topics grant notify"
        )


def _consumer_config(settings: NotifySettings) -> dict[str, Any]:
    return client_config(settings.bootstrap, settings.security) | {
        "group.id": settings.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": int(settings.session_s * 1000),
        "heartbeat.interval.ms": max(int(settings.session_s * 1000) // 4, 1000),
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "range",
    }
