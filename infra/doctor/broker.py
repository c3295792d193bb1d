"""Brokers: why none lets us in, how fast they answer, until when certificates are valid, whose clock is off.

librdkafka calls most mistakes in settings "Broker transport failure"; its log says more, and `_CASES` reads that.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from irregulars.errors import InputError, ServiceError, ServiceRefused
from irregulars.infra.doctor.facts import BrokerFacts, KafkaFacts, Obstacle
from irregulars.infra.doctor.findings import Finding, Level, finding, ok, span
from irregulars.infra.settings import Settings
from irregulars.kafka.broker import REFUSED_S, open_admin
from irregulars.kafka.security import KafkaSecurity
from irregulars.printing import counted

GROUP: Final = "kafka"
SLOW_S: Final = 2.0  # a broker that takes longer to answer its first request makes every step slow
# A certificate that ends within two weeks leaves just time enough to request a new one
EXPIRES_SOON_S: Final = 14 * 86_400.0

# Clocks that differ by less are well. Kafka keeps messages by their times, and silences are counted by them.
CLOCK_S: Final = 2.0

_LOOK_S: Final = 2.0
_INFO: Final = 6  # librdkafka's log level at which it reports each connection that fails, and no requests
# The times in a DER certificate (RFC 5280): UTCTime or GeneralizedTime. The first two are its validity.
_VALIDITY: Final = re.compile(rb"\x17\x0d(\d{12}Z)|\x18\x0f(\d{14}Z)")

# Lines of librdkafka's log, with code and text of the obstacle behind each; the first that fits counts
_CASES: Final = (
    (r"ssl\.(\w+)\.location failed", "log_in_unusable", "{0} must be a readable file in PEM"),
    (r"SASL authentication error: (.*?)(?: \(after|$)", "log_in_refused", "refuses {who} by {mechanism}: {0}"),
    (r"current SASL state", "log_in_not_asked", "takes no log-in, and kafka_user or a token is set"),
    (r"supported mechanisms: (\S.*?) \(after", "mechanism_refused",
     "takes log-ins by {0}, and kafka_mechanism is {mechanism}"),
    (r"could not be verified|certificate verify failed", "certificate_untrusted",
     "has a certificate that can't be trusted; {authority}"),
    (r"PLAINTEXT broker listener|wrong version number", "tls_not_spoken", "speaks no TLS, and kafka_tls is true"),
    (r"SSL alert", "own_certificate_refused", "refuses our certificate (kafka_cert_file)"),
    (r"Connect to \S+ failed: (.*?) \(after", "kafka_unreachable", "can't be reached: {0}"),
    (r"Failed to resolve '\S+': (.*?) \(after", "kafka_unreachable", "can't be reached: {0}"),
    (r"(?:Disconnected|Receive failed).*in state APIVERSION", "tls_expected",
     "speaks TLS, and kafka_tls is false"),
    (r"Disconnected.*in state UP", "log_in_asked", "asks for a log-in, and kafka_user is not set"),
)  # fmt: skip

_FILES: Final = {"ca": "kafka_ca_file", "certificate": "kafka_cert_file", "key": "kafka_key_file"}


def let_in(settings: Settings, wait_s: float) -> tuple[BrokerFacts, tuple[AdminClient, dict[str, Any]] | None]:
    """Log in; return the brokers' facts, and a client with its settings; None where the facts hold an error."""
    security, lines = settings.kafka_security(), list[str]()
    facts = BrokerFacts(
        settings.kafka_bootstrap,
        is_tls=security.tls,
        has_login=security.user is not None or security.mechanism == "OAUTHBEARER",
        certificate_ends_s=_broker_certificate_ends_s(settings.kafka_bootstrap) if security.tls else None,
        own_certificate_ends_s=None if security.cert_file is None else file_ends_s(security.cert_file),
    )
    begin_s = time.monotonic()
    try:
        config = security.client()
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.Logger("irregulars.doctor.librdkafka")  # not of the tree: nothing of it is printed
        logger.addHandler(handler)
        logged = {**config, "log_level": _INFO, "logger": logger}
        admin, metadata = open_admin(settings.kafka_bootstrap, logged, wait_s, REFUSED_S)
    except InputError as error:
        return replace(facts, error=Obstacle("log_in_unusable", reason_of(error))), None
    except ServiceError as error:
        return replace(facts, error=_obstacle(error, lines, security, facts)), None
    took_s = time.monotonic() - begin_s
    return replace(facts, brokers=len(metadata.brokers), answered_in_s=took_s), (admin, config)


