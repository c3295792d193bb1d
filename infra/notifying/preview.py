"""What would be told, without telling it; and a notice that only tries a channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from irregulars.errors import ServiceUnavailable, SinkError
from irregulars.infra.notifying.loading import load
from irregulars.infra.notifying.process import NotifySettings, require_topics
from irregulars.infra.notifying.state_log import StateLog
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.notice import Channel, Notice
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.storms import GATHER_NS
from irregulars.sinks.notices.text import summary_of

TEST_JOB: Final = "test-nothing-is-wrong"


def preview(settings: NotifySettings, rules: Mapping[str, Rules]) -> Iterator[str]:
    """Yield a line for each notice that would be sent now, and for each incident that is held back.

    Nothing is sent, written or committed, and a process that runs is not disturbed.

    Raises
    ------
    ServiceError
        If Kafka does not answer or refuses us, or lacks topics.
    """
    require_topics(settings)
    log = StateLog(settings.bootstrap, settings.topics, settings.security, threading.Event())
    now_ns = time.time_ns()
    try:
        committed = dict.fromkeys(log.alert_partitions(), -1)
        loaded = load(log, rules, committed, now_ns, lambda _, __: None)
    finally:
        log.close()
    for channel in rules:
        yield from _lines(loaded.ledger, channel, now_ns)


def _lines(ledger: Ledger, channel: str, now_ns: int) -> Iterator[str]:
    for at_ns in (now_ns, now_ns + GATHER_NS):
        while (due := ledger.next_due(channel, at_ns)) is not None:
            again = "again " if due.is_repeat else ""
            yield f"{channel}: {again}{summary_of(due.notice)} [{due.incident.verdict_id}]"
            ledger.delivered(channel, due, None, at_ns)
    for verdict_id, until_ns, reason in ledger.waits(channel):
        if reason in ("held", "muted"):
            until = datetime.fromtimestamp(until_ns // 10**9, UTC)
            yield f"{channel}: {reason} until {until:%Y-%m-%d %H:%M:%SZ} [{verdict_id}]"


def send_test(channel: Channel) -> str:
    """Deliver a test incident and its end to a channel; return the incident's id.

    Raises
    ------
    ServiceUnavailable
        If the channel did not take one of them.
    """
    alert = _test_alert(f"{TEST_JOB}:{time.time_ns()}")
    try:
        reference = channel.deliver(Notice("opened", alert, "ticket"))
        channel.deliver(Notice("resolved", _ended(alert), "ticket", reference=reference))
    except SinkError as error:
        raise ServiceUnavailable(f"channel {channel.name} must take a test notice; {error}") from error
    return str(alert["verdict_id"])


def _test_alert(verdict_id: str) -> dict[str, Any]:
    suspect = {"device": "nic", "rank": 0, "ranks": [0], "probability": 0.9, "peer": None, "host": "test-host",
               "gpu": 0, "nic": "test-nic", "switch": None}  # fmt: skip
    return {
        "summary": "OPENED test of this channel: nothing is wrong",
        "schema": "alerts", "version": 1, "verdict_id": verdict_id, "revision": 1, "state": "open", "job": TEST_JOB,
        "kind": "slow_nic", "iterations": [0, 10], "delta": 1.5, "lost_s": 3.0, "communicator": None,
        "suspects": [suspect], "evidence": "This is a test of the channel. Nothing is wrong.", "attempt": 0,
        "world_size": 8, "time_ns": time.time_ns(), "close_reason": None, "event": "opened", "severity": "ticket",
        "recovers_ratio": None, "gpu_hours_lost": 0.0067, "next_step": "Do nothing: this is a test.",
    }  # fmt: skip


def _ended(alert: Mapping[str, Any]) -> dict[str, Any]:
    return {**alert, "revision": 2, "state": "closed", "event": "closed", "close_reason": "recovered"}
