"""Checks of the brokers: do they answer, until when are certificates valid, whose clock is off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from irregulars.infra.doctor.checks.facts import BrokerFacts, KafkaFacts
from irregulars.infra.doctor.checks.findings import Finding, Level, finding, ok, unread
from irregulars.infra.doctor.checks.words import count, span

GROUP: Final = "kafka"
SLOW_S: Final = 2.0
"""A broker that takes longer to say who it is makes every step slow."""

EXPIRES_SOON_S: Final = 14 * 86_400.0
"""A certificate that ends within two weeks: time enough for whoever has to ask somebody for a new one."""

CLOCK_S: Final = 2.0
"""A clock that is off by more. Kafka keeps messages by their times, and silences are told by them; the times inside
of a job are compared within that job alone."""


def check_broker(seen: KafkaFacts) -> Iterator[Finding]:
    """Give what is found of the brokers."""
    broker = seen.broker
    if broker.error is not None:
        yield finding("problem", GROUP, "broker", broker.error.text, broker.error.code)
        if broker.error.code != "certificate_expired":
            yield from _certificates(broker, seen.now_s)
        return
    yield _answer(broker)
    yield (
        ok(GROUP, "release", f"its interface is that of Kafka {broker.release}")
        if broker.release
        else unread(GROUP, "release", "the broker does not say in words that we know")
    )
    if broker.doubt is not None:
        yield unread(GROUP, "address", f"{broker.doubt}; another broker or another look let us in")
    yield from _certificates(broker, seen.now_s)
    if broker.has_login and not broker.is_tls:
        yield finding("warning", GROUP, "TLS", "we log in without TLS: others can read along", "no_tls")
    yield _clock(broker)


def _answer(broker: BrokerFacts) -> Finding:
    text = f"{count(broker.brokers, 'broker')} at {broker.bootstrap}, answered in {span(broker.answered_in_s)}"
    if broker.answered_in_s > SLOW_S:
        return finding("warning", GROUP, "broker", text, "kafka_slow")
    return ok(GROUP, "broker", text)


def _certificates(broker: BrokerFacts, now_s: float) -> Iterator[Finding]:
    for whose, ends_s in (("the broker's", broker.certificate_ends_s), ("our own", broker.own_certificate_ends_s)):
        if ends_s is not None:
            yield _certificate(whose, ends_s - now_s)


def _certificate(whose: str, left_s: float) -> Finding:
    if left_s <= 0:
        text = f"{whose} certificate has been invalid for {span(-left_s)}"
        return finding("problem", GROUP, "TLS", text, "certificate_ends", whose=whose)
    text = f"{whose} certificate is valid for another {span(left_s)}"
    if left_s < EXPIRES_SOON_S:
        return finding("warning", GROUP, "TLS", text, "certificate_ends", whose=whose)
    return ok(GROUP, "TLS", text)


def _clock(broker: BrokerFacts) -> Finding:
    if broker.broker_clock_s is None:
        text = "not known: Kafka tells nobody its time, and messages have that of their senders"
        return finding("unknown", GROUP, "clock", text, "broker_clock")
    return clock_finding(GROUP, "the broker's clock", broker.broker_clock_s)


def clock_finding(group: str, whose: str, off_s: float, least: str = "at least ") -> Finding:
    """Return what follows from a clock that is off by so much, s; above 0 it is ahead of ours."""
    if abs(off_s) <= CLOCK_S:
        return ok(group, "clock", f"{whose} is not seen to be off by more than {span(CLOCK_S)}")
    where = "ahead of" if off_s > 0 else "behind"
    level: Level = "warning" if abs(off_s) < 30 else "problem"
    text = f"{whose} is {least}{span(abs(off_s))} {where} ours"
    return finding(level, group, "clock", text, "clock_off")
