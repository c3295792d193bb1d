"""Why the database would not let us in: what its client says, and where that is too little, a look at the port."""

from __future__ import annotations

import re
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from irregulars.errors import InputError, IrregularsError, ServiceRefused
from irregulars.infra.doctor.checks.facts import Obstacle
from irregulars.sinks.connection import DatabaseSettings

_LOOK_S: Final = 2.0
_UNTRUSTED: Final = re.compile(r"certificate verify failed: ([^(]*[^( ])")


def obstacle_of(error: IrregularsError, reason: str, own: DatabaseSettings) -> Obstacle:
    """Return the case and what was seen of it; `reason` is the error's in few words."""
    if isinstance(error, InputError):
        return Obstacle("clickhouse_unusable", reason)
    if isinstance(error, ServiceRefused):
        return _refusal(reason, own)
    untrusted = _UNTRUSTED.search(reason)
    if untrusted is not None:
        text = f"the certificate of {own.address} can't be trusted: {untrusted[1]}"
        named = "names another authority" if own.ca_file is not None else "is not set"
        signed = f"; clickhouse_ca_file {named}" if "issuer" in text or "self-signed" in text else ""
        return Obstacle("clickhouse_untrusted", text + signed)
    if "WRONG_VERSION_NUMBER" in reason:
        return Obstacle("clickhouse_no_tls", f"{own.address} speaks no TLS, and clickhouse_url is https")
    if own.address.startswith("http://") and _speaks_tls(own):
        return Obstacle("clickhouse_tls", f"{own.address} speaks TLS, and clickhouse_url is http")
    return Obstacle("clickhouse_away", reason)


def _refusal(reason: str, own: DatabaseSettings) -> Obstacle:
    if reason.startswith("database must exist"):
        return Obstacle("database_missing", reason)
    if "Not enough privileges" in reason:  # the same for a database that is there and for one that is not
        text = f"{own.user} may not see database {own.database!r}, or it does not exist ({own.address})"
        return Obstacle("database_hidden", text)
    return Obstacle("clickhouse_refuses", reason)


def _speaks_tls(own: DatabaseSettings) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is only looked at
    parts = urlsplit(own.address)
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 0), _LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except OSError:
        return False
