"""librdkafka's security settings, which all our clients take, as Faust and aiokafka want them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from irregulars.errors import InputError, IrregularsError
from irregulars.kafka.oauth_tokens import TokenSource
from irregulars.kafka.security import MECHANISMS

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def aiokafka_security(security: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `security` says as keyword arguments of aiokafka's clients.

    Raises
    ------
    InputError
        If the protocol or mechanism is one that the worker does not speak, or a certificate can't be read.

    >>> aiokafka_security({})
    {'security_protocol': 'PLAINTEXT'}
    """
    protocol = str(security.get("security.protocol", "PLAINTEXT")).upper()
    if protocol not in _PROTOCOLS:
        raise InputError(f"security.protocol must be one of {', '.join(_PROTOCOLS)}; got {protocol!r}")
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl_context"] = _ssl_context(security)
    if protocol.startswith("SASL"):
        found |= _login(security)
    return found


def _login(security: Mapping[str, Any]) -> dict[str, Any]:
    mechanism = str(security.get("sasl.mechanism", security.get("sasl.mechanisms", "PLAIN"))).upper()
    if mechanism not in MECHANISMS:
        raise InputError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}; got {mechanism!r}")
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": _Tokens(security["oauth_cb"])}
    for name in ("sasl.username", "sasl.password"):
        if not security.get(name):
            raise InputError(f"{name} must be given with security.protocol SASL_…; got none")
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": security["sasl.username"],
        "sasl_plain_password": security["sasl.password"],
    }


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka ships no types
    """Gives aiokafka the tokens of `source`; to fetch one may take seconds, so it is done in a thread."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def token(self) -> str:
        """Return a token that is valid now; raises `KafkaConnectionError` where there is none.

        Of other errors aiokafka takes none for a broker that is away: they would end the tasks that it retries in.
        """
        try:
            return (await asyncio.get_running_loop().run_in_executor(None, self._source))[0]
        except IrregularsError as error:
            raise KafkaConnectionError(str(error)) from error


def _ssl_context(security: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.get("ssl.ca.location"))
        if "ssl.certificate.location" in security:
            context.load_cert_chain(
                security["ssl.certificate.location"],
                security.get("ssl.key.location"),
                security.get("ssl.key.password"),
            )
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"certificates must be readable files in PEM; got {error} (ssl.… settings)") from error
    return context
