"""Reads machine, Kafka and ClickHouse side by side within a deadline, and returns the findings on all."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self, TypeVar

from confluent_kafka import KafkaException

from irregulars.infra.doctor.broker import check_broker, let_in, reason_of
from irregulars.infra.doctor.database import check_database, read_database
from irregulars.infra.doctor.facts import KafkaFacts, StreamFacts
from irregulars.infra.doctor.findings import GROUPS, Finding, Question, finding, ok, unread
from irregulars.infra.doctor.stream import StreamReading, Tails
from irregulars.infra.doctor.topics import Deadline, check_rights, check_topics, read_group, read_topics
from irregulars.infra.doctor.workers import check_alerts, check_jobs, check_workers, read_page
from irregulars.infra.settings import FIELDS, LenientSettings, Settings
from irregulars.printing import counted
from irregulars.sinks.notices.settings import NotifySettings
from irregulars.version import VERSION
from irregulars.words import size

OF_KAFKA: Final = ("kafka", "topics", "rights", "workers", "jobs", "alerts")
_ANSWER_S: Final = 8.0
# Seconds that reading may take beyond its deadline: steps end by it, and not to the tenth of a second
_GRACE_S: Final = 2.0

_Facts = TypeVar("_Facts")
OnStep = Callable[[str], None]
LOG: Final = logging.getLogger("irregulars.doctor")

# Codes of findings for which no alert comes, of some job or of all. A broker that can't be used blocks by any code.
# Hidden topics are none: a reader of alerts sees no others, and they may well be there.
BLOCKING: Final = frozenset(
    {
        "topic_missing", "partitions_differ", "no_leader", "no_worker", "partitions_unread", "behind",
        "judging_behind", "not_announced", "none_closes", "no_marks", "all_refused",
    }
)  # fmt: skip

FIRST_S: Final = 60.0
EVERY_S: Final = 60.0  # seconds until the first look, and between two; a look takes some tenths of a second
_STOP_S: Final = 2.0


def diagnose(found: LenientSettings, question: Question, on_step: OnStep = lambda _: None) -> list[Finding]:
    """Return the findings, group by group in the order of `GROUPS`; `on_step` is called from other threads too."""
    findings: list[Finding] = []
    settings = found.settings
    if settings is not None:
        kafka = database = None
        # Both readings begin before one is waited for: they share the time.
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
    """Whether it keeps all wanted groups from being read: then it is shown whatever is wanted."""
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
    stamped_s = time.time()
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
    stamped = [
        one.newest_s for one in topics.values()
        if one.newest_s is not None and (one.config or {}).get("message.timestamp.type") == "LogAppendTime"
    ]  # fmt: skip
    # The least lead of its clock over ours, where it sets the times of a topic's messages
    broker = replace(broker, broker_clock_s=max(max(stamped) - stamped_s, 0.0) if stamped else None)
    page = read_page(settings.metrics_listen)
    return KafkaFacts(now_s, broker, topics, workers, notifying, others, stream, page)


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
    """Checks now and then, in a thread of its own while a ``with`` block runs, whether alerts are blocked.

    `look`: Returns findings; `say`: Called with a line about each blocking finding: when it first appears, and again
    if it comes back.
    """

    def __init__(
        self, look: Callable[[], Sequence[Finding]], say: Callable[[str], None], first_s: float = FIRST_S,
        every_s: float = EVERY_S,
    ) -> None:  # fmt: skip
        self._look, self._say, self._first_s, self._every_s = look, say, first_s, every_s
        self._said: set[tuple[str | None, str]] = set()
        self._failed: set[type[Exception]] = set()
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="irregulars-blocking", daemon=True)

    def look(self) -> None:
        """Check once."""
        found = {(one.code, one.subject): one for one in self._look() if is_blocking(one)}
        for place, one in found.items():
            # A check that ends after the block must not print any more.
            if place not in self._said and not self._stop.is_set():
                self._say(line_of(one))
        # Of this time alone: a finding that goes and comes back is told again.
        self._said = set(found)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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


def watch(settings: Settings, group: str, say: Callable[[str], None]) -> BlockWatch:
    """Return a watch of an installation; `group` is the consumer group of its workers."""
    question = Question(group, only=("kafka", "topics", "workers", "jobs"), within_s=15.0)
    return BlockWatch(lambda: diagnose(LenientSettings(settings), question), say)


def is_blocking(one: Finding) -> bool:
    """Whether no alert comes for it, of some job or of all."""
    if (one.group, one.subject) == ("kafka", "broker"):
        return one.level == "problem"
    # `none_closes` is a warning at first, and no alert can come all the same.
    return one.code in BLOCKING and one.level != "unknown" and (one.level == "problem" or one.code == "none_closes")


def line_of(one: Finding) -> str:
    """Return the line about a blocking finding.

    >>> line_of(finding("problem", "topics", "topics", "1 topic missing: a.jobs", "topic_missing"))
    'NO ALERT CAN COME: topics: 1 topic missing: a.jobs. What to do: irregulars topics create'
    """
    return f"NO ALERT CAN COME: {one.subject}: {one.text}. What to do: {one.to_do}"


_WORKER: Final = ("faust", "clickhouse_connect", "river")
# Settings that name a file which other users must not read
SECRETS: Final = (
    "kafka_password_file", "kafka_key_file", "kafka_token_file", "clickhouse_password_file",
    "clickhouse_reader_password_file", "console_token_file", "console_key_file",
    "console_proxy_secret_file",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that a setting names and that others must not read; `mode` is None where it can't be looked at."""

    setting: str
    path: str
    mode: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The machine and its settings."""

    release: str
    settings_file: str | None = None  # None: there is none
    refused: tuple[str, ...] = ()  # a text for each setting that can't be used
    secrets: tuple[SecretFile, ...] = ()
    has_worker: bool = True  # the packages of a worker are installed
    data_directory: str = ""
    free_bytes: int | None = None  # of the disk of ``data_dir``


def read_machine(found: LenientSettings) -> MachineFacts:
    """Read the settings' files, the installed packages and the free disk."""
    settings = found.settings
    directory = None if settings is None else settings.data_dir
    places = () if directory is None else (directory.absolute(), *directory.absolute().parents)
    secrets = []
    if found.file is not None and any(FIELDS[name].metadata["is_secret"] for name in found.names if name in FIELDS):
        secrets.append(_look("a settings file with a password", found.file))
    for name in SECRETS if settings is not None else ():
        path: Path | None = getattr(settings, name)
        if path is not None:
            secrets.append(_look(name, path))
    return MachineFacts(
        VERSION,
        None if found.file is None else str(found.file),
        found.refused,
        tuple(secrets),
        # Faust, once imported, has no specification any more.
        all(name in sys.modules or find_spec(name) is not None for name in _WORKER),
        "" if directory is None else str(directory),
        # data_dir may not exist yet: the nearest folder above it is on the same disk.
        next((shutil.disk_usage(one).free for one in places if os.path.isdir(one)), None),
    )


