"""The console's ways to ClickHouse (answers are shared, bounded, and few at once) and to Kafka (alerts, letters)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from irregulars.errors import RecordError, ServiceError, ServiceRefused, ServiceUnavailable
from irregulars.infra.runs.dead_letters import DeadLetter
from irregulars.kafka.alert_feed import follow_alerts
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.alerts import decode_alert, seen_ns
from irregulars.sinks.connection import DatabaseSettings, connect, translated
from irregulars.sinks.notices.mutes import Mute, silences
from irregulars.sinks.notices.state_log import StateLog, opened

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


KEEP_S: Final = 2.0  # how long an answer is given to others too, s: pages ask again as often
_MOST: Final = 512

T = TypeVar("T")


class SharedAnswers:
    """Answers by their question's key, each for some seconds."""

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[Hashable, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], keep_s: float = KEEP_S) -> T:
        """Return the result of `make`, or that of an equal question within `keep_s`; errors likewise.

        A caller that is cancelled meanwhile does not cancel it for the others.
        """
        task = self._kept.get(key)
        if task is None:
            while len(self._kept) >= _MOST:
                # Only dropped, not cancelled: the requests that wait for it still get it.
                self._kept.popitem(last=False)

            def finish(task: asyncio.Task[Any]) -> None:
                """Drop it in time. A failure is shared too, but not for long: all would ask a sick service again."""
                has_failed = task.cancelled() or task.exception() is not None  # asking for it marks it as seen
                loop.call_later(min(keep_s, KEEP_S) if has_failed else keep_s, self._drop, key, task)

            loop = asyncio.get_running_loop()
            task = self._kept[key] = loop.create_task(make())
            task.add_done_callback(finish)
        return cast(T, await asyncio.shield(task))

    def forget(self, key: Hashable) -> None:
        """Ask anew at the next question: the answer was changed."""
        self._kept.pop(key, None)

    def _drop(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        # Another task may have this key by now, if this one was dropped before its time.
        if self._kept.get(key) is task:
            del self._kept[key]


AT_ONCE: Final = 6  # questions that the database works on at a time
# How long the database may work on one question, s. People wait a second or two, and then give up.
ANSWER_S: Final = 8.0

_QUEUE_S: Final = 4.0  # how long a question waits for its turn
_MARGIN_S: Final = 3.0  # from the database's own limit to ours
_MOST_ROWS: Final = 1_000_000


class ConsoleDatabase:
    """Answers the questions of all pages.

    `settings`: where the database is and who we are; made to read only, and never waited for. `on_answer`: Called
    with seconds and None or the error, for metrics.
    """

    def __init__(
        self, settings: DatabaseSettings, on_answer: Callable[[float, BaseException | None], None] = lambda *_: None
    ) -> None:
        self.settings = replace(settings, is_reading=True, wait_s=0.0, answer_s=ANSWER_S + _MARGIN_S)
        self._on_answer: Final = on_answer
        self._answers: Final = SharedAnswers()
        self._threads: Final = ThreadPoolExecutor(AT_ONCE, "irregulars-database")
        self._turns: Final = asyncio.Semaphore(AT_ONCE)
        # Its modules import each other: where two threads import it at the same time, one of them fails.
        import_module("clickhouse_connect.driver")
        self._client: Client | None = None
        self._lock: Final = Lock()

    @property
    def source(self) -> str:
        """Where answers come from, for people."""
        return f"{self.settings.database} on {self.settings.address}"

    async def ask(self, key: Hashable, read: Callable[[Client], T], keep_s: float = KEEP_S) -> T:
        """Return the result of `read`, or that of a question with an equal key within `keep_s`.

        `read` runs in a thread, bounded in time and rows by settings of the connection. Raises `ServiceError` if the
        database does not answer in time, or refuses us; `InputError` if the question can't be asked.
        """
        return await self._answers.get(key, lambda: self._timed(read), keep_s)

    def close(self) -> None:
        """Close the connection; questions on their way end by themselves."""
        # Threads can't be stopped: the process does not wait for slow answers to end.
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _timed(self, read: Callable[[Client], T]) -> T:
        begun_s, error = time.monotonic(), None
        try:
            try:
                async with asyncio.timeout(_QUEUE_S):
                    await self._turns.acquire()
            except TimeoutError:
                raise ServiceUnavailable(
                    f"database must answer the questions before this one within {_QUEUE_S:g} s; got {AT_ONCE} that "
                    f"it still works on ({self.settings.address}). Is it under load?"
                ) from None
            # A thread can't be stopped: its turn ends when it does, so there are never more than `AT_ONCE` of them.
            answer = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, read)
            answer.add_done_callback(lambda done: self._turns.release())
            try:
                async with asyncio.timeout(ANSWER_S + 2 * _MARGIN_S):
                    return await asyncio.shield(answer)
            except TimeoutError:
                answer.add_done_callback(mark_seen)
                raise ServiceUnavailable(
                    f"database must answer within {ANSWER_S:g} s; got nothing ({self.settings.address})"
                ) from None
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._on_answer(time.monotonic() - begun_s, error)

    def _ask(self, read: Callable[[Client], T]) -> T:
        # As they are now: another thread may replace them while this one is refused.
        settings = self.settings
        try:
            return self._answer(read)
        except ServiceRefused:
            if not self._has_new_password(settings):
                raise
        return self._answer(read)

    def _answer(self, read: Callable[[Client], T]) -> T:
        with translated(self.settings):
            return read(self._connected())

    def _has_new_password(self, refused: DatabaseSettings) -> bool:
        """Drop the connection if the password's file holds another password than the refused one."""
        with self._lock:
            if self.settings is not refused:  # another question has found it
                return True
            new = self.settings.with_new_password()
            if new is not None:
                self.settings, self._client = new, None
            return new is not None

    def _connected(self) -> Client:
        with self._lock:
            if self._client is None:
                client = connect(self.settings)
                # A profile without the right to settings has bounds of its own.
                known = client.server_settings.get("readonly")
                if known is None or known.value != "1":
                    client.set_client_setting("max_execution_time", int(ANSWER_S))
                    client.set_client_setting("max_result_rows", _MOST_ROWS)
                self._client = client
            return self._client


