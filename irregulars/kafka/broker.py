"""Reach the Kafka broker, and report clearly when it can't be reached."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from irregulars.errors import ServiceError, ServiceRefused, ServiceUnavailable
from irregulars.kafka.login_password import current, is_login_refusal, password_of
from irregulars.kafka.oauth_tokens import TokenSource

_POLL_S: Final = 0.05
REFUSALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._SSL,
    }
)
"""Codes of librdkafka with which a broker refuses us, however often we ask."""

_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Codes with which a broker that answers reports that it has no such topic or partition."""

_NO_TOKEN: Final = ("Failed to acquire SASL OAUTHBEARER token", "OAuth token not set")
"""Texts of librdkafka and its Python client, with codes of refusals, where they could not ask for a token."""

REFUSED_S: Final = 2.0
"""Seconds for which a command that asks once tries, where each connection is refused."""

_TRY_S: Final = 1.0  # a refusal shows in the background, while the call itself would wait for its whole time
_PAUSE_S: Final = 0.1


def client_config(
    bootstrap: str, security: Mapping[str, Any], errors: list[KafkaError] | None = None
) -> dict[str, Any]:
    """Return the librdkafka configuration that all our clients share.

    `security`: librdkafka's settings of protocol and credentials, for example ``security.protocol`` and
    ``sasl.password``.
    `errors`: collects what librdkafka reports in the background: a refused log-in only shows there.
    """
    # Its own log would put several lines a second on standard error while a broker is away; we report once.
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **security}
    # A broker that was parted from the others may leave a topic out of its answer once. A client believes until it
    # asks again that there is none, which is five minutes by default: workers fell over it.
    config["topic.metadata.refresh.interval.ms"] = 10_000
    if errors is not None:
        config["error_cb"] = errors.append
    return config


def open_admin(
    bootstrap: str, security: Mapping[str, Any], timeout_s: float = 10.0, refused_s: float = math.inf
) -> tuple[AdminClient, Any]:
    """Return an admin client and the cluster's metadata, which proves that the broker answers and accepts us.

    `refused_s`: for how long to try where nobody listens; without it a broker that is starting is waited for.
    Raises `ServiceUnavailable` if no broker answers within `timeout_s`; `ServiceRefused` if a broker refuses the
    credentials.
    """
    errors: list[KafkaError] = []
    config = client_config(bootstrap, security, errors)
    try:
        admin = AdminClient(current(config))
    except KafkaException as error:
        raise service_error(error.args[0], bootstrap) from error
    begin_s = time.monotonic()
    while True:
        past_s = time.monotonic() - begin_s
        left_s = timeout_s - past_s
        try:
            metadata = admin.list_topics(timeout=max(min(left_s, _TRY_S), 0.1))
        except KafkaException as error:
            admin.poll(_PAUSE_S)  # delivers errors of the background thread
            refusals = [one for one in (*errors, error.args[0]) if is_refusal(one, security)]
            if not refusals and past_s + _TRY_S >= refused_s and is_nobody_there(errors):
                raise service_error(errors[0], bootstrap, refused_s, security) from error
            if refusals or left_s <= _TRY_S:
                # The time-out of the call itself tells least: errors from the background come before it.
                told = (refusals or [one for one in errors if _may_change(one, security)] or [error.args[0]])[0]
                raise service_error(told, bootstrap, timeout_s, security) from error
        else:
            password = password_of(security)
            if password is not None:
                # From here on a refusal may be a password that is being exchanged, which passes.
                password.note_right()
            return admin, metadata


def is_nobody_there(errors: Sequence[KafkaError]) -> bool:
    """Return whether each broker that was tried refused the connection, from the errors in a client's background."""
    # librdkafka sums up that all are down, which it does not while one of them is still to answer
    own = [one.str() for one in errors if one.code() != KafkaError._ALL_BROKERS_DOWN]
    return len(errors) > len(own) > 0 and all("Connection refused" in one for one in own)


def is_refusal(error: KafkaError, security: Mapping[str, Any]) -> bool:
    """Whether a broker refuses us, however often we ask.

    Where the OAuth server is away, librdkafka has no token, or one that has expired: a log-in that fails for that may
    be tried again. So may one with a password from a file that was right before: it is being changed.
    """
    tokens = security.get("oauth_cb")
    lacks_token = error.str().startswith(_NO_TOKEN) or (isinstance(tokens, TokenSource) and tokens.is_missed)
    return error.code() in REFUSALS and not lacks_token and not _may_change(error, security)


def _may_change(error: KafkaError, security: Mapping[str, Any]) -> bool:
    password = password_of(security)
    return password is not None and password.may_change and is_login_refusal(error)


