"""The parts of a console, made from the settings of the process."""

from __future__ import annotations

from irregulars.errors import InputError
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.configuration.wiring import database_settings, kafka_security
from irregulars.infra.console.access.policy import AccessPolicy, make_policy
from irregulars.infra.console.serving.app import ConsoleSettings
from irregulars.infra.console.serving.server import Certificate
from irregulars.infra.console.topics.kafka_address import KafkaAddress


def address_of(settings: Settings) -> tuple[str, int]:
    """Return host and port; raises `InputError` for a port that none is."""
    host, sign, port = settings.console_listen.rpartition(":")
    if not sign or int(port) >= 1 << 16:
        raise InputError(f"console_listen must be host:port; got {settings.console_listen!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the certificate; None: we speak plain HTTP. Raises `InputError` where one of two files is missing."""
    certificate, key = settings.console_certificate_file, settings.console_key_file
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("console_certificate_file and console_key_file must be set together; got one of them")
    return Certificate(certificate, key)


def policy_of(settings: Settings, address: tuple[str, int]) -> AccessPolicy:
    """Return who gets in; raises `InputError` where that would not be safe."""
    return make_policy(
        address, token_file=settings.console_token_file, user_header=settings.console_user_header,
        proxies=settings.console_proxies, proxy_secret_file=settings.console_proxy_secret_file,
        names=settings.console_hosts,
        is_encrypted=settings.console_certificate_file is not None, takes_plain=settings.console_plain_http,
    )  # fmt: skip


def console_settings_of(settings: Settings, policy: AccessPolicy, *, reads_kafka: bool = True) -> ConsoleSettings:
    """Return what the application needs. Raises `InputError` where a file of a secret can't be read."""
    security = kafka_security(settings, is_asking=False) if reads_kafka else {}
    kafka = KafkaAddress(settings.kafka_bootstrap, settings.topics(), security) if reads_kafka else None
    database = database_settings(settings, is_reading=True)
    return ConsoleSettings(database, policy, kafka, settings.console_feedback, settings.silence_s)