def mark_seen(answer: asyncio.Future[Any]) -> None:
    """Retrieve the error of an answer that nobody awaits: else asyncio logs it as never retrieved."""
    if not answer.cancelled():
        answer.exception()


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Brokers, topics, and librdkafka's settings of protocol and credentials, which appear in no text."""

    bootstrap: str
    topics: TopicSettings
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)


_DEADLINE_S: Final = 5.0


def newest_letters(kafka: KafkaAddress, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Return how many letters are kept, about, and the newest of them, the last first; waits for the broker.

    Raises `ServiceError` if Kafka does not answer, refuses us, or lacks the topic.
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
    severity: str | None
    summary: str
    time_ns: int | None


class RecentAlerts:
    """Follows the topic until it is closed, and tries again where Kafka is away.

    `kafka`: where the topic is; `on_alert`: Called for each alert that is read, for metrics.
    """

    def __init__(self, kafka: KafkaAddress, on_alert: Callable[[], None] = lambda: None) -> None:
        self._kafka: Final = kafka
        self._on_alert: Final = on_alert
        self._newest: OrderedDict[str, Alert] = OrderedDict()
        self._lock: Final = threading.Lock()
        self._is_over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._follow, name="irregulars-alerts", daemon=True)
        self.trouble: str | None = None  # why the topic can't be read now; None: it is read, or was not tried yet

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
            values = decode_alert(value)
        except RecordError:
            return
        alert = Alert(
            values["verdict_id"], values["revision"], values.get("severity"), values["summary"], seen_ns(values)
        )
        with self._lock:
            known = self._newest.get(alert.verdict_id)
            # A late message must not replace a newer revision.
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
        def tell(trouble: str | None) -> None:
            self.trouble = trouble

        kafka, is_over = self._kafka, self._is_over.is_set
        return follow_alerts(kafka.bootstrap, kafka.topics, kafka.security, newest=MOST, is_over=is_over, tell=tell)


_SAY_S: Final = 10.0


def say_on_topic(kafka: KafkaAddress, topic: str, say: Callable[[StateLog], None]) -> None:
    """Publish the words of a person as the commands do: `say` writes to `topic`. Waits for the broker up to `_SAY_S`.

    Raises `InputError` if they can't be kept; `ServiceError` if Kafka does not answer, refuses us, or lacks
    the topic.
    """
    # A broker that is away is waited for until the event is set.
    over = threading.Event()
    deadline = threading.Timer(_SAY_S, over.set)
    deadline.daemon = True
    deadline.start()
    try:
        with opened(kafka.bootstrap, kafka.topics, kafka.security, topic, is_stopping=over) as log:
            say(log)
    finally:
        deadline.cancel()


def known_mutes(kafka: KafkaAddress) -> list[Mute]:
    """Return all mutes, those that follow from opinions too; waits for the broker. Raises `ServiceError`."""
    with opened(kafka.bootstrap, kafka.topics, kafka.security, "mutes", "feedback") as log:
        return [*log.mutes(), *silences(log.opinions())]
