"""What a broker shows to whoever connects: its certificate, which requests it takes, and why it would not let us in.

Nobody logs in for it. librdkafka says "Broker transport failure" of most mistakes in settings; what is wrong is found
here, by looking at the same port in other ways.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from irregulars.infra.doctor.checks.facts import Obstacle
from irregulars.infra.doctor.reading.certificate import ends_s
from irregulars.infra.doctor.reading.deadline import Deadline
from irregulars.infra.doctor.reading.wire import NO_LOG_IN, NOT_OFFERED, SASL_HANDSHAKE, ask_log_in, ask_requests
from irregulars.kafka.security import KafkaSecurity

_NO_MECHANISM: Final = "NONE"
"""A way to log in that no broker has: its answer says which ones it has, or that nobody logs in there."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Handshake:
    """What came of it.

    Parameters
    ----------
    certificate_ends_s
        Until when its certificate is valid, s since 1970.
    requests
        By number of the request: its oldest and newest version.
    obstacle
        What would keep us out, as far as it shows without a password.
    """

    certificate_ends_s: float | None = None
    requests: Mapping[int, tuple[int, int]] | None = None
    obstacle: Obstacle | None = None


def shake_hands(bootstrap: str, security: KafkaSecurity, timeout_s: float) -> Handshake:
    """Connect to the first broker of a list that can be reached, and look at it."""
    reasons: list[str] = []
    addresses = bootstrap.split(",")
    for address in addresses:
        try:
            door = _Door(address.strip(), security, Deadline(timeout_s / len(addresses)))
            with door.plain():
                pass
        except (OSError, ValueError) as failure:
            reasons.append(f"{address.strip()}: {_reason(failure)}")
            continue
        return door.look()
    return Handshake(obstacle=Obstacle("kafka_unreachable", f"no broker can be reached: {'; '.join(reasons)}"))


