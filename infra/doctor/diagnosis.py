"""The whole: read machine, Kafka and ClickHouse side by side within a deadline, and check what was read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Final, TypeVar

from irregulars.infra.configuration.lenient import LenientSettings
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.doctor.checks.alerts import check_alerts
from irregulars.infra.doctor.checks.broker import check_broker
from irregulars.infra.doctor.checks.database import check_database
from irregulars.infra.doctor.checks.facts import DatabaseFacts, KafkaFacts
from irregulars.infra.doctor.checks.findings import GROUPS, Finding, finding, unread
from irregulars.infra.doctor.checks.jobs import check_jobs
from irregulars.infra.doctor.checks.machine import check_machine
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.checks.rights import check_rights
from irregulars.infra.doctor.checks.topics import check_topics
from irregulars.infra.doctor.checks.workers import check_workers
from irregulars.infra.doctor.reading.database import read_database
from irregulars.infra.doctor.reading.kafka import read_kafka
from irregulars.infra.doctor.reading.machine import read_machine
from irregulars.version import VERSION

OF_KAFKA: Final = ("kafka", "topics", "rights", "workers", "jobs", "alerts")
_GRACE_S: Final = 2.0
"""What reading may take beyond its deadline: steps end by it, and not to the tenth of a second."""

_Facts = TypeVar("_Facts")


def diagnose(
    found: LenientSettings, question: Question, on_step: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Return the findings, group by group in the order of `GROUPS`.

    Parameters
    ----------
    on_step
        Told in a few words what is read now, from other threads too.
    """
    findings: list[Finding] = []
    settings = found.settings
    if settings is not None:
        asks = question.wants(*OF_KAFKA)
        kafka = _begin(lambda: read_kafka(settings, question, on_step)) if asks else None
        asks = question.wants("clickhouse")
        database = _begin(lambda: read_database(settings, question, on_step)) if asks else None
        deadline_s = time.monotonic() + question.within_s + _GRACE_S
        if kafka is not None:
            findings += _of_kafka(_await(kafka, deadline_s), settings, question)
        if database is not None:
            findings += _of_database(_await(database, deadline_s), question)
    else:
        findings += [unread(group, "settings", "they can't be used") for group in GROUPS if group != "machine"]
    findings += check_machine(read_machine(found), question.role)
    order = list(GROUPS)
    wanted = (one for one in findings if question.wants(one.group) or _keeps_us_out(one, found, question))
    return sorted(wanted, key=lambda one: order.index(one.group))


def _keeps_us_out(one: Finding, found: LenientSettings, question: Question) -> bool:
    """Whether nothing that is asked for could be looked at because of it: then it is told whatever is asked for."""
    if one.level != "problem":
        return False
    if one.code == "setting_refused":
        return found.settings is None
    return (one.group, one.subject) == ("kafka", "broker") and question.wants(*OF_KAFKA)


def _begin(read: Callable[[], _Facts]) -> Future[_Facts]:
    """Read in a thread that nobody waits for at the end: what nothing can interrupt must not hold up the report."""
    future: Future[_Facts] = Future()

    def run() -> None:
        try:
            future.set_result(read())
        except BaseException as error:  # a bug: raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, name="irregulars-doctor", daemon=True).start()
    return future


def _await(future: Future[_Facts], deadline_s: float) -> _Facts | None:
    try:
        return future.result(max(deadline_s - time.monotonic(), 0.0))
    except TimeoutError:
        if future.done():  # what was read raised it
            raise
        return None


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


def _of_database(seen: DatabaseFacts | None, question: Question) -> Iterator[Finding]:
    if seen is None:
        yield unread("clickhouse", "all", f"not read within {question.within_s:g} s")
    else:
        yield from check_database(seen, time.time(), only_reads=question.only_reads)
