"""Reads machine, Kafka and ClickHouse side by side within a deadline, and returns the findings on all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, TypeVar

from confluent_kafka import KafkaException

from irregulars.infra.configuration.lenient import LenientSettings
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.doctor.broker import check_broker, let_in, reason_of
from irregulars.infra.doctor.database import check_database, read_database
from irregulars.infra.doctor.facts import KafkaFacts, StreamFacts, TopicFacts
from irregulars.infra.doctor.findings import GROUPS, Finding, Question, finding, unread
from irregulars.infra.doctor.jobs import check_alerts, check_jobs
from irregulars.infra.doctor.machine import check_machine, read_machine
from irregulars.infra.doctor.stream import StreamReading, Tails
from irregulars.infra.doctor.topics import Deadline, check_rights, check_topics, read_group, read_topics
from irregulars.infra.doctor.workers import check_workers, read_page
from irregulars.sinks.notices.settings import NotifySettings
from irregulars.version import VERSION

OF_KAFKA: Final = ("kafka", "topics", "rights", "workers", "jobs", "alerts")
_ANSWER_S: Final = 8.0
_GRACE_S: Final = 2.0
"""Seconds that reading may take beyond its deadline: steps end by it, and not to the tenth of a second."""

_Facts = TypeVar("_Facts")
OnStep = Callable[[str], None]
LOG: Final = logging.getLogger("irregulars.doctor")

BLOCKING: Final = frozenset(
    {
        "topic_missing", "partitions_differ", "no_leader", "no_worker", "partitions_unread", "behind",
        "judging_behind", "not_announced", "none_closes", "no_marks", "all_refused",
    }
)  # fmt: skip
"""Codes of findings for which no alert comes, of some job or of all. A broker that can't be used blocks by any code.
Hidden topics are none: a reader of alerts sees no others, and they may well be there."""

FIRST_S: Final = 60.0
EVERY_S: Final = 60.0  # seconds until the first look, and between two; a look takes some tenths of a second
_STOP_S: Final = 2.0


def diagnose(found: LenientSettings, question: Question, on_step: OnStep = lambda _: None) -> list[Finding]:
    """Return the findings, group by group in the order of `GROUPS`.

    Parameters
    ----------
    on_step
        Called with the step that begins, from other threads too.
    """
    findings: list[Finding] = []
    settings = found.settings
    if settings is not None:
        kafka = database = None
        if question.wants(*OF_KAFKA):
            kafka = _begin(lambda: read_kafka(settings, question, on_step))
        if question.wants("clickhouse"):
            database = _begin(lambda: read_database(settings, question, on_step))
        deadline_s = time.monotonic() + question.within_s + _GRACE_S
        if kafka is not None:
            findings += _of_kafka(_await(kafka, deadline_s), settings, question)
        if database is not None:
            seen = _await(database, deadline_s)
            if seen is None:
                findings.append(unread("clickhouse", "all", f"not read within {question.within_s:g} s"))
            else:
                findings += check_database(seen, time.time(), only_reads=question.only_reads)
    else:
        findings += [unread(group, "settings", "they can't be used") for group in GROUPS if group != "machine"]
    findings += check_machine(read_machine(found), question.role)
    order = list(GROUPS)
    wanted = (one for one in findings if question.wants(one.group) or _keeps_us_out(one, found, question))
    return sorted(wanted, key=lambda one: order.index(one.group))


def _keeps_us_out(one: Finding, found: LenientSettings, question: Question) -> bool:
    """Whether none of the wanted groups could be looked at because of it: then it is shown whatever is wanted."""
    if one.level != "problem":
        return False
    if one.code == "setting_refused":
        return found.settings is None
    return (one.group, one.subject) == ("kafka", "broker") and question.wants(*OF_KAFKA)


def _begin(read: Callable[[], _Facts]) -> Future[_Facts]:
    """Read in a daemon thread: a call that can't be interrupted must not hold up the report, nor the exit."""
    future: Future[_Facts] = Future()

    def run() -> None:
        try:
            future.set_result(read())
        except BaseException as error:  # a bug: raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="irregulars-doctor", daemon=True).start()
    return future


def _await(future: Future[_Facts], deadline_s: float) -> _Facts | None:
    try:
        return future.result(max(deadline_s - time.monotonic(), 0.0))
    except TimeoutError:
        if future.done():  # the reading raised it
            raise
        return None