def service_error(
    error: KafkaError,
    bootstrap: str,
    timeout_s: float | None = None,
    security: Mapping[str, Any] = MappingProxyType({}),
    topic: str | None = None,
) -> ServiceError:
    """Return our exception for librdkafka's `error`; the text names the address, never a credential.

    `topic`: that the request was for, if it was for one.
    """
    if is_refusal(error, security):
        return ServiceRefused(
            f"Kafka at {bootstrap} must accept our credentials; got {error.name()}: {error.str()}. "
            "Check user, secret, certificates and access rights (infra/docs/access.md)"
        )
    if _may_change(error, security):
        return ServiceUnavailable(
            f"Kafka at {bootstrap} must accept our login; got {error.name()}: {error.str()}. The password may be "
            "a new one: its file is read again"
        )
    # Of the refusals those without a token are left: `is_refusal` and `_may_change` have had the others.
    if error.code() in REFUSALS:
        return ServiceUnavailable(
            f"Kafka at {bootstrap} must get a token of ours; there is none, or it has expired: {error.name()}: "
            f"{error.str()}. Check that the token endpoint answers (kafka_token_url)"
        )
    if error.code() in _NO_TOPIC:  # the broker answers: its address and TLS are right
        return ServiceUnavailable(
            f"Kafka at {bootstrap} must have {topic or 'each topic that is asked for'}; got {error.name()}: "
            f"{error.str()}. It does not exist, or was deleted and made anew. Start again: the start checks topics"
        )
    within = "" if timeout_s is None else f" within {timeout_s:g} s"
    return ServiceUnavailable(
        f"Kafka at {bootstrap} must answer{within}; got {error.name()}: {error.str()}. "
        "Check the address, that the broker runs, and what it asks for there (TLS, a certificate)"
    )


_ASK_AGAIN_S: Final = 5.0
_PRESENCE_S: Final = 1.0  # how long a broker may take to answer that it is there


class BrokerWatch:
    """Notices that no broker answers a consumer, and that one does again: polling shows neither.

    `note_error` is the consumer's ``error_cb``; `check` is called between polls, by the thread that polls.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap: Final = bootstrap
        self._ask_at_s: float | None = None  # when to ask a broker that may be away; None: it is there
        self.trouble: str | None = None  # None: a broker answers

    def note_error(self, error: KafkaError) -> None:
        """Take an error of the background in."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._ask_at_s is None:
            self._ask_at_s = time.monotonic()

    def check(self, consumer: Consumer) -> bool:
        """Ask whether a broker is there, if none may be; return whether `trouble` has changed."""
        # One connection that fails, as over IPv6 first, is no reason to say that the broker is away; and where no
        # message waits, nothing else tells that it is back.
        if self._ask_at_s is None or time.monotonic() < self._ask_at_s:
            return False
        known = self.trouble
        try:
            consumer.list_topics(timeout=_PRESENCE_S)
        except KafkaException:
            self._ask_at_s = time.monotonic() + _ASK_AGAIN_S
            self.trouble = f"Kafka at {self._bootstrap} does not answer: nothing new is read until it does"
        else:
            self._ask_at_s = self.trouble = None
        return self.trouble != known


@contextmanager
def answering(bootstrap: str, timeout_s: float) -> Iterator[None]:
    """Turn errors of an admin client's answer, awaited for `timeout_s`, into our exceptions.

    Raises `ServiceUnavailable` if the broker does not answer. That at `bootstrap` may, and name another that this
    machine can't reach: then the request is still open when its time is over; `ServiceRefused` if it refuses us.
    """
    try:
        yield
    except KafkaException as error:
        raise service_error(error.args[0], bootstrap, timeout_s) from error
    except TimeoutError as error:
        raise ServiceUnavailable(
            f"Kafka at {bootstrap} must answer within {timeout_s:g} s; got nothing. "
            "Check that this machine reaches the addresses that the brokers name (advertised.listeners)"
        ) from error


def wait_for_none(left: Callable[[], Collection[object]], bootstrap: str, timeout_s: float, what: str) -> None:
    """Ask a broker again until nothing is left that it does not heed yet: it acknowledges a change earlier.

    `left`: asks, and returns the rest. `what`: the broker's duty, for the error.

    Raises `ServiceUnavailable` if something is left after `timeout_s`, and as `answering`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        with answering(bootstrap, timeout_s):
            found = left()
        if not found:
            return
        if time.monotonic() > deadline:
            names = ", ".join(sorted(map(str, found)))
            raise ServiceUnavailable(
                f"Kafka at {bootstrap} must {what} within {timeout_s:g} s; it did not for {names}"
            )
        time.sleep(_POLL_S)
