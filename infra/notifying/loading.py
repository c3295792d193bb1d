"""Puts the ledger of a process together from what stands on Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from irregulars.errors import RecordError
from irregulars.infra.notifying.state_log import StateLog
from irregulars.sinks.alerts import decode_alert
from irregulars.sinks.notices.incidents import REPEAT_NS
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.policy import Rules

_MS: Final = 10**6
Refuse = Callable[[Message, str], None]
"""Takes a message that can't be used, and the reason."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The ledger, and the offset of the next alert of each partition."""

    ledger: Ledger
    positions: dict[int, int]


def load(
    log: StateLog, rules: Mapping[str, Rules], committed: Mapping[int, int], now_ns: int, refuse: Refuse
) -> Loaded:
    """Read what was told, all mutes, and the alerts on which anything may still rest, up to what is the end now.

    These are the alerts of the last week, those behind the committed offset, and those of incidents whose end was
    not told, however old.

    Parameters
    ----------
    committed
        Offset of each partition up to which all was settled; below 0: none was committed.

    Raises
    ------
    ServiceUnavailable
        If the broker does not send them.
    """
    ledger = Ledger(rules)
    for told in log.told():
        ledger.take_told(told)
    ledger.set_mutes(log.mutes(), log.opinions())
    positions = {}
    for partition, settled in committed.items():
        recent, end = log.alert_bounds(partition, now_ns - REPEAT_NS)
        wanted = [recent, ledger.oldest_open(partition), settled if settled >= 0 else None]
        begin = min(one for one in wanted if one is not None)
        _take_all(ledger, log.alerts(partition, begin, end), settled, refuse)
        positions[partition] = end
    return Loaded(ledger, positions)


def _take_all(ledger: Ledger, messages: Iterable[Message], settled: int, refuse: Refuse) -> None:
    for message in messages:
        reason = take(ledger, message)
        if reason is not None and offset_of(message) >= settled:  # else it was refused before
            refuse(message, reason)


def take(ledger: Ledger, message: Message) -> str | None:
    """Take one message of ``alerts`` into the ledger; return why it can't be used, or None."""
    try:
        alert = decode_alert(message.value())
    except RecordError as error:
        return str(error)
    ledger.take_alert(alert, came_ns(message), message.partition() or 0, offset_of(message))
    return None


def came_ns(message: Message) -> int:
    """Return when a message was written, ns since the epoch, or, where Kafka has no time of it, now."""
    _, time_ms = message.timestamp()
    return time_ms * _MS if time_ms > 0 else time.time_ns()


def offset_of(message: Message) -> int:
    """Return the offset of a message that was consumed."""
    return message.offset() or 0