def read_kafka(settings: Settings, question: Question, on_step: OnStep) -> KafkaFacts:
    """Read Kafka step by step; a step that can't be read leaves its facts unknown, and the next ones are read."""
    deadline, now_s = Deadline(question.within_s), time.time()
    on_step("asking the brokers")
    # Half of the time: a broker that answers late leaves no time for the rest.
    broker, entrance = let_in(settings, min(_ANSWER_S, question.within_s / 2))
    if entrance is None:
        return KafkaFacts(now_s, broker)
    admin, security = entrance
    on_step("asking for the topics")
    topics = read_topics(admin, settings.topics(), now_s, deadline)
    on_step("asking for the consumer groups")
    workers = read_group(admin, question.group, deadline)
    notify = NotifySettings(bootstrap=settings.kafka_bootstrap, topics=settings.topics()).group
    notifying = read_group(admin, notify, deadline)
    needed = {right.name for right in question.needed(settings.topics()) if right.kind == "group"}
    others = tuple(read_group(admin, name, deadline) for name in sorted(needed - {workers.name, notify}))
    try:
        tails = Tails(settings.kafka_bootstrap, security)
        stream = StreamReading(admin, tails, topics, now_s, deadline).read(workers, on_step)
    except KafkaException as error:
        stream = StreamFacts({name: reason_of(error) for name in topics})
    broker = replace(broker, broker_clock_s=_broker_clock_s(topics, now_s))
    page = read_page(settings.metrics_listen)
    return KafkaFacts(now_s, broker, topics, workers, notifying, others, stream, page)


def _broker_clock_s(topics: Mapping[str, TopicFacts], now_s: float) -> float | None:
    """Return the least lead of the broker's clock over ours, where it sets the times of a topic's messages."""
    stamped = [
        one.newest_s for one in topics.values()
        if one.newest_s is not None and (one.config or {}).get("message.timestamp.type") == "LogAppendTime"
    ]  # fmt: skip
    return max(max(stamped) - now_s, 0.0) if stamped else None


def _of_kafka(seen: KafkaFacts | None, settings: Settings, question: Question) -> Iterator[Finding]:
    if seen is None:
        yield from (unread(group, "all", f"not read within {question.within_s:g} s") for group in OF_KAFKA)
        return
    yield from check_broker(seen)
    if seen.broker.error is not None:
        others = (group for group in OF_KAFKA if group != "kafka")
        yield from (finding("unknown", group, "all", "not looked at", "kafka_first") for group in others)
        return
    yield from check_topics(seen, settings.topics(), settings.grace_s, question)
    yield from check_rights(seen, settings.topics(), question, settings.kafka_user)
    yield from check_workers(seen, VERSION)
    yield from check_jobs(seen, settings.grace_s)
    yield from check_alerts(seen, settings.alert_least_severity)


class BlockWatch:
    """Looks now and then, in a thread of its own while a ``with`` block runs, for a reason why no alert can come.

    Parameters
    ----------
    look
        Returns findings.
    say
        Called with a line about each blocking finding: when it first appears, and again if it comes back.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Finding]],
        say: Callable[[str], None],
        first_s: float = FIRST_S,
        every_s: float = EVERY_S,
    ) -> None:
        self._look: Final = look
        self._say: Final = say
        self._first_s: Final = first_s
        self._every_s: Final = every_s
        self._said: set[tuple[str | None, str]] = set()
        self._failed: set[type[Exception]] = set()
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="irregulars-blocking", daemon=True)

    def look(self) -> None:
        """Look once."""
        found = {(one.code, one.subject): one for one in self._look() if is_blocking(one)}
        for place, one in found.items():
            if place not in self._said and not self._stop.is_set():
                self._say(line_of(one))
        self._said = set(found)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._stop.wait(wait_s):
            wait_s = self._every_s
            try:
                self.look()
            except Exception as error:  # a thread that ended would leave a quiet screen without a reason
                if type(error) not in self._failed:  # it may come back with every look
                    self._failed.add(type(error))
                    LOG.exception("event=block_watch_failed")
                    self._say(f"whether alerts can come is not known: looking raised {type(error).__name__}: "
                              f"{error}. It is tried again; see also: irregulars doctor")  # fmt: skip


def watch(settings: Settings, group: str, say: Callable[[str], None], every_s: float = EVERY_S) -> BlockWatch:
    """Return a watch of an installation; `group` is the consumer group of its workers."""
    question = Question(group, only=("kafka", "topics", "workers", "jobs"), within_s=15.0)
    return BlockWatch(lambda: diagnose(LenientSettings(settings), question), say, every_s=every_s)


def is_blocking(one: Finding) -> bool:
    """Whether no alert comes for it, of some job or of all."""
    if (one.group, one.subject) == ("kafka", "broker"):
        return one.level == "problem"
    return one.code in BLOCKING and one.level != "unknown" and (one.level == "problem" or one.code == "none_closes")


def line_of(one: Finding) -> str:
    """Return the line about a blocking finding.

    >>> line_of(finding("problem", "topics", "topics", "1 topic missing: a.jobs", "topic_missing"))
    'NO ALERT CAN COME: topics: 1 topic missing: a.jobs. What to do: irregulars topics create'
    """
    return f"NO ALERT CAN COME: {one.subject}: {one.text}. What to do: {one.to_do}"