def _look(setting: str, path: Path) -> SecretFile:
    try:
        # Opened, since folders and access lists decide too whether it can be read.
        with path.open("rb"):
            return SecretFile(setting, str(path), path.stat().st_mode & 0o7777)
    except OSError as error:
        return SecretFile(setting, str(path), None, error.strerror or type(error).__name__)


GROUP: Final = "machine"
# Of the disk of ``data_dir``: a worker keeps little there, an agent's spool 1 GiB by default
LEAST_FREE_BYTES: Final = 1 << 30


def check_machine(seen: MachineFacts, role: str | None = None) -> Iterator[Finding]:
    """Yield the findings on this machine; for a role, on its needs."""
    yield ok(GROUP, "release", f"irregulars {seen.release}")
    for text in seen.refused:
        yield finding("problem", GROUP, "settings", text, "setting_refused")
    if seen.settings_file is None:
        yield ok(GROUP, "settings", "no settings file; defaults, environment and flags count")
    elif not seen.refused:
        yield ok(GROUP, "settings", f"read from {seen.settings_file}")
    sound = 0
    for one in seen.secrets:
        if one.mode is None:
            text = f"{one.setting} can't be read: {one.reason} ({one.path})"
            yield finding("problem", GROUP, "secrets", text, "secret_missing")
        elif one.mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            text = f"others may read or change {one.path}, of {one.setting} (mode {one.mode:04o})"
            yield finding("problem", GROUP, "secrets", text, "secret_open", path=one.path)
        elif one.mode & stat.S_IRGRP:
            text = f"its group may read {one.path}, of {one.setting} (mode {one.mode:04o})"
            yield finding("warning", GROUP, "secrets", text, "secret_open", path=one.path)
        else:
            sound += 1
    if sound:
        yield ok(GROUP, "secrets", f"{counted(sound, 'file')} that nobody else can read")
    if not seen.has_worker and role in (None, "worker"):
        yield finding("warning", GROUP, "packages", "what a worker needs is not installed here", "no_extra")
    if seen.free_bytes is not None:
        text = f"{size(seen.free_bytes)} free for data_dir ({seen.data_directory})"
        yield finding("warning" if seen.free_bytes < LEAST_FREE_BYTES else "ok", GROUP, "disk", text, "disk_small")
