"""The newest alerts, read from their topic in a thread: they are there before the database has stored anything.

Where the database is away they are what the console still knows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from irregulars.errors import RecordError, ServiceError
from irregulars.infra.console.topics.kafka_address import KafkaAddress
from irregulars.infra.runs.alert_feed import follow_alerts
from irregulars.sinks.alerts import decode_alert

LOG: Final = logging.getLogger("irregulars.console")
MOST: Final = 200
"""Verdicts whose newest alert is kept, and messages of each partition that are read at the start."""

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
        found = follow_alerts(kafka.bootstrap, kafka.topics, kafka.security, newest=MOST,
                              is_over=self._is_readable)  # fmt: skip
        yield from found

    def _is_readable(self) -> bool:
        """Return whether to stop; that it is asked at all says that the topic is read."""
        self.trouble = None
        return self._is_over.is_set()


def since_s(alert: Alert) -> float | None:
    """Return how long ago what an alert tells of was seen, s; None: not known."""
    return None if alert.time_ns is None else max(0.0, time.time() - alert.time_ns / 1e9)