def reason_of(error: Exception) -> str:
    """Return why something could not be read, without the advice at its end."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error).split(". Check ")[0]


def _obstacle(error: ServiceError, lines: list[str], security: KafkaSecurity, facts: BrokerFacts) -> Obstacle:
    """Return the case that librdkafka's log names; a broker that is slow, or is no Kafka, names none."""
    seen = [*lines, str(error)]
    known = [(code, text, match) for pattern, code, text in _CASES for line in seen
             if (match := re.search(pattern, line)) is not None]  # fmt: skip
    if not known:
        if isinstance(error, ServiceRefused):
            return Obstacle("kafka_refuses", reason_of(error))
        return Obstacle("kafka_away", f"{facts.bootstrap} does not answer as Kafka does: {reason_of(error)}")
    code, text, match = known[0]
    if code == "own_certificate_refused" and security.cert_file is None:
        code = "own_certificate_asked"
        text = "asks for a certificate of ours (mutual TLS), and kafka_cert_file is not set"
    if code == "certificate_untrusted" and (facts.certificate_ends_s or math.inf) < time.time():
        code, text = "certificate_expired", "has a certificate that has expired"
    # The connection ended at our first request. Only a greeting by TLS can tell whether that is the reason.
    if code == "tls_expected" and (security.tls or _broker_certificate_ends_s(facts.bootstrap) is None):
        return Obstacle("kafka_away", f"{facts.bootstrap} ends the connection and does not answer as Kafka does")
    if code == "log_in_asked" and facts.has_login:
        return Obstacle("kafka_refuses", f"{facts.bootstrap} ends the connection after the log-in")
    found = match[1] if match.groups() else ""
    told = text.format(
        _FILES.get(found, found),
        who=f"user {security.user!r}" if security.user else "our token",
        mechanism=security.mechanism,
        authority="kafka_ca_file is not set" if security.ca_file is None else "kafka_ca_file names another authority",
    )
    return Obstacle(code, told if code == "log_in_unusable" else f"{facts.bootstrap} {told}")


def _broker_certificate_ends_s(bootstrap: str) -> float | None:
    """Return the end of the certificate of the first broker that shows one; None: none speaks TLS."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            return _ends_s(ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=_LOOK_S))
        except (OSError, ValueError):
            # This broker is away or speaks no TLS; another one may show its certificate.
            continue
    return None


def file_ends_s(path: Path) -> float | None:
    """Return the end of the first certificate of a PEM file, s since 1970; None: there is none."""
    try:
        return _ends_s(path.read_text("ascii", "replace"))
    except OSError:
        return None


def _ends_s(pem: str) -> float | None:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = pem.partition(begin)
    try:
        times = _VALIDITY.findall(ssl.PEM_cert_to_DER_cert(begin + rest.partition(end)[0] + end)) if found else []
    except ValueError:
        return None
    # Not a certificate that we can read: nothing is claimed of it.
    if len(times) < 2:
        return None
    short, long = (text.decode() for text in times[1])
    form = "%y%m%d%H%M%SZ" if short else "%Y%m%d%H%M%SZ"
    return datetime.strptime(short or long, form).replace(tzinfo=UTC).timestamp()


def check_broker(seen: KafkaFacts) -> Iterator[Finding]:
    """Yield the findings on the brokers."""
    broker = seen.broker
    if broker.error is not None:
        yield finding("problem", GROUP, "broker", broker.error.text, broker.error.code)
    else:
        text = f"{counted(broker.brokers, 'broker')} at {broker.bootstrap}, answered in {span(broker.answered_in_s)}"
        yield finding("warning" if broker.answered_in_s > SLOW_S else "ok", GROUP, "broker", text, "kafka_slow")
    if broker.error is None or broker.error.code != "certificate_expired":  # which is this, in other words
        ends = {"the broker's": broker.certificate_ends_s, "our own": broker.own_certificate_ends_s}
        for whose, ends_s in ends.items():
            if ends_s is not None:
                yield _certificate(whose, ends_s - seen.now_s)
    if broker.error is not None:
        return
    if broker.has_login and not broker.is_tls:
        yield finding("warning", GROUP, "TLS", "we log in without TLS: others can read along", "no_tls")
    if broker.broker_clock_s is None:
        text = "not known: Kafka does not publish its time, and messages bear that of their senders"
        yield finding("unknown", GROUP, "clock", text, "broker_clock")
    else:
        yield clock_finding(GROUP, "the broker's clock", broker.broker_clock_s)


def _certificate(whose: str, left_s: float) -> Finding:
    if left_s <= 0:
        text = f"{whose} certificate has been invalid for {span(-left_s)}"
        return finding("problem", GROUP, "TLS", text, "certificate_ends", whose=whose)
    text = f"{whose} certificate is valid for another {span(left_s)}"
    level: Level = "warning" if left_s < EXPIRES_SOON_S else "ok"
    return finding(level, GROUP, "TLS", text, "certificate_ends", whose=whose)


def clock_finding(group: str, whose: str, off_s: float) -> Finding:
    """Return the finding on a clock that is `off_s` seconds off, at least; above 0 it is ahead of ours."""
    if abs(off_s) <= CLOCK_S:
        return ok(group, "clock", f"{whose} is not seen to be off by more than {span(CLOCK_S)}")
    where = "ahead of" if off_s > 0 else "behind"
    level: Level = "warning" if abs(off_s) < 30 else "problem"
    return finding(level, group, "clock", f"{whose} is at least {span(abs(off_s))} {where} ours", "clock_off")
