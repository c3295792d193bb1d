"""Reach the Kafka broker, and say clearly when it can't be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from streams.errors import ServiceError, ServiceRefused, ServiceUnavailable

_REFUSALS: Final = frozenset(
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


def client_config(
    bootstrap: str, security: Mapping[str, Any], errors: list[KafkaError] | None = None
) -> dict[str, Any]:
    """Return the librdkafka configuration that all our clients share.

    Parameters
    ----------
    bootstrap
        ``host:port``, or several with commas.
    security
        librdkafka's settings of protocol and credentials, for example ``security.protocol`` and ``sasl.password``.
    errors
        Collects what librdkafka reports in the background: a refused log-in only shows there.
    """
    # Its own log would put several lines a second on standard error while a broker is away; we report once.
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **security}
    if errors is not None:
        config["error_cb"] = errors.append
    return config


def open_admin(bootstrap: str, security: Mapping[str, Any], timeout_s: float = 10.0) -> tuple[AdminClient, Any]:
    """Return an admin client and the cluster's metadata, which proves that the broker answers and accepts us.

    Raises
    ------
    ServiceUnavailable
        If no broker answers within `timeout_s`.
    ServiceRefused
        If a broker refuses the credentials.
    """
    errors: list[KafkaError] = []
    admin = _make_admin(client_config(bootstrap, security, errors), bootstrap)
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        admin.poll(0)  # delivers what the background thread has seen
        raise service_error(_most_telling(errors, error.args[0]), bootstrap, timeout_s) from error
    return admin, metadata


def service_error(error: KafkaError, bootstrap: str, timeout_s: float | None = None) -> ServiceError:
    """Return our exception for librdkafka's `error`; the text names the address, never a credential."""
    if error.code() in _REFUSALS:
        return ServiceRefused(
            f"Kafka at {bootstrap} must accept our credentials; got {error.name()}: {error.str()}. "
            "Check security.protocol, user name, password and access rights"
        )
    within = "" if timeout_s is None else f" within {timeout_s:g} s"
    return ServiceUnavailable(
        f"Kafka at {bootstrap} must answer{within}; got {error.name()}: {error.str()}. "
        "Check the address, and that the broker runs"
    )


def _make_admin(config: dict[str, Any], bootstrap: str) -> AdminClient:
    try:
        return AdminClient(config)
    except KafkaException as error:
        raise service_error(error.args[0], bootstrap) from error


def _most_telling(errors: list[KafkaError], last: KafkaError) -> KafkaError:
    """A refusal explains a time-out; the time-out itself explains nothing."""
    refusals = [error for error in errors if error.code() in _REFUSALS]
    return (refusals or [last])[0]
