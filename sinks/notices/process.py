"""``irregulars notify``: reads the topic ``alerts``, and delivers notices over channels.

An offset is committed when no channel needs a notice of its alert any more, and the records are on ``notices``. A
process that dies before may deliver the same notice again, with the same key.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from prometheus_client import CollectorRegistry, Counter, Gauge

from irregulars.errors import ServiceUnavailable, SinkError
from irregulars.in_thread import run_in_thread
from irregulars.kafka.broker import client_config, is_refusal, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.topic_admin import partitions_there
from irregulars.pages import Page, PageServer, metrics_page, parse_listen, text_page
from irregulars.sinks.notices.delivery import Courier, Outcome
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.notice import Channel, Notice, summary_of
from irregulars.sinks.notices.policy import GATHER_NS, Rules
from irregulars.sinks.notices.settings import NotifySettings
from irregulars.sinks.notices.state_log import StateLog, apply_message, load
from irregulars.words import moment

LOG: Final = logging.getLogger("irregulars.notify")
TOPICS: Final = ("alerts", "notices", "mutes", "feedback", "deadletter")
WAITS: Final = ("held", "muted", "retry")
EVENTS: Final = ("opened", "updated", "repeated", "resolved")
TEST_JOB: Final = "test-nothing-is-wrong"
# Seconds without a turn of the loop after which the process counts as stalled: a turn takes a fifth of one, and waits
# for the broker at most while a record is written
STALLED_S: Final = 60.0

_IDLE_S: Final = 0.2
_BUSY_S: Final = 0.02
_MOST: Final = 500
_MUTES_S: Final = 2.0
_FORGET_S: Final = 600.0
_COMMIT_S: Final = 1.0
_LAG_S: Final = 1.0
_SET_BACK_NS: Final = 10**9  # by more the clock was set back; by less a wait that lasts longer does no harm


class NotifyMetrics:
    """Metrics of the process, in a registry of its own. `channels` are those whose series begin with 0."""

    def __init__(self, channels: Sequence[str]) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self.alerts: Final = self._counter("alerts", "Alerts read")
        self.unusable_alerts: Final = self._counter("unusable_alerts", "Alerts that broke their schema")
        self.active: Final = self._gauge("active", "1 while it has partitions of alerts; 0: it stands by")
        self.lag: Final = self._gauge("lag_messages", "Alerts of its partitions that it has not read yet")
        self.mutes: Final = self._gauge("mutes", "Mutes that hold now")
        self.delivered: Final = self._counter("delivered", "Notices that a channel took", "channel", "event")
        self.waiting: Final = self._gauge("waiting", "Incidents whose notice waits, and why", "channel", "reason")
        self.failed: Final = self._counter("failed", "Tries that a channel did not take", "channel")
        self.retried: Final = self._counter("retried", "Of these, those that are tried again", "channel")
        self.given_up: Final = self._counter("given_up", "Notices that went to the dead letters", "channel")
        self.last_success: Final = self._gauge(
            "last_success_seconds", "When it last took a notice, Unix time; 0: not since the start", "channel"
        )
        for one in channels:  # a series that begins with its first step would hide that step
            for by_channel in (self.failed, self.retried, self.given_up, self.last_success):
                by_channel.labels(one)
            for event in EVENTS:
                self.delivered.labels(one, event)
            self.count_waiting(one, {})

    def count_waiting(self, channel: str, waiting: Mapping[str, int]) -> None:
        """Set how many incidents wait for a channel, by reason."""
        for reason in WAITS:
            self.waiting.labels(channel, reason).set(waiting.get(reason, 0))

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"irregulars_notify_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"irregulars_notify_{name}", about, labels, registry=self.registry)


class Notifier:
    """See the module. `run` may be called once.

    `settings`: of the process; `channels`, `rules`: where notices go, and which incidents each channel is notified
    of, by name.
    """

    def __init__(self, settings: NotifySettings, channels: Sequence[Channel], rules: Mapping[str, Rules]) -> None:
        self._settings: Final = settings
        self._rules: Final = rules
        self._stop: Final = threading.Event()
        self._outcomes: Final[queue.SimpleQueue[Outcome]] = queue.SimpleQueue()
        self._channels: Final = channels
        self._couriers: dict[str, Courier] = {}
        self._metrics: Final = NotifyMetrics([one.name for one in channels])
        self._wanted: tuple[int, ...] | None = None
        self._ledger: Ledger | None = None  # None: no partition is ours
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._turned_s = time.monotonic()
        self._due_s: Final[dict[str, float]] = {}
        self._newest_ns = 0  # of the clock, ns since the epoch

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    def health(self) -> Page:
        """Return the page ``/healthz``."""
        still_s = time.monotonic() - self._turned_s
        if still_s > STALLED_S:
            return text_page(f"no turn of the loop for {still_s:.0f} s", 503)
        return text_page("ok" if self._ledger is not None else "ok: waiting for partitions of alerts")

    def run(self) -> None:
        """Deliver notices until `stop`.

        Raises `InputError` if the pages' address can't be listened on; `ServiceError` if Kafka refuses us or lacks
        topics, or does not answer at the start.
        """
        settings = self._settings
        # A broker that is starting is waited for, as by each process that runs on.
        partitions_there(settings.bootstrap, settings.topics, settings.security, TOPICS, refused_s=math.inf)
        with ExitStack() as stack:
            listen, url = parse_listen(settings.listen), "off"
            if listen is not None:
                pages = {"/metrics": metrics_page(self._metrics.registry), "/healthz": self.health}
                server = PageServer(*listen, pages)
                stack.callback(server.close)
                url = server.url
            log = StateLog(settings.bootstrap, settings.topics, settings.security, self._stop)
            stack.callback(log.close)
            for one in self._channels:
                self._couriers[one.name] = Courier(one, self._outcomes, settings.give_up_s)
                stack.callback(self._couriers[one.name].close)
            LOG.info("event=notify_started channels=%s metrics=%s", ",".join(self._couriers), url)
            consumer = new_consumer(_consumer_config(settings))
            stack.callback(self._leave, consumer, log)
            consumer.subscribe(
                [settings.topics.name("alerts")],
                on_assign=self._assigned,
                on_revoke=lambda one, _: self._revoked(one, log),
                # Lost partitions are another process's by now: nothing is finished or committed for them.
                on_lost=lambda _one, _places: self._lost(),
            )
            while not self._stop.is_set():
                self._turn(consumer, log)
        LOG.info("event=notify_stopped")

    def _leave(self, consumer: Consumer, log: StateLog) -> None:
        """Finish, and leave the group.

        While the broker is away librdkafka's synchronous commit and a consumer's close wait for as long as the
        session lasts, and beside a busy machine have not come back for minutes: one thread makes both, one after the
        other, and is left when its time is over.
        """

        def leave() -> None:
            try:
                self._finish(consumer, log)
            finally:
                self._lost()  # all is committed: what closing revokes needs no second commit
                consumer.close()

        if not run_in_thread(leave, 2 * self._settings.stop_s):  # tries that are under way may take half of it
            LOG.warning("event=group_not_left reason='no answer within %g s'", 2 * self._settings.stop_s)

    def _turn(self, consumer: Consumer, log: StateLog) -> None:
        self._turned_s = time.monotonic()
        self._load(consumer, log)
        is_busy = any(one.is_busy for one in self._couriers.values())
        for message in consumer.consume(_MOST, _BUSY_S if is_busy else _IDLE_S):
            self._apply_message(consumer, message, log)
        self._settle(log)
        ledger = self._ledger
        if ledger is None:
            return
        if self._is_time("mutes", _MUTES_S):
            with suppress(ServiceUnavailable):  # then those that are known hold
                ledger.set_mutes(log.mutes(), log.opinions())
            self._metrics.mutes.set(ledger.mutes_now(time.time_ns()))
        self._send(ledger, log)
        if self._is_time("forget", _FORGET_S):
            for told in ledger.forget_old(time.time_ns()):
                log.erase(told)
        if self._is_time("commit", _COMMIT_S):
            self._commit(consumer, ledger, is_asynchronous=True)
        if self._is_time("lag", _LAG_S):
            self._metrics.lag.set(lag_of(consumer, self._settings.topics.name("alerts"), self._positions))

    def _is_time(self, name: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s.get(name, 0.0):
            return False
        self._due_s[name] = now_s + every_s
        return True

    # --- which partitions are ours ----------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.assign([])  # the place to read from is known when the state is loaded
        self._wanted = tuple(place.partition for place in places)

    def _revoked(self, consumer: Consumer, log: StateLog) -> None:
        if self._ledger is not None:
            self._finish(consumer, log)
        self._lost()

    def _lost(self) -> None:
        self._ledger, self._wanted = None, None
        self._metrics.active.set(0)
        self._metrics.lag.set(0)

    def _load(self, consumer: Consumer, log: StateLog) -> None:
        if self._ledger is not None or not self._wanted:
            return
        topic = self._settings.topics.name("alerts")
        try:
            committed = consumer.committed([TopicPartition(topic, one) for one in self._wanted], timeout=10.0)
            settled = {one.partition: one.offset for one in committed}
            ledger, positions = load(
                log, self._rules, settled, time.time_ns(), lambda one, why: self._refuse(one, why, log)
            )
        except (KafkaException, ServiceUnavailable) as error:
            # No partition is assigned yet, so that no alert is missed: the next turn tries again.
            LOG.warning("event=not_loaded reason=%r", str(error))
            return
        consumer.assign([TopicPartition(topic, one, offset) for one, offset in positions.items()])
        self._ledger, self._positions, self._committed = ledger, positions, dict(settled)
        self._metrics.active.set(1)
        LOG.info("event=loaded partitions=[%s]", ",".join(map(str, self._wanted)))

    # --- alerts in --------------------------------------------------------------------------------------------------

    def _apply_message(self, consumer: Consumer, message: Message, log: StateLog) -> None:
        error = message.error()
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            # The topic was made anew, or its log cut: what this process knows of offsets holds no more.
            LOG.warning("event=offset_gone reason=%r", error.str())
            if self._ledger is not None:
                self._finish(consumer, log)
            consumer.assign([])
            self._ledger = None  # the next turn loads it
        elif error is not None:
            if error.fatal() or is_refusal(error, self._settings.security):
                raise service_error(error, self._settings.bootstrap, security=self._settings.security)
            LOG.warning("event=broker_away error=%s", error.name())
        # Without a ledger the partition was taken from us meanwhile: another process reads the message.
        elif self._ledger is not None:
            reason = apply_message(self._ledger, message)
            self._positions[message.partition() or 0] = (message.offset() or 0) + 1
            self._metrics.alerts.inc()
            if reason is not None:
                self._refuse(message, reason, log)

    def _refuse(self, message: Message, reason: str, log: StateLog) -> None:
        self._metrics.unusable_alerts.inc()
        place = (message.partition() or 0, message.offset() or 0)
        LOG.warning("event=dead_letter partition=%d offset=%d reason=%r", *place, reason)
        log.bury(message.key(), message.value(), place, reason, "all")

    # --- notices out ------------------------------------------------------------------------------------------------

    def _send(self, ledger: Ledger, log: StateLog) -> None:
        now_ns = time.time_ns()
        if now_ns < self._newest_ns - _SET_BACK_NS:
            LOG.warning("event=clock_set_back seconds=%.0f", (self._newest_ns - now_ns) / 1e9)
            ledger.forget_times()
            for courier in self._couriers.values():
                courier.retries.rests_until_ns = now_ns
        self._newest_ns = now_ns
        for name, courier in self._couriers.items():
            courier.leave_stuck()
            if not courier.is_busy and now_ns >= courier.retries.rests_until_ns:
                due = ledger.next_due(name, now_ns)
                if due is not None:
                    # Recorded before the try: see `Ledger.intend`.
                    intended = ledger.intend(name, due, now_ns)
                    if intended is not None:
                        log.record(intended)
                    courier.send(due)
                log.record(*ledger.take_unrecorded())
            self._metrics.count_waiting(name, ledger.waiting(name))

    def _settle(self, log: StateLog, wait_s: float = 0.0) -> None:
        """Apply the outcomes of tries; wait at most `wait_s` for the first."""
        while True:
            try:
                outcome = self._outcomes.get(timeout=wait_s) if wait_s else self._outcomes.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            self._couriers[outcome.channel].is_busy = False
            # Else another process has taken over, and delivers it itself, or the topic was made anew meanwhile.
            if self._ledger is not None and self._ledger.knows(outcome.due):
                self._apply(outcome, self._ledger, log)

    def _apply(self, outcome: Outcome, ledger: Ledger, log: StateLog) -> None:
        name, due, now_ns = outcome.channel, outcome.due, time.time_ns()
        retries, key = self._couriers[name].retries, due.notice.idempotency_key
        if outcome.failure is None:
            records = ledger.delivered(name, due, outcome.reference, now_ns)
            # Of a repetition none is needed: a process without it repeats sooner. To write one waits for Kafka, and
            # alerts that end unless they are repeated must outlast its absence.
            if not due.is_repeat or outcome.reference not in (None, due.notice.reference):
                log.record(*records)
            retries.done(key)
            self._metrics.delivered.labels(name, "repeated" if due.is_repeat else due.notice.event).inc()
            self._metrics.last_success.labels(name).set(time.time())
            _log(logging.DEBUG if due.is_repeat else logging.INFO, "told", outcome)
            return
        self._metrics.failed.labels(name).inc()
        again_ns = None if outcome.is_final else retries.failed(key, now_ns, outcome.retry_after_s)
        if again_ns is not None:
            self._metrics.retried.labels(name).inc()
            retracted = ledger.postpone(name, due, again_ns, may_have_arrived=outcome.may_have_arrived)
            if retracted is not None:
                log.erase(retracted)
            _log(logging.WARNING, "busy", outcome, f" again_in_s={(again_ns - now_ns) / 1e9:.0f}")
            return
        _log(logging.ERROR, "given_up", outcome)
        self._metrics.given_up.labels(name).inc()
        # A refusal is an answer: the channel is well.
        if outcome.is_final:
            retries.done(key)
        # The dead letter before the record: a process that dies in between gives the notice up once more.
        place = (due.incident.partition, due.incident.offset)
        value = json.dumps(dict(due.notice.alert), separators=(",", ":")).encode()
        log.bury(due.incident.verdict_id.encode(), value, place, outcome.failure, name)
        log.record(*ledger.given_up(name, due, now_ns, may_have_arrived=outcome.may_have_arrived))

    # --- what is settled --------------------------------------------------------------------------------------------

    def _commit(self, consumer: Consumer, ledger: Ledger, *, is_asynchronous: bool) -> None:
        settled = {}
        for partition, position in self._positions.items():
            open_offset = ledger.unsettled(partition)
            settled[partition] = position if open_offset is None else min(position, open_offset)
        if settled == self._committed:
            return
        topic = self._settings.topics.name("alerts")
        places = [TopicPartition(topic, one, offset) for one, offset in settled.items()]
        try:
            # Two calls, since confluent-kafka's types know `asynchronous` only as a literal.
            if is_asynchronous:
                consumer.commit(offsets=places, asynchronous=True)
            else:
                consumer.commit(offsets=places, asynchronous=False)
            self._committed = settled
        except KafkaException as error:  # the alerts are read again, and their records found
            LOG.warning("event=not_committed reason=%r", str(error))

    def _finish(self, consumer: Consumer, log: StateLog) -> None:
        """Wait for tries that are under way, and commit."""
        deadline_s = time.monotonic() + self._settings.stop_s
        while any(one.is_busy for one in self._couriers.values()) and time.monotonic() < deadline_s:
            self._settle(log, wait_s=_IDLE_S)
        if self._ledger is not None:
            self._commit(consumer, self._ledger, is_asynchronous=False)


def _log(level: int, event: str, outcome: Outcome, more: str = "") -> None:
    name, notice = outcome.channel, outcome.due.notice
    reason = "" if outcome.failure is None else f" reason={outcome.failure!r}"
    LOG.log(level, "event=%s channel=%s notice=%s incident=%r revision=%d severity=%s%s%s", event, name,
            notice.event, notice.incident, notice.revision, notice.severity, more, reason)  # fmt: skip


def lag_of(consumer: Consumer, topic: str, positions: Mapping[int, int]) -> int:
    """Return how many messages are behind the positions in partitions of a topic, by the broker's last answer.

    It sends no request: librdkafka keeps the end of a partition from every answer to a fetch.
    """
    ends = {one: consumer.get_watermark_offsets(TopicPartition(topic, one), cached=True) for one in positions}
    return sum(max(0, ends[one][1] - position) for one, position in positions.items() if ends[one])


def _consumer_config(settings: NotifySettings) -> dict[str, Any]:
    # auto.offset.reset: an offset that is gone must show. With ``earliest`` librdkafka would begin at the oldest
    # alert without a word, and incidents that ended long ago would open again.
    return client_config(settings.bootstrap, settings.security) | {
        "group.id": settings.group, "enable.auto.commit": False, "enable.auto.offset.store": False,
        "auto.offset.reset": "error", "session.timeout.ms": int(settings.session_s * 1000),
        "heartbeat.interval.ms": max(int(settings.session_s * 1000) // 4, 1000), "isolation.level": "read_committed",
        "partition.assignment.strategy": "range",
    }  # fmt: skip


# --- without delivering anything, and a test of a channel -----------------------------------------------------------


def preview(settings: NotifySettings, rules: Mapping[str, Rules]) -> Iterator[str]:
    """Yield a line for each notice that would be delivered now, and for each incident that is held back.

    Nothing is delivered, written or committed, and a process that runs is not disturbed. Raises `ServiceError` if
    Kafka does not answer or refuses us, or lacks topics.
    """
    there = partitions_there(settings.bootstrap, settings.topics, settings.security, TOPICS)
    log = StateLog(settings.bootstrap, settings.topics, settings.security, threading.Event())
    now_ns = time.time_ns()
    try:
        ledger, _ = load(log, rules, dict.fromkeys(there["alerts"], -1), now_ns, lambda _, __: None)
    finally:
        log.close()
    for channel in rules:
        for at_ns in (now_ns, now_ns + GATHER_NS):  # a storm gathers before its first notice
            while (due := ledger.next_due(channel, at_ns)) is not None:
                again = "again " if due.is_repeat else ""
                yield f"{channel}: {again}{summary_of(due.notice)} [{due.incident.verdict_id}]"
                ledger.delivered(channel, due, None, at_ns)
        for verdict_id, until_ns, reason in ledger.waits(channel):
            if reason in ("held", "muted"):
                yield f"{channel}: {reason} until {moment(until_ns)} [{verdict_id}]"


def send_test(channel: Channel) -> str:
    """Deliver a test incident and its end to a channel; return the incident's id.

    Raises `ServiceUnavailable` if the channel did not take one of them.
    """
    suspect = {"device": "nic", "rank": 0, "ranks": [0], "probability": 0.9, "peer": None, "host": "test-host",
               "gpu": 0, "nic": "test-nic", "switch": None}  # fmt: skip
    verdict_id = f"{TEST_JOB}:{time.time_ns()}"
    alert = {
        "summary": "OPENED test of this channel: nothing is wrong",
        "schema": "alerts", "version": 1, "verdict_id": verdict_id, "revision": 1, "state": "open", "job": TEST_JOB,
        "kind": "slow_nic", "iterations": [0, 10], "delta": 1.5, "lost_s": 3.0, "communicator": None,
        "suspects": [suspect], "evidence": "This is a test of the channel. Nothing is wrong.", "attempt": 0,
        "world_size": 8, "time_ns": time.time_ns(), "close_reason": None, "event": "opened", "severity": "ticket",
        "recovers_ratio": None, "gpu_hours_lost": 0.0067, "next_step": "Do nothing: this is a test.",
    }  # fmt: skip
    ended = {**alert, "revision": 2, "state": "closed", "event": "closed", "close_reason": "recovered"}
    try:
        reference = channel.deliver(Notice("opened", alert, "ticket"))
        channel.deliver(Notice("resolved", ended, "ticket", reference=reference))
    except SinkError as error:
        raise ServiceUnavailable(f"channel {channel.name} must take a test notice; {error}") from error
    return verdict_id