class _Door:
    """One port of a broker."""

    def __init__(self, address: str, security: KafkaSecurity, deadline: Deadline) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._security, self._deadline = address, security, deadline
        self._host, self._port = host.strip("[]"), int(port)

    @contextmanager
    def plain(self) -> Iterator[socket.socket]:
        """Connect without TLS."""
        with socket.create_connection((self._host, self._port), self._deadline.left_s()) as connection:
            connection.settimeout(self._deadline.left_s())
            yield connection

    @contextmanager
    def _safe(self, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
        with self.plain() as plain, context.wrap_socket(plain, server_hostname=self._host) as safe:
            yield safe

    def look(self) -> Handshake:
        """Look at it, with TLS or without as our settings have it."""
        return self._look_by_tls() if self._security.tls else self._look_plainly()

    # --- without TLS ------------------------------------------------------------------------------------------------

    def _look_plainly(self) -> Handshake:
        with suppress(OSError), self.plain() as connection:
            requests = ask_requests(connection)
            if requests:
                return Handshake(requests=requests, obstacle=self._log_in(connection, requests))
        if _tried(self._tls_ends_s) is not None:
            text = f"{self._address} speaks TLS, and kafka_tls is false"
            return Handshake(obstacle=Obstacle("tls_expected", text))
        return Handshake(obstacle=self._silent())

    def _speaks_plainly(self) -> bool:
        with self.plain() as connection:
            return bool(ask_requests(connection))

    # --- with TLS ---------------------------------------------------------------------------------------------------

    def _look_by_tls(self) -> Handshake:
        try:
            context = _looking(self._security)
        except (OSError, ssl.SSLError) as error:
            return Handshake(obstacle=_unusable("kafka_cert_file and kafka_key_file", "a pair in PEM", error))
        try:
            with self._safe(context) as safe:
                seen = Handshake(_ends_s(safe))
                return self._looked(safe, seen)
        except OSError as error:
            return Handshake(obstacle=self._no_tls(error))

    def _looked(self, safe: ssl.SSLSocket, seen: Handshake) -> Handshake:
        distrust = self._distrust()
        if distrust is not None:
            return replace(seen, obstacle=distrust)
        try:
            requests = ask_requests(safe)
            return replace(seen, requests=requests, obstacle=self._log_in(safe, requests or {}))
        except OSError as error:  # in TLS 1.3 a broker that refuses our certificate says so with its first answer
            return replace(seen, obstacle=self._unanswered(error))

    def _tls_ends_s(self) -> float:
        with self._safe(_looking(None)) as safe:
            return _ends_s(safe) or 0.0

    def _no_tls(self, error: OSError) -> Obstacle:
        if _tried(self._speaks_plainly):
            text = f"{self._address} speaks no TLS, and kafka_tls is true"
            return Obstacle("tls_not_spoken", text)
        return self._unanswered(error)

    def _distrust(self) -> Obstacle | None:
        """Return why we would not trust the broker; librdkafka says no more than that it does not."""
        file = self._security.ca_file
        try:
            context = ssl.create_default_context(cafile=None if file is None else str(file))
        except (OSError, ssl.SSLError) as error:
            return _unusable("kafka_ca_file", "a readable file in PEM", error, f" ({file})")
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # librdkafka is as lenient
        if self._security.cert_file is not None and self._security.key_file is not None:
            context.load_cert_chain(self._security.cert_file, self._security.key_file)
        try:
            with self._safe(context):
                return None
        except ssl.SSLCertVerificationError as error:
            return _untrusted(self._address, error.verify_message, file is not None)
        except OSError:
            return None

    def _unanswered(self, error: OSError) -> Obstacle:
        """Return why there was no answer: a broker that is slow has refused nothing."""
        if isinstance(error, TimeoutError):
            return self._silent()
        if self._security.cert_file is not None and _is_refusal(error):
            text = f"{self._address} refuses our certificate (kafka_cert_file): {_reason(error)}"
            return Obstacle("own_certificate_refused", text)
        if _is_alert(error):
            text = f"{self._address} asks for a certificate of ours (mutual TLS), and kafka_cert_file is not set"
            return Obstacle("own_certificate_asked", text)
        return Obstacle("kafka_away", f"{self._address} ends the connection: {_reason(error)}")

    # --- how to log in ----------------------------------------------------------------------------------------------

    def _log_in(self, connection: socket.socket, requests: Mapping[int, object]) -> Obstacle | None:
        """Ask how to log in, and compare it with what we would do."""
        if SASL_HANDSHAKE not in requests:
            return None
        own = self._security.mechanism if self._has_login else _NO_MECHANISM
        answer = _tried(lambda: ask_log_in(connection, own))
        if answer is None or own in answer.mechanisms:  # the demo's broker refuses it, and offers it
            return None
        if answer.error == NO_LOG_IN and self._has_login:
            return Obstacle("log_in_not_asked", f"{self._address} takes no log-in, and kafka_user or a token is set")
        if answer.error == NOT_OFFERED:
            offered = ", ".join(answer.mechanisms) or "none"
            if self._has_login:
                text = f"{self._address} takes log-ins by {offered}, and kafka_mechanism is {own}"
                return Obstacle("mechanism_refused", text)
            text = f"{self._address} asks for a log-in ({offered}), and kafka_user is not set"
            return Obstacle("log_in_asked", text)
        return None

    @property
    def _has_login(self) -> bool:
        return self._security.user is not None or self._security.mechanism == "OAUTHBEARER"

    def _silent(self) -> Obstacle:
        return Obstacle("kafka_away", f"{self._address} takes connections, and does not answer as Kafka does")


def _looking(security: KafkaSecurity | None) -> ssl.SSLContext:
    """Return a context that takes any certificate: it is only looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if security is not None and security.cert_file is not None and security.key_file is not None:
        context.load_cert_chain(security.cert_file, security.key_file)
    return context


def _ends_s(safe: ssl.SSLSocket) -> float | None:
    certificate = safe.getpeercert(binary_form=True)
    try:
        return None if certificate is None else ends_s(certificate)
    except (ValueError, IndexError):
        return None


def _is_alert(error: OSError) -> bool:
    return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def _is_refusal(error: OSError) -> bool:
    """Whether the other end refuses what we showed in the handshake: by an alert, or by hanging up right after it."""
    return _is_alert(error) or isinstance(error, (ConnectionError, ssl.SSLEOFError))


def _untrusted(address: str, why: str, has_authority: bool) -> Obstacle:
    text = f"the certificate of {address} can't be trusted: {why}"
    if "expired" in why or "not yet valid" in why:
        return Obstacle("certificate_expired", text)
    if "mismatch" in why:
        return Obstacle("certificate_name", text)
    own = "kafka_ca_file names another authority" if has_authority else "kafka_ca_file is not set"
    return Obstacle("certificate_untrusted", f"{text}; {own}")


def _unusable(setting: str, rule: str, error: OSError, where: str = "") -> Obstacle:
    return Obstacle("log_in_unusable", f"{setting} must be {rule}; got {_reason(error)}{where}")


def _tried(ask: Callable[[], _Answer]) -> _Answer | None:
    try:
        return ask()
    except OSError:
        return None


def _reason(error: Exception) -> str:
    """Return what went wrong in a few words, without numbers and places in OpenSSL's sources."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
